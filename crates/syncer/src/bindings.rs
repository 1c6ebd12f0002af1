//! Our own `ClusterBinding`: pins the identity of both clusters and says whether they are connected.
//! Watches one object in the virtual cluster; writes `physicalClusterUID`, `virtualClusterUID`, our
//! finalizer and condition `Connected`.

use bytes::Bytes;
use serde_json::{Value, json};
use tapestry_api::binding::BreakerTrip;
use tapestry_api::{Binding, ClusterBinding, Invalid, keys};
use tapestry_cluster::feed::{Change, Epoch, Row};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Call, Name, Refusal, Rv, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Plan};

use crate::guards::Guard;
use crate::pair::{Key, Pair};

/// A binding as the watch brings it.
#[derive(Debug, Clone)]
pub struct BindingRow {
    uid: Uid,
    rv: Rv,
    name: Name,
    deleting: bool,
    generation: i64,
    parsed: Result<Binding, Invalid>,
    finalizers: Vec<String>,
    /// Status and reason of condition `Connected`.
    connected: Option<(String, String)>,
    trip: Option<BreakerTrip>,
    /// The trip that somebody has looked at.
    resume: Option<String>,
}

/// The binding in force.
pub(crate) struct Bound {
    pub(crate) binding: Binding,
    row: BindingRow,
    /// Whether the object says what is in force; otherwise it is the last valid one that is.
    valid: bool,
}

impl Row for BindingRow {
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

impl BindingRow {
    /// Decodes a binding; an invalid one is a row that says so.
    pub fn decode(json: &Bytes) -> Result<Option<Self>, serde_json::Error> {
        let object: ClusterBinding = serde_json::from_slice(json)?;
        let missing = |what: &str| <serde_json::Error as serde::de::Error>::custom(format!("a binding without {what}"));
        let meta = &object.metadata;
        let conditions = object.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let connected = conditions.iter().find(|condition| condition.type_ == CONNECTED);
        Ok(Some(Self {
            uid: Uid::new(meta.uid.clone().ok_or_else(|| missing("uid"))?),
            rv: meta
                .resource_version
                .as_ref()
                .and_then(|rv| rv.parse().ok())
                .map(Rv::new)
                .ok_or_else(|| missing("version"))?,
            name: Name::parse(meta.name.as_deref().unwrap_or_default()).map_err(|_| missing("name"))?,
            deleting: meta.deletion_timestamp.is_some(),
            generation: meta.generation.unwrap_or_default(),
            parsed: Binding::parse(&object),
            finalizers: meta.finalizers.clone().unwrap_or_default(),
            connected: connected.map(|condition| (condition.status.clone(), condition.reason.clone())),
            trip: object.status.as_ref().and_then(|status| status.breaker.clone()),
            resume: meta.annotations.as_ref().and_then(|annotations| annotations.get(keys::RESUME).cloned()),
        }))
    }

    /// The valid binding, or what to change.
    pub fn parsed(&self) -> Result<&Binding, &Invalid> {
        self.parsed.as_ref()
    }
}

const CONNECTED: &str = "Connected";
const TRIPPED: &str = "BreakerTripped";

impl Bound {
    /// Somebody deletes the binding: everything goes back, in order.
    pub(crate) fn leaving(&self) -> bool {
        self.row.deleting
    }
}

impl Pair {
    pub(crate) fn see_binding(&mut self, change: Change<BindingRow>, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.take_binding(row, Some(epoch), dirty),
            Change::Gone { row, .. } => {
                self.bindings.bury(&row.uid, row.rv);
                self.drop_binding(&row.uid);
            }
            Change::Listed(epoch) => {
                for uid in self.bindings.listed(epoch) {
                    self.bindings.remove(&uid);
                    self.drop_binding(&uid);
                }
            }
        }
    }

    /// Nothing is planned for a binding that is not there. Its nodes are then the manager's to remove.
    fn drop_binding(&mut self, uid: &Uid) {
        if self.bound.as_ref().is_some_and(|bound| bound.row.uid == *uid) {
            tracing::warn!("the binding is gone: nothing is planned any more");
            self.bound = None;
        }
    }

    fn take_binding(&mut self, row: BindingRow, epoch: Option<Epoch>, dirty: &mut Dirty<Key>) {
        // Another binding of the same name is another origin: not ours to serve.
        if row.uid.as_str() != &*self.binding_uid {
            return;
        }
        if let Put::Stale = self.bindings.put(row.clone(), epoch) {
            return;
        }
        self.follow_breaker(row.trip.clone(), row.resume.as_deref(), dirty);
        let before = self.bound.take();
        let (binding, valid) = match (&row.parsed, before.as_ref().map(|bound| bound.binding.clone())) {
            (Ok(binding), _) => (binding.clone(), true),
            (Err(invalid), last) => {
                tracing::warn!(binding = %row.name, %invalid, "the binding is invalid: what it said before stays in force");
                let Some(last) = last else { return };
                (last, false)
            }
        };
        let changed = before.is_none_or(|before| before.binding != binding || before.row.deleting != row.deleting);
        self.bound = Some(Bound { binding, row, valid });
        if changed {
            self.grounds.reset();
            self.open_all_doors(dirty);
        }
        dirty.mark(Key::Binding);
    }

