//! `tapestry crds`: the custom resource definitions as YAML on standard output.

use std::io::Write as _;

use crate::failure::Failure;

/// Print the custom resource definitions, ready to be applied.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  tapestry crds | kubectl apply --server-side -f -")]
pub(crate) struct Args {}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        for (_, yaml) in tapestry_api::crds::render() {
            match write!(out, "---\n{yaml}") {
                Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
        Ok(())
    }
}
