//! Tests of what is lent: the figures of the design and its inequalities by property.
//! They must not compute the expected figure with the function under test.

use proptest::prelude::*;

use super::*;

fn resources(json: &str) -> Resources {
    serde_json::from_str(json).unwrap()
}

fn limit(resource: &str, quantity: Option<&str>, percent: Option<i64>) -> Limit {
    Limit {
        resource: resource.into(),
        quantity: quantity.map(|text| Quantity::parse(text).unwrap()),
        percent: percent.map(|percent| Percent::parse(percent).unwrap()),
    }
}

fn lent(limits: &[Limit]) -> Resources {
    let base = resources(r#"{"cpu":"4","memory":"8Gi","pods":"110","nvidia.com/gpu":"3"}"#);
    let used = resources(r#"{"cpu":"1","memory":"2Gi","pods":"1"}"#);
    leased(&base, &used, limits)
}

#[test]
fn without_limits_all_that_is_idle_is_lent() {
    assert_eq!(lent(&[]), resources(r#"{"cpu":"3","memory":"6Gi","pods":"109","nvidia.com/gpu":"3"}"#));
    assert_eq!(lent(&[limit("cpu", None, None)]), lent(&[]));
}

#[test]
fn percent_counts_of_what_is_idle() {
    let lent = lent(&[limit("cpu", None, Some(50)), limit("memory", None, Some(75))]);
    assert_eq!(
        (lent.get(&ResourceName::Cpu).to_string(), lent.get(&ResourceName::Memory)),
        ("1500m".into(), Quantity::parse("4608Mi").unwrap())
    );
}

#[test]
fn of_quantity_and_percent_the_smaller_counts() {
    assert_eq!(lent(&[limit("cpu", Some("3"), Some(50))]).get(&ResourceName::Cpu), Quantity::from_milli(1500));
    assert_eq!(
        lent(&[limit("memory", Some("2Gi"), Some(75))]).get(&ResourceName::Memory),
        Quantity::parse("2Gi").unwrap()
    );
}

#[test]
fn two_limits_on_one_resource_do_not_compound() {
    let lent = lent(&[limit("cpu", None, Some(50)), limit("cpu", None, Some(50))]);
    assert_eq!(lent.get(&ResourceName::Cpu), Quantity::from_milli(1500));
}

#[test]
fn zero_means_none() {
    assert_eq!(lent(&[limit("cpu", Some("0"), None)]).get(&ResourceName::Cpu), Quantity::ZERO);
    assert_eq!(lent(&[limit("cpu", None, Some(0))]).get(&ResourceName::Cpu), Quantity::ZERO);
}

#[test]
fn pods_and_devices_are_lent_whole() {
    let lent = lent(&[limit("pods", None, Some(33)), limit("nvidia.com/gpu", None, Some(50))]);
    // 33 % of 109 is 35.97, 50 % of 3 is 1.5.
    assert_eq!(lent.get(&ResourceName::Pods), Quantity::from_whole(35));
    assert_eq!(lent.get(&"nvidia.com/gpu".into()), Quantity::from_whole(1));
}

#[test]
fn cores_are_lent_in_thousandths_and_bytes_whole() {
    let lent = leased(
        &resources(r#"{"cpu":"1001m","memory":"1025"}"#),
        &Resources::new(),
        &[limit("cpu", None, Some(33)), limit("memory", None, Some(33))],
    );
    assert_eq!(lent, resources(r#"{"cpu":"330m","memory":"338"}"#));
}

#[test]
fn an_overcommitted_node_lends_nothing_and_what_it_lacks_is_not_lent() {
    let lent = leased(&resources(r#"{"cpu":"1"}"#), &resources(r#"{"cpu":"2"}"#), &[limit("pods", Some("5"), None)]);
    assert_eq!(lent, resources(r#"{"cpu":"0"}"#));
}

const NAMES: [&str; 4] = ["cpu", "memory", "pods", "example.com/gpu"];

fn any_resources() -> impl Strategy<Value = Resources> {
    prop::collection::vec(-1_000_000i64..1_000_000_000, 4).prop_map(|nanos| {
        let amounts = nanos.into_iter().map(|micro| Quantity::from_nano(i128::from(micro) * 1000));
        NAMES.into_iter().map(ResourceName::from).zip(amounts).collect()
    })
}

fn any_limits() -> impl Strategy<Value = Vec<Limit>> {
    let one = (prop::sample::select(&NAMES[..]), prop::option::of(0i64..1000), prop::option::of(0i64..=100));
    prop::collection::vec(one, 0..6).prop_map(|limits| {
        let limit = |(resource, milli, percent): (&str, Option<i64>, Option<i64>)| Limit {
            resource: resource.into(),
            quantity: milli.map(Quantity::from_milli),
            percent: percent.map(|percent| Percent::parse(percent).unwrap()),
        };
        limits.into_iter().map(limit).collect()
    })
}

proptest! {
    #[test]
    fn lent_is_never_negative_never_more_than_idle_never_more_than_a_limit(
        base in any_resources(), used in any_resources(), limits in any_limits(),
    ) {
        let lent = leased(&base, &used, &limits);
        for (name, quantity) in lent.iter() {
            let idle = base.get(name).max(Quantity::ZERO).saturating_sub(used.get(name)).max(Quantity::ZERO);
            prop_assert!(Quantity::ZERO <= quantity && quantity <= idle, "{} of {}", lent, idle);
            prop_assert!(!name.is_whole() || quantity == quantity.floor_whole());
            for limit in limits.iter().filter(|limit| limit.resource == *name) {
                prop_assert!(limit.quantity.is_none_or(|cap| quantity <= cap));
                let product = idle.nano() * limit.percent.map_or(100, |percent| i128::from(percent.get()));
                prop_assert!(quantity.nano() * 100 <= product);
            }
        }
    }

    #[test]
    fn more_use_never_lends_more(base in any_resources(), used in any_resources(), more in any_resources(), limits in any_limits()) {
        let mut higher = used.clone();
        higher.max(&more);
        let (before, after) = (leased(&base, &used, &limits), leased(&base, &higher, &limits));
        for (name, quantity) in after.iter() {
            prop_assert!(quantity <= before.get(name));
        }
    }

    #[test]
    fn the_order_of_limits_does_not_matter(base in any_resources(), used in any_resources(), limits in any_limits()) {
        prop_assert_eq!(leased(&base, &used, &limits), leased(&base, &used, limits.iter().rev()));
    }
}
