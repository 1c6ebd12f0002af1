//! Tables of a syncer of many nodes.

use std::fmt::Write as _;

use super::table::Table;
use super::{NOISE, listed, reads, spread};
use crate::budget::mib;
use crate::figures::scale::{Changes, Converged, Rested, Scaled};
use crate::figures::{Calls, Cold};

pub(super) fn render(scaled: &Scaled) -> String {
    let mut text = String::new();
    let Scaled { nodes, pods, bare, converged, rest, changes, cold } = scaled;
    if let Some(converged) = converged {
        let bare = bare.as_ref().map(|bare| bare.seconds);
        text.push_str(&render_converged(*nodes, *pods, bare, converged));
    }
    text.push_str(&rest.as_ref().map(render_rest).unwrap_or_default());
    text.push_str(&changes.as_ref().map(render_changes).unwrap_or_default());
    text.push_str(&cold.as_ref().map(render_cold).unwrap_or_default());
    let others = [
        converged.as_ref().map(|converged| converged.others_percent),
        rest.as_ref().map(|rest| rest.others_percent),
        changes.as_ref().map(|changes| changes.others_percent),
    ];
    if others.into_iter().flatten().any(|percent| percent > NOISE) {
        text.push_str("\n**The machine was busy with other things: compare with care, and measure again.**\n");
    }
    text
}

fn render_converged(nodes: usize, pods: u32, bare: Option<f64>, converged: &Converged) -> String {
    let mut table =
        Table::new(&["who", "s from start", "s writing", "÷ bare", "CPU ms", "peak RSS MiB", "others' CPU"]);
    if let Some(seconds) = bare {
        table.row(["bare".to_owned(), String::new(), format!("{seconds:.1}")]);
    }
    let ratio = bare.map(|bare| format!("{:.2}×", converged.writing_seconds / bare)).unwrap_or_default();
    table.row([
        "syncer".to_owned(),
        format!("{:.1}", converged.seconds),
        format!("{:.1}", converged.writing_seconds),
        ratio,
        converged.cpu_ms.to_string(),
        format!("{:.1}", mib(converged.memory.peak)),
        format!("{:.0} %", converged.others_percent),
    ]);
    format!(
        "\n{nodes} physical nodes with {pods} running pods of others; until all virtual nodes are there, right, and have a Lease \
         (bare creates the same nodes and Leases, 50 at a time, and nothing else):\n\n{}\nRequests until then:\n\n{}",
        table.render(),
        kinds(&converged.calls),
    )
}

fn render_rest(rest: &Rested) -> String {
    let mut table = Table::new(&[
        "s",
        "CPU of a core",
        "RSS MiB",
        "lease writes/s",
        "in the fullest second",
        "other writes",
        "reads",
        "others' CPU",
    ]);
    table.row([
        format!("{:.0}", rest.seconds),
        format!("{:.2} %", rest.cpu_percent),
        format!("{:.1}", mib(rest.memory.now)),
        format!("{:.1}", rest.leases.mean),
        rest.leases.most.to_string(),
        listed(&rest.calls),
        reads(&rest.calls).to_string(),
        format!("{:.0} %", rest.others_percent),
    ]);
    format!("\nAt rest:\n\n{}", table.render())
}

fn render_changes(changes: &Changes) -> String {
    let mut table = Table::new(&[
        "changes",
        "per s",
        "come ms",
        "gone ms",
        "CPU ms/change",
        "node status writes",
        "astray",
        "closest two of a node s",
        "RSS MiB",
        "others' CPU",
    ]);
    let writes = &changes.writes;
    table.row([
        changes.count.to_string(),
        changes.rate.to_string(),
        spread(changes.come),
        spread(changes.gone),
        format!("{:.2}", changes.cpu_ms_per_change),
        writes.count.to_string(),
        writes.astray.to_string(),
        writes.closest.map_or("–".to_owned(), |seconds| format!("{seconds:.2}")),
        format!("{:.1}", mib(changes.memory.peak)),
        format!("{:.0} %", changes.others_percent),
    ]);
    format!(
        "\nPods of others come, then go; ms are p50 / p99 from the API server's answer until the virtual node was seen to offer \
         less, or more:\n\n{}",
        table.render(),
    )
}

fn render_cold(cold: &Cold) -> String {
    let mut table = Table::new(&[
        "ready ms",
        "bare lists ms",
        "CPU ms",
        "peak RSS MiB",
        "lease writes",
        "other writes",
        "reads",
        "refused",
    ]);
    table.row([
        format!("{:.0}", cold.ready_ms),
        format!("{:.0}", cold.lists_ms),
        cold.cpu_ms.to_string(),
        format!("{:.1}", mib(cold.memory.peak)),
        cold.calls.leases().to_string(),
        listed(&cold.calls),
        reads(&cold.calls).to_string(),
        cold.calls.refused.to_string(),
    ]);
    format!("\nRestarted among them; counted until 15 s after it was ready:\n\n{}", table.render())
}

/// Most frequent first.
fn kinds(calls: &Calls) -> String {
    let mut kinds: Vec<_> = calls.kinds.iter().collect();
    kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let mut text = String::new();
    for (kind, count) in kinds {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "- {count} {kind}");
    }
    text
}
