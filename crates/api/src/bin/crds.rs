//! Writes the generated definitions to a folder, or with `--check` says whether the folder is up to date.
//! `cargo run -p tapestry-api --bin crds -- [--check] deploy/crds`

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> io::Result<ExitCode> {
    let (flags, folders): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let check = match (flags.as_slice(), folders.as_slice()) {
        ([], [_]) => false,
        ([flag], [_]) if flag == "--check" => true,
        _ => {
            writeln!(io::stderr(), "usage: crds [--check] FOLDER")?;
            return Ok(ExitCode::from(2));
        }
    };
    let folder = PathBuf::from(&folders[0]);
    let mut stale = false;
    for (file, text) in tapestry_api::crds::render() {
        let path = folder.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        if check {
            stale = true;
            writeln!(io::stderr(), "{} is out of date: run `make crds` and commit it", path.display())?;
        } else {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(&path, text)?;
            writeln!(io::stdout(), "wrote {}", path.display())?;
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
