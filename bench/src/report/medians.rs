//! Loads that were carried several times: the syncer's medians beside bare's.

use super::table::Table;
use crate::figures::medians::{
    Median, Rounds, allocated, cpu, cpu_cleared, deletions_per_second, peak_rss, pods_per_second, servers_cpu,
};
use crate::figures::{Figures, Who};

type Quantity = fn(&Rounds<'_>) -> Median;

const QUANTITIES: [(&str, Quantity); 7] = [
    ("pods/s", pods_per_second),
    ("deletions/s", deletions_per_second),
    ("CPU ms/pod", cpu),
    ("CPU ms/pod deleted", cpu_cleared),
    ("servers' CPU ms/pod", servers_cpu),
    ("peak RSS MiB", peak_rss),
    ("allocated MiB", allocated),
];

/// How often the load was carried that was carried most often.
pub(super) fn most_rounds(figures: &Figures) -> usize {
    Rounds::all(figures).iter().map(Rounds::count).max().unwrap_or(0)
}

/// A row for each load and subject, one for their ratio.
pub(super) fn render(figures: &Figures) -> String {
    let headings = ["load", "who", "rounds"].into_iter().chain(QUANTITIES.map(|(name, _)| name));
    let mut table = Table::new(&headings.collect::<Vec<_>>());
    for rounds in Rounds::all(figures) {
        let who = [rounds.load.to_string(), rounds.who.name().to_owned(), rounds.count().to_string()];
        table.row(who.into_iter().chain(QUANTITIES.map(|(_, of)| show(of(&rounds)))));
        let bare = Rounds::of(figures, rounds.load, Who::Bare);
        if rounds.who == Who::Syncer && bare.count() > 0 {
            let ratios = QUANTITIES.map(|(_, of)| super::ratio(of(&rounds).middle, of(&bare).middle));
            table.row([String::new(), "÷ bare".to_owned(), String::new()].into_iter().chain(ratios));
        }
    }
    table.render()
}

fn show(Median { middle, lowest, highest }: Median) -> String {
    let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
    format!("{} ({} to {})", number(middle), number(lowest), number(highest))
}
