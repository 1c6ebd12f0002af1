//! Writes the declared rights to a folder as RBAC objects, or with `--check` says whether the folder is up to date.
//! `cargo run -p tapestry-syncer --bin rbac -- [--check] deploy/rbac`

use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    tapestry_api::generated::write("rbac", tapestry_syncer::rights::render())
}
