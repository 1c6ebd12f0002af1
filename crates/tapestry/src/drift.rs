//! `tapestry drift`: finds what is inconsistent between the two clusters of a binding. Reads only.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tapestry_syncer::start::Syncer;

use crate::access::{Access, ask_all, block_on};
use crate::election::parse_duration;
use crate::failure::Failure;
use crate::output::{Output, plain, print};

/// Find what is inconsistent between the two clusters of a binding.
#[derive(clap::Args)]
#[command(after_help = "Checks twice and reports what it found both times: a change in progress is no drift.
It checks that every virtual pod has exactly one live physical pod, that both refer to each other and have the same
status, that nothing is left over, and that no node offers more than is idle and policies allow. It writes nothing.

Exit codes: 0 no drift, 1 drift found, 2 a binding could not be checked.

Examples:
  tapestry drift
  tapestry drift east --settle 30s -o json")]
pub(crate) struct Args {
    /// Only this binding [default: all]
    binding: Option<String>,
    #[command(flatten)]
    access: Access,
    /// How long to wait before the second check, an hour at most
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_settle)]
    settle: Duration,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// A longer wait is a mistake.
const LONGEST_SETTLE: Duration = Duration::from_hours(1);

fn parse_settle(text: &str) -> Result<Duration, String> {
    let settle = parse_duration(text)?;
    if settle > LONGEST_SETTLE { Err("an hour is the longest".to_owned()) } else { Ok(settle) }
}

/// What was found for one binding.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    binding: String,
    drift: Vec<String>,
    /// Why it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl Args {
    pub(crate) fn run(self) -> ExitCode {
        match self.look() {
            Ok(found) if found.iter().any(|found| found.failure.is_some()) => ExitCode::from(2),
            Ok(found) if found.iter().any(|found| !found.drift.is_empty()) => ExitCode::FAILURE,
            Ok(_) => ExitCode::SUCCESS,
            Err(failure) => {
                failure.report();
                ExitCode::from(2)
            }
        }
    }

    fn look(&self) -> Result<Vec<Found>, Failure> {
        block_on(async {
            let server = self.access.server().await?;
            let names = server.names(self.binding.as_deref()).await?;
            let mut looks = ask_all(&server, names, Syncer::drift).await;
            let drifts = |drift: &Result<Vec<String>, Failure>| drift.as_ref().is_ok_and(|drift| !drift.is_empty());
            let doubtful: Vec<String> =
                looks.iter().filter(|(_, drift)| drifts(drift)).map(|(binding, _)| binding.clone()).collect();
            if !doubtful.is_empty() {
                tokio::time::sleep(self.settle).await;
                let mut again: HashMap<_, _> = ask_all(&server, doubtful, Syncer::drift).await.into_iter().collect();
                for (binding, drift) in &mut looks {
                    match (again.remove(binding), &mut *drift) {
                        (Some(Ok(still)), Ok(drift)) => drift.retain(|found| still.contains(found)),
                        (Some(Err(failure)), _) => *drift = Err(failure),
                        _ => {}
                    }
                }
            }
            let all: Vec<Found> = looks.into_iter().map(Found::new).collect();
            print(self.output, &all, |all| render(all))?;
            Ok(all)
        })
    }
}

impl Found {
    /// The whole failure goes to standard error.
    fn new((binding, looked): (String, Result<Vec<String>, Failure>)) -> Self {
        match looked {
            Ok(drift) => Self { binding, drift, failure: None },
            Err(failure) => {
                failure.report();
                Self { binding, drift: Vec::new(), failure: Some(failure.line()) }
            }
        }
    }
}

fn render(all: &[Found]) -> String {
    if all.is_empty() {
        return "No ClusterBinding found.\n".to_owned();
    }
    let tell = |Found { binding, drift, failure }: &Found| match (failure, &**drift) {
        (Some(failure), _) => vec![format!("{binding}: {failure}")],
        (None, []) => vec![format!("{binding}: no drift")],
        (None, drift) => drift.iter().map(|said| format!("{binding}: {said}")).collect(),
    };
    all.iter().flat_map(tell).map(|line| plain(&line) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_11_drift_waits_an_hour_at_most_before_the_second_check() {
        assert_eq!(parse_settle("1h"), Ok(Duration::from_hours(1)));
        for wrong in ["61m", "99999999999999h", "-5s", "soon"] {
            assert!(parse_settle(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_line_names_its_binding() {
        let found = |binding: &str, drift: &[&str]| Found {
            binding: binding.to_owned(),
            drift: drift.iter().map(|&text| text.to_owned()).collect(),
            failure: None,
        };
        let down = Found { failure: Some("cannot read: connection refused".to_owned()), ..found("down", &[]) };
        let west = found("west", &["orphan: m/a belongs to no virtual pod", "n offers 2"]);
        let text = render(&[down, found("east", &[]), west]);
        let expected = "\
down: cannot read: connection refused
east: no drift
west: orphan: m/a belongs to no virtual pod
west: n offers 2
";
        assert_eq!(text, expected);
        assert_eq!(render(&[]), "No ClusterBinding found.\n");
    }
}
