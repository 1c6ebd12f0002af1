//! Tests of which pods leave, in which order and when: the table of the design, and properties of all nodes. They
//! must not choose tenants with the function under test: `obey` only carries out its steps.

use proptest::prelude::*;

use super::*;

const T0: Timestamp = Timestamp::UNIX_EPOCH;
const FORCE: Rules = Rules { force: true, grace: Duration::from_secs(30) };
const GENTLE: Rules = Rules { force: false, ..FORCE };

fn after(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn cpu(cores: i64) -> Resources {
    Resources::parse([("cpu", cores.to_string().as_str())]).unwrap()
}

fn tenant<'a>(id: &'a str, request: &'a Resources) -> Tenant<'a> {
    Tenant { id, priority: 0, born: T0, request, grace: 30, exempt: false, going: None }
}

fn next_step<'a>(cause: &Cause<'_>, rules: &Rules, now: Timestamp, tenants: &[Tenant<'a>]) -> Option<(&'a str, Step)> {
    steps(cause, rules, T0, now, tenants).into_iter().next()
}

/// Carries out the steps at one moment until there is none, and returns them.
fn obey(cause: &Cause<'_>, rules: &Rules, now: Timestamp, tenants: &mut [Tenant<'_>]) -> Vec<String> {
    let mut told = Vec::new();
    loop {
        assert!(told.len() <= 2 * tenants.len(), "no end: {told:?}");
        let (id, grace, text) = match next_step(cause, rules, now, tenants) {
            None => return told,
            Some((_, Step::Wait(until))) => {
                told.push(format!("wait until {}", until.as_second()));
                return told;
            }
            // An eviction gives a pod all of its own grace.
            Some((id, Step::Evict)) => (id, None, format!("evict {id}")),
            Some((id, Step::Delete { grace })) => (id, Some(grace), format!("delete {id} in {grace}")),
        };
        told.push(text);
        let tenant = tenants.iter_mut().find(|tenant| tenant.id == id).unwrap();
        tenant.going = Some(grace.unwrap_or(tenant.grace));
    }
}

#[test]
fn without_force_pods_stay_after_a_window_and_a_shrink() {
    let (request, leased) = (cpu(1), cpu(0));
    for cause in [Cause::WindowEnd, Cause::Shrunk { leased: &leased }] {
        assert_eq!(obey(&cause, &GENTLE, after(1000), &mut [tenant("a", &request)]), [""; 0]);
        assert_eq!(longest_grace(&GENTLE, &[tenant("a", &request)], &cause), Duration::ZERO);
    }
}

#[test]
fn after_a_window_pods_go_when_the_grace_is_over_and_not_before() {
    let request = cpu(1);
    let mut tenants = [tenant("a", &request), tenant("b", &request)];
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(0), &mut tenants), ["wait until 30"]);
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(29), &mut tenants), ["wait until 30"]);
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(30), &mut tenants), ["delete a in 30", "delete b in 30"]);
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(31), &mut tenants), [""; 0]);
}

#[test]
fn the_lowest_priority_goes_first_then_the_youngest_then_the_first_by_id() {
    let request = cpu(1);
    let mut tenants = [
        Tenant { priority: 5, born: after(9), ..tenant("important", &request) },
        tenant("old-b", &request),
        tenant("old-a", &request),
        Tenant { born: after(5), ..tenant("young", &request) },
        Tenant { priority: -1, ..tenant("least", &request) },
    ];
    let told = [
        "delete least in 30",
        "delete young in 30",
        "delete old-a in 30",
        "delete old-b in 30",
        "delete important in 30",
    ];
    assert_eq!(obey(&Cause::Leaving, &FORCE, after(30), &mut tenants), told);
}

