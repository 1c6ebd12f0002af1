//! World with a toy model: it copies every `ServiceAccount` of the virtual cluster to the physical one, and deletes
//! the copy with it. The toy is right, or wrong in one way; World must find out.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use serde::Deserialize;
use serde_json::json;
use tapestry_cluster::feed::{Change, Epoch, Row};
use tapestry_cluster::{Name, Rv, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Model, Plan, Reason as _};

use super::*;

const KIND: &Kind = &kind::SERVICE_ACCOUNT;
const MINE: &str = "copied";
const SOURCE: &str = "source";

/// How the toy is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Toy {
    Right,
    /// Treats absence from its table as proof.
    BelievesAbsence,
    /// Deletes any object of that name.
    DeletesByName,
    /// Gives a copy a new name in each life.
    ForgetsNames,
    /// Believes that a call whose answer was lost has been carried out.
    BelievesTheUnknown,
    /// Writes although nothing has changed.
    NeverRests,
}

#[derive(Debug, Clone)]
struct Thing {
    uid: Uid,
    rv: Rv,
    name: Name,
    source: Option<Uid>,
    deleting: bool,
}

impl Row for Thing {
    fn uid(&self) -> &Uid {
        &self.uid
    }
    fn rv(&self) -> Rv {
        self.rv
    }
    fn deleting(&self) -> bool {
        self.deleting
    }
}

fn decode(json: &bytes::Bytes) -> Result<Option<Thing>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        name: Name,
        uid: Uid,
        resource_version: Rv,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
        deletion_timestamp: Option<String>,
    }
    let Object { metadata: meta } = serde_json::from_slice(json)?;
    Ok(Some(Thing {
        source: meta.annotations.get(SOURCE).map(|uid| Uid::new(&**uid)),
        uid: meta.uid,
        rv: meta.resource_version,
        name: meta.name,
        deleting: meta.deletion_timestamp.is_some(),
    }))
}

/// What the toy knows of one side: newer versions win, deleted objects do not come back.
#[derive(Default)]
struct Known {
    rows: BTreeMap<Uid, (Thing, Epoch)>,
    graves: BTreeMap<Uid, Rv>,
    complete: bool,
}

impl Known {
    fn put(&mut self, thing: Thing, epoch: Epoch) {
        let known = self.rows.get(&thing.uid).map(|(known, epoch)| (known.rv, *epoch));
        let newer = known.is_none_or(|(rv, _)| thing.rv >= rv);
        let epoch = epoch.max(known.map_or(Epoch(0), |(_, epoch)| epoch));
        if self.graves.get(&thing.uid).is_some_and(|died| thing.rv <= *died) {
            return;
        }
        if newer {
            self.rows.insert(thing.uid.clone(), (thing, epoch));
        } else if let Some(known) = self.rows.get_mut(&thing.uid) {
            known.1 = epoch;
        }
    }

    fn bury(&mut self, uid: &Uid, at: Rv) {
        self.rows.remove(uid);
        self.graves.insert(uid.clone(), at);
    }

    fn listed(&mut self, now: Epoch) {
        self.complete = true;
        self.rows.retain(|_, (_, epoch)| *epoch >= now);
    }

    fn iter(&self) -> impl Iterator<Item = &Thing> {
        self.rows.values().map(|(thing, _)| thing)
    }
}

/// The toy. Its keys are the names of the originals.
struct Copier {
    toy: Toy,
    suffix: u64,
    sides: [Known; 2],
    /// Originals that are proven gone.
    gone: BTreeSet<Uid>,
}

type Fact = (Side, Change<Thing>);

impl Copier {
    fn find(&self, side: Side, name: &str) -> Option<&Thing> {
        self.sides[index(side)].iter().filter(|thing| original(&thing.name) == name).min_by_key(|thing| &thing.uid)
    }

    fn copy_name(&self, key: &str) -> Name {
        let name = if self.toy == Toy::ForgetsNames { format!("{key}.{}", self.suffix) } else { key.to_owned() };
        Name::parse(&name).unwrap()
    }
}

/// `a.17` is a copy of `a`.
fn original(name: &Name) -> &str {
    name.as_str().split('.').next().unwrap()
}

fn target(side: Side, name: Name) -> Target {
    Target::namespaced(side, KIND, Name::parse("default").unwrap(), name)
}

tapestry_engine::reasons! {
    enum Why { Copy, Prove, Remove, Stamp }
}

impl Model for Copier {
    type Key = String;
    type Fact = Fact;
    type Why = Why;

