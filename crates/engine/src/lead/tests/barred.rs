//! What follows when the API server does not let us take part: who is told, when, and how it ends.

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
fn law_12_who_may_not_renew_says_so_a_lease_later_and_no_more_once_it_leads_again() {
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    let began = play.now;
    // It leads on for as long as its Lease says, and tries.
    while play.election.hold().is_some() {
        assert_eq!(play.barred(), None, "it leads");
        match play.election.plan(play.time()) {
            Step::Do { .. } => play.refuse(),
            Step::Wait(until) => play.now = until.as_secs_f64(),
            Step::Lost => play.election.lose(),
        }
    }
    play.refuse();
    assert_eq!(play.barred(), None, "another one may lead by now");
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
fn another_one_that_renews_leads_and_that_we_may_not_is_no_matter() {
    let mut play = Play::under_another();
    play.act();
    play.now += 15.0;
    play.refuse();
    play.now += 15.0;
    assert!(play.barred().is_some(), "it has stood still for longer than it lasts");
    // Looking is allowed, and shows the same.
    assert_eq!(play.act(), ["LookForLead"]);
    assert!(play.barred().is_some());
    play.server.write(|spec| spec["renewTime"] = json!("2001-01-01T00:00:30.000000Z"));
    play.show();
    assert_eq!(play.barred(), None);
}

#[test]
fn law_02_only_a_loop_that_may_stand_in_acts_while_the_election_is_closed_and_only_so_long() {
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
    assert!(works.lead().is_none(), "nobody works");
    let first = keeps.lead().unwrap();
    assert_eq!(keeps.why_stand_in(&first).as_deref(), Some("cannot patch leases"));
    assert!(first.lasts() && fence.bar(None) && !first.lasts());
    fence.bar(Some("again"));
    let second = keeps.lead().unwrap();
    assert!(!first.lasts() && second.lasts(), "a term that has ended never lasts again");
    fence.open(1, Duration::from_secs(110));
    let leads = keeps.lead().unwrap();
    assert_eq!((leads.term(), keeps.why_stand_in(&leads)), (1, None), "who leads does not stand in");
    assert_eq!(works.lead().as_ref().map(Lead::term), Some(1));
}
