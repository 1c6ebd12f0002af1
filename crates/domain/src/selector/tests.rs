//! Tests of node selectors: hand-made cases and agreement with Kubernetes' own code.
//! They must not know how requirements are kept.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::*;

fn selector(json: &str) -> Selector {
    Selector::parse(json).unwrap()
}

fn expression(expression: &str) -> Selector {
    selector(&format!(r#"{{"nodeSelectorTerms":[{{"matchExpressions":[{expression}]}}]}}"#))
}

fn field(field: &str) -> Selector {
    selector(&format!(r#"{{"nodeSelectorTerms":[{{"matchFields":[{field}]}}]}}"#))
}

fn means(selector: &Selector, labels: &[(&str, &str)], name: &str) -> bool {
    let labels: BTreeMap<&str, &str> = labels.iter().copied().collect();
    selector.matches(|key| labels.get(key).copied(), name)
}

/// Vectors written by `vectors/selector.go`, which links component-helpers.
#[test]
fn selectors_mean_the_nodes_they_mean_in_kubernetes() {
    #[derive(Deserialize)]
    struct Vector {
        selector: Selector,
        name: String,
        labels: BTreeMap<String, String>,
        matches: bool,
        valid: bool,
    }
    for line in include_str!("../../vectors/selector.jsonl").lines() {
        let Vector { selector, name, labels, matches, valid } = serde_json::from_str(line).unwrap();
        assert_eq!(selector.matches(|key| labels.get(key).map(String::as_str), &name), matches, "{line}");
        assert_eq!(selector.validate().is_ok(), valid, "{line}: {:?}", selector.validate());
    }
}

#[test]
fn no_selector_and_no_terms_mean_every_node() {
    let absent: Option<Selector> = serde_json::from_str("null").unwrap();
    for every in [absent.unwrap_or_default(), selector("{}"), selector(r#"{"nodeSelectorTerms":null}"#)] {
        assert!(every.is_empty() && means(&every, &[], "n1"));
    }
}

#[test]
fn a_term_without_requirements_means_no_node() {
    let nothing = selector(r#"{"nodeSelectorTerms":[{},{"matchExpressions":[],"matchFields":null}]}"#);
    assert!(!nothing.is_empty() && !means(&nothing, &[], "n1"));
    assert_eq!(nothing.validate(), Ok(()));
}

#[test]
fn absent_labels_satisfy_only_the_negative_operators() {
    for (operator, values, holds) in [
        ("In", r#"["x"]"#, false),
        ("NotIn", r#"["x"]"#, true),
        ("Exists", "[]", false),
        ("DoesNotExist", "null", true),
        ("Gt", r#"["1"]"#, false),
        ("Lt", r#"["1"]"#, false),
    ] {
        let one = expression(&format!(r#"{{"key":"a","operator":"{operator}","values":{values}}}"#));
        assert_eq!(means(&one, &[("b", "x")], "n1"), holds, "{operator}");
    }
}

#[test]
fn greater_and_less_compare_integers() {
    let more = expression(r#"{"key":"a","operator":"Gt","values":["9"]}"#);
    assert!(
        means(&more, &[("a", "10")], "n") && !means(&more, &[("a", "9")], "n") && !means(&more, &[("a", "x")], "n")
    );
    let less = expression(r#"{"key":"a","operator":"Lt","values":["9"]}"#);
    assert!(means(&less, &[("a", "-10")], "n") && !means(&less, &[("a", "9")], "n"));
}

#[test]
fn all_requirements_of_a_term_and_any_term_of_a_selector() {
    let either = selector(
        r#"{"nodeSelectorTerms":[
            {"matchExpressions":[{"key":"a","operator":"Exists"},{"key":"b","operator":"Exists"}]},
            {"matchExpressions":[{"key":"a","operator":"Exists"}],"matchFields":[{"key":"metadata.name","operator":"In","values":["n1"]}]}]}"#,
    );
    assert!(means(&either, &[("a", ""), ("b", "")], "n2"));
    assert!(means(&either, &[("a", "")], "n1"));
    assert!(!means(&either, &[("a", "")], "n2"));
}

#[test]
fn only_a_single_node_name_can_be_matched_as_a_field() {
    assert!(means(&field(r#"{"key":"metadata.name","operator":"In","values":["n1"]}"#), &[], "n1"));
    assert!(means(&field(r#"{"key":"metadata.name","operator":"NotIn","values":["n1"]}"#), &[], "n2"));
    for bad in [
        r#"{"key":"metadata.name","operator":"In","values":["n1","n2"]}"#,
        r#"{"key":"metadata.name","operator":"Exists"}"#,
        r#"{"key":"metadata.uid","operator":"NotIn","values":["u"]}"#,
    ] {
        assert!(!means(&field(bad), &[], "n1"), "{bad}");
        assert!(field(bad).validate().is_err(), "{bad}");
    }
}

#[test]
fn a_malformed_requirement_spoils_its_term_only_and_says_where() {
    let half = selector(
        r#"{"nodeSelectorTerms":[
            {"matchExpressions":[{"key":"a","operator":"Exists"}]},
            {"matchExpressions":[{"key":"b","operator":"DoesNotExist"},{"key":"a","operator":"Equals","values":["x"]}]}]}"#,
    );
    assert!(means(&half, &[("a", "")], "n") && !means(&half, &[], "n"));
    let error = half.validate().unwrap_err();
    assert_eq!(
        error.to_string(),
        "nodeSelectorTerms[1].matchExpressions[1]: operator `Equals` is not one of In, NotIn, Exists, DoesNotExist, Gt, Lt"
    );
    assert_eq!(error.reason(), "InvalidNodeSelector");
}
