//! `tapestry drift`: what is not as it must be between the two clusters of a binding. Reads only.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tapestry_syncer::start::Syncer;

use crate::access::Access;
use crate::election::parse_duration;
use crate::failure::Failure;
use crate::output::{Output, print};

/// Look for what is not as it must be between the two clusters of a binding.
#[derive(clap::Args)]
#[command(after_help = "Looks twice and tells what it found both times: what is only on its way is no drift.
Every virtual pod has one live physical pod and no other, both point to each other and say the same, nothing is left over,
and no node offers more than is idle and policies allow. Nothing is written.

Exit codes: 0 everything is as it must be, 1 something is not, 2 it could not be looked at.

Examples:
  tapestry drift
  tapestry drift east --settle 30s -o json")]
pub(crate) struct Args {
    /// Only this binding [default: all]
    binding: Option<String>,
    #[command(flatten)]
    access: Access,
    /// How long the second look waits for what is on its way
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    settle: Duration,
    /// How it is printed
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,
}

/// What was found at one binding.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    binding: String,
    drift: Vec<String>,
}

impl Args {
    pub(crate) fn run(self) -> ExitCode {
        match self.look() {
            Ok(found) if found.iter().all(|found| found.drift.is_empty()) => ExitCode::SUCCESS,
            Ok(_) => ExitCode::FAILURE,
            Err(failure) => {
                failure.report();
                ExitCode::from(2)
            }
        }
    }

    fn look(&self) -> Result<Vec<Found>, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let mut all = Vec::new();
            for binding in self.access.bindings(self.binding.as_deref()).await? {
                let look = || Box::pin(self.access.ask(&binding, Syncer::drift));
                let mut drift = look().await?;
                if !drift.is_empty() {
                    tokio::time::sleep(self.settle).await;
                    let again: BTreeSet<String> = look().await?.into_iter().collect();
                    drift.retain(|found| again.contains(found));
                }
                all.push(Found { binding, drift });
            }
            print(self.output, &all, |all| render(all))?;
            Ok(all)
        })
    }
}

fn render(all: &[Found]) -> String {
    if all.is_empty() {
        return "There is no ClusterBinding.\n".to_owned();
    }
    let tell = |Found { binding, drift }: &Found| match &**drift {
        [] => vec![format!("{binding}: everything is as it must be\n")],
        drift => drift.iter().map(|said| format!("{binding}: {said}\n")).collect(),
    };
    all.iter().flat_map(tell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_its_binding() {
        let found = |binding: &str, drift: &[&str]| Found {
            binding: binding.to_owned(),
            drift: drift.iter().map(|&text| text.to_owned()).collect(),
        };
        let text =
            render(&[found("east", &[]), found("west", &["orphan: m/a belongs to no virtual pod", "n offers 2"])]);
        let expected = "\
east: everything is as it must be
west: orphan: m/a belongs to no virtual pod
west: n offers 2
";
        assert_eq!(text, expected);
        assert_eq!(render(&[]), "There is no ClusterBinding.\n");
    }
}