#[test]
fn a_toleration_spares_from_windows_and_from_nothing_else() {
    let (request, leased) = (cpu(1), cpu(0));
    let spared = [Tenant { exempt: true, ..tenant("a", &request) }];
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(30), &mut spared.clone()), [""; 0]);
    assert_eq!(longest_grace(&FORCE, &spared, &Cause::WindowEnd), Duration::ZERO);
    for cause in [Cause::OwnerStop, Cause::Leaving, Cause::Shrunk { leased: &leased }] {
        assert_eq!(obey(&cause, &FORCE, after(30), &mut spared.clone()), ["delete a in 30"]);
    }
}

#[test]
fn an_owners_stop_and_a_nodes_end_are_forced_whatever_the_policy_says() {
    let request = cpu(1);
    for cause in [Cause::OwnerStop, Cause::Leaving] {
        let mut tenants = [tenant("a", &request)];
        assert_eq!(obey(&cause, &GENTLE, after(29), &mut tenants), ["wait until 30"]);
        assert_eq!(obey(&cause, &GENTLE, after(30), &mut tenants), ["delete a in 30"]);
        assert_eq!(obey(&cause, &GENTLE, after(0), &mut []), [""; 0], "an empty node need not wait");
    }
}

#[test]
fn a_longer_deletion_is_shortened_and_a_shorter_one_left_alone() {
    let request = cpu(1);
    let mut tenants = [
        Tenant { grace: 600, going: Some(600), ..tenant("slow", &request) },
        Tenant { grace: 600, going: Some(30), ..tenant("enough", &request) },
        Tenant { grace: 5, going: Some(6), ..tenant("own", &request) },
        Tenant { going: Some(0), ..tenant("killed", &request) },
    ];
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(1), &mut tenants), ["wait until 30"]);
    assert_eq!(obey(&Cause::WindowEnd, &FORCE, after(30), &mut tenants), ["delete own in 5", "delete slow in 30"]);
}

#[test]
fn a_forced_grace_is_the_smaller_one_and_at_least_a_second() {
    let rules = |seconds| Rules { grace: Duration::from_secs(seconds), ..FORCE };
    assert_eq!(forced_grace(600, &rules(30)), 30);
    assert_eq!(forced_grace(5, &rules(30)), 5);
    assert_eq!((forced_grace(0, &rules(30)), forced_grace(30, &rules(0))), (1, 1));
    assert_eq!(forced_grace(u32::MAX, &rules(u64::MAX)), u32::MAX);
    assert_eq!(force_at(&rules(u64::MAX), T0), Timestamp::MAX);
}

#[test]
fn the_longest_grace_is_that_of_the_pods_that_have_to_go() {
    let (request, leased) = (cpu(1), cpu(2));
    let tenants = [
        Tenant { grace: 20, exempt: true, ..tenant("exempt", &request) },
        Tenant { grace: 600, going: Some(12), priority: 1, ..tenant("going", &request) },
        Tenant { grace: 7, ..tenant("quick", &request) },
        Tenant { grace: 2, priority: -1, ..tenant("least", &request) },
    ];
    let of = |cause| longest_grace(&FORCE, &tenants, &cause).as_secs();
    assert_eq!(of(Cause::WindowEnd), 12);
    assert_eq!(of(Cause::OwnerStop), 20);
    assert_eq!(of(Cause::Shrunk { leased: &leased }), 2, "one of three that stay is enough");
}

#[test]
fn after_a_shrink_pods_are_evicted_at_once_and_deleted_when_the_grace_is_over() {
    let (request, leased) = (cpu(1), cpu(1));
    let tenants = [tenant("a", &request), tenant("b", &request), tenant("c", &request)];
    let cause = Cause::Shrunk { leased: &leased };
    assert_eq!(obey(&cause, &FORCE, after(0), &mut tenants.clone()), ["evict a", "evict b"]);
    assert_eq!(next_step(&cause, &FORCE, after(29), &tenants), Some(("a", Step::Evict)), "refused once, asked again");
    assert_eq!(obey(&cause, &FORCE, after(30), &mut tenants.clone()), ["delete a in 30", "delete b in 30"]);
}

