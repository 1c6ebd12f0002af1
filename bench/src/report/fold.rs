//! Tables of what counting in memory took.

use super::spread;
use super::table::Table;
use crate::figures::fold::{Fold, Folded, Rows};

pub(super) fn render(fold: &Fold) -> String {
    let mut table =
        Table::new(&["nodes", "pods", "from scratch ms", "one change µs", "plan of its node µs", "decode a pod µs"]);
    for size in &fold.sizes {
        let Folded { nodes, pods, decode_us, scratch_ms, change_us, plan_us } = size;
        table.row([
            nodes.to_string(),
            pods.to_string(),
            format!("{scratch_ms:.1}"),
            spread(*change_us),
            spread(*plan_us),
            spread(*decode_us),
        ]);
    }
    let mut rows =
        Table::new(&["running pods of ours", "bytes per pod", "decode a virtual pod µs", "decode its copy µs"]);
    for Rows { pods, dependents, bytes_per_pod, decode_vpod_us, decode_ppod_us } in &fold.rows {
        rows.row([
            format!("{pods}{}", dependents.name()),
            format!("{bytes_per_pod:.0}"),
            spread(*decode_vpod_us),
            spread(*decode_ppod_us),
        ]);
    }
    let sums = &fold.arithmetic;
    format!(
        "\nMemory that the model takes for a running pod of ours, with rows of both sides, of what only this pod names, and all indexes:\n\n{}\n\
         The model alone, in memory; each virtual node holds a pod of ours besides, rows are decoded before; µs are p50 / p99:\n\n{}\n\
         The arithmetic alone: {:.0} ns for what a pod asks for, {:.0} ns to add it up, {:.0} ns for what is lent of a node; \
         {} nodes with {} pods: {:.1} ms.\n",
        rows.render(),
        table.render(),
        sums.request_ns,
        sums.add_ns,
        sums.leased_ns,
        sums.nodes,
        sums.pods,
        sums.whole_ms,
    )
}
