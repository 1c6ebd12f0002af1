//! `tapestry calendar`: two weeks of lending as a chart in the terminal, in the user's zone.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};
use serde::Serialize;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_syncer::explain::{Agenda, StopStory};
use tapestry_syncer::start::Syncer;

use crate::access::{Access, ask_all, block_on};
use crate::failure::Failure;
use crate::output::{Output, plain, print};

/// Show when clusters lend.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  tapestry calendar
  tapestry calendar east --days 7 --time-zone Asia/Shanghai
  tapestry calendar -o json")]
pub(crate) struct Args {
    /// Name of a ClusterBinding [default: all]
    binding: Option<String>,
    /// How many days, from today
    #[arg(long, value_name = "DAYS", default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=366))]
    days: u16,
    /// Zone of the chart, as `Europe/Berlin` [default: this machine's]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// Half an hour.
const COLUMNS: i64 = 48;

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let zone = match &self.time_zone {
            None => TimeZone::system(),
            Some(name) => TimeZone::get(name).map_err(|error| {
                Failure::new(
                    format!("no time zone {name}"),
                    error,
                    "zones are named as in Europe/Berlin or Asia/Shanghai",
                )
                .wrong_usage()
            })?,
        };
        let unusable = |error: jiff::Error| Failure::new("no calendar for these days", error, "choose fewer --days");
        let today = SystemClock::start().now().wall.to_zoned(zone.clone()).start_of_day().map_err(unusable)?;
        let end = today.checked_add(i64::from(self.days).days()).map_err(unusable)?;
        block_on(async {
            let server = self.access.server().await?;
            let names = server.names(self.binding.as_deref()).await?;
            let (mut entries, mut failures) = (Vec::new(), Vec::new());
            for (binding, looked) in ask_all(&server, names, Syncer::look).await {
                match looked {
                    Ok(pair) => entries.extend(pair.agenda(today.timestamp(), end.timestamp()).map(Entry::Agenda)),
                    Err(failure) => {
                        entries.push(Entry::Failed { binding, failure: failure.line() });
                        failures.push(failure);
                    }
                }
            }
            print(self.output, &entries, |entries| render_all(entries, &today, self.days))?;
            let last = failures.pop();
            for failure in failures {
                failure.report();
            }
            last.map_or(Ok(()), Err)
        })
    }
}

/// The output for one binding.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Agenda(Agenda),
    /// Why it could not be read.
    Failed {
        binding: String,
        failure: String,
    },
}

/// Failures go to standard error.
fn render_all(entries: &[Entry], today: &Zoned, days: u16) -> String {
    if entries.is_empty() {
        return "No ClusterBinding found.\n".to_owned();
    }
    let charts: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Agenda(agenda) => Some(render(agenda, today, days)),
            Entry::Failed { .. } => None,
        })
        .collect();
    if charts.is_empty() {
        return String::new();
    }
    charts.join("\n")
        + "\nShare of the nodes that are lent: · none  ░ up to a third  ▒ up to two thirds  ▓ more  █ all\n"
}

fn render(agenda: &Agenda, today: &Zoned, days: u16) -> String {
    let zone = today.time_zone().iana_name().unwrap_or("local time");
    let hours = ["00", "03", "06", "09", "12", "15", "18", "21"].map(|hour| format!("{hour:6}")).concat();
    let binding = plain(&agenda.binding);
    let stops = agenda.stops.iter().map(|StopStory { reason, message, nodes }| {
        let (nodes, are) = if *nodes == 1 { ("1 node".to_owned(), "is") } else { (format!("{nodes} nodes"), "are") };
        plain(&format!("{nodes} {are} not lent at any hour: {reason}: {message}")) + "\n"
    });
    let stops: String = stops.collect();
    let title = format!("{binding} ({} nodes), {zone}\n{stops}{:12}{}\n", agenda.nodes, "", hours.trim_end());
    let days = (0..i64::from(days)).map_while(|day| today.checked_add(day.days()).ok());
    let lines = days.map(|day| {
        let cells: String = (0..COLUMNS).map(|column| cell(agenda, &day, column)).collect();
        format!("{:12}{cells}\n", day.strftime("%a %d %b").to_string())
    });
    std::iter::once(title).chain(lines).collect()
}

/// The shade of most of a half hour of wall-clock time.
fn cell(agenda: &Agenda, day: &Zoned, column: i64) -> char {
    let time = day.date().at(0, 0, 0, 0).checked_add((column * 30 + 15).minutes());
    let at = time.and_then(|time| time.to_zoned(day.time_zone().clone())).map(|at| at.timestamp());
    at.map_or(' ', |at| shade(lent_at(agenda, at), agenda.nodes))
}

fn lent_at(agenda: &Agenda, at: Timestamp) -> usize {
    agenda.spans.iter().find(|span| span.from <= at && at < span.to).map_or(0, |span| span.lent)
}

fn shade(lent: usize, of: usize) -> char {
    match lent {
        0 => '·',
        lent if lent >= of => '█',
        lent if lent * 3 <= of => '░',
        lent if lent * 3 <= of * 2 => '▒',
        _ => '▓',
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tapestry_domain::resources::Resources;
    use tapestry_syncer::explain::Span;

    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_day_and_a_column_for_each_half_hour() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let span = |from: &str, to: &str, lent| Span {
            from: at(from),
            to: at(to),
            lent,
            policies: BTreeSet::default(),
            leased: Resources::default(),
        };
        let mut agenda = Agenda {
            binding: "east".into(),
            cluster: "east".into(),
            nodes: 3,
            stops: vec![],
            spans: vec![
                span("2026-01-01T00:00:00Z", "2026-01-01T06:00:00Z", 3),
                span("2026-01-01T06:00:00Z", "2026-01-01T20:00:00Z", 0),
                span("2026-01-01T20:00:00Z", "2026-01-03T00:00:00Z", 1),
            ],
        };
        let today = at("2026-01-01T00:00:00Z").to_zoned(TimeZone::UTC);
        let expected = format!(
            "east (3 nodes), UTC\n            00    03    06    09    12    15    18    21\nThu 01 Jan  {}{}{}\nFri 02 Jan  {}\n",
            "█".repeat(12),
            "·".repeat(28),
            "░".repeat(8),
            "░".repeat(48)
        );
        assert_eq!(render(&agenda, &today, 2), expected);
        assert!(expected.lines().all(|line| line.chars().count() <= 80));
        agenda.stops.push(StopStory { reason: "Suspended".into(), message: "it is suspended".into(), nodes: 1 });
        let said = "east (3 nodes), UTC\n1 node is not lent at any hour: Suspended: it is suspended\n     ";
        assert!(render(&agenda, &today, 2).starts_with(said));
    }

    #[test]
    fn a_binding_that_cannot_be_read_has_its_failure_in_the_json_and_no_chart() {
        let today = Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        let failed = [Entry::Failed { binding: "east".to_owned(), failure: "no answer".to_owned() }];
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!(json, serde_json::json!([{"binding": "east", "failure": "no answer"}]));
        assert_eq!(render_all(&failed, &today, 2), "");
        assert_eq!(render_all(&[], &today, 2), "No ClusterBinding found.\n");
    }

    #[test]
    fn shades_show_the_share_and_the_full_one_means_all() {
        assert_eq!([0, 1, 2, 3, 4, 9].map(|lent| shade(lent, 4)), ['·', '░', '▒', '▓', '█', '█']);
        assert_eq!(shade(0, 0), '·');
    }
}
