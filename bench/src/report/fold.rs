//! Tables of what counting in memory took.

use super::spread;
use super::table::Table;
use crate::figures::fold::{Fold, Folded};

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
    let sums = &fold.arithmetic;
    format!(
        "\nThe model alone, in memory; each virtual node holds a pod of ours besides, rows are decoded before; µs are p50 / p99:\n\n{}\n\
         The arithmetic alone: {:.0} ns for what a pod asks for, {:.0} ns to add it up, {:.0} ns for what is lent of a node; \
         {} nodes with {} pods: {:.1} ms.\n",
        table.render(),
        sums.request_ns,
        sums.add_ns,
        sums.leased_ns,
        sums.nodes,
        sums.pods,
        sums.whole_ms,
    )
}
