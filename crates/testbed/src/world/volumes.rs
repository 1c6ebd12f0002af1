//! The volume controller of one side, as far as it affects our objects: binds claims to the volumes that are kept for them, protects
//! what is in use, and deletes the data of a volume whose claim is gone if the volume says so.

use std::cell::RefCell;
use std::rc::Rc;

use fastrand::Rng;
use serde_json::{Value, json};
use tapestry_cluster::{Side, kind};

use super::World;
use super::schedule::Actor;

/// Names of volumes whose data was deleted.
pub type Destroyed = Rc<RefCell<Vec<String>>>;

/// The volume controller of one side.
#[derive(Debug, Clone)]
pub struct VolumeController {
    /// Its side.
    pub side: Side,
    /// The chance that it does one of its tasks when its turn comes.
    pub diligence: f64,
    /// What it deleted.
    pub destroyed: Destroyed,
    /// Whether claims of a class get what they ask for, also later.
    pub resizes: bool,
}

const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";

impl VolumeController {
    /// One that does its tasks half of the time.
    #[must_use]
    pub fn new(side: Side) -> Self {
        Self { side, diligence: 0.5, destroyed: Destroyed::default(), resizes: side == Side::Physical }
    }

    /// Claims and volumes that name each other are bound; a claim without its volume is lost.
    fn bind(&self, world: &mut World) -> bool {
        let claims: Vec<Value> =
            world.list(self.side, &kind::PERSISTENT_VOLUME_CLAIM).filter(|claim| living(claim)).cloned().collect();
        let mut moved = false;
        for claim in claims {
            let kept = |volume: &&Value| {
                let reference = &volume["spec"]["claimRef"];
                let uid = &reference["uid"];
                let names = reference["name"] == claim["metadata"]["name"]
                    && reference["namespace"] == claim["metadata"]["namespace"];
                let wanted = &claim["spec"]["volumeName"];
                let named = wanted.is_null() || *wanted == volume["metadata"]["name"];
                // One that is being deleted stays with its claim, which protects it.
                let free = uid.is_null() && living(volume);
                named && names && (free || *uid == claim["metadata"]["uid"])
            };
            let volume = world.list(self.side, &kind::PERSISTENT_VOLUME).find(kept).cloned();
            let claim_path =
                super::server::path(claim["metadata"]["namespace"].as_str(), text(&claim["metadata"]["name"]));
            match volume {
                Some(volume) => {
                    let class = claim["spec"]["storageClassName"].as_str().is_some_and(|class| !class.is_empty());
                    let request = &claim["spec"]["resources"]["requests"];
                    let capacity = if self.resizes && class { request } else { &volume["spec"]["capacity"] }.clone();

                    moved |=
                        world.edit(self.side, &kind::PERSISTENT_VOLUME, text(&volume["metadata"]["name"]), |volume| {
                            volume["spec"]["claimRef"]["uid"] = claim["metadata"]["uid"].clone();
                            volume["spec"]["capacity"] = capacity.clone();
                            volume["status"]["phase"] = json!("Bound");
                            protect(volume, VOLUME_PROTECTION);
                        });
                    moved |= world.edit(self.side, &kind::PERSISTENT_VOLUME_CLAIM, &claim_path, |claim| {
                        claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
                        claim["status"]["phase"] = json!("Bound");
                        claim["status"]["capacity"] = capacity;
                        protect(claim, CLAIM_PROTECTION);
                    });
                }
                None if claim["status"]["phase"] == "Bound" => {
                    moved |= world.edit(self.side, &kind::PERSISTENT_VOLUME_CLAIM, &claim_path, |claim| {
                        claim["status"]["phase"] = json!("Lost");
                    });
                }
                None => {}
            }
        }
        moved
    }

    /// Volumes whose claim is gone are released, and their data goes with them if they say so.
    fn release(&self, world: &mut World) -> bool {
        let claims: Vec<Value> = world
            .list(self.side, &kind::PERSISTENT_VOLUME_CLAIM)
            .map(|claim| claim["metadata"]["uid"].clone())
            .collect();
        let free = |volume: &&Value| {
            let uid = &volume["spec"]["claimRef"]["uid"];
            !uid.is_null() && !claims.contains(uid)
        };
        let volumes: Vec<Value> = world.list(self.side, &kind::PERSISTENT_VOLUME).filter(free).cloned().collect();
        let mut moved = false;
        for volume in volumes {
            let name = text(&volume["metadata"]["name"]);
            if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete" {
                self.destroyed.borrow_mut().push(name.to_owned());
                moved |= world.delete(self.side, &kind::PERSISTENT_VOLUME, name, None);
            }
            moved |= world.edit(self.side, &kind::PERSISTENT_VOLUME, name, |volume| {
                volume["status"]["phase"] = json!("Released");
                unprotect(volume, VOLUME_PROTECTION);
            });
        }
        moved
    }

    /// What is being deleted goes when nothing uses it.
    fn let_go(&self, world: &mut World) -> bool {
        let used: Vec<(Value, Value)> = world
            .list(self.side, &kind::POD)
            .filter(|pod| !super::strategy::is_terminal(pod))
            .flat_map(|pod| {
                let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
                let claim = |volume: &Value| volume["persistentVolumeClaim"]["claimName"].clone();
                volumes.map(move |volume| (pod["metadata"]["namespace"].clone(), claim(volume)))
            })
            .collect();
        let unused = |claim: &&Value| {
            let name = (claim["metadata"]["namespace"].clone(), claim["metadata"]["name"].clone());
            !living(claim) && !used.contains(&name)
        };
        let claims: Vec<String> = world
            .list(self.side, &kind::PERSISTENT_VOLUME_CLAIM)
            .filter(unused)
            .map(|claim| super::server::path(claim["metadata"]["namespace"].as_str(), text(&claim["metadata"]["name"])))
            .collect();
        let mut moved = false;
        for claim in claims {
            moved |= world.edit(self.side, &kind::PERSISTENT_VOLUME_CLAIM, &claim, |claim| {
                unprotect(claim, CLAIM_PROTECTION);
            });
        }
        moved
    }
}

impl Actor for VolumeController {
    fn act(&mut self, world: &mut World, rng: &mut Rng) {
        for duty in [Self::bind, Self::release, Self::let_go] {
            if rng.f64() < self.diligence {
                duty(self, world);
            }
        }
    }

    fn settle(&mut self, world: &mut World, _: &mut Rng) -> bool {
        let duties = [Self::bind, Self::release, Self::let_go];
        duties.iter().filter(|duty| duty(self, world)).count() > 0
    }
}

fn living(object: &Value) -> bool {
    object["metadata"].get("deletionTimestamp").is_none()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn protect(object: &mut Value, finalizer: &str) {
    let held = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    if !held.iter().any(|held| held == finalizer) {
        object["metadata"]["finalizers"] = held.into_iter().chain([json!(finalizer)]).collect();
    }
}

fn unprotect(object: &mut Value, finalizer: &str) {
    let held = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let rest: Vec<Value> = held.into_iter().filter(|held| held != finalizer).collect();
    super::strategy::put(
        &mut object["metadata"],
        "finalizers",
        if rest.is_empty() { Value::Null } else { rest.into() },
    );
}
