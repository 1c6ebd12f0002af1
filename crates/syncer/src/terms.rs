//! On which terms a node is lent at a moment: by which policies, how much, until when, and what prevents it.
//! Pure. Decides neither how the virtual node looks nor which pods are evicted.

mod quota;

use std::time::Duration;

use jiff::Timestamp;
use tapestry_api::Policy;
use tapestry_cluster::{Name, Side};
use tapestry_domain::calendar::Hours;
use tapestry_domain::capacity::leased;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::reclaim::{self, Cause, Rules};
use tapestry_domain::resources::Resources;
use tapestry_engine::Now;

use crate::nodes::departure::{Departure, OWNER};
use crate::nodes::lending::kept_rules;
use crate::nodes::row::{PNode, VNode};
use crate::pair::Pair;
use crate::pods::admission::PendingReason;
use crate::pods::reclaim::tenants;
use crate::policies::Served;

/// Why a node that a policy covers is not lent at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// `spec.suspend` of the binding.
    Suspended,
    /// The owner's annotation on the node.
    LendNever,
    /// No window of the owner's policy is open.
    OwnerHours,
    /// What the owner restricts is not known yet.
    OwnerUnknown,
    /// The physical cluster does not serve policies any more, and one of the owner's that is not known applied to the node.
    OwnerUnserved,
    /// It cannot be known which policies exist in the virtual cluster.
    PoliciesUnknown(Served),
    /// The binding is being deleted, perhaps only together with the definition of bindings.
    BindingUnclear,
    /// Nothing lends the node any more; it goes when it is empty.
    Withdrawn(Departure),
    /// A policy cannot be understood and no other one covers the node.
    Invalid,
    /// No window of the policy is open, or it is about to close.
    Hours,
    /// A pod on the physical node cannot be fully read, so what is idle is not known.
    PodUnreadable,
    /// The node itself cannot be fully read, on one of the two sides.
    NodeUnreadable,
    /// A watch is out of sync: others may use more by now, or the owner may have stopped it.
    OutOfSync,
}

/// What holds on a physical node.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Terms<'a> {
    /// The policy of the virtual cluster; `None` when all that may cover the node are invalid.
    pub(crate) policy: Option<&'a Policy>,
    /// The owner's, when there is one for the node.
    pub(crate) owner: Option<&'a Policy>,
    /// What the limits leave of what is idle, whether it is lent now or not.
    pub(crate) offered: Resources,
    pub(crate) stop: Option<Stop>,
    /// Why nothing lends it any more. An owner's stop may hold besides.
    pub(crate) withdrawn: Option<Departure>,
    /// What becomes of pods when less is lent.
    pub(crate) rules: Rules,
    /// When the calendar next changes something of this.
    pub(crate) until: Option<Timestamp>,
    /// The end of the window, when it is stopped already so that everything is back by then.
    pub(crate) early: Option<Early>,
}

/// Taking back before a window ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Early {
    /// When it has to begin.
    pub(crate) start: Timestamp,
    /// When everything is back.
    pub(crate) end: Timestamp,
    stop: Stop,
    rules: Rules,
}

/// Who decides whether pods have to go for a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Force {
    /// The owner: they have to.
    Owner,
    /// The policy's rules.
    Rules,
    /// They never have to.
    Never,
}

/// What the time since a stop is measured for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Pods go after their grace: the owner stopped lending.
    Owner,
    /// Pods go after their grace: the policy's window closed, or nothing lends the node any more.
    Window,
    /// No pod has to go.
    Unforced,
}

impl Clock {
    /// As the value of the taint says it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Owner => "owner",
            Self::Window => "window",
            Self::Unforced => "",
        }
    }
}

impl Stop {
    /// Who decides whether pods have to go for it.
    fn force(self) -> Force {
        match self {
            Self::Suspended | Self::LendNever | Self::OwnerHours => Force::Owner,
            Self::Hours | Self::Withdrawn(_) => Force::Rules,
            Self::OwnerUnknown
            | Self::OwnerUnserved
            | Self::PoliciesUnknown(_)
            | Self::BindingUnclear
            | Self::Invalid
            | Self::PodUnreadable
            | Self::NodeUnreadable
            | Self::OutOfSync => Force::Never,
        }
    }

    /// The owner's stop wins over everything, tolerations included (law 9).
    pub(crate) fn by_owner(self) -> bool {
        self.force() == Force::Owner
    }

    /// Whether the calendar alone stops it.
    pub(crate) fn is_hours(self) -> bool {
        matches!(self, Self::Hours | Self::OwnerHours)
    }

