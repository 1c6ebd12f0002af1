//! Elections against a Lease in memory: the rules one by one, by property with every delay and loss, and the task that
//! carries them out.

mod barred;
mod property;
mod running;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::refusal::Status;
use tapestry_cluster::{Answer, Call, Name, Refusal, Verb, kind};

use super::election::{BadTimings, Election, Hold, LeaseTimings, Seat, Step};
use super::record::Record;
use crate::Now;

/// One Lease, as an API server keeps it.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    versions: u64,
    homeless: bool,
    /// What a watch shows; `true` for its end.
    log: Vec<(Value, bool)>,
}

impl Server {
    fn call(&mut self, call: &Call) -> Result<Answer, Refusal> {
        if *call.target.kind == kind::NAMESPACE {
            self.homeless = false;
            return Ok(Answer { object: "{}".into() });
        }
        match (&call.verb, &self.lease) {
            (Verb::Peek, Some(_)) => {}
            (Verb::Create(_), None) if self.homeless => {
                return Err(Refusal::Invalid(Box::new(Status { code: 404, ..Status::default() })));
            }
            (Verb::Create(body), None) => self.store(&body["spec"], self.versions + 1),
            (Verb::Create(_), Some(_)) => return Err(Refusal::Exists),
            (Verb::Peek | Verb::Merge(..), None) => return Err(Refusal::Gone),
            (Verb::Merge(_, _), Some(lease)) => {
                let body = call.body().unwrap().into_owned();
                for field in ["uid", "resourceVersion"] {
                    assert!(body["metadata"][field].is_string(), "law 2: {body}");
                    if body["metadata"][field] != lease["metadata"][field] {
                        return Err(Refusal::Replaced);
                    }
                }
                let mut spec = lease["spec"].clone();
                for (field, value) in body["spec"].as_object().unwrap() {
                    spec[field] = value.clone();
                }
                let uid = lease["metadata"]["uid"].as_str().unwrap().parse().unwrap();
                self.store(&spec, uid);
            }
            other => panic!("{other:?}"),
        }
        Ok(Answer { object: self.lease.as_ref().unwrap().to_string().into() })
    }

    fn store(&mut self, spec: &Value, uid: u64) {
        self.versions += 1;
        let metadata = json!({"uid": uid.to_string(), "resourceVersion": self.versions.to_string()});
        let lease = json!({"metadata": metadata, "spec": spec});
        self.log.push((lease.clone(), false));
        self.lease = Some(lease);
    }

    /// Another writer changes it.
    fn write(&mut self, change: impl FnOnce(&mut Value)) {
        let mut lease = self.lease.take().unwrap_or_default();
        change(&mut lease["spec"]);
        let uid = lease["metadata"]["uid"].as_str().map_or(self.versions + 1, |uid| uid.parse().unwrap());
        self.store(&lease["spec"], uid);
    }

    fn delete(&mut self) {
        self.versions += 1;
        let mut lease = self.lease.take().unwrap();
        lease["metadata"]["resourceVersion"] = json!(self.versions.to_string());
        self.log.push((lease, true));
    }

    fn holder(&self) -> &str {
        self.lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str()).unwrap_or_default()
    }
}

fn change((lease, gone): &(Value, bool)) -> Change<Record> {
    let row = Record::decode(&lease.to_string().into()).unwrap();
    if *gone { Change::Gone { row, proven: false } } else { Change::Put(row, Epoch(1)) }
}

fn seat(identity: &str) -> Seat {
    let name = |text| Name::parse(text).unwrap();
    Seat {
        namespace: name("tapestry-system"),
        name: name("syncer-east"),
        identity: identity.into(),
        timings: LeaseTimings::default(),
    }
}

/// One candidate with its own clock, and a server.
struct Play {
    server: Server,
    election: Election,
    /// Seconds of its steady time.
    now: f64,
    shown: usize,
}

impl Play {
    fn new() -> Self {
        Self { server: Server::default(), election: Election::new(seat("us")), now: 100.0, shown: 0 }
    }

