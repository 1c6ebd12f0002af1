//! Admission to the virtual node: which pods are admitted, in which order, and why not.
//! Decided while facts are folded in, so that two pods planned at once cannot both take the last place (law 9).

mod claims;
mod reason;

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tapestry_api::keys;
use tapestry_cluster::{Name, Side, Uid};
use tapestry_domain::names::physical_pod_name;
use tapestry_domain::placement::{PlacementShape, TaintRef, placed};
use tapestry_domain::ports::HostPort;
use tapestry_domain::resources::Resources;
use tapestry_domain::security::{SecurityShape, check};
use tapestry_engine::{Dirty, Now};

pub(crate) use self::reason::PendingReason;
use super::row::{Daemon, VPod};
use super::{Admitted, NotAdmitted};
use crate::bindings::Bound;
use crate::dependents::{Id, Readiness, Trouble};
use crate::guards::Guard;
use crate::json::Pairs;
use crate::nodes::row::VNode;
use crate::pair::{Key, Pair};
use crate::terms::Stop;

/// As much of a list of violations as fits into an event.
pub(super) const LONGEST_TEXT: usize = 700;

/// What admission reads of a pod that waits.
#[derive(Deserialize)]
struct Asks<'a> {
    #[serde(borrow)]
    metadata: AskingMeta<'a>,
    #[serde(borrow)]
    spec: &'a RawValue,
}

#[derive(Deserialize)]
struct AskingMeta<'a> {
    #[serde(borrow, default)]
    annotations: Option<Pairs<'a>>,
}

/// How long after a name could not be drawn the next is.
const DRAW_AGAIN: Duration = Duration::from_secs(1);

/// Taints that a user chose. Those that follow from a node's state come and go; the state itself is judged instead.
fn chosen(taint: &str) -> bool {
    let of_state = taint.starts_with("node.kubernetes.io/") || (keys::ours(taint) && taint != keys::TAINT_VNODE);
    !of_state || taint == keys::TAINT_PHYSICAL_CORDONED
}

/// Why a pod is not admitted, as its condition and event say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) reason: PendingReason,
    pub(crate) message: String,
}

impl Verdict {
    /// It ran, its mapping is gone, and no physical pod points back to it: nothing is proven, so nothing is done.
    pub(super) fn mapping_lost() -> Self {
        let message = "its mapping annotations were removed and no physical pod points to it: delete the pod, so that its controller creates another one";
        Self { reason: PendingReason::MappingLost, message: message.to_owned() }
    }
}

impl Verdict {
    /// Its annotations name a physical pod by name and UID that does not point back: forged, or a copy stripped of all our marks.
    pub(super) fn unmarked(copy: &Name) -> Self {
        let message = format!(
            "its annotations name the physical pod {copy}, which does not point back to this pod, so the pod is not run: delete the pod and create it without annotations tapestry.io/physical-*"
        );
        Self { reason: PendingReason::PhysicalPodUnmarked, message }
    }
}

impl Verdict {
    /// Whether what it needs is there is not known.
    pub(super) fn dependents_out_of_sync(told: &str) -> Self {
        let message = format!("the syncer {told}; the pod starts when it can, and finds what the pod names");
        Self { reason: PendingReason::WatchOutOfSync, message }
    }
}

impl Verdict {
    /// Why a pod has to wait for what it needs; `None` when it is there, or on its way.
    pub(super) fn of(readiness: &Readiness<'_>) -> Option<Self> {
        let (reason, message) = match readiness {
            Readiness::Ready | Readiness::NotYet => return None,
            Readiness::Missing(Id { kind, namespace, name }) => (
                PendingReason::DependentMissing,
                format!("{} {namespace}/{name} does not exist; the pod starts when it is created", kind.as_str()),
            ),
            Readiness::Impossible(kind, name) => (
                PendingReason::DependentMissing,
                format!(
                    "the pod names {} `{}`, and no object can have that name",
                    kind.as_str(),
                    name.chars().take(80).collect::<String>().escape_debug()
                ),
            ),
            Readiness::Hindered(Id { kind, namespace, name }, trouble) => match trouble {
                Trouble::Foreign(copy) => (
                    PendingReason::DependentConflict,
                    format!(
                        "{kind} {namespace}/{name} cannot be copied: {kind} {copy} in the mount namespace was not created by this binding; rename or delete it",
                        kind = kind.as_str()
                    ),
                ),
                Trouble::Refused(side, why) => {
                    let refused = match side {
                        Side::Virtual => "the virtual cluster does not let the syncer read",
                        Side::Physical => "the physical cluster refused the copy of",
                    };
                    (PendingReason::DependentRefused, format!("{refused} {} {namespace}/{name}: {why}", kind.as_str()))
                }
                Trouble::Contested => (
                    PendingReason::DependentConflict,
                    format!(
                        "another client in the physical cluster keeps deleting the copy of {} {namespace}/{name}; it is created again within ten minutes",
                        kind.as_str()
                    ),
                ),
                Trouble::Fixed => return None,
            },
            Readiness::Terminating(kind, copy) => (
                PendingReason::DependentTerminating,
                format!(
                    "{} {copy} in the mount namespace is being deleted and waits for its finalizers: remove them, and it is created again",
                    kind.as_str()
                ),
            ),
            Readiness::NoToken(why) => {
                (PendingReason::TokenRefused, format!("no service account token was issued: {why}"))
            }
        };
        Some(Self { reason, message })
    }
}

