//! How a command reports a failure: what failed, the cause, and a hint. Never prints a
//! credential; callers must not pass one.

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use crate::output::plain;

/// A failure as it is printed.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    cause: String,
    hint: String,
    exit: u8,
}

/// The exit codes of a failure and of wrong usage.
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

impl Failure {
    pub(crate) fn new(what: impl Into<String>, cause: impl std::fmt::Display, hint: impl Into<String>) -> Self {
        Self { what: what.into(), cause: cause.to_string(), hint: hint.into(), exit: FAILED }
    }

    /// From an error and its sources: the outermost is what failed, the rest the cause.
    pub(crate) fn from_error(error: &dyn Error, hint: &str) -> Self {
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        Self { what: error.to_string(), cause: causes.join(": "), hint: hint.to_owned(), exit: FAILED }
    }

    /// The same, with its subject in front.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { what: format!("{what}: {}", self.what), ..self }
    }

    /// The same, as wrong usage: a flag has an invalid value.
    pub(crate) fn wrong_usage(self) -> Self {
        Self { exit: WRONG_USAGE, ..self }
    }

    /// What failed and why, on one line.
    pub(crate) fn line(&self) -> String {
        plain(&if self.cause.is_empty() { self.what.clone() } else { format!("{}: {}", self.what, self.cause) })
    }

    pub(crate) fn report(&self) -> ExitCode {
        // When standard error is closed there is no reader.
        let _ = std::io::stderr().write_all(self.to_string().as_bytes());
        ExitCode::from(self.exit)
    }

    /// The same as a line of the log.
    pub(crate) fn log(&self) -> ExitCode {
        tracing::error!(cause = self.cause, hint = self.hint, "{}", self.what);
        ExitCode::from(self.exit)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tapestry: {}", plain(&self.what))?;
        let told = [("cause", &self.cause), ("hint", &self.hint)].into_iter().filter(|(_, part)| !part.is_empty());
        told.into_iter().try_for_each(|(name, part)| writeln!(f, "  {name}: {}", plain(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn law_10_text_from_a_server_moves_no_cursor_and_forges_no_line() {
        let said = "no\u{1b}[2J\u{9b}1mway\ntapestry: all is well\r\n\u{202e}.";
        let failure = Failure::new(format!("cannot {said}"), said, "ask");
        let told = failure.to_string();
        assert!(!told.chars().any(|character| character.is_control() && character != '\n'), "{told:?}");
        assert!(!told.contains('\u{202e}') && told.contains("way tapestry: all is well"), "{told:?}");
        assert_eq!(told.lines().count(), 3, "{told:?}");
        assert_eq!(failure.line().lines().count(), 1);
    }
}
