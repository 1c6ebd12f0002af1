//! What follows when the API server does not let us take part: what is reported, when, and how it ends.

use std::sync::Arc;

use tapestry_cluster::Lead;

use super::super::fence::{Fence, Leadership};
use super::*;
use crate::clock::Clock;

impl Play {
    /// The next call is refused.
    fn refuse(&mut self) {
        let call = self.wanted();
        let status = Status { code: 403, message: "leases is forbidden".to_owned(), ..Status::default() };
        self.election.settle(&call, self.steady(), self.steady(), Err(Refusal::Denied(Box::new(status))));
    }

    fn barred(&self) -> Option<&str> {
        self.election.barred(self.steady())
    }
}

#[test]
fn law_12_a_process_that_may_not_renew_says_so_a_lease_later_until_it_leads_again() {
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    let began = play.now;
    // It keeps leading until its Lease expires, and retries.
    while play.election.hold().is_some() {
        assert_eq!(play.barred(), None, "it leads");
        match play.election.plan(play.time()) {
            Step::Do { .. } => play.refuse(),
            Step::Wait(until) => play.now = until.as_secs_f64(),
            Step::Lost => play.election.lose(),
        }
    }
    play.refuse();
    assert_eq!(play.barred(), None, "another process may lead by now");
    // It wakes when there is something to say.
    about(play.wait(), began + 15.0 - play.now);
    play.now = began + 15.0;
    let told = "cannot patch leases syncer-east in namespace tapestry-system: leases is forbidden";
    assert_eq!(play.barred(), Some(told));
    play.now += 15.0;
    play.act();
    assert!(play.election.hold().is_some());
    assert_eq!(play.barred(), None);
}

#[test]
fn another_process_that_renews_leads_and_our_missing_right_does_not_matter() {
    let mut play = Play::under_another();
    play.act();
    play.now += 15.0;
    play.refuse();
    play.now += 15.0;
    assert!(play.barred().is_some(), "the Lease was unchanged for longer than its duration");
    // Reading is allowed, and shows the same.
    assert_eq!(play.act(), ["LookForLead"]);
    assert!(play.barred().is_some());
    play.server.write(|spec| spec["renewTime"] = json!("2001-01-01T00:00:30.000000Z"));
    play.show();
    assert_eq!(play.barred(), None);
}

#[test]
fn law_02_only_a_stand_in_acts_while_the_election_is_closed_to_us_and_only_until_it_reopens() {
    struct Still;
    impl Clock for Still {
        fn now(&self) -> Now {
            Now { wall: Timestamp::UNIX_EPOCH, steady: Duration::from_secs(100) }
        }
    }
    let fence = Arc::new(Fence::new(Arc::new(Still)));
    let works = Leadership::behind(Arc::clone(&fence));
    let keeps = works.clone().or_stand_in();
    assert!(keeps.lead().is_none());
    assert!(fence.bar(Some("cannot patch leases")) && !fence.bar(Some("in other words")));
    assert!(works.lead().is_none(), "a loop without stand-in works");
    let first = keeps.lead().unwrap();
    assert_eq!(keeps.why_stand_in(&first).as_deref(), Some("cannot patch leases"));
    assert!(first.lasts() && fence.bar(None) && !first.lasts());
    fence.bar(Some("again"));
    let second = keeps.lead().unwrap();
    assert!(!first.lasts() && second.lasts(), "a term that has ended never lasts again");
    fence.open(1, Duration::from_secs(110));
    let leads = keeps.lead().unwrap();
    assert_eq!((leads.term(), keeps.why_stand_in(&leads)), (1, None), "a leader does not stand in");
    assert_eq!(works.lead().as_ref().map(Lead::term), Some(1));
}