    fn observe(&mut self, (side, change): Fact, _: Now, dirty: &mut Dirty<String>) {
        let table = &mut self.sides[index(side)];
        match change {
            Change::Put(row, epoch) => {
                dirty.mark(original(&row.name).to_owned());
                table.put(row, epoch);
            }
            Change::Gone { row, .. } => {
                dirty.mark(original(&row.name).to_owned());
                table.bury(&row.uid, row.rv);
            }
            Change::Unserved | Change::Reached(_) => {}
            Change::Listed(epoch) => {
                table.listed(epoch);
                dirty.mark_all();
            }
        }
    }

    fn plan(&self, key: &String, _: Now) -> Plan<Why> {
        if !self.sides.iter().all(|side| side.complete) {
            return Plan::Rest;
        }
        match (self.find(Side::Virtual, key), self.find(Side::Physical, key)) {
            (None, None) => Plan::Rest,
            (Some(thing), None) => {
                let name = self.copy_name(key);
                let body = json!({
                    "apiVersion": "v1",
                    "kind": "ServiceAccount",
                    "metadata": {
                        "name": name.as_str(),
                        "labels": {MINE: "yes"},
                        "annotations": {SOURCE: thing.uid.as_str()},
                    },
                });
                Why::Copy.call(target(Side::Physical, name), Verb::Create(body))
            }
            (Some(thing), Some(copy)) if copy.source.as_ref() == Some(&thing.uid) => {
                if self.toy != Toy::NeverRests {
                    return Plan::Rest;
                }
                let body = json!({"metadata": {"annotations": {"version": copy.rv.to_string()}}});
                let target = target(Side::Physical, copy.name.clone()).uid(&copy.uid);
                Why::Stamp.call(target, Verb::Merge(tapestry_cluster::Sub::Main, body))
            }
            (_, Some(copy)) => {
                let source = copy.source.as_ref().unwrap();
                // Another original of that name proves nothing either: either view may be the older one.
                if !self.gone.contains(source) && self.toy != Toy::BelievesAbsence {
                    // The UID is not sent with a read; it remembers which original the question is about.
                    let target = target(Side::Virtual, Name::parse(key).unwrap()).uid(source);
                    return Why::Prove.call(target, Verb::Get);
                }
                let mut target = target(Side::Physical, copy.name.clone());
                if self.toy != Toy::DeletesByName {
                    target = target.uid(&copy.uid);
                }
                Why::Remove.call(target, Verb::Delete { grace: None })
            }
        }
    }

    fn settle(
        &mut self,
        key: &String,
        _: Why,
        call: &Call,
        done: Result<Answer, Refusal>,
        _: Now,
        dirty: &mut Dirty<String>,
    ) {
        dirty.mark(key.clone());
        let source = call.target.uid.clone();
        let read = |answer: Answer| decode(&answer.object).unwrap().unwrap();
        match (&call.verb, done) {
            (Verb::Get, Err(Refusal::Gone)) => self.gone.extend(source),
            (Verb::Get, Ok(answer)) => {
                let thing = read(answer);
                self.gone.extend(source.filter(|source| *source != thing.uid));
                self.sides[0].put(thing, Epoch(0));
            }
            (Verb::Create(_) | Verb::Merge(..), Ok(answer)) => {
                self.sides[1].put(read(answer), Epoch(0));
            }
            (Verb::Delete { .. }, Ok(answer)) => {
                let gone = read(answer);
                self.sides[1].bury(&gone.uid, gone.rv);
            }
            (Verb::Delete { .. }, Err(Refusal::Unknown(_))) if self.toy == Toy::BelievesTheUnknown => {
                self.sides[1].bury(call.target.uid.as_ref().unwrap(), Rv::new(u64::MAX));
            }
            _ => {}
        }
    }

    fn keys(&self) -> Vec<String> {
        let names: BTreeSet<String> =
            self.sides.iter().flat_map(Known::iter).map(|thing| original(&thing.name).to_owned()).collect();
        names.into_iter().collect()
    }
}

fn life(toy: Toy, birth: Birth) -> Life<Copier> {
    let rows = |side| Observer::rows(side, KIND, decode, move |change| (side, change));
    let mine = |object: &Value| object["metadata"]["labels"][MINE] == "yes";
    Life {
        model: Copier { toy, suffix: birth.seed, sides: Default::default(), gone: BTreeSet::new() },
        observers: vec![rows(Side::Virtual), rows(Side::Physical).only(mine)],
        facts: Vec::new(),
    }
}

/// Creates and deletes originals.
fn user(world: &mut World, rng: &mut Rng) {
    let name = format!("s{}", rng.u8(..5));
    let path = format!("default/{name}");
    if rng.bool() {
        world.make(Side::Virtual, KIND, json!({"metadata": {"name": name}}));
    } else {
        world.delete(Side::Virtual, KIND, &path, None);
    }
}

/// Deletes copies.
fn stranger(world: &mut World, rng: &mut Rng) {
    if rng.u8(..4) == 0
        && let Some(path) = world.pick(Side::Physical, KIND, rng, |_| true)
    {
        world.delete(Side::Physical, KIND, &path, None);
    }
}

