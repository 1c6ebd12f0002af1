//! `tapestry crds`: the custom resource definitions as YAML on standard output.

use std::io::Write as _;

use crate::failure::Failure;

pub(crate) fn run() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    for (_, yaml) in tapestry_api::crds::render() {
        match write!(out, "---\n{yaml}") {
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}
