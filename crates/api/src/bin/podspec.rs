//! Writes the reference of what becomes of each field of a pod's spec, or with `--check` says whether it is up to date.
//! `cargo run -p tapestry-api --bin podspec -- [--check] docs/reference`

use std::io;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    tapestry_api::generated::write("podspec", tapestry_domain::podspec::fields::render())
}