    /// Another process holds the Lease; its clock is years off.
    fn under_another() -> Self {
        let mut play = Self::new();
        play.server.write(|spec| {
            *spec = json!({
                "holderIdentity": "them", "leaseDurationSeconds": 15, "leaseTransitions": 6,
                "acquireTime": "2001-01-01T00:00:00.000000Z", "renewTime": "2001-01-01T00:00:00.000000Z",
            });
        });
        play
    }

    fn time(&self) -> Now {
        let steady = Duration::from_secs_f64(self.now);
        Now { wall: Timestamp::UNIX_EPOCH + SignedDuration::try_from(steady).unwrap(), steady }
    }

    fn steady(&self) -> Duration {
        self.time().steady
    }

    fn step(&self) -> Step {
        self.election.plan(self.time())
    }

    /// The call that is wanted now.
    #[track_caller]
    fn wanted(&self) -> Call {
        match self.step() {
            Step::Do { call, .. } => call,
            other => panic!("{other:?}"),
        }
    }

    /// Seconds until something is wanted.
    #[track_caller]
    fn wait(&self) -> f64 {
        match self.step() {
            Step::Wait(until) => until.as_secs_f64() - self.now,
            other => panic!("{other:?}"),
        }
    }

    /// Carries out all wanted calls, each at once; returns their reasons.
    #[track_caller]
    fn act(&mut self) -> Vec<&'static str> {
        let mut told = Vec::new();
        while let Step::Do { call, .. } = self.step() {
            assert!(told.len() < 10, "no end: {told:?}");
            told.push(call.why);
            let done = self.server.call(&call);
            let now = self.steady();
            self.election.settle(&call, now, now, done);
        }
        told
    }

    /// The watch shows what has happened.
    fn show(&mut self) {
        while let Some(event) = self.server.log.get(self.shown) {
            self.shown += 1;
            self.election.see(change(event), self.steady());
        }
    }

    fn spec(&self) -> &Value {
        &self.server.lease.as_ref().unwrap()["spec"]
    }
}

#[track_caller]
fn about(seen: f64, wanted: f64) {
    assert!((seen - wanted).abs() < 1e-3, "{seen}, not {wanted}");
}

#[test]
fn a_missing_lease_is_created_like_client_gos_and_renewed_every_two_seconds() {
    let mut play = Play::new();
    assert_eq!(play.act(), ["LookForLead", "TakeLead"]);
    let moment = "1970-01-01T00:01:40.000000Z";
    let first = json!({
        "holderIdentity": "us", "leaseDurationSeconds": 15, "leaseTransitions": 0, "acquireTime": moment, "renewTime": moment,
    });
    assert_eq!(*play.spec(), first);
    assert_eq!(play.election.hold(), Some(Hold { term: 1, until: Duration::from_secs(110) }));
    for renewal in 1..5 {
        about(play.wait(), 2.0);
        play.now += 2.0;
        // The watch shows our own writes late, and they change nothing.
        play.show();
        assert_eq!(play.act(), ["RenewLead"], "renewal {renewal}");
    }
    assert_eq!(play.spec()["acquireTime"], moment);
    assert_eq!(play.spec()["renewTime"], "1970-01-01T00:01:48.000000Z");
    assert_eq!(play.spec()["leaseTransitions"], 0);
    assert_eq!(play.election.hold(), Some(Hold { term: 1, until: Duration::from_secs(118) }));
}

#[test]
fn the_age_of_a_record_is_the_time_for_which_we_saw_it_unchanged() {
    let mut play = Play::under_another();
    assert_eq!(play.act(), ["LookForLead"]);
    about(play.wait(), 15.0);
    assert_eq!(play.election.holder(), Some("them"));
    // Whatever time they write: it changes, so they are alive.
    for renewal in 0..3 {
        play.now += 10.0;
        play.server.write(|spec| spec["renewTime"] = json!(format!("2001-01-01T00:00:0{}.000000Z", renewal + 1)));
        play.show();
        about(play.wait(), 15.0);
    }
    play.now += 14.9;
    about(play.wait(), 0.1);
    play.now += 0.2;
    assert_eq!(play.act(), ["TakeLead"]);
    assert_eq!(
        (play.spec()["holderIdentity"].as_str(), play.spec()["leaseTransitions"].as_u64()),
        (Some("us"), Some(7))
    );
    assert!(play.election.hold().is_some());
}

