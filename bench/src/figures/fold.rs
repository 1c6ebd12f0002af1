//! What counting in memory took. Must not count anything itself.

use serde::Serialize;

use super::Spread;
use crate::sources::Dependents;

/// All that `bench fold` measures.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fold {
    /// Of our own pods, by what they name.
    pub(crate) rows: Vec<Rows>,
    /// Smallest cluster first.
    pub(crate) sizes: Vec<Folded>,
    pub(crate) arithmetic: Arithmetic,
}

/// Running pods of ours in the model of a syncer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Rows {
    pub(crate) pods: u32,
    pub(crate) dependents: Dependents,
    /// Memory that the process took for one: the rows of virtual pod and copy, those of what only they name, and all indexes.
    pub(crate) bytes_per_pod: f64,
    /// From JSON text to a row, µs.
    pub(crate) decode_vpod_us: Spread,
    pub(crate) decode_ppod_us: Spread,
}

/// The model of a syncer in a cluster of one size.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Folded {
    pub(crate) nodes: u32,
    /// Of others; each virtual node has one of ours besides.
    pub(crate) pods: u32,
    /// From JSON text to a row, µs for one pod; in nothing below.
    pub(crate) decode_us: Spread,
    /// All facts about both clusters folded in, until the first lists are complete: the best of three.
    pub(crate) scratch_ms: f64,
    /// One pod of others comes or goes, µs.
    pub(crate) change_us: Spread,
    /// What follows for its node, µs, with the patch rendered.
    pub(crate) plan_us: Spread,
}

/// The sums alone.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Arithmetic {
    pub(crate) nodes: u32,
    pub(crate) pods: u32,
    /// What one pod asks for.
    pub(crate) request_ns: f64,
    /// One pod added to what is used of its node.
    pub(crate) add_ns: f64,
    /// What is lent of one node.
    pub(crate) leased_ns: f64,
    /// All of them.
    pub(crate) whole_ms: f64,
}