/// Whether a pod is carried at all, room or not; `None` when the user need not be told why not.
pub(super) fn eligible(bound: Option<&Bound>, vpod: &VPod) -> Result<(), Option<Verdict>> {
    let Some(Bound { binding, .. }) = bound else { return Err(None) };
    match vpod.daemon {
        Daemon::Yes if !binding.running_daemonset_by_default => {
            let message = format!(
                "pods of a DaemonSet are not run on virtual nodes: annotate its pod template with {}={}, or set runningDaemonsetByDefault of the binding",
                keys::RUNNING_DAEMONSET,
                keys::TRUE
            );
            return Err(Some(Verdict { reason: PendingReason::DaemonSetExcluded, message }));
        }
        Daemon::Yes | Daemon::OptedIn | Daemon::No => {}
    }
    if binding.excludes(vpod.namespace.as_str()) {
        let message = format!("namespace {} is excluded by the binding: run the pod in another one", vpod.namespace);
        return Err(Some(Verdict { reason: PendingReason::NamespaceExcluded, message }));
    }
    if let Some(part) = vpod.unreadable {
        let message = format!(
            "the {} of the pod has a form that this version of Tapestry does not know, so it is not run: delete it, or update Tapestry",
            part.as_str()
        );
        return Err(Some(Verdict { reason: PendingReason::PodUnreadable, message }));
    }
    match &vpod.unsupported {
        Some(unsupported) => Err(Some(Verdict { reason: (&**unsupported).into(), message: unsupported.to_string() })),
        None => Ok(()),
    }
}

/// Whether a pod that is not inside waits for room.
pub(super) fn may_wait(bound: Option<&Bound>, vpod: &VPod) -> bool {
    vpod.deleting.is_none() && !vpod.terminal() && !vpod.was_copied() && eligible(bound, vpod).is_ok()
}

impl Pair {
    /// As [`eligible`], by the binding in force.
    pub(crate) fn eligible(&self, vpod: &VPod) -> Result<(), Option<Verdict>> {
        eligible(self.bindings.bound(), vpod)
    }

    /// Whether we do not run a virtual pod and need not report that.
    pub(crate) fn ignores(&self, vuid: &str) -> bool {
        let vpod = self.pods.vpods.get(&Uid::new(vuid));
        vpod.is_some_and(|vpod| vpod.mapping.is_none() && matches!(self.eligible(vpod), Err(None)))
    }

    /// Admits the pods that fit, in order of arrival; the others learn why not.
    pub(crate) fn admit(&mut self, vnode: &Name, now: Now, dirty: &mut Dirty<Key>) {
        let lent = self.lent(vnode, now.wall);
        let mut moved = self.ask_out(vnode, lent.as_ref(), dirty);
        let Some(queue) = self.pods.admissions.waiting(vnode) else { return self.weigh(vnode, None, dirty) };
        let mut held = self.pods.held(vnode).cloned().unwrap_or_default();
        // Lists are still to come: nothing to tell a user of yet.
        let starting = !self.everything_listed() && !self.admission_out_of_sync();
        for (turn, uid) in queue {
            if starting {
                self.pods.case(&uid).not_admitted = None;
                continue;
            }
            let Some(vpod) = self.pods.vpods.get(&uid) else { continue };
            let grows = self.pods.grows_by(vpod);
            let not_admitted = match (&lent, &grows) {
                (None, _) => Some(NotAdmitted::NotLending),
                (Some(Err(stop)), _) => Some(NotAdmitted::Stopped(*stop, self.tell_stop(vnode, *stop))),
                (Some(Ok(lent)), Some(more)) => short(more, lent, &held),
                (Some(Ok(lent)), None) => self.judge(vpod, vnode, lent, &held),
            };
            let not_admitted = match not_admitted {
                Some(NotAdmitted::Short(_)) if self.awaits_quota(vpod, grows.as_ref(), vnode, &held, now) => {
                    // The quota is about to be raised: nothing to tell a user of.
                    let Some(trouble) = self.guards.quota_trouble(self.bindings.bound()) else { continue };
                    let message = Guard::Quota.message(trouble, &self.home.mount);
                    Some(NotAdmitted::Unguarded(trouble.quota_reason(), message.into()))
                }
                not_admitted => not_admitted,
            };
            if let Some(not_admitted) = not_admitted {
                let case = self.pods.case(&uid);
                if case.not_admitted.as_deref() != Some(&not_admitted) {
                    case.not_admitted = Some(Box::new(not_admitted));
                    dirty.mark(Key::Pod(uid));
                }
                continue;
            }
            let more = grows.as_ref().unwrap_or(&vpod.request).clone();
            if grows.is_some() {
                self.pods.let_grow(&uid);
            } else if let Some(admitted) = self.choose_name(&uid) {
                self.pods.case(&uid).admitted = admitted;
                self.follow_needs(&uid, dirty);
            } else {
                self.pods.nameless = Some(now.steady);
                self.pods.case(&uid).not_admitted = Some(Box::new(NotAdmitted::Nameless));
                dirty.mark(Key::Pod(uid));
                continue;
            }
            held.add(&more);
            moved = true;
            self.pods.case(&uid).not_admitted = None;
            self.pods.admissions.enter(vnode, turn, &more);
            dirty.mark(Key::Pod(uid));
        }
        if moved {
            // It tells what is held.
            dirty.mark(Key::Binding);
        }
        self.weigh(vnode, self.offers(vnode, now.wall).and_then(Result::ok).as_ref(), dirty);
    }