    /// Which clock runs: each starts from zero, so that no pod runs out of grace on another.
    pub(crate) fn clock(self, rules: &Rules) -> Clock {
        match self.force() {
            Force::Owner => Clock::Owner,
            Force::Rules if rules.force => Clock::Window,
            Force::Rules | Force::Never => Clock::Unforced,
        }
    }

    /// Whether pods have to go for it, once their grace is over.
    pub(crate) fn forced(self, rules: &Rules) -> bool {
        self.clock(rules) != Clock::Unforced
    }

    /// For conditions and events.
    pub(crate) fn reason(self) -> PendingReason {
        match self {
            Self::Suspended => PendingReason::Suspended,
            Self::LendNever => PendingReason::LendNever,
            Self::OwnerHours => PendingReason::OwnerOutOfTimeWindows,
            Self::OwnerUnknown => PendingReason::OwnerPoliciesUnknown,
            Self::OwnerUnserved => PendingReason::OwnerPoliciesNotServed,
            Self::PoliciesUnknown(Served::Unclear) => PendingReason::PoliciesUnknown,
            Self::PoliciesUnknown(Served::Fully | Served::Ending | Served::Not) => PendingReason::PoliciesNotServed,
            Self::BindingUnclear => PendingReason::BindingDeletionUnconfirmed,
            Self::Withdrawn(departure) => departure.reason(),
            Self::Invalid => PendingReason::PolicyInvalid,
            Self::Hours => PendingReason::OutOfTimeWindows,
            Self::PodUnreadable => PendingReason::PhysicalPodUnreadable,
            Self::NodeUnreadable => PendingReason::NodeUnreadable,
            Self::OutOfSync => PendingReason::WatchOutOfSync,
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::Suspended => "the binding is suspended",
            Self::LendNever => "the owner of the physical node does not lend it",
            Self::OwnerHours => "no time window of the owner's policy is open",
            Self::OwnerUnknown => "the policies of the physical cluster cannot be read",
            Self::OwnerUnserved => {
                "the physical cluster no longer serves ResourceLeasingPolicies, and an owner's policy applied to this node; \
                 install their CustomResourceDefinition there again"
            }
            Self::PoliciesUnknown(Served::Unclear) => "the syncer may not read the discovery of the virtual cluster",
            Self::PoliciesUnknown(_) => {
                "the virtual cluster does not serve ResourceLeasingPolicies; install their CustomResourceDefinition again"
            }
            Self::BindingUnclear => {
                "the ClusterBinding is being deleted, perhaps only with its CustomResourceDefinition; its condition Ready says what to do"
            }
            Self::Withdrawn(departure) => departure.message(),
            Self::Invalid => "the policy for this node is invalid; its status says what to change",
            Self::Hours => "no time window of the policy is open",
            Self::PodUnreadable => {
                "a pod on the physical node has a form that this version of Tapestry does not know, so what is idle is not known: remove it, or update Tapestry"
            }
            Self::NodeUnreadable => {
                "the node has a form that this version of Tapestry does not know, so nothing new is placed: update Tapestry"
            }
            Self::OutOfSync => {
                "a watch that this depends on is out of sync; condition Connected of the ClusterBinding says which and what to do"
            }
        }
    }
}

impl Terms<'_> {
    /// What is lent now.
    pub(crate) fn leased(&self) -> Resources {
        let mut leased = self.offered.clone();
        if self.stop.is_some() {
            leased.map(|_, _| Quantity::ZERO);
        }
        leased
    }

    /// The names of the policies in force, as the virtual node tells them.
    pub(crate) fn names(&self) -> String {
        let own = self.policy.map(|policy| policy.name.clone());
        let owner = self.owner.map(|policy| format!("{OWNER}{}", policy.name));
        own.into_iter().chain(owner).collect::<Vec<_>>().join(",")
    }
}

