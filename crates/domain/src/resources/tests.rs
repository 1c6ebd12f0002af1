//! Tests of amounts by resource.
//! They must not depend on the order in which amounts are given.

use proptest::prelude::*;

use super::*;
use crate::quantity::Format;

fn resources(json: &str) -> Resources {
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_pod_row_with_cpu_and_memory_costs_at_most_a_hundred_bytes() {
    let entry = size_of::<(ResourceName, Quantity)>();
    assert_eq!(entry, 32);
    assert!(size_of::<Resources>() + 2 * entry <= 100);
}

#[test]
fn resources_survive_json_in_canonical_form() {
    let all = resources(
        r#"{"nvidia.com/gpu":"2","memory":"16394052Ki","cpu":"0.25","pods":110,"hugepages-2Mi":"4194304","ephemeral-storage":"1Gi","x":null}"#,
    );
    let json = serde_json::to_string(&all).unwrap();
    assert_eq!(
        json,
        r#"{"cpu":"250m","memory":"16394052Ki","ephemeral-storage":"1Gi","pods":"110","hugepages-2Mi":"4Mi","nvidia.com/gpu":"2","x":"0"}"#
    );
    assert_eq!(resources(&json), all);
    assert_eq!(resources("null"), Resources::new());
    assert_eq!(resources(r#"{"cpu":"1","cpu":"2"}"#), resources(r#"{"cpu":"2"}"#));
}

#[test]
fn a_bad_amount_names_its_resource() {
    let error = serde_json::from_str::<Resources>(r#"{"cpu":"1","memory":"1GB"}"#).unwrap_err().to_string();
    assert!(error.contains("resource memory") && error.contains("`1GB`"), "{error}");
    let error = Resources::parse([("cpu", "1"), ("memory", "1GB")]).unwrap_err();
    assert_eq!(error.resource, ResourceName::Memory);
    assert_eq!(error.reason(), "InvalidQuantity");
    assert_eq!(Resources::parse([("cpu", "1"), ("cpu", "2")]).unwrap(), resources(r#"{"cpu":2}"#));
}

#[test]
fn a_request_fits_only_where_every_wanted_resource_is_free() {
    let free = resources(r#"{"cpu":"2","memory":"1Gi"}"#);
    assert_eq!(resources(r#"{"cpu":"2","memory":"1Gi"}"#).fits_within(&free), Ok(()));
    assert_eq!(resources(r#"{"cpu":"1","nvidia.com/gpu":"0"}"#).fits_within(&free), Ok(()));
    let short = resources(r#"{"cpu":"1","memory":"1025Mi"}"#).fits_within(&free).unwrap_err();
    assert_eq!(short.to_string(), "memory: 1025Mi wanted, 1Gi free");
    let short = resources(r#"{"nvidia.com/gpu":"1"}"#).fits_within(&free).unwrap_err();
    assert_eq!((short.wanted, short.free), (Quantity::from_whole(1), Quantity::ZERO));
}

#[test]
fn subtraction_stops_at_zero_and_adds_no_resource() {
    let mut left = resources(r#"{"cpu":"2","memory":"1Gi"}"#);
    left.saturating_sub(&resources(r#"{"cpu":"3","pods":"1"}"#));
    assert_eq!(left, resources(r#"{"cpu":"0","memory":"1Gi"}"#));
}

#[test]
fn max_raises_and_merge_replaces() {
    let (first, second) = (resources(r#"{"cpu":"2","pods":"5"}"#), resources(r#"{"cpu":"1","memory":"1Gi"}"#));
    let mut highest = first.clone();
    highest.max(&second);
    assert_eq!(highest, resources(r#"{"cpu":"2","memory":"1Gi","pods":"5"}"#));
    let mut merged = first;
    merged.merge(&second);
    assert_eq!(merged, resources(r#"{"cpu":"1","memory":"1Gi","pods":"5"}"#));
}

#[test]
fn whole_number_resources_are_known_by_name() {
    for (name, whole) in [
        ("pods", true),
        ("hugepages-1Gi", true),
        ("nvidia.com/gpu", true),
        ("attachable-volumes-csi-x", true),
        ("cpu", false),
        ("memory", false),
        ("ephemeral-storage", false),
        ("kubernetes.io/batch-cpu", false),
        ("requests.nvidia.com/gpu", false),
    ] {
        assert_eq!(ResourceName::from(name).is_whole(), whole, "{name}");
    }
}

#[test]
fn only_policies_say_storage_for_ephemeral_storage() {
    assert_eq!(ResourceName::parse_policy("storage"), Ok(ResourceName::EphemeralStorage));
    assert_ne!(ResourceName::from("storage"), ResourceName::EphemeralStorage);
    assert_eq!(ResourceName::from("storage").format(), Format::BinarySi);
    assert!(ResourceName::parse_policy("no such/thing!").is_err());
}

fn any_resources() -> impl Strategy<Value = Resources> {
    let name = prop::sample::select(vec!["cpu", "memory", "pods", "ephemeral-storage", "a/b", "hugepages-2Mi"]);
    prop::collection::vec((name, 0i64..5000), 0..8)
        .prop_map(|pairs| pairs.into_iter().map(|(name, milli)| (name.into(), Quantity::from_milli(milli))).collect())
}

proptest! {
    #[test]
    fn sums_do_not_depend_on_order(left in any_resources(), right in any_resources()) {
        let (mut one, mut other) = (left.clone(), right.clone());
        one.add(&right);
        other.add(&left);
        prop_assert_eq!(&one, &other);
        one.saturating_sub(&right);
        for (name, quantity) in one.iter() {
            prop_assert_eq!(quantity, left.get(name));
        }
        prop_assert!(other.0.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn everything_fits_within_its_own_maximum(left in any_resources(), right in any_resources()) {
        let mut highest = left.clone();
        highest.max(&right);
        prop_assert_eq!(left.fits_within(&highest), Ok(()));
        prop_assert_eq!(right.fits_within(&highest), Ok(()));
    }
}