#[test]
fn a_pod_that_holds_nothing_of_what_is_short_stays() {
    let (slim, fat) = (cpu(1), Resources::parse([("cpu", "1"), ("example.com/gpu", "1")]).unwrap());
    let leased = Resources::parse([("cpu", "8"), ("example.com/gpu", "1")]).unwrap();
    let mut tenants = [
        Tenant { priority: -9, ..tenant("least", &slim) },
        Tenant { priority: 1, ..tenant("better", &fat) },
        Tenant { priority: 0, ..tenant("worse", &fat) },
    ];
    assert_eq!(obey(&Cause::Shrunk { leased: &leased }, &FORCE, after(0), &mut tenants), ["evict worse"]);
}

#[test]
fn what_is_not_lent_at_all_is_short() {
    let request = Resources::parse([("cpu", "1"), ("example.com/gpu", "1")]).unwrap();
    let mut tenants = [tenant("a", &request)];
    assert_eq!(obey(&Cause::Shrunk { leased: &cpu(8) }, &FORCE, after(0), &mut tenants), ["evict a"]);
}

#[test]
fn after_a_shrink_a_long_deletion_is_shortened_only_where_it_holds_what_is_short() {
    let (request, leased) = (cpu(1), cpu(1));
    let cause = Cause::Shrunk { leased: &leased };
    let going = Tenant { grace: 600, going: Some(600), ..tenant("going", &request) };
    let mut tight = [going, tenant("stays", &request)];
    assert_eq!(obey(&cause, &FORCE, after(0), &mut tight), ["wait until 30"], "who goes counts as gone");
    assert_eq!(obey(&cause, &FORCE, after(30), &mut tight), ["delete going in 30"]);
    assert_eq!(obey(&cause, &FORCE, after(30), &mut [going]), [""; 0], "there is room for it");
}

const IDS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
const NAMES: [&str; 3] = ["cpu", "memory", "example.com/gpu"];

fn any_resources(most: i64) -> impl Strategy<Value = Resources> {
    prop::collection::vec(prop::option::of(0..=most), NAMES.len()).prop_map(|amounts| {
        let named = NAMES.into_iter().zip(amounts).filter_map(|(name, amount)| Some((name, amount?.to_string())));
        let named: Vec<_> = named.collect();
        Resources::parse(named.iter().map(|(name, amount)| (*name, amount.as_str()))).unwrap()
    })
}

/// Requests, and the tenants that make them without their requests.
fn any_tenants() -> impl Strategy<Value = (Vec<Resources>, Vec<Tenant<'static>>)> {
    static NOTHING: std::sync::LazyLock<Resources> = std::sync::LazyLock::new(Resources::new);
    let going = prop::option::weighted(0.3, 0u32..90);
    let one = (any_resources(4), -1i32..2, 0i64..3, 0u32..90, any::<bool>(), going);
    prop::collection::vec(one, 0..IDS.len()).prop_map(|tenants| {
        let with_id = tenants.into_iter().zip(IDS);
        let tenant = |((request, priority, born, grace, exempt, going), id)| {
            (request, Tenant { id, priority, born: after(born), request: &NOTHING, grace, exempt, going })
        };
        with_id.map(tenant).unzip()
    })
}

fn asking<'a>(requests: &'a [Resources], tenants: &[Tenant<'a>]) -> Vec<Tenant<'a>> {
    tenants.iter().zip(requests).map(|(tenant, request)| Tenant { request, ..*tenant }).collect()
}

fn any_rules() -> impl Strategy<Value = Rules> {
    (any::<bool>(), 0u64..60).prop_map(|(force, grace)| Rules { force, grace: Duration::from_secs(grace) })
}

fn any_cause(leased: &Resources, which: usize) -> Cause<'_> {
    [Cause::WindowEnd, Cause::OwnerStop, Cause::Leaving, Cause::Shrunk { leased }][which]
}

fn sum<'a>(tenants: impl IntoIterator<Item = &'a Tenant<'a>>) -> Resources {
    let mut sum = Resources::new();
    tenants.into_iter().for_each(|tenant| sum.add(tenant.request));
    sum
}

