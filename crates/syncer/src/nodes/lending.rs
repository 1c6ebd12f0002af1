//! The lending state of a virtual node: lent, stopped, over-lent, on its way out, and since when. Pure but for `keep_since`.
//! Says what follows for the node; which pods are evicted is in `pods::reclaim`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tapestry_api::keys;
use tapestry_cluster::Name;
use tapestry_domain::reclaim::Rules;
use tapestry_domain::resources::Resources;
use tapestry_engine::Now;

use super::Nodes;
use super::departure::Departure;
use super::row::VNode;
use crate::pair::Pair;
use crate::terms::{Clock, DEFAULT_GRACE, Stop, Terms};

/// A restarting device plug-in or kubelet takes resources of its node away for a moment: no pod has to go because of that.
const RIDE_OUT: Duration = Duration::from_mins(2);

/// After an outage of its API server a cluster takes nodes for dead whose heartbeats it could not receive, until the next ones come.
pub(super) fn settles(now: Timestamp) -> Option<Timestamp> {
    now.checked_add(RIDE_OUT).ok()
}

/// A physical node has less than before, perhaps only for a moment.
#[derive(Debug, Clone)]
pub(crate) struct Dip {
    /// When it counts as permanent.
    pub(crate) until: Timestamp,
    /// What the node had before; `None` when we did not see that.
    pub(crate) before: Option<Resources>,
}

impl Dip {
    /// What the node had is remembered from the first fall on; falling further does not restart the time.
    pub(super) fn fall(known: Option<Self>, before: Option<&Resources>, now: Timestamp) -> Option<Self> {
        if let Some(mut known) = known.filter(|known| now < known.until) {
            if let (Some(kept), Some(before)) = (&mut known.before, before) {
                kept.max(before);
            }
            return Some(known);
        }
        Some(Self { until: now.checked_add(RIDE_OUT).ok()?, before: before.cloned() })
    }
}

impl Nodes {
    /// Whether a physical node is in a dip.
    pub(crate) fn dip(&self, physical: &Name, at: Timestamp) -> Option<&Dip> {
        self.last_dip(physical).filter(|dip| at < dip.until)
    }

    pub(crate) fn last_dip(&self, physical: &Name) -> Option<&Dip> {
        self.cases.get(physical)?.dip.as_ref()
    }

    /// The clock was set back: what was said to begin later begins now.
    pub(crate) fn clamp(&mut self, now: Timestamp) {
        for case in self.cases.values_mut() {
            let Since { stopped, over, leaving } = &mut case.since;
            let times = [stopped.as_mut().map(|(_, since)| since), over.as_mut(), leaving.as_mut()];
            for since in times.into_iter().flatten() {
                *since = (*since).min(now);
            }
            if let Some(settles) = &mut case.settles {
                *settles = (*settles).min(now.checked_add(RIDE_OUT).unwrap_or(now));
            }
            if let Some(dip) = &mut case.dip {
                dip.until = dip.until.min(now.checked_add(RIDE_OUT).unwrap_or(now));
            }
        }
    }
}

/// Since when each cause to take capacity back has held. The taints tell it after a restart; taking them away does not reset it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Since {
    /// With the clock that runs: see [`Stop::clock`].
    pub(crate) stopped: Option<(Clock, Timestamp)>,
    pub(crate) over: Option<Timestamp>,
    pub(crate) leaving: Option<Timestamp>,
}

/// What is true of a virtual node at a moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LendingState {
    pub(crate) stop: Option<Stop>,
    /// Its pods hold more than is lent.
    pub(crate) over: bool,
    /// It goes now, or as soon as its pods have gone.
    pub(crate) leaving: bool,
    /// Why it is no longer wanted, also while pods may stay.
    pub(crate) departure: Option<Departure>,
    /// The breaker holds one of its pods, which would have to go because something vanished.
    pub(crate) held: bool,
    pub(crate) since: Since,
    pub(crate) rules: Rules,
}

impl LendingState {
    /// When Kubernetes is told to evict: a grace period after a stop that is forced.
    pub(crate) fn force_at(&self) -> Option<Timestamp> {
        let forced = self.stop.is_some_and(|stop| stop.forced(&self.rules));
        self.since.stopped.filter(|_| forced && !self.held)?.1.checked_add(self.rules.grace).ok()
    }
}

