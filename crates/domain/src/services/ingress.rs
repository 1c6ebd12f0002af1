//! Addresses of load balancers in the status of a virtual Service. Several physical clusters may carry the same Service, and each
//! owns the entries that it wrote; so it must not touch others, nor care in which order they are.

use serde_json::Value;

/// The list with our entries as wanted: those of others first, as they were. `recorded`: what we wrote before.
#[must_use]
pub fn merge(there: &[Value], recorded: &[Value], wanted: &[Value]) -> Vec<Value> {
    let others = there.iter().filter(|entry| !recorded.contains(entry) && !wanted.contains(entry));
    others.chain(wanted).cloned().collect()
}

/// Whether the list has our entries, and none that we do not want any more.
#[must_use]
pub fn holds(there: &[Value], recorded: &[Value], wanted: &[Value]) -> bool {
    let stale = |entry: &Value| recorded.contains(entry) && !wanted.contains(entry);
    wanted.iter().all(|entry| there.contains(entry)) && !there.iter().any(stale)
}