proptest! {
    #[test]
    fn after_a_shrink_what_stays_fits_and_the_last_pod_that_went_had_to(
        (requests, tenants) in any_tenants(), leased in any_resources(12), grace in 0u64..60, now in 0i64..90,
    ) {
        let rules = Rules { force: true, grace: Duration::from_secs(grace) };
        let before = asking(&requests, &tenants);
        let mut tenants = before.clone();
        let told = obey(&Cause::Shrunk { leased: &leased }, &rules, after(now), &mut tenants);
        let stays = |tenant: &&Tenant<'_>| tenant.going.is_none();
        prop_assert_eq!(sum(tenants.iter().filter(stays)).fits_within(&leased), Ok(()));

        // Evictions and deletions of running pods come before shortened deletions.
        let mut went = told.iter().filter_map(|text| before.iter().find(|one| text.split(' ').nth(1) == Some(one.id)));
        if let Some(last) = went.rfind(stays) {
            let or_last = |tenant: &&Tenant<'_>| stays(tenant) || tenant.id == last.id;
            prop_assert!(sum(tenants.iter().filter(or_last)).fits_within(&leased).is_err(), "{:?}", told);
        } else {
            prop_assert_eq!(sum(before.iter().filter(stays)), sum(tenants.iter().filter(stays)));
        }
        if after(now) >= force_at(&rules, T0) {
            let there = |tenant: &&Tenant<'_>| tenant.going.is_none_or(|going| going > forced_grace(tenant.grace, &rules));
            prop_assert_eq!(sum(tenants.iter().filter(there)).fits_within(&leased), Ok(()));
        }
    }

    #[test]
    fn all_pods_that_are_not_spared_are_gone_in_time(
        (requests, tenants) in any_tenants(), rules in any_rules(), which in 0usize..3, late in 0i64..9,
    ) {
        let nothing = Resources::new();
        let cause = any_cause(&nothing, which);
        let mut tenants = asking(&requests, &tenants);
        let deadline = force_at(&rules, T0);
        obey(&cause, &rules, deadline.checked_add(Duration::from_secs(late.unsigned_abs())).unwrap(), &mut tenants);
        for tenant in &tenants {
            let spared = cause == Cause::WindowEnd && (tenant.exempt || !rules.force);
            let longest = longest_grace(&rules, &tenants, &cause);
            let in_time = tenant.going.is_some_and(|going| {
                going <= forced_grace(tenant.grace, &rules) && Duration::from_secs(going.into()) <= longest
            });
            prop_assert!(spared || in_time, "{:?}", tenant);
        }
    }

    #[test]
    fn a_step_does_not_depend_on_the_order_of_tenants(
        (requests, tenants) in any_tenants(), leased in any_resources(12), rules in any_rules(), which in 0usize..4,
        now in 0i64..90, turn in 0usize..8,
    ) {
        let cause = any_cause(&leased, which);
        let tenants = asking(&requests, &tenants);
        let mut turned: Vec<_> = tenants.iter().rev().copied().collect();
        turned.rotate_left(turn % tenants.len().max(1));
        prop_assert_eq!(
            next_step(&cause, &rules, after(now), &tenants),
            next_step(&cause, &rules, after(now), &turned)
        );
    }

    #[test]
    fn force_is_used_only_where_it_is_allowed_and_never_before_its_time(
        (requests, tenants) in any_tenants(), leased in any_resources(12), rules in any_rules(), which in 0usize..4,
        now in 0i64..90,
    ) {
        let cause = any_cause(&leased, which);
        let tenants = asking(&requests, &tenants);
        let deadline = force_at(&rules, T0);
        let early = after(now) < deadline;
        match next_step(&cause, &rules, after(now), &tenants) {
            None => {}
            step if !rules.force && which != 1 && which != 2 => prop_assert!(false, "{:?}", step),
            Some((_, Step::Wait(until))) => prop_assert!(early && until == deadline),
            Some((_, Step::Evict)) => prop_assert!(early && which == 3),
            Some((_, Step::Delete { .. })) => prop_assert!(!early),
        }
    }
}
