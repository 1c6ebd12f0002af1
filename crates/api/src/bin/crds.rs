//! Writes the generated definitions to a folder, or with `--check` says whether the folder is up to date.
//! `cargo run -p tapestry-api --bin crds -- [--check] deploy/crds`

use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    tapestry_api::generated::write("crds", tapestry_api::crds::render())
}
