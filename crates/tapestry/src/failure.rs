//! How a verb fails before a person's eyes: what, why, and what to do about it.
//! Never prints a credential; those who make failures must not hand one in.

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

/// A failure as it is printed.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    cause: String,
    hint: String,
}

impl Failure {
    pub(crate) fn new(what: impl Into<String>, cause: impl std::fmt::Display, hint: impl Into<String>) -> Self {
        Self { what: what.into(), cause: cause.to_string(), hint: hint.into() }
    }

    /// From an error and its sources: the outermost says what failed, the rest why.
    pub(crate) fn from_error(error: &dyn Error, hint: &str) -> Self {
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        Self { what: error.to_string(), cause: causes.join(": "), hint: hint.to_owned() }
    }

    /// The same, and says first what it is about.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { what: format!("{what}: {}", self.what), ..self }
    }

    /// What failed and why, on one line.
    pub(crate) fn line(&self) -> String {
        if self.cause.is_empty() { self.what.clone() } else { format!("{}: {}", self.what, self.cause) }
    }

    pub(crate) fn report(&self) -> ExitCode {
        // Nobody is left to be told when standard error is closed.
        let _ = std::io::stderr().write_all(self.to_string().as_bytes());
        ExitCode::FAILURE
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "tapestry: {}", self.what)?;
        let told = [("cause", &self.cause), ("hint", &self.hint)].into_iter().filter(|(_, part)| !part.is_empty());
        told.into_iter().try_for_each(|(name, part)| writeln!(f, "  {name}: {part}"))
    }
}
