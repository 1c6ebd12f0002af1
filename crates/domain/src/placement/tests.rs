//! Tests of placement: hand-made cases and agreement with Kubernetes' own code.
//! They must use only the public function.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;

const NODE: &str = "vnode-a-1";

fn shape(spec: &str) -> PlacementShape<'_> {
    serde_json::from_str(spec).unwrap()
}

/// On a node of this name with these labels and taints (`key=value:effect`).
fn judge(spec: &str, labels: &[(&str, &str)], taints: &[&str]) -> Result<(), Misplaced> {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    let taints = taints.iter().map(|text| taint(text));
    placed(&shape(spec), |key| labels.get(key).copied(), NODE, taints)
}

fn taint(text: &str) -> TaintRef<'_> {
    let (rest, effect) = text.split_once(':').unwrap();
    let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
    TaintRef { key, value, effect }
}

fn tolerates_text(toleration: &str, against: &str) -> bool {
    let toleration: Toleration<'_> = serde_json::from_str(toleration).unwrap();
    tolerates(&[toleration], &taint(against))
}

fn required(selector: &str) -> String {
    format!(r#"{{"affinity":{{"nodeAffinity":{{"requiredDuringSchedulingIgnoredDuringExecution":{selector}}}}}}}"#)
}

/// Vectors written by `vectors/placement.go`, which links component-helpers.
#[test]
fn pods_are_placed_as_in_kubernetes() {
    #[derive(Deserialize)]
    struct Taint {
        key: String,
        #[serde(default)]
        value: String,
        effect: String,
    }
    #[derive(Deserialize)]
    struct Vector<'a> {
        #[serde(borrow)]
        spec: &'a RawValue,
        name: String,
        labels: BTreeMap<String, String>,
        taints: Vec<Taint>,
        matches: bool,
        /// The first taint that the pod does not tolerate.
        untolerated: Option<Taint>,
    }
    let mut lines = 0;
    for line in include_str!("../../vectors/placement.jsonl").lines() {
        let vector: Vector<'_> = serde_json::from_str(line).unwrap();
        let label = |key: &str| vector.labels.get(key).map(String::as_str);
        let taints = vector.taints.iter().map(|Taint { key, value, effect }| TaintRef { key, value, effect });
        let expected = match vector.untolerated {
            _ if !vector.matches => None,
            None => Some(Ok(())),
            Some(Taint { key, value, effect }) => Some(Err(Misplaced::Taint { key, value, effect })),
        };
        let answer = placed(&shape(vector.spec.get()), label, &vector.name, taints);
        match expected {
            Some(expected) => assert_eq!(answer, expected, "{line}"),
            None => assert!(matches!(answer, Err(Misplaced::Selector | Misplaced::Affinity)), "{line}"),
        }
        lines += 1;
    }
    assert!(lines >= 200);
}

#[test]
fn a_pod_without_requirements_may_be_on_any_node_without_taints() {
    for spec in
        ["{}", r#"{"nodeSelector":null,"affinity":null,"tolerations":null}"#, r#"{"affinity":{"podAffinity":{}}}"#]
    {
        assert!(shape(spec).is_empty(), "{spec}");
        assert_eq!(judge(spec, &[], &[]), Ok(()));
        assert!(judge(spec, &[], &["k:NoSchedule"]).is_err());
    }
}

#[test]
fn a_pod_with_requirements_is_kept() {
    let selector = required(r#"{"nodeSelectorTerms":[]}"#);
    for spec in [r#"{"nodeSelector":{"a":"b"}}"#, r#"{"tolerations":[{"operator":"Exists"}]}"#, &selector] {
        assert!(!shape(spec).is_empty(), "{spec}");
    }
}

#[test]
fn every_label_of_the_node_selector_must_be_there() {
    let spec = r#"{"nodeSelector":{"zone":"a","disk":""}}"#;
    assert_eq!(judge(spec, &[("zone", "a"), ("disk", ""), ("more", "x")], &[]), Ok(()));
    for labels in [&[("zone", "a")][..], &[("zone", "b"), ("disk", "")], &[]] {
        assert_eq!(judge(spec, labels, &[]), Err(Misplaced::Selector), "{labels:?}");
    }
}

#[test]
fn required_affinity_matches_labels_and_names() {
    let spec = required(
        r#"{"nodeSelectorTerms":[
            {"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]},
            {"matchFields":[{"key":"metadata.name","operator":"In","values":["vnode-a-1"]}]}]}"#,
    );
    assert_eq!(judge(&spec, &[], &[]), Ok(()));
    let elsewhere = |labels: &[(&'static str, &'static str)]| {
        let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
        placed(&shape(&spec), |key| labels.get(key).copied(), "other", std::iter::empty())
    };
    assert_eq!(elsewhere(&[("zone", "a")]), Ok(()));
    assert_eq!(elsewhere(&[("zone", "b")]), Err(Misplaced::Affinity));
}

#[test]
fn an_affinity_that_is_empty_or_cannot_be_parsed_matches_no_node() {
    for selector in [
        "{}",
        r#"{"nodeSelectorTerms":[]}"#,
        r#"{"nodeSelectorTerms":[{}]}"#,
        r#"{"nodeSelectorTerms":[{"matchExpressions":[{"key":"a","operator":"Near","values":["b"]}]}]}"#,
        r#"{"nodeSelectorTerms":[{"matchExpressions":[{"key":5}]}]}"#,
        r#"{"nodeSelectorTerms":"all"}"#,
        "7",
    ] {
        assert_eq!(judge(&required(selector), &[("a", "b")], &[]), Err(Misplaced::Affinity), "{selector}");
    }
    assert_eq!(judge(&required("null"), &[], &[]), Ok(()));
}

#[test]
fn preferences_do_not_forbid() {
    let spec = r#"{"affinity":{"nodeAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[
        {"weight":1,"preference":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}]}}}"#;
    assert_eq!(judge(spec, &[], &["k=v:PreferNoSchedule"]), Ok(()));
}

