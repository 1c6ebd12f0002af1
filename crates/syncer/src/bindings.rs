//! Our own `ClusterBinding`: pins the identity of both clusters, says whether they are connected and what the breaker holds.
//! Watches one object in the virtual cluster; writes `physicalClusterUID`, `virtualClusterUID`, our finalizer, and what `status`
//! says of the rest.

pub(crate) mod deletion;
mod row;
mod status;

use serde_json::{Value, json};
use tapestry_api::binding::RESUME_DELETION;
use tapestry_api::{Binding, keys};
use tapestry_cluster::feed::{Change, Epoch, Row as _};
use tapestry_cluster::probe::Connection;
use tapestry_cluster::{Answer, Name, Refusal, Rv, Side, Sub, Target, Uid, Verb, kind};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Plan, Reason as _, reasons};

pub use self::row::BindingRow;
use self::status::Said;
use crate::guards::Guard;
use crate::pair::{Key, Pair};
use crate::prerequisites::Prerequisite;

reasons! {
    /// What its calls are for.
    pub enum Why {
        /// It left the watch: is it gone?
        LookForBinding,
        /// Which clusters it binds, the first time they are seen.
        PinIdentity,
        /// Ours is put there before the first virtual node, and goes with the last.
        Finalizer,
        /// How many pods ended that were not asked to: counted before they end.
        CountEnds,
        /// Phase, conditions and figures.
        ReportConnection,
    }
}

/// The binding in force.
pub(crate) struct Bound {
    pub(crate) binding: Binding,
    row: BindingRow,
    /// Its deletion was meant: its definition is not being deleted with it, or a user said so.
    deletion_confirmed: bool,
    /// Whether the object says what is in force; otherwise it is the last valid one that is.
    valid: bool,
    /// It is out of sight, which proves nothing: it holds until the API server says that it is gone (law 1). With the version
    /// from which on a word of it counts again.
    doubted: Option<Rv>,
    /// The binding by an answer that is older than what we know. That comes from a restored cluster.
    told: Option<Box<BindingRow>>,
}

const CONNECTED: &str = "Connected";
const TRIPPED: &str = "BreakerTripped";
/// Whether the binding's guards are in force. Absent until that is in question for the first time.
const GUARDED: &str = "GuardsInForce";
/// Whether it is known which policies there are. Absent until that is in question for the first time.
const POLICIES_KNOWN: &str = "PoliciesKnown";

impl Bound {
    /// The identity of the cluster that it was made for; `None` until it was first seen.
    pub(crate) fn pin(&self, side: Side) -> Option<&str> {
        let pinned = &self.binding.pinned;
        match side {
            Side::Virtual => pinned.virtual_cluster.as_deref(),
            Side::Physical => pinned.physical_cluster.as_deref(),
        }
    }

    /// The binding is deleted by a user who meant it: everything goes back, in order.
    pub(crate) fn leaving(&self) -> bool {
        self.row.deleting && self.deletion_confirmed
    }

    /// It is being deleted, and whether its user meant that is not known, or not so.
    pub(crate) fn deletion_unconfirmed(&self) -> bool {
        self.row.deleting && !self.deletion_confirmed
    }
}