    /// Whether only the quota keeps a pod from being admitted: policies offer enough.
    fn awaits_quota(&self, vpod: &VPod, grows: Option<&Resources>, vnode: &Name, held: &Resources, now: Now) -> bool {
        let offers = self.offers(vnode, now.wall).and_then(Result::ok);
        offers.is_some_and(|offers| short(grows.unwrap_or(&vpod.request), &offers, held).is_none())
    }

    /// Less is lent than was promised: pods that are admitted and have no copy yet, and pods that may grow and have not, wait for
    /// admission again. On a node that is only stopped no copy is made, so admitted pods may stay. True when any pod had to.
    fn ask_out(&mut self, vnode: &Name, lent: Option<&Result<Resources, Stop>>, dirty: &mut Dirty<Key>) -> bool {
        let over = match lent {
            Some(Ok(lent)) => self.pods.held(vnode).is_some_and(|held| held.fits_within(lent).is_err()),
            Some(Err(_)) | None => false,
        };
        if !over && matches!(lent, Some(Ok(_))) {
            return false;
        }
        let promised = |uid: &&Uid| (over && self.pods.unmade(uid)) || self.pods.may_grow(uid);
        let promised: Vec<Uid> = self.pods.residents(vnode).filter(promised).cloned().collect();
        for uid in &promised {
            let bound = self.bindings.bound();
            // What follows from more room on this node is what `admit` does next.
            self.pods.apply(
                uid,
                |vpod| may_wait(bound, vpod),
                |pods| {
                    let case = pods.case(uid);
                    case.sizing = None;
                    if over && case.claimants.is_empty() {
                        case.admitted = Admitted::No;
                    }
                },
            );
            self.follow_needs(uid, dirty);
        }
        !promised.is_empty()
    }

    /// Whether the pods inside hold more than is lent: when that changes, the node has to say so.
    fn weigh(&self, vnode: &Name, lent: Option<&Resources>, dirty: &mut Dirty<Key>) {
        let Some(row) = self.nodes.vnode(vnode) else { return };
        let held = self.pods.held(vnode);
        let over = lent.is_some_and(|lent| held.is_some_and(|held| held.fits_within(lent).is_err()));
        if over != row.has_taint(keys::TAINT_OVER_LEASED) {
            dirty.mark(Key::Node(row.physical.clone()));
        }
    }

    /// Why a pod may not enter a node that is lent. Room first: it is what changes, and the cheapest to tell.
    fn judge(&self, vpod: &VPod, vnode: &Name, lent: &Resources, held: &Resources) -> Option<NotAdmitted> {
        if let Some(short) = short(&vpod.request, lent, held) {
            return Some(short);
        }
        let (binding, vnode) = (&self.bindings.bound()?.binding, self.nodes.vnode(vnode)?);
        // Without its JSON it was inside before, and was judged then.
        let unreadable = || Some(NotAdmitted::Insecure("the pod cannot be read".to_owned()));
        let Ok(asks) = serde_json::from_str::<Asks<'_>>(vpod.raw.as_deref()?) else { return unreadable() };
        let spec = asks.spec.get();
        let (Ok(placement), Ok(shape)) =
            (serde_json::from_str::<PlacementShape<'_>>(spec), serde_json::from_str::<SecurityShape<'_>>(spec))
        else {
            return unreadable();
        };
        let taints = vnode.taints.iter().filter(|taint| chosen(&taint.key));
        let taints = taints.map(|taint| TaintRef { key: &taint.key, value: &taint.value, effect: &taint.effect });
        let label = |key: &str| vnode.labels.get(key).map(String::as_str);
        if let Err(misplaced) = placed(&placement, label, vnode.name.as_str(), taints) {
            return Some(NotAdmitted::Misplaced(misplaced));
        }
        let annotations = asks.metadata.annotations.iter().flat_map(|pairs| &pairs.0);
        let violations = check(binding.pod_security, &shape, annotations.map(|(key, value)| (&**key, &**value)));
        let told: Vec<_> = violations.iter().map(|violation| violation.message.as_str()).collect();
        if !told.is_empty() {
            return Some(NotAdmitted::Insecure(told.join(", ").chars().take(LONGEST_TEXT).collect()));
        }
        // Last: it looks at every pod of the cluster.
        self.port_conflict(vpod, vnode).map(NotAdmitted::Port)
    }