fn source(copy: &Value) -> &str {
    copy["metadata"]["annotations"][SOURCE].as_str().unwrap()
}

fn has_original(world: &World, copy: &Value) -> bool {
    world.list(Side::Virtual, KIND).any(|thing| thing["metadata"]["uid"] == source(copy))
}

fn schedule(toy: Toy, config: Config) -> Schedule<Copier> {
    Schedule::new(config, move |birth| life(toy, birth))
        .actor(user)
        .actor(stranger)
        .rule(|world| {
            let mut sources = BTreeSet::new();
            let twice = world.list(Side::Physical, KIND).find(|copy| !sources.insert(source(copy)));
            twice.map_or(Ok(()), |copy| Err(format!("two copies of {}", source(copy))))
        })
        .on_call(|world, _, call| {
            let path = format!("default/{}", call.target.name);
            let copy = world.get(call.target.side, KIND, &path);
            match (&call.verb, copy) {
                // A call that its precondition will refuse is harmless.
                (Verb::Delete { .. }, Some(copy))
                    if call.target.uid.as_ref().is_none_or(|uid| copy["metadata"]["uid"] == uid.as_str())
                        && has_original(world, copy) =>
                {
                    Err("the original exists".to_owned())
                }
                _ => Ok(()),
            }
        })
}

fn every_original_has_its_copy(world: &World) -> Result<(), String> {
    for thing in world.list(Side::Virtual, KIND) {
        let uid = thing["metadata"]["uid"].as_str().unwrap();
        if !world.list(Side::Physical, KIND).any(|copy| source(copy) == uid) {
            return Err(format!("{uid} has no copy"));
        }
    }
    match world.list(Side::Physical, KIND).find(|copy| !has_original(world, copy)) {
        Some(copy) => Err(format!("an orphan of {}", source(copy))),
        None => Ok(()),
    }
}

fn story(run: &mut Schedule<Copier>) -> Result<(), Failure> {
    run.run(300)?;
    run.quiesce()?;
    run.check(every_original_has_its_copy)
}

fn run(toy: Toy, config: Config) -> Result<(), Failure> {
    story(&mut schedule(toy, config))
}

#[test]
fn a_right_model_survives_every_fault() {
    explore(0..300, |seed| run(Toy::Right, Config::new(seed))).unwrap();
}

#[test]
fn a_right_model_survives_a_second_leader() {
    explore(0..300, |seed| run(Toy::Right, Config::new(seed).leaders(2))).unwrap();
}

#[test]
fn law_08_a_right_model_survives_a_crash_after_every_call() {
    for seed in 0..5 {
        let make = || schedule(Toy::Right, Config::new(seed).faults(Faults::NONE));
        let calls = exhaustive_crash(make, story).unwrap();
        assert!(calls > 10, "{calls}");
    }
}

#[test]
fn a_model_that_believes_absence_is_caught() {
    let failure = explore(0..300, |seed| run(Toy::BelievesAbsence, Config::new(seed).leaders(2))).unwrap_err();
    assert!(failure.why.contains("the original exists"), "{failure}");
}

#[test]
fn a_model_that_deletes_by_name_is_caught() {
    let failure = explore(0..300, |seed| run(Toy::DeletesByName, Config::new(seed))).unwrap_err();
    assert!(failure.why.contains("the original exists"), "{failure}");
}

#[test]
fn a_model_that_forgets_the_names_it_chose_is_caught_by_a_crash_after_a_call() {
    let make = |seed| move || schedule(Toy::ForgetsNames, Config::new(seed).faults(Faults::NONE));
    // It needs a second call in flight that arrives after the next life has listed.
    let mut failures = (0..20).filter_map(|seed| exhaustive_crash(make(seed), story).err());
    assert!(failures.any(|failure| failure.why.contains("two copies")));
}

#[test]
fn a_model_that_believes_lost_answers_is_caught() {
    let mut failures = (0..600).filter_map(|seed| run(Toy::BelievesTheUnknown, Config::new(seed)).err());
    assert!(failures.any(|failure| failure.why.contains("not converged") && failure.why.contains("-> Exists")));
}

#[test]
fn a_model_that_never_rests_is_caught() {
    let failure = run(Toy::NeverRests, Config::new(1)).unwrap_err();
    assert!(failure.why.contains("not converged"), "{failure}");
    assert!(failure.trace.contains("merge") || failure.trace.contains("Stamp"), "{failure}");
}

#[test]
fn one_seed_decides_everything() {
    let digest = |seed| {
        let mut run = schedule(Toy::Right, Config::new(seed).leaders(2));
        story(&mut run).unwrap();
        run.digest()
    };
    assert_eq!(digest(7), digest(7));
    assert_ne!(digest(7), digest(8));
}
