//! The breaker by itself, without a pair: what it decides from its own state and what it is told.

use tapestry_api::binding::UnaskedEnds;
use tapestry_cluster::Uid;
use tapestry_engine::Now;

use crate::breaker::{Breaker, Circumstances, LossState, Verdict};
use crate::scene::Scene;

fn uid(n: usize) -> Uid {
    Uid::new(format!("v-p{n}"))
}

/// A breaker that has recorded so many pods that are proven to end.
fn losing(ends: usize, now: Now) -> Breaker {
    let mut breaker = Breaker::default();
    (0..ends).for_each(|n| breaker.record(&uid(n), LossState::Ends, now));
    breaker.begin();
    breaker
}

/// What it decides when all of so many pods run.
fn weigh(breaker: &mut Breaker, running: usize, known: bool, now: Now) -> Verdict {
    let circumstances = Circumstances { known, working: true, runs: &|_| true, running: &|| running };
    breaker.weigh(&circumstances, now)
}

#[test]
fn more_than_a_few_trip_it_if_they_are_too_large_a_share_and_once_all_is_known() {
    let now = Scene::empty().now;
    assert_eq!(weigh(&mut losing(21, now), 30, false, now), Verdict::Nothing);
    assert_eq!(weigh(&mut losing(20, now), 30, true, now), Verdict::Count);
    assert_eq!(weigh(&mut losing(21, now), 84, true, now), Verdict::Count);
    assert_eq!(weigh(&mut losing(21, now), 83, true, now), Verdict::Trip { ends: 21, pods: 83 });
}

#[test]
fn pods_are_let_go_once_the_binding_counts_them_under_our_name() {
    let now = Scene::empty().now;
    let mut breaker = losing(2, now);
    assert_eq!(breaker.unwritten(true, now), None, "it has no name yet");
    breaker.sign(|| "ours".to_owned());
    breaker.sign(|| "another".to_owned());
    let ends = breaker.unwritten(true, now).unwrap();
    assert_eq!((ends.ends, &*ends.by), (2, "ours"));
    let another = UnaskedEnds { by: "another".to_owned(), ..ends.clone() };
    assert!(!breaker.follow((None, Some(another)), None, true, now));
    assert_eq!(weigh(&mut breaker, 9, true, now), Verdict::Count);
    assert!(!breaker.follow((None, Some(UnaskedEnds { ends: 4, ..ends })), None, true, now));
    assert_eq!(weigh(&mut breaker, 9, true, now), Verdict::LetGo(vec![uid(0), uid(1)]));
    breaker.let_go(uid(0), true, now);
    assert!(breaker.lets_go(&uid(0)) && breaker.sends_away(&uid(0)));
    assert!(!breaker.lets_go(&uid(1)), "this one was not let go");
}

#[test]
fn a_trip_grows_holds_all_back_and_clears_itself_when_none_is_missing() {
    let now = Scene::empty().now;
    let mut breaker = losing(25, now);
    breaker.trip_with("t".to_owned(), 21, 30, now);
    assert_eq!(weigh(&mut breaker, 30, true, now), Verdict::Grown);
    assert_eq!(breaker.trip().map(|trip| (trip.ends, trip.pods)), Some((25, 30)));
    assert_eq!(weigh(&mut breaker, 30, true, now), Verdict::Nothing);
    assert!(breaker.holds(&uid(0)));
    (0..25).for_each(|n| breaker.record(&uid(n), LossState::Fine, now));
    let Verdict::Cleared(trip) = weigh(&mut breaker, 30, true, now) else { panic!("none is missing") };
    assert_eq!((&*trip.id, breaker.trip()), ("t", None));
    assert!(!breaker.follow((Some(trip), None), None, true, now));
    assert_eq!(breaker.trip(), None, "the binding only does not say so yet");
}
