//! The API server does not let us take part in the election: what it refused, since when, and whether another process leads
//! nevertheless.
//! Pure. Must not decide what follows from that.

use std::time::Duration;

use tapestry_cluster::{Answer, Call, Refusal, Target};

use super::record::Record;

/// What the API server refuses, until it grants it.
#[derive(Debug)]
pub(super) struct Barred {
    since: Duration,
    /// What it refused, with its message.
    why: String,
    /// The Lease as it was then; if it changes under another holder, that holder leads.
    lease: Option<Record>,
}

impl Barred {
    /// Steady time of the first refusal.
    pub(super) fn since(&self) -> Duration {
        self.since
    }

    /// For messages.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// Applies how a call of the election ended, while the Lease looked like this.
    pub(super) fn settle(
        before: Option<Self>,
        call: &Call,
        done: &Result<Answer, Refusal>,
        lease: Option<&Record>,
        now: Duration,
    ) -> Option<Self> {
        match done {
            // We may write the Lease.
            Ok(_) if !call.is_read() => None,
            // The namespace is missing, and can be created.
            Err(Refusal::Invalid(status)) if status.code == 404 => before,
            Err(refused @ (Refusal::Denied(_) | Refusal::Invalid(_))) => {
                let why = tell(call, refused);
                Some(match before {
                    Some(barred) => Self { why, ..barred },
                    None => Self { since: now, why, lease: lease.cloned() },
                })
            }
            _ => before,
        }
    }

    /// The Lease looks like this. Another process that renews it, or has taken it, leads: then it does not matter that we cannot.
    pub(super) fn see(mut self, record: &Record, us: &str) -> Option<Self> {
        let foreign = !record.holder().is_empty() && record.holder() != us;
        if self.lease.as_ref().is_some_and(|known| foreign && known.spec != record.spec) {
            return None;
        }
        self.lease.get_or_insert_with(|| record.clone());
        Some(self)
    }
}

fn tell(call: &Call, refused: &Refusal) -> String {
    let Target { kind, namespace, name, .. } = &call.target;
    let place = namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
    format!("cannot {} {} {name}{place}: {}", call.verb.as_str(), kind.plural, refused.message())
}