#[test]
fn a_change_that_is_not_the_holders_is_no_sign_of_life() {
    let mut play = Play::under_another();
    play.act();
    play.now += 10.0;
    // A label, a managed field: a new version with the same record.
    play.server.write(|_| {});
    play.show();
    about(play.wait(), 5.0);
    play.now += 5.0;
    assert_eq!(play.act(), ["TakeLead"], "and under the new version");
}

#[test]
fn a_lease_that_was_given_back_is_taken_as_soon_as_that_is_seen() {
    let mut play = Play::under_another();
    play.act();
    play.now += 1.0;
    play.server.write(|spec| {
        spec["holderIdentity"] = json!("");
        spec["leaseDurationSeconds"] = json!(1);
    });
    play.show();
    assert_eq!(play.act(), ["TakeLead"]);
    assert_eq!(
        (play.spec()["leaseDurationSeconds"].as_u64(), play.spec()["leaseTransitions"].as_u64()),
        (Some(15), Some(7))
    );
}

#[test]
fn a_lease_with_our_name_is_ours_at_once_and_no_transition() {
    let mut play = Play::under_another();
    play.server.write(|spec| spec["holderIdentity"] = json!("us"));
    assert_eq!(play.act(), ["LookForLead", "RenewLead"]);
    assert_eq!(play.spec()["leaseTransitions"], 6);
    assert_eq!(play.spec()["acquireTime"], "2001-01-01T00:00:00.000000Z");
    assert!(play.election.hold().is_some());
}

#[test]
fn the_fence_is_ten_seconds_after_the_moment_before_the_last_renewal_that_succeeded() {
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    let call = play.wanted();
    // Sent at 102, and answered a second later.
    let done = play.server.call(&call);
    play.now += 1.0;
    play.election.settle(&call, Duration::from_secs(102), play.steady(), done);
    assert_eq!(play.election.hold().unwrap().until, Duration::from_secs(112));
    // From now on the server does not answer.
    let mut tries = 0;
    while play.now < 112.0 {
        match play.step() {
            Step::Do { call, within } => {
                assert!(play.steady() + within <= Duration::from_secs(112), "a renewal must not outlive the fence");
                assert!(within <= Duration::from_secs(5), "and a dead connection leaves time for another one");
                tries += 1;
                let sent = play.steady();
                play.now += 0.5;
                play.election.settle(&call, sent, play.steady(), Err(Refusal::Unknown(String::new())));
            }
            Step::Wait(until) => play.now = until.as_secs_f64(),
            Step::Lost => break,
        }
        assert_eq!(play.election.hold().unwrap().until, Duration::from_secs(112));
    }
    about(play.now, 112.0);
    assert!((3..=5).contains(&tries), "{tries} tries");
    assert_eq!(play.step(), Step::Lost);
    play.election.lose();
    assert_eq!(play.election.hold(), None);
    // No other process has taken it: we claim it again at once, and it is another term.
    assert_eq!(play.act(), ["RenewLead"]);
    assert_eq!(play.election.hold().unwrap().term, 2);
}

#[test]
fn an_answer_that_we_were_too_late_to_read_is_no_leadership() {
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    let call = play.wanted();
    let done = play.server.call(&call);
    // We slept.
    play.now += 10.0;
    play.election.settle(&call, Duration::from_secs(102), play.steady(), done);
    assert_eq!(play.election.hold(), None);
}

#[test]
fn another_process_that_takes_the_lease_ends_our_term_as_soon_as_we_see_it() {
    let mut play = Play::new();
    play.act();
    play.now += 1.0;
    play.server.write(|spec| spec["holderIdentity"] = json!("them"));
    play.show();
    assert_eq!(play.election.hold(), None);
    about(play.wait(), 15.0);
    // Also when it is our own renewal that finds out.
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    play.server.write(|spec| spec["holderIdentity"] = json!("them"));
    assert_eq!(play.act(), ["RenewLead"]);
    play.now += 0.1;
    assert_eq!(play.act(), ["LookForLead"]);
    assert_eq!(play.election.hold(), None);
}