#[test]
fn the_first_taint_that_is_not_tolerated_is_named() {
    let spec = r#"{"tolerations":[{"key":"a","operator":"Exists"}]}"#;
    let taints = ["p:PreferNoSchedule", "a=1:NoExecute", "b=2:NoExecute", "c:NoSchedule"];
    let misplaced = judge(spec, &[], &taints).unwrap_err();
    assert_eq!(
        misplaced.to_string(),
        "the pod does not tolerate the node's taint b=2:NoExecute; add a toleration for it"
    );
    let without_value = judge("{}", &[], &["c:NoSchedule"]).unwrap_err();
    assert!(without_value.to_string().contains("taint c:NoSchedule;"));
}

#[test]
fn a_toleration_tolerates_the_same_taints_as_in_kubernetes() {
    for (toleration, against, expected) in [
        (r#"{"key":"k","operator":"Exists"}"#, "k=v:NoExecute", true),
        (r#"{"key":"k","operator":"Exists"}"#, "other=v:NoExecute", false),
        (r#"{"operator":"Exists"}"#, "k=v:NoSchedule", true),
        (r#"{"operator":"Exists","effect":"NoExecute"}"#, "k=v:NoSchedule", false),
        (r#"{"key":"k","value":"v"}"#, "k=v:NoSchedule", true),
        (r#"{"key":"k","value":"v","operator":""}"#, "k=v:NoSchedule", true),
        (r#"{"key":"k","value":"v","operator":"Equal","effect":"NoSchedule"}"#, "k=v:NoSchedule", true),
        (r#"{"key":"k","value":"v","effect":""}"#, "k=v:NoExecute", true),
        (r#"{"key":"k","value":"w"}"#, "k=v:NoSchedule", false),
        (r#"{"key":"k"}"#, "k:NoSchedule", true),
        (r#"{"key":"k"}"#, "k=v:NoSchedule", false),
        (r#"{"key":"k","operator":"Matches","value":"v"}"#, "k=v:NoSchedule", false),
        (r#"{"key":"k","operator":"Exists","effect":"NoAnything"}"#, "k=v:NoSchedule", false),
        (r#"{"key":null,"operator":null,"value":null,"effect":null}"#, "k:NoSchedule", true),
    ] {
        assert_eq!(tolerates_text(toleration, against), expected, "{toleration} {against}");
    }
}

#[test]
fn numbers_are_compared_only_when_both_are_plainly_written() {
    for (operator, bound, value, expected) in [
        ("Lt", "100", "99", true),
        ("Lt", "100", "100", false),
        ("Gt", "-5", "0", true),
        ("Gt", "-5", "-6", false),
        ("Gt", "1", "", false),
        ("Gt", "1", "007", false),
        ("Lt", "+9", "1", false),
        ("Lt", "0", "-0", false),
        ("Gt", "1", "99999999999999999999", false),
    ] {
        let toleration = format!(r#"{{"key":"k","operator":"{operator}","value":"{bound}"}}"#);
        assert_eq!(
            tolerates_text(&toleration, &format!("k={value}:NoSchedule")),
            expected,
            "{operator} {bound} {value}"
        );
    }
}

#[test]
fn only_a_toleration_of_exactly_this_key_spares_a_pod_at_the_end_of_a_window() {
    let names = |tolerations: &str| {
        let tolerations: Vec<Toleration<'_>> = serde_json::from_str(tolerations).unwrap();
        tolerates_exactly(&tolerations, "tapestry.io/out-of-time-windows")
    };
    assert!(names(r#"[{"key":"a"},{"key":"tapestry.io/out-of-time-windows","operator":"Exists"}]"#));
    assert!(!names(r#"[{"operator":"Exists"},{"key":"tapestry.io/vnode","operator":"Exists"}]"#));
    assert!(!names("[]"));
    let all: Vec<Toleration<'_>> = serde_json::from_str(r#"[{"operator":"Exists"}]"#).unwrap();
    assert!(!tolerates_exactly(&all, ""));
}

#[test]
fn a_shape_outlives_its_json() {
    let kept: PlacementShape<'static> = {
        let json = String::from(r#"{"nodeSelector":{"a":"b"},"tolerations":[{"key":"k","value":"v"}]}"#);
        let borrowed = shape(&json);
        assert_eq!(borrowed.clone().into_owned(), borrowed);
        borrowed.into_owned()
    };
    assert!(tolerates(&kept.tolerations, &taint("k=v:NoSchedule")));
    assert!(size_of::<PlacementShape<'_>>() <= 64);
}