impl Pair {
    pub(crate) fn see_binding(&mut self, change: Change<BindingRow>, now: Now, dirty: &mut Dirty<Key>) {
        match change {
            Change::Put(row, epoch) => self.take_binding(row, Some(epoch), now, dirty),
            Change::Gone { row, proven: true } => self.lose_binding(&row.uid, row.rv),
            // At this version it went: an answer that is older was given before.
            Change::Gone { row, .. } => self.doubt_binding(&row.uid, row.rv, dirty),
            Change::Listed(epoch) => {
                for uid in self.bindings.listed(epoch) {
                    match self.bindings.get(&uid).map(BindingRow::rv) {
                        Some(rv) if self.bound.is_some() => self.doubt_binding(&uid, rv, dirty),
                        _ => drop(self.bindings.remove(&uid)),
                    }
                }
            }
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn doubt_binding(&mut self, uid: &Uid, from: Rv, dirty: &mut Dirty<Key>) {
        if let Some(bound) = self.bound.as_mut().filter(|bound| bound.row.uid == *uid) {
            bound.doubted = Some(from);
            dirty.mark(Key::Binding);
        }
    }

    /// Nothing is planned for a binding that is not there, but the Leases of its nodes: those are the manager's to remove.
    fn lose_binding(&mut self, uid: &Uid, rv: Rv) {
        self.bindings.remove_proven(uid, rv);
        if self.bound.take_if(|bound| bound.row.uid == *uid).is_some() {
            tracing::warn!("the binding is gone: nothing is planned any more but the Leases of its nodes");
        }
    }

    /// Follows once more what the binding says of the breaker.
    pub(crate) fn heed_binding(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if let Some(Bound { row, .. }) = &self.bound {
            let (kept, resume) = ((row.trip.clone(), row.unasked.clone()), row.resume.clone());
            self.follow_breaker(kept, resume.as_deref(), now, dirty);
        }
    }

    fn take_binding(&mut self, row: BindingRow, epoch: Option<Epoch>, now: Now, dirty: &mut Dirty<Key>) {
        // Another binding of the same name is another origin: not ours to serve.
        if row.uid.as_str() != &*self.binding_uid {
            return;
        }
        if let Put::Stale = self.bindings.put(row.clone(), epoch) {
            if let Some(bound) = &mut self.bound {
                bound.told = Some(Box::new(row));
            }
            return;
        }
        self.follow_breaker((row.trip.clone(), row.unasked.clone()), row.resume.as_deref(), now, dirty);
        dirty.mark(Key::Binding);
        let before = self.bound.take();
        let (binding, valid) = match (&row.parsed, before.as_ref().map(|bound| bound.binding.clone())) {
            (Ok(binding), _) => (binding.clone(), true),
            (Err(invalid), last) => {
                if before.as_ref().is_none_or(|before| before.valid) {
                    tracing::warn!(binding = %row.name, %invalid, "the binding is invalid: what it said before stays in force");
                }
                let Some(last) = last else { return };
                (last, false)
            }
        };
        let doubted = before.as_ref().and_then(|before| before.doubted);
        let doubted = doubted.filter(|from| epoch.is_none() && row.rv < *from);
        let deletion_confirmed = row.deleting
            && (row.resume.as_deref() == Some(RESUME_DELETION)
                || before.as_ref().is_some_and(|before| before.deletion_confirmed));
        if row.deleting && before.as_ref().is_none_or(|before| !before.row.deleting) {
            self.binding_serving.lose(now);
            dirty.mark(Key::BindingServing);
        }
        let changed = before.is_none_or(|before| {
            let deletion = (before.row.deleting, before.deletion_confirmed);
            before.binding != binding || deletion != (row.deleting, deletion_confirmed)
        });
        self.bound = Some(Bound { binding, row, deletion_confirmed, valid, doubted, told: None });
        if changed {
            self.prerequisites.reset();
            self.admit_all(now, dirty);
        }
    }

    pub(crate) fn plan_binding(&self, now: Now) -> Plan<Why> {
        let Some(bound) = &self.bound else { return self.plan_unheeded(now) };
        let target = target(&bound.row);
        let virtual_pin = bound.pin(Side::Virtual);
        let virtual_seen = self.connections.identity(Side::Virtual).map(Uid::as_str);
        if virtual_seen.is_none() || (virtual_pin.is_some() && virtual_pin != virtual_seen) {
            // Not the cluster this binding was made in: not a word.
            return Plan::Rest;
        }
        if let Connection::Restored(what) = self.connections.get(Side::Virtual) {
            let message = format!("the virtual cluster was restored from a backup ({what}): {ANEW}");
            // Nothing of it can be as new as the row, so the answer to this report is the last word.
            let row = bound.told.as_deref().unwrap_or(&bound.row);
            return self.report_connection(row, ("False", "VirtualClusterRestored", message), now);
        }
        if bound.doubted.is_some() {
            return match self.connections.get(Side::Virtual) {
                Connection::Up(_) => Why::LookForBinding.call(target, Verb::Get),
                _ => Plan::Rest,
            };
        }
        // Whoever connects first pins; what is pinned is never overwritten.
        let mut pins = serde_json::Map::new();
        for (side, field) in [(Side::Virtual, "virtualClusterUID"), (Side::Physical, "physicalClusterUID")] {
            if let (None, Some(seen)) = (bound.pin(side), self.connections.identity(side)) {
                pins.insert(field.to_owned(), json!(seen.as_str()));
            }
        }
        if !pins.is_empty() {
            let verb = Verb::Merge(Sub::Status, json!({"status": pins}));
            return Why::PinIdentity.call(target.rv(bound.row.rv), verb);
        }
        if let Some(finalizers) = self.want_finalizers(bound) {
            let verb = Verb::Merge(Sub::Main, json!({"metadata": {"finalizers": finalizers}}));
            return Why::Finalizer.call(target.rv(bound.row.rv), verb);
        }
        if self.connections.get(Side::Physical) == &Connection::Unknown {
            return Plan::Rest;
        }
        if let Some(ends) = self.unwritten_ends(now) {
            // Under the version we looked at: whoever led before may have counted more.
            let verb = Verb::Merge(Sub::Status, json!({"status": {"unaskedEnds": ends}}));
            return Why::CountEnds.call(target.rv(bound.row.rv), verb);
        }
        self.report_connection(&bound.row, self.judge_connection(bound), now)
    }

    /// What keeps a cluster from answering may be put in other words every time: only another reason is news.
    fn report_connection(
        &self,
        row: &BindingRow,
        (status, reason, message): (&str, &str, String),
        now: Now,
    ) -> Plan<Why> {
        let told = row.report.connected.as_ref().is_some_and(|said| {
            // Other watches may be out of sync by now, for the same reason.
            said.status == status && said.reason == reason && (reason != OUT_OF_SYNC || said.message == message)
        });
        self.report(row, &Said::new(status, reason, message), told, now)
    }

    /// A binding that cannot be served at all, because no word of it was ever understood: all that can be done is to say so.
    fn plan_unheeded(&self, now: Now) -> Plan<Why> {
        let Some(row) = self.bindings.iter().find(|row| row.uid.as_str() == &*self.binding_uid) else {
            return Plan::Rest;
        };
        let ours = self.origin.virtual_cluster();
        let strange = row.pinned.virtual_cluster.as_deref().is_some_and(|pinned| pinned != ours);
        if strange || !self.in_own_cluster() {
            return Plan::Rest;
        }
        let Err(invalid) = &row.parsed else { return Plan::Rest };
        let (reason, message) = (invalid.reason(), format!("the binding is invalid: {invalid}"));
        // What to change may be something else by now, for the same reason.
        let connected = Said::new("False", reason, message);
        let told = row.report.connected.as_ref().is_some_and(|said| said.same(&connected));
        self.report(row, &connected, told, now)
    }

    /// Before the first virtual node ours is there; it goes when nothing of ours is left on either side.
    fn want_finalizers(&self, bound: &Bound) -> Option<Vec<String>> {
        let there = bound.row.finalizers.iter().any(|finalizer| finalizer == keys::FINALIZER_SYNCER);
        let others = bound.row.finalizers.iter().filter(|finalizer| *finalizer != keys::FINALIZER_SYNCER).cloned();
        match (bound.leaving(), there) {
            (false, false) => Some(others.chain([keys::FINALIZER_SYNCER.to_owned()]).collect()),
            (true, true)
                if self.working().is_some()
                    && self.prerequisites.cleared()
                    && self.nothing_lent()
                    && self.guards.none_left() =>
            {
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
            dirty.mark(Key::Prerequisite(Prerequisite::ServiceAccount));
            for guard in Guard::ALL {
                dirty.mark(Key::Guard(guard));
            }
        }
    }

    pub(crate) fn settle_binding(&mut self, why: Why, done: Result<Answer, Refusal>, now: Now, dirty: &mut Dirty<Key>) {
        let known = self.bound.as_ref().map(|bound| (bound.row.uid.clone(), bound.row.rv));
        match (done, why, known) {
            (Ok(answer), why, known) => {
                if why == Why::ReportConnection {
                    self.reported = Some(now.steady);
                }
                let Ok(Some(row)) = BindingRow::decode(&answer.object) else { return };
                if let (Why::LookForBinding, Some((uid, rv))) = (why, known.filter(|(uid, _)| *uid != row.uid)) {
                    // Another one has the name by now, so the one we asked for is gone.
                    self.lose_binding(&uid, rv);
                }
                self.take_binding(row, None, now, dirty);
            }
            (Err(Refusal::Gone), Why::LookForBinding, Some((uid, rv))) => self.lose_binding(&uid, rv),
            (Err(_), ..) => {}
        }
    }

    fn judge_connection(&self, bound: &Bound) -> (&'static str, &'static str, String) {
        if let (false, Err(invalid)) = (bound.valid, &bound.row.parsed) {
            let message = format!("the binding is invalid, and what it said before stays in force: {invalid}");
            return ("Unknown", invalid.reason(), message);
        }
        match self.connections.get(Side::Physical) {
            Connection::Up(seen) if bound.pin(Side::Physical).is_some_and(|pin| pin != seen.as_str()) => {
                let message = format!(
                    "the kubeconfig leads to cluster {seen}, which is not the one this binding was made for; nothing is written"
                );
                ("False", CHANGED, message)
            }
            Connection::Up(_) => match self.out_of_sync.tell(&self.connections) {
                Some(message) => ("False", OUT_OF_SYNC, message),
                None => match &bound.row.report.connected {
                    // Before all lists are in, a syncer that has just started knows no better than the one before it.
                    Some(said) if !self.listed() && said.reason == OUT_OF_SYNC => {
                        ("False", OUT_OF_SYNC, said.message.clone())
                    }
                    _ => ("True", "Connected", "the physical cluster answers".to_owned()),
                },
            },
            Connection::Down(why) => ("False", "Unreachable", why.clone()),
            Connection::Refused(refused) => {
                let message = format!("{refused}; pods run on and nothing new is admitted; {}", refused.hint());
                ("False", refused.reason(), message)
            }
            Connection::Restored(what) => {
                let message = format!("the physical cluster was restored from a backup ({what}): {ANEW}");
                ("False", "PhysicalClusterRestored", message)
            }
            Connection::Unknown => ("Unknown", "NotYet", String::new()),
        }
    }
}

const OUT_OF_SYNC: &str = "WatchOutOfSync";
const CHANGED: &str = "PhysicalClusterChanged";
const ANEW: &str = "no pod is touched; restart the syncer to go on from what is there";

fn target(row: &BindingRow) -> Target {
    Target::cluster(Side::Virtual, &kind::CLUSTER_BINDING, row.name.clone()).uid(&row.uid)
}

fn with_name(mut body: Value, name: &Name) -> Value {
    body["metadata"]["name"] = json!(name.as_str());
    body
}

#[cfg(test)]
mod tests;
