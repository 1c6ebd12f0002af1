//! Which pods have to leave a virtual node, in which order, when and how. It must not
//! know where a cause comes from nor who carries a step out: asked again after each step, it returns the next.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;

use crate::resources::Resources;

/// A pod on a virtual node, as far as reclaim cares.
#[derive(Debug, Clone, Copy)]
pub struct Tenant<'a> {
    /// The caller's identifier; no two are equal.
    pub id: &'a str,
    /// Its scheduling priority: the lowest leave first.
    pub priority: i32,
    /// When it was created: of equal priority the youngest leave first.
    pub born: Timestamp,
    /// What its end frees. A node can be short only of what tenants name here, so `pods` too if pods are to count.
    pub request: &'a Resources,
    /// Its own `terminationGracePeriodSeconds`.
    pub grace: u32,
    /// Whether it tolerates exactly `tapestry.io/out-of-time-windows`.
    pub exempt: bool,
    /// The seconds of grace it is being deleted with; `None` when it is not being deleted.
    pub going: Option<u32>,
}

/// Why capacity is reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause<'a> {
    /// A window of the virtual cluster's policy has ended.
    WindowEnd,
    /// The owner no longer lends: `suspend`, `lend=never`, the owner's own policy.
    OwnerStop,
    /// The node, or the selector, policy or binding it exists for, is gone.
    Leaving,
    /// Less is lent than tenants use.
    Shrunk {
        /// What is lent now.
        leased: &'a Resources,
    },
}

/// The reclaim rules of the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// `forceReclaim`. An owner's stop and a node's end are forced whatever it says.
    pub force: bool,
    /// `gracefulReclaimPeriodSeconds`: from the cause to the force, and the longest grace of a forced delete.
    pub grace: Duration,
}

/// What to do about one tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this moment.
    Wait(Timestamp),
    /// Evict it, which a disruption budget may refuse; then try again later.
    Evict,
    /// Delete it, or shorten the grace it is being deleted with.
    Delete {
        /// With how many seconds of grace.
        grace: u32,
    },
}

/// What to do about the tenants of a node, in order; the others stay. `t0` is when the cause began (the
/// taint was added).
#[must_use]
pub fn steps<'a>(
    cause: &Cause<'_>,
    rules: &Rules,
    t0: Timestamp,
    now: Timestamp,
    tenants: &[Tenant<'a>],
) -> Vec<(&'a str, Step)> {
    let deadline = force_at(rules, t0);
    let step = |tenant: &Tenant<'a>| match cause {
        _ if now >= deadline => Step::Delete { grace: forced_grace(tenant.grace, rules) },
        Cause::Shrunk { .. } if tenant.going.is_none() => Step::Evict,
        _ => Step::Wait(deadline),
    };
    to_go(cause, rules, tenants).into_iter().map(|tenant| (tenant.id, step(tenant))).collect()
}

/// When force begins: tenants may run until then, and no delete comes before.
#[must_use]
pub fn force_at(rules: &Rules, t0: Timestamp) -> Timestamp {
    t0.checked_add(rules.grace).unwrap_or(Timestamp::MAX)
}

/// The longest grace of the pods that have to go (zero when none does): T of `reclaimBeforeEnd`.
#[must_use]
pub fn longest_grace(rules: &Rules, tenants: &[Tenant<'_>], cause: &Cause<'_>) -> Duration {
    let left = |tenant: &Tenant<'_>| {
        let forced = forced_grace(tenant.grace, rules);
        tenant.going.map_or(forced, |going| going.min(forced))
    };
    let longest = match cause {
        Cause::Shrunk { .. } => to_go(cause, rules, tenants).into_iter().map(left).max(),
        // Pods that are being deleted must be gone as well.
        _ if forced(cause, rules) => tenants.iter().filter(|tenant| touched(cause, tenant)).map(left).max(),
        _ => None,
    };
    Duration::from_secs(longest.unwrap_or(0).into())
}

/// The grace of a forced delete in seconds: the pod's own or the policy's, whichever is less, and at least one.
/// Not zero: that deletes the object without waiting for the kubelet, and the processes
/// may keep running.
#[must_use]
pub fn forced_grace(own: u32, rules: &Rules) -> u32 {
    u32::try_from(rules.grace.as_secs()).unwrap_or(u32::MAX).min(own).max(1)
}

fn forced(cause: &Cause<'_>, rules: &Rules) -> bool {
    rules.force || matches!(cause, Cause::OwnerStop | Cause::Leaving)
}

/// A toleration spares a pod only from the virtual cluster's windows.
fn touched(cause: &Cause<'_>, tenant: &Tenant<'_>) -> bool {
    !(tenant.exempt && *cause == Cause::WindowEnd)
}

/// Being deleted, but with more grace than force would give.
fn lingers(tenant: &Tenant<'_>, rules: &Rules) -> bool {
    tenant.going.is_some_and(|going| going > forced_grace(tenant.grace, rules))
}

/// All pods that still need a step, in order; only as many as needed.
fn to_go<'t, 'a>(cause: &Cause<'_>, rules: &Rules, tenants: &'t [Tenant<'a>]) -> Vec<&'t Tenant<'a>> {
    if !forced(cause, rules) {
        return Vec::new();
    }
    let mut ordered: Vec<_> = tenants.iter().filter(|tenant| touched(cause, tenant)).collect();
    ordered.retain(|tenant| tenant.going.is_none() || lingers(tenant, rules));
    ordered.sort_unstable_by_key(|tenant| (tenant.priority, Reverse(tenant.born), tenant.id));
    let Cause::Shrunk { leased } = cause else { return ordered };

    let (staying, lingering): (Vec<&Tenant<'_>>, Vec<&Tenant<'_>>) =
        ordered.into_iter().partition(|tenant| tenant.going.is_none());
    // A pod that is being deleted counts as gone: otherwise every second of a long grace would cost another tenant its place.
    let mut used = Resources::new();
    for tenant in &staying {
        used.add(tenant.request);
    }
    let mut chosen = relieve(&staying, &mut used, leased);
    // Shorten a long deletion only where the pod still holds what is short.
    for tenant in &lingering {
        used.add(tenant.request);
    }
    chosen.extend(relieve(&lingering, &mut used, leased));
    chosen
}

/// Removes tenants in order until what is used fits, skipping those that hold nothing of what is short.
/// One pass is enough: each removal reduces what is short, so a skipped tenant is never
/// needed later.
fn relieve<'t, 'a>(ordered: &[&'t Tenant<'a>], used: &mut Resources, leased: &Resources) -> Vec<&'t Tenant<'a>> {
    let mut chosen = Vec::new();
    for tenant in ordered {
        let short = tenant.request.iter().any(|(name, held)| held.is_positive() && used.get(name) > leased.get(name));
        if short {
            used.saturating_sub(tenant.request);
            chosen.push(*tenant);
        }
    }
    chosen
}
