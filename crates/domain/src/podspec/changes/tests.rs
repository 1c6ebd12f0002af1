//! Later changes: what reaches a copy, what stays as the physical cluster has it.
//! They must not know how the copy remembers what was pushed.

use proptest::prelude::*;

use super::super::render_copy;
use super::super::tests::frame;
use super::*;

const SIDECAR: &str = "injected";

fn pod() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "team1", "uid": "u1",
            "labels": { "app": "web", "tier": "front" },
            "annotations": { "note": "a", "tapestry.io/forged": "x" },
        },
        "spec": {
            "containers": [{ "name": "app", "image": "app:1" }, { "name": "log", "image": "log:1" }],
            "initContainers": [{ "name": "init", "image": "init:1" }],
            "tolerations": [
                { "key": "gpu", "operator": "Exists" },
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 },
            ],
        },
    })
}

fn copy(vpod: &Value) -> Value {
    let mut copy = render_copy(&vpod.to_string(), &frame()).unwrap();
    copy["metadata"]["annotations"][keys::VIRTUAL_POD_GENERATION] = json!("2");
    copy
}

fn changes(vpod: &Value, copy: &Value) -> Changes {
    render_changes(&vpod.to_string(), &copy.to_string(), Some(2), &frame()).unwrap()
}

/// Applies a strategic merge patch, as far as ours need it.
fn patch(into: &mut Value, from: &Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                if value.is_null() {
                    into.remove(key);
                } else {
                    patch(into.entry(key.as_str()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(into), Value::Array(from)) if from.iter().all(|entry| !entry["name"].is_null()) => {
            for entry in from {
                match into.iter_mut().find(|there| there["name"] == entry["name"]) {
                    Some(there) => patch(there, entry),
                    None => into.push(entry.clone()),
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}

/// Pushes until nothing is left; returns how many calls that took.
fn push(vpod: &Value, copy: &mut Value) -> usize {
    for calls in 0.. {
        assert!(calls < 6, "it does not end: {:?}", changes(vpod, copy));
        let Changes { metadata, spec, ephemeral, marks } = changes(vpod, copy);
        match metadata.or(spec).or(ephemeral).or(marks) {
            Some(change) => patch(copy, &change),
            None => return calls,
        }
    }
    unreachable!()
}

fn marks(vpod: &Value) -> Marks {
    let pairs = |field: &str| {
        let map = vpod["metadata"][field].as_object().into_iter().flatten();
        map.map(|(key, value)| (key.as_str(), value.as_str().unwrap())).collect::<Vec<_>>()
    };
    let spec = mark_spec(&vpod["spec"].to_string()).unwrap();
    Marks { metadata: mark_metadata(pairs("labels"), pairs("annotations")), spec }
}

fn said(copy: &Value) -> Option<Marks> {
    Marks::parse(copy["metadata"]["annotations"][keys::VIRTUAL_POD_MARKS].as_str()?)
}

#[test]
fn a_copy_that_was_just_created_needs_no_push_and_says_what_its_pod_does() {
    let copy = copy(&pod());
    assert_eq!(changes(&pod(), &copy), Changes::default());
    assert_eq!(said(&copy), Some(marks(&pod())));
}

#[test]
fn law_03_a_push_holds_exactly_what_the_virtual_pod_changed() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    vpod["metadata"]["labels"] = json!({ "app": "api", "new": "1" });
    vpod["metadata"]["annotations"] = json!({ "note": "a", "more": "b" });
    vpod["spec"]["containers"][1]["image"] = json!("log:2");
    vpod["spec"]["activeDeadlineSeconds"] = json!(600);
    let Changes { metadata, spec, ephemeral, .. } = changes(&vpod, &there);
    let metadata = metadata.unwrap();
    assert_eq!(metadata["metadata"]["labels"], json!({ "app": "api", "new": "1", "tier": null }));
    let annotations: Vec<_> = metadata["metadata"]["annotations"].as_object().unwrap().keys().collect();
    assert_eq!(annotations, ["more", keys::CARRIED, keys::VIRTUAL_POD_MARKS]);
    let spec = spec.unwrap();
    assert_eq!(
        spec["spec"],
        json!({ "containers": [{ "name": "log", "image": "log:2" }], "activeDeadlineSeconds": 600 })
    );
    assert_eq!(spec["metadata"]["annotations"][keys::VIRTUAL_POD_GENERATION], "2");
    assert_eq!(ephemeral, None);
    assert_eq!(push(&vpod, &mut there), 2);
    assert_eq!(said(&there), Some(marks(&vpod)));
    assert_eq!(there["metadata"]["labels"]["tapestry.io/managed-by"], "tapestry");
}

#[test]
fn what_the_physical_cluster_rewrote_or_added_stays_while_the_virtual_pod_changes_something_else() {
    let mut there = copy(&pod());
    there["spec"]["containers"][0]["image"] = json!("mirror/app:1");
    there["spec"]["containers"].as_array_mut().unwrap().push(json!({ "name": SIDECAR, "image": "mesh" }));
    there["spec"]["tolerations"].as_array_mut().unwrap().push(json!({ "key": "theirs", "operator": "Exists" }));
    there["metadata"]["labels"]["tier"] = json!("theirs");
    there["metadata"]["labels"]["owner"] = json!("theirs");
    there["metadata"]["annotations"]["note"] = json!("theirs");
    assert_eq!(push(&pod(), &mut there.clone()), 0, "nothing is repaired");

    let mut vpod = pod();
    vpod["metadata"]["labels"]["app"] = json!("api");
    vpod["metadata"]["annotations"]["more"] = json!("b");
    vpod["spec"]["initContainers"][0]["image"] = json!("init:2");
    vpod["spec"]["tolerations"].as_array_mut().unwrap().push(json!({ "key": "spot", "operator": "Exists" }));
    let mut wanted = there.clone();
    wanted["metadata"]["labels"]["app"] = json!("api");
    wanted["metadata"]["annotations"]["more"] = json!("b");
    wanted["spec"]["initContainers"][0]["image"] = json!("init:2");
    wanted["spec"]["tolerations"].as_array_mut().unwrap().push(json!({ "key": "spot", "operator": "Exists" }));
    push(&vpod, &mut there);
    assert_eq!(there["spec"], wanted["spec"]);
    assert_eq!(there["metadata"]["labels"], wanted["metadata"]["labels"]);
    assert_eq!(there["metadata"]["annotations"]["note"], "theirs");
    assert_eq!(there["metadata"]["annotations"]["more"], "b");
}

#[test]
fn a_tenants_limit_on_a_node_in_trouble_is_not_pushed_and_other_seconds_are() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    vpod["spec"]["tolerations"][1]["tolerationSeconds"] = json!(10);
    assert_eq!(changes(&vpod, &there).spec, None);
    vpod["spec"]["tolerations"][0]["tolerationSeconds"] = json!(10);
    let before = there["spec"]["tolerations"].clone();
    push(&vpod, &mut there);
    let mut after = before;
    after[2]["tolerationSeconds"] = json!(10);
    assert_eq!(there["spec"]["tolerations"], after);
}

#[test]
fn a_deadline_that_the_physical_cluster_made_shorter_is_not_lengthened() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    there["spec"]["activeDeadlineSeconds"] = json!(60);
    vpod["spec"]["activeDeadlineSeconds"] = json!(600);
    assert_eq!(push(&vpod, &mut there), 1, "only the mark");
    assert_eq!(there["spec"]["activeDeadlineSeconds"], 60);
    vpod["spec"]["activeDeadlineSeconds"] = json!(30);
    push(&vpod, &mut there);
    assert_eq!(there["spec"]["activeDeadlineSeconds"], 30);
}

#[test]
fn hostile_annotations_and_the_autoscalers_are_never_pushed() {
    let (mut vpod, there) = (pod(), copy(&pod()));
    for key in ["k8s.v1.cni.cncf.io/networks", "kubernetes.io/config.source", SAFE_TO_EVICT, "tapestry.io/lend"] {
        vpod["metadata"]["annotations"][key] = json!("false");
        vpod["metadata"]["labels"]["tapestry.io/origin"] = json!("forged");
    }
    assert_eq!(marks(&vpod), marks(&pod()));
    assert_eq!(changes(&vpod, &there).metadata, None);
}

#[test]
fn ephemeral_containers_are_added_through_their_own_subresource_and_then_marked() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    let from = json!([{ "secretRef": { "name": "login" } }]);
    vpod["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "image": "busybox", "envFrom": from }]);
    there["spec"]["ephemeralContainers"] = json!([{ "name": "theirs", "image": "owners-tool" }]);
    let Changes { metadata, spec, ephemeral, marks: None } = changes(&vpod, &there) else { panic!("marked too early") };
    assert_eq!((metadata, spec), (None, None));
    let ephemeral = ephemeral.unwrap();
    let added = &ephemeral["spec"]["ephemeralContainers"];
    assert_eq!(added.as_array().map(Vec::len), Some(1));
    assert_eq!(added[0]["envFrom"][0]["secretRef"]["name"], "mapped-secret-login");
    assert_eq!(ephemeral.get("metadata"), None, "the subresource takes nothing else");
    assert_eq!(push(&vpod, &mut there), 2);
    assert_eq!(said(&there), Some(marks(&vpod)));
    assert_eq!(there["spec"]["ephemeralContainers"].as_array().map(Vec::len), Some(2));
}

#[test]
fn a_part_that_is_not_pushed_keeps_the_spec_from_being_marked_as_pushed() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    vpod["spec"]["containers"][0]["image"] = json!("app:2");
    vpod["spec"]["ephemeralContainers"] = json!([{ "name": "debug", "image": "busybox" }]);
    let spec = changes(&vpod, &there).spec.unwrap();
    assert_eq!(spec["metadata"]["annotations"].get(keys::VIRTUAL_POD_GENERATION), None);
    patch(&mut there, &spec);
    assert_ne!(said(&there).unwrap().spec, marks(&vpod).spec);
    assert_eq!(push(&vpod, &mut there), 2);
    assert_eq!(said(&there), Some(marks(&vpod)));
}

#[test]
fn a_copy_that_does_not_say_what_was_pushed_is_taken_as_it_is() {
    let (mut vpod, mut there) = (pod(), copy(&pod()));
    let annotations = there["metadata"]["annotations"].as_object_mut().unwrap();
    annotations.remove(keys::CARRIED);
    annotations.remove(keys::VIRTUAL_POD_MARKS);
    there["spec"]["containers"][0]["image"] = json!("mirror/app:1");
    vpod["metadata"]["labels"]["app"] = json!("api");
    let before = there.clone();
    assert_eq!(push(&vpod, &mut there), 1);
    assert_eq!(there["spec"], before["spec"]);
    assert_eq!(there["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(said(&there), Some(marks(&vpod)));
}

#[test]
fn more_annotations_than_can_be_remembered_are_compared_with_the_copy() {
    let mut vpod = pod();
    for number in 0..200 {
        vpod["metadata"]["annotations"][format!("example.com/{number:0>60}")] = json!("x");
    }
    let mut there = copy(&vpod);
    assert!(there["metadata"]["annotations"][keys::CARRIED].as_str().unwrap().len() < 2 * MOST_KEYS);
    vpod["metadata"]["annotations"]["note"] = json!("b");
    push(&vpod, &mut there);
    assert_eq!(there["metadata"]["annotations"]["note"], "b");
    assert_eq!(said(&there), Some(marks(&vpod)));
}

#[test]
fn marks_are_read_as_they_are_written_and_nothing_else_is() {
    let marks = Marks { metadata: 1, spec: u64::MAX };
    assert_eq!(Marks::parse(&marks.to_string()), Some(marks));
    for text in ["", "1", "x.y", "1.", "1.2.3"] {
        assert_eq!(Marks::parse(text), None, "{text}");
    }
}

fn words() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-c]", "[x-z]", 0..4).prop_map(|map| json!(map))
}

/// The pod with everything changed that can be.
fn changed() -> impl Strategy<Value = Value> {
    let deadline = prop::option::of(1..9);
    let debug = prop::collection::btree_set("d[0-2]", 0..3);
    let tolerations = prop::collection::btree_map("[t-v]", prop::option::of(1..3), 0..3);
    (words(), words(), "[0-2]", "[0-2]", deadline, debug, tolerations).prop_map(
        |(labels, annotations, app, init, deadline, debug, tolerations)| {
            let mut vpod = pod();
            vpod["metadata"]["labels"] = labels;
            vpod["metadata"]["annotations"] = annotations;
            vpod["spec"]["containers"][0]["image"] = app.into();
            vpod["spec"]["initContainers"][0]["image"] = init.into();
            vpod["spec"]["activeDeadlineSeconds"] = json!(deadline);
            let debug = debug.into_iter().map(|name| json!({ "name": name, "image": "busybox" }));
            vpod["spec"]["ephemeralContainers"] = debug.collect();
            for (key, seconds) in tolerations {
                let toleration = json!({ "key": key, "effect": "NoExecute", "tolerationSeconds": seconds });
                vpod["spec"]["tolerations"].as_array_mut().unwrap().push(toleration);
            }
            vpod
        },
    )
}

proptest! {
    #[test]
    fn a_push_ends_carries_what_the_pod_says_and_pushing_again_does_nothing(one in changed(), two in changed()) {
        let mut there = copy(&one);
        push(&one, &mut there);
        push(&two, &mut there);
        prop_assert_eq!(said(&there), Some(marks(&two)));
        prop_assert_eq!(push(&two, &mut there.clone()), 0);
        for field in ["labels", "annotations"] {
            let theirs = |key: &String| !key.starts_with("tapestry.io/") && key != SAFE_TO_EVICT;
            let carried: Map<String, Value> = there["metadata"][field].as_object().unwrap().iter()
                .filter(|(key, _)| theirs(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
            prop_assert_eq!(&Value::Object(carried), &two["metadata"][field]);
        }
        for (list, at) in [("containers", 0), ("initContainers", 0)] {
            prop_assert_eq!(&there["spec"][list][at]["image"], &two["spec"][list][at]["image"]);
        }
    }

    #[test]
    fn marks_differ_exactly_where_something_carried_differs(one in changed(), two in changed()) {
        let metadata = |pod: &Value| (pod["metadata"]["labels"].clone(), pod["metadata"]["annotations"].clone());
        prop_assert_eq!(marks(&one).metadata == marks(&two).metadata, metadata(&one) == metadata(&two));
        prop_assert_eq!(marks(&one).spec == marks(&two).spec, one["spec"] == two["spec"]);
    }
}