impl Pair {
    /// What holds on a physical node; `None` when nothing lends it and it has no virtual node (law 9), and when the binding goes.
    pub(crate) fn terms(&self, pnode: &PNode, at: Timestamp) -> Option<Terms<'_>> {
        let mut terms = self.terms_by_hours(pnode, at)?;
        let stopped_by_owner = terms.stop.is_some_and(Stop::by_owner);
        if let Some(early) = self.early_end(pnode, &terms, at).filter(|_| !stopped_by_owner) {
            // Once begun it goes on, also when the pods that made it begin so early have gone.
            if early.start <= at || self.nodes.early(&pnode.name) == Some(early.end) {
                (terms.stop, terms.rules, terms.early) = (Some(early.stop), early.rules, Some(early));
            } else {
                terms.until = terms.until.into_iter().chain([early.start]).min();
            }
        }
        // Last: none of these keeps an owner or a calendar from taking back what is theirs.
        if terms.stop.is_none() {
            let blind = self.admission_out_of_sync().then_some(Stop::OutOfSync);
            let unreadable = self.pods.unreadable_on(&pnode.name).map(|_| Stop::PodUnreadable);
            terms.stop = pnode.unread.map(|_| Stop::NodeUnreadable).or(unreadable).or(blind);
        }
        Some(terms)
    }

    /// The message about a stop of this virtual node.
    pub(crate) fn tell_stop(&self, vnode: &Name, stop: Stop) -> Box<str> {
        let physical = self.nodes.vnode(vnode).map(|vnode| &vnode.physical);
        let pod = physical.and_then(|physical| self.pods.unreadable_on(physical));
        match pod.filter(|_| stop == Stop::PodUnreadable) {
            Some(pod) => format!("{} (pod {pod})", stop.message()).into(),
            None => stop.message().into(),
        }
    }

    /// As [`Self::terms`], without beginning early to take back.
    pub(crate) fn terms_by_hours(&self, pnode: &PNode, at: Timestamp) -> Option<Terms<'_>> {
        let bound = self.bindings.bound().filter(|bound| !bound.leaving())?;
        let binding = &bound.binding;
        let vnode = self.nodes.vnode_of(&pnode.name);
        let selected = binding.nodes.matches(|key| pnode.label(key), pnode.name.as_str());
        let unknown = self.policies.unknown(Side::Virtual);
        let policy = self.policies.holder(Side::Virtual, binding, pnode, at).filter(|_| selected && unknown.is_none());
        let owner = self.policies.holder(Side::Physical, binding, pnode, at);
        let broken = |side| self.policies.broken(side, binding);
        let withdrawn = match (selected, &policy) {
            (false, _) => Some(Departure::Unselected),
            (true, None) if unknown.is_none() && !broken(Side::Virtual) => Some(self.lost_policy(vnode)),
            (true, _) => None,
        };
        if withdrawn.is_some() && vnode.is_none() {
            return None;
        }
        let closed = |holder: &Option<(&Policy, Hours, Option<Timestamp>)>| {
            holder.as_ref().is_some_and(|(_, hours, _)| !hours.open)
        };
        let stop = if binding.suspend {
            Some(Stop::Suspended)
        } else if pnode.lend_never {
            Some(Stop::LendNever)
        } else if closed(&owner) {
            Some(Stop::OwnerHours)
        } else if self.owner_missing(vnode) {
            Some(Stop::OwnerUnserved)
        } else if bound.deletion_unconfirmed() {
            Some(Stop::BindingUnclear)
        } else if let Some(served) = unknown {
            Some(Stop::PoliciesUnknown(served))
        } else if let Some(departure) = withdrawn {
            let unclear = departure == Departure::PolicyDeleted && self.policies.unclear(Side::Virtual);
            Some(if unclear { Stop::PoliciesUnknown(Served::Unclear) } else { Stop::Withdrawn(departure) })
        } else if policy.is_none() || broken(Side::Physical) {
            Some(Stop::Invalid)
        } else if closed(&policy) {
            Some(Stop::Hours)
        } else {
            None
        };
        let untils = [&policy, &owner].into_iter().flatten().filter_map(|(_, _, until)| *until);
        let until = untils.min();
        let (policy, owner) = (policy.map(|(policy, ..)| policy), owner.map(|(policy, ..)| policy));
        let limits = policy.into_iter().chain(owner).flat_map(|policy| &policy.limits);
        let ruling = owner.filter(|_| stop.is_some_and(Stop::by_owner)).or(policy);
        let kept = vnode.filter(|_| policy.is_none()).map(kept_rules);
        // While a policy is invalid no pod has to go: perhaps it is the one that lets them stay.
        let force = match policy {
            Some(policy) => policy.force_reclaim && !broken(Side::Virtual),
            None => withdrawn.is_some() && kept.is_some_and(|kept| kept.force),
        };
        let kept_grace = || kept.map_or(DEFAULT_GRACE, |kept| kept.grace);
        Some(Terms {
            offered: leased(&pnode.allocatable, &self.pods.used(&pnode.name), limits),
            rules: Rules { force, grace: ruling.map_or_else(kept_grace, |policy| policy.grace) },
            policy,
            owner,
            stop,
            withdrawn,
            until,
            early: None,
        })
    }

    /// Whether an owner's policy applied that is not known, and discovery has not confirmed that its owner deleted it. Where none
    /// ever applied, the owner restricts nothing.
    fn owner_missing(&self, vnode: Option<&VNode>) -> bool {
        if self.policies.confirmed(Side::Physical) {
            return false;
        }
        match vnode {
            Some(vnode) => vnode
                .policies()
                .any(|policy| policy.side == Side::Physical && !self.policies.named(policy.side, policy.name)),
            None => self.nodes.any_with_owner() && self.policies.none_known(Side::Physical),
        }
    }

    /// With `reclaimBeforeEnd`: when taking back begins, so that the capacity is back when the window ends.
    fn early_end(&self, pnode: &PNode, terms: &Terms<'_>, at: Timestamp) -> Option<Early> {
        let (end, stop, rules) = self.next_early_end(pnode, terms, at)?;
        let cause = if stop.by_owner() { Cause::OwnerStop } else { Cause::WindowEnd };
        let longest = self.nodes.vnode_of(&pnode.name).map_or(Duration::ZERO, |vnode| {
            let carried = self.pods.carried_on(&vnode.name);
            reclaim::longest_grace(&rules, &tenants(&carried), &cause)
        });
        // Taints are kept in whole seconds.
        let start = end.checked_sub(rules.grace + longest + Duration::from_secs(1)).ok()?;
        Some(Early { start, end, stop, rules })
    }

    /// The first window end of a policy with `reclaimBeforeEnd`. At other edges another window or another
    /// policy takes over, pods may stay, or the one that ends gives its grace only from there.
    fn next_early_end(&self, pnode: &PNode, terms: &Terms<'_>, at: Timestamp) -> Option<(Timestamp, Stop, Rules)> {
        let wishes = |terms: &Terms<'_>| {
            let wish = |policy: Option<&Policy>| policy.is_some_and(|policy| policy.reclaim_before_end);
            (wish(terms.policy), wish(terms.owner))
        };
        if wishes(terms) == (false, false) {
            return None;
        }
        let mut before = (wishes(terms), terms.stop);
        let mut edge = terms.until.filter(|edge| at < *edge)?;
        for _ in 0..EDGES_AHEAD {
            let ahead = self.terms_by_hours(pnode, edge)?;
            let ((policy, owner), stopped) = before;
            match ahead.stop {
                Some(stop) if stop.by_owner() => return owner.then_some((edge, stop, ahead.rules)),
                Some(stop @ Stop::Hours) if stopped.is_none() && policy && ahead.rules.force => {
                    return Some((edge, stop, ahead.rules));
                }
                // Forced without a wish: pods have their grace from there, and are gone before the next edge counts.
                Some(Stop::Hours) if stopped.is_none() && ahead.rules.force => return None,
                _ => {}
            }
            before = (wishes(&ahead), ahead.stop);
            edge = ahead.until.filter(|next| edge < *next)?;
        }
        None
    }

    /// What a virtual node lends now, or why it lends nothing; `None` when it is on its way out. With a quota, no more than the
    /// quota admits by now.
    pub(crate) fn lent(&self, vnode: &Name, at: Timestamp) -> Option<Result<Resources, Stop>> {
        let physical = &self.nodes.vnode(vnode)?.physical;
        Some(self.offers(vnode, at)?.map(|offered| self.covered(physical, offered)))
    }

    /// As [`Self::lent`], whatever a quota admits.
    pub(crate) fn offers(&self, vnode: &Name, at: Timestamp) -> Option<Result<Resources, Stop>> {
        // Before all lists are in, it is unknown which pods are inside already.
        let vnode = self.nodes.vnode(vnode).filter(|vnode| !vnode.deleting && self.lists_complete())?;
        let terms = self.terms(self.nodes.pnode(&vnode.physical)?, at)?;
        let terms = Some(terms).filter(|terms| terms.withdrawn.is_none())?;
        let unread = vnode.unread.map(|_| Stop::NodeUnreadable);
        let unknown = (!self.policies.owner_known()).then_some(Stop::OwnerUnknown).or(unread);
        Some(unknown.or(terms.stop).map_or(Ok(terms.offered), Err))
    }
}

/// How many edges are looked at for an end.
const EDGES_AHEAD: usize = 32;

/// When no policy says otherwise.
pub(crate) const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// The steady time of a moment on the wall.
pub(crate) fn steady_at(at: Timestamp, now: Now) -> Duration {
    now.steady + Duration::try_from(at.duration_since(now.wall)).unwrap_or_default()
}
