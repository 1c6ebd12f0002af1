//! What is wrong with an object that the API server accepted, with what its author must change.
//! It never quotes a `Secret` and never stops other objects.

use std::fmt;

/// Why an object is not applied: one or more fields, each with what to change.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Invalid {
    problems: Vec<Problem>,
}

/// One field that has to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path as Kubernetes writes it, such as `spec.timeWindows[2].end`.
    pub field: String,
    /// What to change, as the rest of a sentence that starts with the field.
    pub change: String,
}

impl Invalid {
    /// One problem.
    #[must_use]
    pub fn of(field: impl Into<String>, change: impl Into<String>) -> Self {
        Self { problems: vec![Problem { field: field.into(), change: change.into() }] }
    }

    /// Reason of the condition and of the event.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        "ValidationFailed"
    }

    /// The fields to change, in the order of the object; never empty.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Problem { field, change }) in self.problems.iter().enumerate() {
            write!(f, "{}{field}: {change}", if i == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}

/// Collects problems while an object is parsed, so that its author sees all of them at once.
#[derive(Default)]
pub(crate) struct Problems(Invalid);

impl Problems {
    pub(crate) fn add(&mut self, field: impl Into<String>, change: impl Into<String>) {
        self.0.problems.push(Problem { field: field.into(), change: change.into() });
    }

    /// Returns a value that could be parsed; records the problem otherwise.
    pub(crate) fn keep<T, E: fmt::Display>(&mut self, field: &str, read: Result<T, E>) -> Option<T> {
        read.map_err(|change| self.add(field, change.to_string())).ok()
    }

    /// The parsed object, if there were no problems.
    pub(crate) fn or<T>(self, read: Option<T>) -> Result<T, Invalid> {
        match read {
            Some(read) if self.0.problems.is_empty() => Ok(read),
            _ => Err(self.0),
        }
    }
}
