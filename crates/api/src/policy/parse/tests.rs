//! The defaults of a policy, and the problems that wrong fields give.

use super::*;
use crate::policy::{ResourceLeasingPolicySpec, TimeWindow};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

fn policy(name: &str, created: i64, spec: ResourceLeasingPolicySpec) -> ResourceLeasingPolicy {
    let mut policy = ResourceLeasingPolicy::new(name, spec);
    policy.metadata.uid = Some(format!("uid-of-{name}"));
    policy.metadata.creation_timestamp = Some(Time(Timestamp::from_second(created).unwrap()));
    policy
}

fn spec() -> ResourceLeasingPolicySpec {
    ResourceLeasingPolicySpec { cluster: "cls-a".into(), ..Default::default() }
}

fn limit(resource: &str, quantity: Option<&str>, percent: Option<i32>) -> ResourceLimit {
    ResourceLimit { resource: resource.into(), quantity: quantity.map(|text| Text(text.into())), percent }
}

fn limits(limits: Vec<ResourceLimit>) -> Result<Policy, Invalid> {
    Policy::parse(&policy("a", 0, ResourceLeasingPolicySpec { resource_limits: limits, ..spec() }))
}

#[test]
fn omitted_fields_have_their_documented_defaults() {
    let parsed = Policy::parse(&policy("a", 7, spec())).unwrap();
    assert_eq!((parsed.name.as_str(), parsed.uid.as_str(), parsed.created.as_second()), ("a", "uid-of-a", 7));
    assert!(parsed.nodes.is_empty(), "no selector selects every node");
    assert!(parsed.limits.is_empty() && parsed.calendar.is_always());
    assert_eq!((parsed.priority, parsed.grace), (0, Duration::from_secs(30)));
    assert!(!parsed.force_reclaim && !parsed.reclaim_before_end);
}

#[test]
fn a_policy_is_for_a_binding_by_name_or_cluster_id_or_for_every_one() {
    let named = Cluster::Named("a".into());
    assert!(named.matches("a", "cls-x") && named.matches("x", "a") && !named.matches("b", "cls-b"));
    assert!(Cluster::Every.matches("anything", "at-all"));

    let every = ResourceLeasingPolicySpec { cluster: "*".into(), ..spec() };
    assert_eq!(Policy::parse(&policy("a", 0, every)).unwrap().cluster, Cluster::Every);
}

#[test]
fn limits_are_read_exactly_and_storage_means_ephemeral_storage() {
    let parsed = limits(vec![
        limit("cpu", Some("1500m"), Some(50)),
        limit("storage", Some("1Gi"), None),
        limit("nvidia.com/gpu", None, Some(0)),
    ]);
    let half = Percent::parse(50).unwrap();
    let [cpu, storage, gpu] = <[Limit; 3]>::try_from(parsed.unwrap().limits).unwrap();
    assert_eq!((cpu.quantity, cpu.percent), (Some(Quantity::from_milli(1500)), Some(half)));
    assert_eq!(storage.resource, ResourceName::EphemeralStorage);
    assert_eq!(storage.quantity, Some(Quantity::from_whole(1 << 30)));
    assert_eq!((gpu.quantity, gpu.percent.map(Percent::get)), (None, Some(0)));
}

#[test]
fn all_bad_limits_are_reported_at_once() {
    let invalid = limits(vec![
        limit("cpu", Some("-1"), None),
        limit("memory", Some("8GB"), None),
        limit("pods", None, Some(101)),
        limit("bad name", None, Some(1)),
        limit("cpu", None, None),
    ]);
    let invalid = invalid.unwrap_err();
    let fields: Vec<_> = invalid.problems().iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.resourceLimits[0].quantity",
            "spec.resourceLimits[1].quantity",
            "spec.resourceLimits[2].percent",
            "spec.resourceLimits[3].resource",
            "spec.resourceLimits[4]",
        ]
    );
    assert_eq!(invalid.reason(), "ValidationFailed");
}

fn window(start: &str, end: &str) -> TimeWindow {
    TimeWindow { start: start.into(), end: end.into(), ..Default::default() }
}