#[test]
fn a_renewal_that_fails_because_a_user_edited_the_lease_is_repeated_and_the_term_lasts() {
    let mut play = Play::new();
    play.act();
    play.now += 2.0;
    play.server.write(|_| {});
    assert_eq!(play.act(), ["RenewLead"]);
    play.now += 0.1;
    assert_eq!(play.act(), ["LookForLead", "RenewLead"]);
    let until = Duration::from_secs_f64(112.1);
    assert_eq!(play.election.hold(), Some(Hold { term: 1, until }));
}

#[test]
fn the_holder_creates_a_deleted_lease_again_and_the_others_wait() {
    let mut holder = Play::new();
    holder.act();
    holder.now += 1.0;
    holder.server.delete();
    holder.show();
    about(holder.wait(), 1.0);
    holder.now += 1.0;
    assert_eq!(holder.act(), ["TakeLead"]);
    assert_eq!(holder.election.hold().unwrap().term, 1);

    let mut other = Play::under_another();
    other.act();
    other.now += 4.0;
    other.server.delete();
    other.show();
    about(other.wait(), 11.0);
    other.now += 11.0;
    assert_eq!(other.act(), ["TakeLead"]);
}

#[test]
fn a_missing_namespace_is_created_first() {
    let mut play = Play::new();
    play.server.homeless = true;
    assert_eq!(play.act(), ["LookForLead", "TakeLead", "CreateNamespace", "TakeLead"]);
    assert!(play.election.hold().is_some());
}

#[test]
fn law_12_without_the_right_to_be_elected_we_retry_rarely() {
    let mut play = Play::new();
    let call = play.wanted();
    play.election.settle(&call, play.steady(), play.steady(), Err(Refusal::Denied(Box::default())));
    about(play.wait(), 15.0);
}

#[test]
fn a_lease_is_released_as_client_go_releases_it() {
    let mut play = Play::new();
    play.act();
    play.now += 1.0;
    // A user labels it right before.
    play.server.write(|_| {});
    play.election.lose();
    let mut told = Vec::new();
    while let Some(call) = play.election.plan_release(play.time(), true) {
        assert!(told.len() < 5, "{told:?}");
        told.push(call.why);
        let done = play.server.call(&call);
        play.election.settle(&call, play.steady(), play.steady(), done);
    }
    assert_eq!(told, ["ReleaseLead", "LookForLead", "ReleaseLead"]);
    let moment = "1970-01-01T00:01:41.000000Z";
    let given = json!({
        "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 0, "acquireTime": moment, "renewTime": moment,
    });
    assert_eq!(*play.spec(), given);
    assert_eq!(play.election.hold(), None);
    // A process that does not hold it releases nothing.
    let mut play = Play::under_another();
    play.act();
    assert_eq!(play.election.plan_release(play.time(), false), None);
}

#[test]
fn timings_that_cannot_work_are_refused() {
    let timings = |lease: f64, renew: f64, retry: f64| LeaseTimings {
        lease: Duration::from_secs_f64(lease),
        renew_deadline: Duration::from_secs_f64(renew),
        retry: Duration::from_secs_f64(retry),
    };
    assert_eq!(LeaseTimings::default().check(), Ok(()));
    assert_eq!(timings(1.0, 0.8, 0.2).check(), Ok(()));
    assert_eq!(timings(0.5, 0.4, 0.1).check(), Err(BadTimings::Fraction));
    assert_eq!(timings(0.0, 0.0, 0.0).check(), Err(BadTimings::Fraction));
    assert_eq!(timings(10.0, 10.0, 2.0).check(), Err(BadTimings::Deadline));
    assert_eq!(timings(15.0, 10.0, 9.0).check(), Err(BadTimings::Retry));
    assert_eq!(timings(15.0, 10.0, 0.0).check(), Err(BadTimings::Retry));
}
