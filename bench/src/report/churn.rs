//! Rounds of pods that came and went, and the memory after each.

use std::fmt::Write as _;

use super::table::Table;
use crate::budget::mib;
use crate::figures::churn::Churned;

/// A row for each round, and what they say together.
pub(super) fn render(churned: &Churned) -> String {
    let Churned { who, load, rounds } = churned;
    let mut text = format!(
        "\n{} rounds of {load} by one process of {}, each created and deleted; memory after each round:\n\n",
        rounds.len(),
        who.name(),
    );
    let mut table = Table::new(&[
        "round",
        "until all run s",
        "until none is left s",
        "CPU ms/pod",
        "RSS MiB",
        "allocated MiB",
        "peak RSS MiB",
    ]);
    for (index, round) in (1..).zip(rounds) {
        table.row([
            u32::to_string(&index),
            format!("{:.1}", round.seconds[0]),
            format!("{:.1}", round.seconds[1]),
            format!("{:.2}", round.cpu_ms_per_pod),
            format!("{:.1}", mib(round.memory.now)),
            format!("{:.1}", mib(round.memory.anon)),
            format!("{:.1}", mib(round.memory.peak)),
        ]);
    }
    text.push_str(&table.render());
    if let Some((growth, pods)) = churned.growth() {
        let bytes = growth * 1024.0 * 1024.0 / f64::from(pods.max(1));
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\nFrom the second quarter of the rounds to the last, by their medians: {growth:+.2} MiB over {pods} pods, {bytes:+.0} B per pod."
        );
    }
    text
}