    /// A port of the node that the pod wants and another one has, ours or not.
    fn port_conflict(&self, vpod: &VPod, vnode: &VNode) -> Option<HostPort> {
        if vpod.ports.is_empty() {
            return None;
        }
        let there = self.pods.ppods.iter().filter(|ppod| ppod.node.as_ref() == Some(&vnode.physical) && !ppod.terminal);
        let inside = self.pods.residents(&vnode.name).filter_map(|uid| self.pods.vpods.get(uid));
        let inside = inside.filter(|other| other.uid != vpod.uid && self.pods.carried(other));
        let others = there.map(|ppod| &ppod.ports).chain(inside.map(|other| &other.ports));
        // The least, so that the same facts give the same words.
        let conflicts = others.filter_map(|ports| vpod.ports.conflicts_with(ports));
        conflicts.min_by_key(|port| port.port).cloned()
    }

    /// Judges all pods that wait once more: the rules changed.
    pub(crate) fn admit_all(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        let bound = self.bindings.bound();
        self.pods.recount_admissions(|vpod| may_wait(bound, vpod));
        for vnode in self.pods.admissions.vnodes() {
            self.admit(&vnode, now, dirty);
        }
        dirty.mark_all();
    }

    /// Tries once more to admit the pods that had to wait for a name.
    pub(crate) fn draw_again(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.pods.nameless.is_some_and(|failed| now.steady >= failed + DRAW_AGAIN) {
            self.pods.nameless = None;
            self.admit_all(now, dirty);
        }
    }

    /// The name under which a pod enters: the one it was given before a restart, else a new one.
    fn choose_name(&mut self, uid: &Uid) -> Option<Admitted> {
        let mapped = self.pods.vpods.get(uid)?.mapping.is_some();
        if mapped { Some(Admitted::AsMapped) } else { self.new_name(uid).map(Admitted::As) }
    }

    /// A fresh random name; also for a pod whose name turned out to be a foreign pod's. `None` without random numbers: a name
    /// that others can foresee is not used.
    pub(super) fn new_name(&mut self, uid: &Uid) -> Option<Name> {
        let vpod = self.pods.vpods.get(uid)?;
        Name::parse(&physical_pod_name(vpod.name.as_str(), (self.pods.entropy)()?)).ok()
    }
}

/// Why so much more cannot be held.
fn short(more: &Resources, lent: &Resources, held: &Resources) -> Option<NotAdmitted> {
    let mut free = lent.clone();
    free.saturating_sub(held);
    more.fits_within(&free).err().map(NotAdmitted::Short)
}

impl NotAdmitted {
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::NotLending => {
                let message = "the virtual node lends nothing at the moment; the pod starts when it does".to_owned();
                Verdict { reason: PendingReason::NotLending, message }
            }
            Self::Stopped(stop, told) => {
                let message = format!("{told}; the pod starts when the node is lent again");
                Verdict { reason: stop.reason(), message }
            }
            Self::Unguarded(reason, message) => Verdict { reason: *reason, message: message.to_string() },
            Self::Misplaced(misplaced) => Verdict { reason: misplaced.into(), message: misplaced.to_string() },
            Self::Port(port) => {
                let message = format!("port {port} of the physical node is taken; the pod starts when it is free");
                Verdict { reason: PendingReason::HostPortConflict, message }
            }
            Self::Insecure(violations) => {
                let message = format!("not allowed by the Pod Security Standard of the binding: {violations}");
                Verdict { reason: PendingReason::PodSecurityViolation, message }
            }
            Self::Nameless => {
                let message = "the syncer cannot read OS entropy, which it needs to name the physical pod; the pod starts when it can";
                Verdict { reason: PendingReason::NoRandomNumbers, message: message.to_owned() }
            }
            Self::Short(short) => Verdict {
                reason: PendingReason::OutOfLease,
                message: format!("{short}; the pod starts when there is room"),
            },
        }
    }
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;
