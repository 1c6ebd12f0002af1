//! Files that are written from code and kept in the repository. Writes those that differ, or says which do.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

/// The whole of a program `NAME [--check] FOLDER`; `make NAME` runs it.
pub fn write(name: &str, files: Vec<(String, String)>) -> io::Result<ExitCode> {
    let (flags, folders): (Vec<_>, Vec<_>) = std::env::args().skip(1).partition(|arg| arg.starts_with('-'));
    let check = match (flags.as_slice(), folders.as_slice()) {
        ([], [_]) => false,
        ([flag], [_]) if flag == "--check" => true,
        _ => {
            writeln!(io::stderr(), "usage: {name} [--check] FOLDER")?;
            return Ok(ExitCode::from(2));
        }
    };
    let folder = PathBuf::from(&folders[0]);
    let mut stale = false;
    for (file, text) in files {
        let path = folder.join(file);
        if std::fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        if check {
            stale = true;
            writeln!(io::stderr(), "{} is out of date: run `make {name}` and commit it", path.display())?;
        } else {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(&path, text)?;
            writeln!(io::stdout(), "wrote {}", path.display())?;
        }
    }
    Ok(if stale { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