    /// The binding, when everything may be planned: both clusters answer and are the right ones, all lists are in.
    pub(crate) fn working(&self) -> Option<&Bound> {
        let up = Side::BOTH.iter().all(|side| matches!(self.connection(*side), Connection::Up(_)));
        self.knowing().filter(|_| up)
    }

    /// The binding, when what we know may be relied on: as above, but a cluster may be silent at the moment.
    pub(crate) fn knowing(&self) -> Option<&Bound> {
        let bound = self.bound.as_ref()?;
        let pinned = Side::BOTH.iter().all(|side| {
            let seen = self.identity(*side);
            seen.is_some() && seen.map(Uid::as_str) == pin(bound, *side)
        });
        (pinned && self.complete()).then_some(bound)
    }

    /// Whether the virtual cluster is the one that the binding was made in.
    pub(crate) fn at_home(&self) -> bool {
        let pinned = self.bound.as_ref().and_then(|bound| pin(bound, Side::Virtual));
        pinned.is_some() && self.identity(Side::Virtual).map(Uid::as_str) == pinned
    }

    pub(crate) fn plan_binding(&self, now: Now) -> Plan {
        let Some(bound) = &self.bound else { return Plan::Rest };
        let target = Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, bound.row.name.clone()).uid(&bound.row.uid);
        let virtual_pin = pin(bound, Side::Virtual);
        let virtual_seen = self.identity(Side::Virtual).map(Uid::as_str);
        if virtual_seen.is_none() || (virtual_pin.is_some() && virtual_pin != virtual_seen) {
            // Not the cluster this binding was made in: not a word.
            return Plan::Rest;
        }
        // Whoever connects first pins; what is pinned is never overwritten.
        let mut pins = serde_json::Map::new();
        for (side, field) in [(Side::Virtual, "virtualClusterUID"), (Side::Physical, "physicalClusterUID")] {
            if let (None, Some(seen)) = (pin(bound, side), self.identity(side)) {
                pins.insert(field.to_owned(), json!(seen.as_str()));
            }
        }
        if !pins.is_empty() {
            let verb = Verb::Merge(Sub::Status, json!({"status": pins}));
            return Call { target: target.rv(bound.row.rv), verb, why: "PinIdentity" }.into();
        }
        if let Some(finalizers) = self.want_finalizers(bound) {
            let verb = Verb::Merge(Sub::Main, json!({"metadata": {"finalizers": finalizers}}));
            return Call { target: target.rv(bound.row.rv), verb, why: "Finalizer" }.into();
        }
        let (connected, reason, message) = self.judge_connection(bound);
        let says = (connected.to_owned(), reason.to_owned());
        let same = bound.row.connected.as_ref() == Some(&says) && bound.row.trip.as_ref() == self.breaker.trip();
        if self.connection(Side::Physical) == &Connection::Unknown || same {
            return Plan::Rest;
        }
        let condition = |kind: &str, status: &str, reason: &str, message: &str, since: &str| {
            json!({
                "type": kind, "status": status, "reason": reason, "message": message,
                "lastTransitionTime": since, "observedGeneration": bound.row.generation,
            })
        };
        let since = format!("{:.0}", now.wall);
        // All that is ours in one: what an apply leaves out, it takes away.
        let mut status = json!({"conditions": [condition(CONNECTED, connected, reason, &message, &since)]});
        if let (Some(trip), Some(conditions)) = (self.breaker.trip(), status["conditions"].as_array_mut()) {
            let message = format!(
                "{} of {} pods would end although nobody asked for the end of each: nothing ends; look, then run `tapestry resume {}`",
                trip.ends, trip.pods, bound.row.name
            );
            conditions.push(condition(TRIPPED, "True", "MassDeletion", &message, &trip.since));
            status["breaker"] = json!(trip);
        }
        if reason == CHANGED {
            status["phase"] = json!("Failed");
        }
        let kind = &kind::CLUSTER_BINDING;
        let body = json!({"apiVersion": kind.api_version(), "kind": kind.kind, "status": status});
        Call { target, verb: Verb::Apply(Sub::Status, with_name(body, &bound.row.name)), why: "ReportConnection" }
            .into()
    }

    /// Before the first virtual node ours is there; it goes when nothing of ours is left on either side.
    fn want_finalizers(&self, bound: &Bound) -> Option<Vec<String>> {
        let there = bound.row.finalizers.iter().any(|finalizer| finalizer == keys::FINALIZER_SYNCER);
        let others = bound.row.finalizers.iter().filter(|finalizer| *finalizer != keys::FINALIZER_SYNCER).cloned();
        match (bound.leaving(), there) {
            (false, false) => Some(others.chain([keys::FINALIZER_SYNCER.to_owned()]).collect()),
            (true, true) if self.working().is_some() && self.nothing_lent() && self.guards.none_left() => {
                Some(others.collect())
            }
            _ => None,
        }
    }

    /// No virtual node and no copy of ours is left.
    pub(crate) fn nothing_lent(&self) -> bool {
        self.nodes.none_left() && self.pods.none_left()
    }

    /// Something of ours went: a binding that is being deleted goes with the last of it.
    pub(crate) fn mark_leaving(&self, dirty: &mut Dirty<Key>) {
        if self.bound.as_ref().is_some_and(Bound::leaving) {
            dirty.mark(Key::Binding);
            for guard in Guard::ALL {
                dirty.mark(Key::Guard(guard));
            }
        }
    }

    pub(crate) fn settle_binding(&mut self, done: Result<Answer, Refusal>, dirty: &mut Dirty<Key>) {
        if let Ok(answer) = done
            && let Ok(Some(row)) = BindingRow::decode(&answer.object)
        {
            if let Connection::Restored(_) = self.connection(Side::Virtual) {
                // Versions went back there: what is known is not newer than this answer, it never was.
                self.bindings.remove(&row.uid);
            }
            self.take_binding(row, None, dirty);
        }
    }

    fn judge_connection(&self, bound: &Bound) -> (&'static str, &'static str, String) {
        if let (false, Err(invalid)) = (bound.valid, &bound.row.parsed) {
            let message = format!("the binding is invalid, and what it said before stays in force: {invalid}");
            return ("Unknown", invalid.reason(), message);
        }
        if let Connection::Restored(what) = self.connection(Side::Virtual) {
            let message = format!("the virtual cluster was restored from a backup ({what}): {ANEW}");
            return ("False", "VirtualClusterRestored", message);
        }
        match self.connection(Side::Physical) {
            Connection::Up(seen) if pin(bound, Side::Physical).is_some_and(|pin| pin != seen.as_str()) => {
                let message = format!(
                    "the kubeconfig leads to cluster {seen}, which is not the one this binding was made for; nothing is written"
                );
                ("False", CHANGED, message)
            }
            Connection::Up(_) => ("True", "Connected", "the physical cluster answers".to_owned()),
            Connection::Down(why) => ("False", "Unreachable", why.clone()),
            Connection::Restored(what) => {
                let message = format!("the physical cluster was restored from a backup ({what}): {ANEW}");
                ("False", "PhysicalClusterRestored", message)
            }
            Connection::Unknown => ("Unknown", "NotYet", String::new()),
        }
    }
}

