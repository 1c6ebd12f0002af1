//! What a syncer of many nodes costs and how quick it is. Must not measure anything itself.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tapestry_testbed::audit::{Request, Requests};

use super::{Calls, Cold, Spread, Who};
use crate::machine::Memory;

/// All that `bench scale` measures, as far as it came.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Scaled {
    /// Physical nodes.
    pub(crate) nodes: usize,
    /// Of others, running on them.
    pub(crate) pods: u32,
    pub(crate) bare: Option<BareNodes>,
    pub(crate) converged: Option<Converged>,
    pub(crate) rest: Option<Rested>,
    pub(crate) changes: Option<Changes>,
    pub(crate) cold: Option<Cold>,
}

/// A client that only creates the same nodes and their Leases.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BareNodes {
    /// From the first request to the last answer.
    pub(crate) seconds: f64,
}

/// From the start of the process until every node is there and right, and has its Lease.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Converged {
    pub(crate) seconds: f64,
    /// From the first node or Lease asked for to the last answer about one.
    pub(crate) writing_seconds: f64,
    pub(crate) cpu_ms: u64,
    pub(crate) memory: Memory,
    pub(crate) calls: Calls,
    pub(crate) others_percent: f64,
}

/// Nothing happens but time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Rested {
    pub(crate) seconds: f64,
    /// Of one core.
    pub(crate) cpu_percent: f64,
    pub(crate) memory: Memory,
    /// Lease writes.
    pub(crate) leases: Pace,
    pub(crate) calls: Calls,
    pub(crate) others_percent: f64,
}

/// Pods of others come, then go, one at a time.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Changes {
    /// Comings and goings.
    pub(crate) count: u32,
    /// Per second.
    pub(crate) rate: u32,
    /// Answered → seen in the virtual node's allocatable.
    pub(crate) come: Spread,
    pub(crate) gone: Spread,
    /// Of the syncer, beyond what it takes at rest.
    pub(crate) cpu_ms_per_change: f64,
    pub(crate) memory: Memory,
    pub(crate) writes: NodeWrites,
    pub(crate) calls: Calls,
    pub(crate) others_percent: f64,
}

/// How evenly requests came in.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Pace {
    /// Per second.
    pub(crate) mean: f64,
    /// In the second with the most, wherever it begins.
    pub(crate) most: usize,
}

/// Writes of virtual nodes' statuses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct NodeWrites {
    pub(crate) count: usize,
    /// About nodes where nothing changed.
    pub(crate) astray: usize,
    /// Shortest time between two about one node, seconds; `None`: no node was written twice.
    pub(crate) closest: Option<f64>,
}

impl Pace {
    /// Of the requests that came in at these moments, within so many seconds.
    #[expect(clippy::cast_precision_loss, reason = "requests of a run are far below 2^52")]
    pub(crate) fn of(mut moments: Vec<Timestamp>, seconds: f64) -> Self {
        moments.sort_unstable();
        let mut first = 0;
        let mut most = 0;
        for (last, moment) in moments.iter().enumerate() {
            while moment.duration_since(moments[first]).as_secs_f64() >= 1.0 {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        Self { mean: moments.len() as f64 / seconds.max(f64::EPSILON), most }
    }
}

impl NodeWrites {
    /// Of the syncer's requests to the virtual cluster; `changed` are the virtual nodes that had a reason.
    pub(crate) fn of(requests: &Requests, changed: &BTreeSet<&str>) -> Self {
        let ours = requests.0.iter().filter(|request| is_ours(request) && is_status_write(request));
        let mut nodes: BTreeMap<&str, Vec<Timestamp>> = BTreeMap::new();
        for request in ours {
            nodes.entry(&request.name).or_default().push(request.received);
        }
        let gaps = nodes.values_mut().flat_map(|moments| {
            moments.sort_unstable();
            moments.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64()).collect::<Vec<_>>()
        });
        let closest = gaps.reduce(f64::min);
        let astray = nodes.iter().filter(|(node, _)| !changed.contains(*node)).map(|(_, moments)| moments.len());
        Self { count: nodes.values().map(Vec::len).sum(), astray: astray.sum(), closest }
    }
}

/// Whether the syncer asked.
pub(crate) fn is_ours(request: &Request) -> bool {
    request.user == Who::Syncer.user()
}

/// Whether a Lease was written.
pub(crate) fn is_lease_write(request: &Request) -> bool {
    request.resource.starts_with("leases.") && !matches!(request.verb.as_str(), "get" | "list" | "watch")
}

fn is_status_write(request: &Request) -> bool {
    request.resource == "nodes" && request.subresource == "status" && request.verb == "patch"
}

/// First asked, last answered: of the writes without which no node would be there, right and alive.
pub(crate) fn writing(requests: &Requests) -> Option<(Timestamp, Timestamp)> {
    let made = |request: &&Request| {
        is_ours(request)
            && (request.resource == "nodes" || request.resource.starts_with("leases.") && request.verb == "create")
            && !matches!(request.verb.as_str(), "get" | "list" | "watch")
    };
    let writes = || requests.0.iter().filter(made);
    let answered = |request: &Request| request.received.checked_add(request.latency).ok();
    Some((writes().map(|request| request.received).min()?, writes().filter_map(answered).max()?))
}

/// Seconds from one moment to another.
pub(crate) fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// What a process took per second of rest, for so long.
pub(crate) fn at_rest(rest: Option<&Rested>, wall: Duration) -> f64 {
    rest.map_or(0.0, |rest| rest.cpu_percent / 100.0 * wall.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn status_write(user: &str, node: &str, ms: i64) -> Request {
        Request {
            user: user.to_owned(),
            user_agent: String::new(),
            verb: "patch".to_owned(),
            resource: "nodes".to_owned(),
            subresource: "status".to_owned(),
            namespace: String::new(),
            name: node.to_owned(),
            code: 200,
            received: at(ms),
            latency: Duration::from_millis(3),
            forbidden: false,
        }
    }

    #[test]
    fn the_fullest_second_may_begin_anywhere() {
        let pace = Pace::of([2000, 100, 900, 1050, 1099, 1100].map(at).into(), 2.0);
        assert_eq!(pace, Pace { mean: 3.0, most: 4 });
        assert_eq!(Pace::of(Vec::new(), 2.0), Pace { mean: 0.0, most: 0 });
    }

    #[test]
    fn writes_of_nodes_without_a_reason_and_writes_too_close_are_told() {
        let ours = Who::Syncer.user();
        let requests = Requests(vec![
            status_write(ours, "a", 2500),
            status_write(ours, "a", 1000),
            status_write(ours, "b", 1200),
            status_write("system:kube-controller-manager", "c", 1300),
        ]);
        let writes = NodeWrites::of(&requests, &BTreeSet::from(["a"]));
        assert_eq!(writes, NodeWrites { count: 3, astray: 1, closest: Some(1.5) });
        let (first, last) = writing(&requests).unwrap();
        assert!((seconds(first, last) - 1.503).abs() < 1e-9);
    }
}