#[test]
fn a_policy_with_windows_or_exceptions_does_not_lend_always() {
    let windows = ResourceLeasingPolicySpec { time_windows: vec![window("22:00", "06:00")], ..spec() };
    assert!(!Policy::parse(&policy("a", 0, windows)).unwrap().calendar.is_always());
    let exceptions = ResourceLeasingPolicySpec { except_dates: vec!["2026-12-24".into()], ..spec() };
    assert!(!Policy::parse(&policy("a", 0, exceptions)).unwrap().calendar.is_always());
}

#[test]
fn every_part_of_a_window_reaches_the_calendar() {
    let berlin =
        TimeWindow { days: vec!["Mon".into()], time_zone: Some("Europe/Berlin".into()), ..window("22:00", "04:00") };
    let time_windows = vec![berlin, window("12:00", "13:00"), window("12:30", "14:00")];
    let written = ResourceLeasingPolicySpec {
        time_windows,
        time_zone: Some("Asia/Shanghai".into()),
        except_dates: vec!["2026-11-04".into()],
        ..spec()
    };
    let calendar = Policy::parse(&policy("a", 0, written)).unwrap().calendar;
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    // Monday the 2nd to Wednesday the 4th; noon in Shanghai is 04:00Z, 22:00 in Berlin is 21:00Z.
    assert_eq!(
        calendar.spans(at("2026-11-02T00:00Z"), at("2026-11-05T00:00Z")),
        [
            (at("2026-11-02T04:00Z"), at("2026-11-02T06:00Z")),
            (at("2026-11-02T21:00Z"), at("2026-11-03T03:00Z")),
            (at("2026-11-03T04:00Z"), at("2026-11-03T06:00Z")),
        ]
    );
}

#[test]
fn all_bad_times_are_reported_at_once() {
    let odd = TimeWindow {
        days: vec!["Monday".into(), "Caturday".into()],
        time_zone: Some("Mars/Base".into()),
        ..window("24:00", "7:00")
    };
    let bad = ResourceLeasingPolicySpec {
        time_windows: vec![window("22:00", "06:00"), odd, window("25:00", "24:00")],
        time_zone: Some("CEST".into()),
        except_dates: vec!["2026-12-24".into(), "2026-02-30".into()],
        resource_limits: vec![limit("cpu", None, None)],
        ..spec()
    };
    let invalid = Policy::parse(&policy("a", 0, bad)).unwrap_err();
    let told: Vec<_> = invalid.problems().iter().map(|problem| (problem.field.as_str(), &problem.change)).collect();
    let expected = [
        ("spec.timeWindows[1].start", "is `24:00`, which only an end can be: give `00:00`"),
        ("spec.timeWindows[1].end", "is `7:00`: give HH:MM"),
        ("spec.timeWindows[1].days[1]", "is `Caturday`, which is no day of the week: give"),
        ("spec.timeWindows[1].timeZone", "is `Mars/Base`, which is no IANA time zone: give"),
        ("spec.timeWindows[2].start", "is `25:00`: give HH:MM"),
        ("spec.timeZone", "is `CEST`, which is no IANA time zone: give"),
        ("spec.exceptDates[1]", "is `2026-02-30`, which is no date: give"),
        ("spec.resourceLimits[0]", "limits nothing: give"),
    ];
    assert_eq!(told.len(), expected.len(), "{invalid}");
    for ((field, change), (expected_field, beginning)) in told.into_iter().zip(expected) {
        assert!(field == expected_field && change.starts_with(beginning), "{field}: {change}");
    }
}

#[test]
fn the_highest_priority_holds_then_the_oldest_then_the_first_by_name() {
    let ranked = |name, created, priority| {
        Policy::parse(&policy(name, created, ResourceLeasingPolicySpec { priority, ..spec() })).unwrap()
    };
    let mut policies = [ranked("d", 1, 0), ranked("c", 2, 0), ranked("b", 1, 0), ranked("a", 9, 5)];
    policies.sort_by(|one, other| one.rank().cmp(&other.rank()));
    assert_eq!(policies.map(|policy| policy.name), ["a", "b", "d", "c"]);
}

#[test]
fn a_negative_grace_and_an_empty_cluster_are_reported() {
    let bad = ResourceLeasingPolicySpec { graceful_reclaim_period_seconds: Some(-1), ..Default::default() };
    let told = Policy::parse(&policy("a", 0, bad)).unwrap_err().to_string();
    assert!(told.contains("spec.cluster: is empty") && told.contains("is -1: give 0 seconds or more"), "{told}");
}
