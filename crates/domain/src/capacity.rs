//! How much of a node is lent: what is idle, within what the policies allow.
//! It must not round up, go below zero, or decide which policy applies.

#[cfg(test)]
mod tests;

use crate::quantity::{Percent, Quantity};
use crate::resources::{ResourceName, Resources};

/// One limit of a policy on one resource. When both figures are set the smaller counts; zero of either means none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// What is limited.
    pub resource: ResourceName,
    /// At most this much.
    pub quantity: Option<Quantity>,
    /// At most this part of what is idle.
    pub percent: Option<Percent>,
}

/// What a virtual node offers: `base − used`, never below zero, cut by every limit.
///
/// `base` is what the physical node can allocate; only what it names is lent. `used` is what others use of it.
/// Every percentage is of the same idle figure, so neither the order of limits nor whose they are matters.
/// The result is rounded down to what the scheduler can count (see [`ResourceName::floor`]).
#[must_use]
pub fn leased<'a>(base: &Resources, used: &Resources, limits: impl IntoIterator<Item = &'a Limit>) -> Resources {
    let mut idle = base.clone();
    // A node that reports less than nothing has nothing.
    idle.map(|_, quantity| quantity.max(Quantity::ZERO));
    idle.saturating_sub(used);

    let mut leased = idle.clone();
    for limit in limits {
        if !idle.contains(&limit.resource) {
            continue;
        }
        let part = limit.percent.map(|percent| idle.get(&limit.resource).percent_floor(percent));
        let cap = [limit.quantity, part].into_iter().flatten().min();
        if let Some(cap) = cap {
            let offered = leased.get(&limit.resource).min(cap.max(Quantity::ZERO));
            leased.set(limit.resource.clone(), offered);
        }
    }
    leased.map(ResourceName::floor);
    leased
}
