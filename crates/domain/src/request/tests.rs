//! Tests of what a pod asks for: hand-made cases and agreement with Kubernetes' own code.
//! They must not read more of a pod than the shape does.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::*;

fn asked(pod: &str) -> Resources {
    serde_json::from_str::<PodShape<'_>>(pod).unwrap().request()
}

fn resources(json: &str) -> Resources {
    serde_json::from_str(json).unwrap()
}

/// Vectors written by `vectors/request.go`, which links component-helpers.
#[test]
fn requests_are_counted_as_in_kubernetes() {
    #[derive(Deserialize)]
    struct Vector<'a> {
        #[serde(borrow)]
        pod: &'a RawValue,
        request: Resources,
    }
    for line in include_str!("../../vectors/request.jsonl").lines() {
        let vector: Vector<'_> = serde_json::from_str(line).unwrap();
        assert_eq!(asked(vector.pod.get()), vector.request, "{}", vector.pod);
    }
}

#[test]
fn containers_add_up() {
    let pod = r#"{"spec":{"containers":[
        {"name":"a","resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"cpu":"9"}}},
        {"name":"b","resources":{"requests":{"cpu":"1","nvidia.com/gpu":"1"}}},
        {"name":"c"}]}}"#;
    assert_eq!(asked(pod), resources(r#"{"cpu":"1100m","memory":"64Mi","nvidia.com/gpu":"1"}"#));
}

#[test]
fn an_init_container_counts_only_where_it_needs_more_than_the_rest() {
    let pod = r#"{"spec":{
        "containers":[{"name":"a","resources":{"requests":{"cpu":"1","memory":"1Gi"}}}],
        "initContainers":[
            {"name":"i","resources":{"requests":{"cpu":"3","memory":"512Mi"}}},
            {"name":"j","resources":{"requests":{"cpu":"2"}}}]}}"#;
    assert_eq!(asked(pod), resources(r#"{"cpu":"3","memory":"1Gi"}"#));
}

#[test]
fn a_sidecar_counts_beside_the_containers_and_beside_later_init_containers() {
    let sidecar = r#"{"name":"s","restartPolicy":"Always","resources":{"requests":{"cpu":"1"}}}"#;
    let init = r#"{"name":"i","resources":{"requests":{"cpu":"4"}}}"#;
    let pod = |inits: &str| {
        format!(
            r#"{{"spec":{{"containers":[{{"name":"a","resources":{{"requests":{{"cpu":"2"}}}}}}],"initContainers":[{inits}]}}}}"#
        )
    };
    // Sidecar first: 1 + 4 while starting, 1 + 2 after. Sidecar last: 4 while starting.
    assert_eq!(asked(&pod(&format!("{sidecar},{init}"))), resources(r#"{"cpu":"5"}"#));
    assert_eq!(asked(&pod(&format!("{init},{sidecar}"))), resources(r#"{"cpu":"4"}"#));
    assert_eq!(asked(&pod(sidecar)), resources(r#"{"cpu":"3"}"#));
}

#[test]
fn pod_level_requests_replace_the_sum_and_overhead_comes_on_top() {
    let pod = r#"{"spec":{
        "containers":[{"name":"a","resources":{"requests":{"cpu":"1","memory":"1Gi","nvidia.com/gpu":"1"}}}],
        "resources":{"requests":{"cpu":"3","nvidia.com/gpu":"9","ephemeral-storage":"1Gi"}},
        "overhead":{"cpu":"250m","memory":"120Mi"}}}"#;
    assert_eq!(asked(pod), resources(r#"{"cpu":"3250m","memory":"1144Mi","nvidia.com/gpu":"1"}"#));
}

#[test]
fn a_resize_counts_at_its_highest_unless_it_is_infeasible() {
    let pod = |spec: &str, actual: &str, allocated: &str, reason: &str| {
        format!(
            r#"{{"spec":{{"containers":[{{"name":"a","resources":{{"requests":{{"cpu":"{spec}"}}}}}}]}},
            "status":{{"conditions":[{{"type":"PodResizePending","reason":"{reason}"}}],"containerStatuses":[{{"name":"a",
            "resources":{{"requests":{{"cpu":"{actual}"}}}},"allocatedResources":{{"cpu":"{allocated}"}}}}]}}}}"#
        )
    };
    assert_eq!(asked(&pod("4", "1", "2", "Deferred")), resources(r#"{"cpu":"4"}"#));
    assert_eq!(asked(&pod("1", "3", "2", "")), resources(r#"{"cpu":"3"}"#));
    assert_eq!(asked(&pod("4", "1", "2", "Infeasible")), resources(r#"{"cpu":"2"}"#));
}

#[test]
fn a_status_that_does_not_say_leaves_the_spec() {
    let pod = r#"{"spec":{"containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}]},
        "status":{"containerStatuses":[{"name":"a","allocatedResources":{"cpu":"5"}},{"name":"b","resources":{"requests":{"cpu":"7"}}}]}}"#;
    assert_eq!(asked(pod), resources(r#"{"cpu":"1"}"#));
}

#[test]
fn fractions_of_a_byte_count_as_a_byte() {
    let pod = r#"{"spec":{"containers":[{"name":"a","resources":{"requests":{"memory":"100m","cpu":"100u"}}}]}}"#;
    assert_eq!(asked(pod), resources(r#"{"memory":"1","cpu":"1m"}"#));
}

#[test]
fn nulls_and_unknown_fields_do_no_harm() {
    for pod in [
        "{}",
        r#"{"spec":null,"status":null}"#,
        r#"{"spec":{"containers":null,"overhead":null,"resources":null,"new":[1]}}"#,
    ] {
        assert_eq!(asked(pod), Resources::new(), "{pod}");
    }
    let pod = r#"{"kind":"Pod","spec":{"containers":[{"name":"\u0061","image":"x","restartPolicy":null,"resources":{"requests":{"cpu":1},"claims":[]}}],
        "initContainers":[{"name":"i","resources":null}]},"status":{"resources":null,"containerStatuses":[{"name":"a","resources":null}]}}"#;
    assert_eq!(asked(pod), resources(r#"{"cpu":"1"}"#));
    assert!(
        serde_json::from_str::<PodShape<'_>>(r#"{"spec":{"overhead":{"cpu":"x"}}}"#)
            .unwrap_err()
            .to_string()
            .contains("resource cpu")
    );
}
