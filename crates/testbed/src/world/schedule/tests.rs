//! A toy that evicts every pod that runs, and budgets that forbid it now and then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tapestry_cluster::feed::Epoch;
use tapestry_cluster::{Name, Target, Uid, Verb, kind};
use tapestry_engine::{Dirty, Plan, Reason as _};

use super::super::observer::View;
use super::super::server::What;
use super::super::{Kubelet, explore};
use super::*;

#[derive(Default)]
struct Evictor {
    pods: BTreeMap<Uid, Pod>,
    held: Arc<AtomicUsize>,
}

#[derive(Clone)]
struct Pod {
    name: Name,
    rv: Rv,
    epoch: Epoch,
    runs: bool,
}

enum Fact {
    Put(Value, Epoch),
    Gone(Value),
    Listed(Epoch),
}

fn uid(pod: &Value) -> Uid {
    Uid::new(pod["metadata"]["uid"].as_str().unwrap())
}

tapestry_engine::reasons! {
    enum Why { Evict }
}

impl Model for Evictor {
    type Key = Uid;
    type Fact = Fact;
    type Why = Why;

    fn observe(&mut self, seen: Fact, _: Now, dirty: &mut Dirty<Uid>) {
        match seen {
            Fact::Put(pod, epoch) => {
                let metadata = &pod["metadata"];
                let row = Pod {
                    name: Name::parse(metadata["name"].as_str().unwrap()).unwrap(),
                    rv: Rv::new(metadata["resourceVersion"].as_str().unwrap().parse().unwrap()),
                    epoch,
                    runs: pod["status"]["phase"] == "Running" && metadata.get("deletionTimestamp").is_none(),
                };
                dirty.mark(uid(&pod));
                let known = self.pods.entry(uid(&pod)).or_insert(Pod { rv: Rv::new(0), ..row.clone() });
                let epoch = known.epoch.max(epoch);
                if row.rv >= known.rv {
                    *known = row;
                }
                known.epoch = epoch;
            }
            Fact::Gone(pod) => drop(self.pods.remove(&uid(&pod))),
            Fact::Listed(epoch) => self.pods.retain(|_, pod| pod.epoch >= epoch),
        }
    }

    fn plan(&self, key: &Uid, _: Now) -> Plan<Why> {
        let Some(pod) = self.pods.get(key).filter(|pod| pod.runs) else { return Plan::Rest };
        let namespace = Name::parse("default").unwrap();
        let target = Target::namespaced(Side::Physical, &kind::POD, namespace, pod.name.clone()).uid(key);
        Why::Evict.call(target, Verb::Evict { grace: None })
    }

    fn settle(&mut self, key: &Uid, _: Why, _: &Call, done: Result<Answer, Refusal>, _: Now, dirty: &mut Dirty<Uid>) {
        match done {
            // The answer does not show the pod: the watch will.
            Ok(_) => drop(self.pods.get_mut(key).map(|pod| pod.runs = false)),
            Err(Refusal::Gone | Refusal::Replaced) => drop(self.pods.remove(key)),
            Err(Refusal::Held(..)) => drop(self.held.fetch_add(1, Ordering::Relaxed)),
            Err(_) => {}
        }
        dirty.mark(key.clone());
    }

    fn keys(&self) -> Vec<Uid> {
        self.pods.keys().cloned().collect()
    }
}

fn schedule(seed: u64, held: &Arc<AtomicUsize>) -> Schedule<Evictor> {
    let held = Arc::clone(held);
    let life = move |_| {
        let read = |text: &bytes::Bytes| serde_json::from_slice::<Value>(text).unwrap();
        let observer = Observer::new(Side::Physical, &kind::POD, move |view| {
            Some(match view {
                View::Put(text, epoch) => Fact::Put(read(text), epoch),
                View::Gone(text) => Fact::Gone(read(text)),
                View::Listed(epoch) => Fact::Listed(epoch),
                View::Unserved | View::Reached(_) => return None,
            })
        });
        let model = Evictor { held: Arc::clone(&held), ..Evictor::default() };
        Life { model, observers: vec![observer], facts: Vec::new() }
    };
    let user = |world: &mut World, rng: &mut Rng| {
        let spec = json!({"nodeName": "n", "containers": [{"name": "main", "image": "x"}]});
        let name = format!("p{}", rng.u8(..5));
        world.make(Side::Physical, &kind::POD, json!({"metadata": {"name": name}, "spec": spec}));
    };
    Schedule::new(Config::new(seed), life).actor(user).actor(Kubelet::steady(Side::Physical))
}

#[test]
fn evictions_are_held_now_and_then_and_succeed_in_the_end() {
    let held = Arc::default();
    let story = |seed| {
        let mut run = schedule(seed, &held);
        run.run(300)?;
        run.quiesce()?;
        run.check(|world| match world.server(Side::Physical).count(&kind::POD) {
            0 => Ok(()),
            left => Err(format!("{left} pods are left")),
        })?;
        run.check(|world| {
            let went = world.server(Side::Physical).log(&kind::POD).iter().filter(|event| event.what == What::Deleted);
            let evicted = |pod: &Value| pod["status"]["conditions"].to_string().contains("EvictionByEvictionAPI");
            match went.into_iter().find(|event| !evicted(event.object.value())) {
                None => Ok(()),
                Some(event) => Err(format!("{} was deleted without an eviction", event.object.path())),
            }
        })
    };
    explore(0..100, story).unwrap();
    assert!(held.load(Ordering::Relaxed) > 20, "{held:?}");
}