const CHANGED: &str = "PhysicalClusterChanged";
const ANEW: &str = "no pod is touched; restart the syncer to go on from what is there";

fn with_name(mut body: Value, name: &Name) -> Value {
    body["metadata"]["name"] = json!(name.as_str());
    body
}

fn pin(bound: &Bound, side: Side) -> Option<&str> {
    let pinned = &bound.binding.pinned;
    match side {
        Side::Virtual => pinned.virtual_cluster.as_deref(),
        Side::Physical => pinned.physical_cluster.as_deref(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Seen;
    use crate::scene::{Scene, merge};

    #[test]
    fn law_01_a_restored_virtual_cluster_is_told_once_and_no_pod_is_planned_for() {
        let mut scene = Scene::new();
        assert!(scene.pair.ready());
        scene.see_binding(json!({}));
        scene.see(Seen::Connection(Side::Virtual, Connection::Restored("the versions went back".to_owned())));
        assert!(!scene.pair.ready());
        let call = scene.call(&Key::Binding);
        let said = call.body().unwrap().into_owned();
        assert_eq!(said["status"]["conditions"][0]["reason"], "VirtualClusterRestored");
        // Its answer has a version that is older than all we knew.
        let mut object = json!({
            "metadata": {"name": "east", "uid": "b-uid", "resourceVersion": "1", "finalizers": [keys::FINALIZER_SYNCER]},
            "spec": {"clusterID": "east", "secretRef": {"name": "s", "namespace": "t"}, "mountNamespace": "mount"},
            "status": {"physicalClusterUID": "p-cluster", "virtualClusterUID": "v-cluster"},
        });
        merge(&mut object, said);
        scene.settle(&Key::Binding, &call, Ok(Answer { object: object.to_string().into() }));
        assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
    }
}
