//! The command line: subcommands, and their exit codes. Each subcommand has its own file.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;
use crate::{calendar, crds, drift, explain, resume, status, syncer};

/// Weaves the idle capacity of many Kubernetes clusters into one.
#[derive(Parser)]
#[command(
    name = "tapestry",
    version,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 success, 1 failure (cause and hint on standard error), 2 wrong usage."
)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the syncer of one binding: nodes and status up, pods down
    Syncer(syncer::Args),
    /// Show the state of bindings
    Status(status::Args),
    /// Find what is inconsistent between the two clusters of a binding
    Drift(drift::Args),
    /// Let the pods end that the mass-delete breaker holds back
    Resume(resume::Args),
    /// Show when clusters lend, as a chart of the next two weeks
    Calendar(calendar::Args),
    /// Explain the state of a node
    Explain(explain::Args),
    /// Print the custom resource definitions, ready to be applied
    #[command(after_help = "Example:\n  tapestry crds | kubectl apply --server-side -f -")]
    Crds,
}

impl Args {
    pub(crate) fn run(self) -> ExitCode {
        let ended = match self.verb {
            Verb::Syncer(args) => return args.run(),
            Verb::Status(args) => args.run(),
            Verb::Drift(args) => return args.run(),
            Verb::Resume(args) => args.run(),
            Verb::Calendar(args) => args.run(),
            Verb::Explain(args) => args.run(),
            Verb::Crds => crds::run(),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new("cannot write", error, "")
    }
}