impl Pair {
    /// The lending state of a virtual node on these terms; without terms the node is being removed. A node that nothing lends any
    /// more is removed when its last pod has gone.
    pub(crate) fn lending_state(&self, vnode: &VNode, terms: Option<&Terms<'_>>, at: Timestamp) -> LendingState {
        let stop = terms.and_then(|terms| terms.stop);
        let ends = self.ends(vnode, terms);
        let withdrawn = terms.and_then(|terms| terms.withdrawn);
        let leaving = ends.is_some() || (withdrawn.is_some() && !self.pods.occupies(&vnode.name));
        let over = terms.filter(|_| stop.is_none() && !leaving).is_some_and(|terms| {
            self.pods.held(&vnode.name).is_some_and(|held| held.fits_within(&terms.offered).is_err())
        });
        let rules = terms.map_or_else(|| kept_rules(vnode), |terms| terms.rules);
        let clock = stop.map(|stop| stop.clock(&rules));
        let known = self.nodes.cases.get(&vnode.physical).map(|case| case.since).unwrap_or_default();
        // A taint with a time in the future can only be meant to gain time.
        let told = |key: &str, value: &str| vnode.tainted(key, value).map(|told| told.min(at));
        let first = |known: Option<Timestamp>, told: Option<Timestamp>| known.into_iter().chain(told).min();
        let stopped = clock.and_then(|clock| {
            let known = known.stopped.filter(|(running, _)| *running == clock).map(|(_, since)| since);
            let since = first(known, told(keys::TAINT_OUT_OF_TIME_WINDOWS, clock.as_str()))?;
            // Whatever began late, everything is back by the end.
            let due = terms.and_then(|terms| terms.early).map(|early| early.start);
            Some((clock, due.map_or(since, |due| due.min(since))))
        });
        let over_since = over.then(|| first(known.over, told(keys::TAINT_OVER_LEASED, ""))).flatten();
        let leaving_since = leaving.then(|| first(known.leaving, told(keys::TAINT_VNODE_DELETING, ""))).flatten();
        let since = Since { stopped, over: over_since, leaving: leaving_since };
        let vanished = matches!(stop, Some(Stop::Withdrawn(_)));
        let held = vanished && rules.force && self.holds_drain(&vnode.name);
        LendingState { stop, over, leaving, departure: ends.or(withdrawn), held, since, rules }
    }

    /// Why a virtual node has to go, whichever pods are on it.
    fn ends(&self, vnode: &VNode, terms: Option<&Terms<'_>>) -> Option<Departure> {
        if vnode.deleting {
            return Some(Departure::NodeDeleted);
        }
        match terms {
            Some(_) => None,
            None if self.nodes.pnode(&vnode.physical).is_none() => Some(Departure::NodeGone),
            None => Some(Departure::BindingDeleted),
        }
    }

    /// What would be offered if the physical node had what it had before.
    pub(crate) fn offered_with(&self, vnode: &VNode, before: &Resources, at: Timestamp) -> Option<Resources> {
        let mut pnode = self.nodes.pnode(&vnode.physical)?.clone();
        pnode.allocatable.max(before);
        Some(self.terms(&pnode, at)?.offered)
    }

    /// Remembers since when: removing a taint must not gain time for a pod.
    pub(super) fn keep_since(&mut self, vnode: &VNode, now: Now) {
        let pnode = self.nodes.pnode(&vnode.physical);
        let terms = pnode.and_then(|pnode| self.terms(pnode, now.wall));
        let early = terms.as_ref().and_then(|terms| terms.early).map(|early| early.end);
        let since = self.lending_state(vnode, terms.as_ref(), now.wall).since;
        if since != Since::default() || early.is_some() || self.nodes.cases.contains_key(&vnode.physical) {
            let case = self.nodes.cases.entry(vnode.physical.clone()).or_default();
            (case.since, case.early) = (since, early);
        }
    }
}

/// As kept in annotation `reclaim-rules`.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeptRules {
    force: bool,
    grace_seconds: u64,
}

/// What the virtual node says becomes of its pods, now that no policy says it any more. Where it does not say so, no pod has to
/// go.
pub(crate) fn kept_rules(vnode: &VNode) -> Rules {
    let kept = vnode.rules.as_ref().and_then(|text| serde_json::from_str::<KeptRules>(text).ok());
    kept.map_or(Rules { force: false, grace: DEFAULT_GRACE }, |kept| Rules {
        force: kept.force,
        // As long as a policy may say at most.
        grace: Duration::from_secs(kept.grace_seconds.min(604_800)),
    })
}

pub(super) fn render_rules(rules: &Rules) -> String {
    let kept = KeptRules { force: rules.force, grace_seconds: rules.grace.as_secs() };
    serde_json::to_string(&kept).unwrap_or_default()
}
