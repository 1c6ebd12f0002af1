//! Refused calls, by verb and resource, with first refusal time and server message. A verb and resource that the cluster has refused
//! for a while, and never granted meanwhile, is reported on the binding and in readiness until it is granted or no longer needed.
//! Must not stop anything: what a missing right means for an object is for its own room to say.

use std::collections::BTreeMap;
use std::time::Duration;

use tapestry_cluster::{Answer, Call, Need, Refusal, Side};
use tapestry_engine::{Dirty, Now};

use crate::pair::{Key, Pair};
use crate::rights::Role;

/// A call that was not retried for this long is no longer needed: refused calls are retried within two minutes at most.
const FORGET_AFTER: Duration = Duration::from_secs(150);
/// How many characters of the server's message are reported.
const WORDS: usize = 300;

/// Calls that need one right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sort {
    side: Side,
    verb: &'static str,
    resource: &'static str,
    part: &'static str,
}

/// Refusals in a row of calls that need one right.
struct Streak {
    first: Duration,
    last: Duration,
    /// The message of the refusal that made it long enough to be reported. It names one object of many, and is kept: another message
    /// would be another write of the binding each time (law 4).
    told: Option<String>,
}

/// What a settled call changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum News {
    /// Nothing that is reported.
    None,
    /// A verb on a resource is refused, and this is now reported.
    Refused,
    /// One that was reported is granted.
    Granted,
}

/// All that is refused at present.
pub(crate) struct Refused {
    /// How long until it is reported.
    patience: Duration,
    streaks: BTreeMap<Sort, Streak>,
}

impl Sort {
    fn of(need: &Need<'_>) -> Self {
        Self { side: need.side, verb: need.verb, resource: need.kind.plural, part: need.part }
    }

    fn tell(self, words: &str) -> String {
        let Self { side, verb, resource, part } = self;
        let slash = if part.is_empty() { "" } else { "/" };
        format!("the {} cluster refuses to {verb} {resource}{slash}{part}: {words}", side.as_str())
    }
}

impl Refused {
    /// Nothing is refused yet; what is will be told after this time.
    pub(crate) fn after(patience: Duration) -> Self {
        Self { patience, streaks: BTreeMap::new() }
    }

    /// Folds in how a call ended.
    pub(crate) fn learn(&mut self, call: &Call, done: &Result<Answer, Refusal>, now: Now) -> News {
        let now = now.steady;
        match done {
            Ok(_) if self.streaks.is_empty() => News::None,
            Ok(_) => {
                let ended = call.needs().into_iter().filter_map(|need| self.streaks.remove(&Sort::of(&need)));
                if ended.filter(|streak| streak.told.is_some()).count() == 0 {
                    return News::None;
                }
                tracing::info!(%call, "call allowed again");
                News::Granted
            }
            Err(refusal) => {
                let Some(need) = refusal.bars(call) else { return News::None };
                // What a binding does without is told on the object that asks for it.
                if Role::is_optional(&need) {
                    return News::None;
                }
                let sort = Sort::of(&need);
                let streak = self.streaks.entry(sort).or_insert(Streak { first: now, last: now, told: None });
                streak.last = now;
                if streak.told.is_some() || now < streak.first + self.patience {
                    return News::None;
                }
                let words: String = refusal.message().chars().take(WORDS).collect();
                let told = sort.tell(&words);
                tracing::warn!(since_seconds = now.saturating_sub(streak.first).as_secs(), "{told}: {CURE}");
                streak.told = Some(told);
                News::Refused
            }
        }
    }

    /// Forgets what no plan has asked for recently; returns whether it was told.
    pub(crate) fn forget(&mut self, now: Now) -> bool {
        let mut news = false;
        self.streaks.retain(|_, streak| {
            let stays = now.steady < streak.last + FORGET_AFTER;
            news |= !stays && streak.told.is_some();
            stays
        });
        news
    }

    /// What is refused and what to do; `None` when nothing is.
    pub(crate) fn tell(&self) -> Option<String> {
        let told: Vec<&str> = self.streaks.values().filter_map(|streak| streak.told.as_deref()).collect();
        (!told.is_empty()).then(|| format!("{}; {CURE}", told.join("; ")))
    }
}

const CURE: &str = "check the rights of the syncer's account (deploy/rbac) and admission webhooks";

impl Pair {
    pub(crate) fn learn_refused(
        &mut self,
        call: &Call,
        done: &Result<Answer, Refusal>,
        now: Now,
        dirty: &mut Dirty<Key>,
    ) {
        match self.refused.learn(call, done, now) {
            News::None => {}
            News::Refused => dirty.mark(Key::Binding),
            // All that was refused with it has waited long enough.
            News::Granted => dirty.urge_all(),
        }
        self.forget_refused(now, dirty);
    }

    /// No fact says that a call is not wanted any more: we check with every fact, and one comes at least once a minute.
    pub(crate) fn forget_refused(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.refused.forget(now) {
            dirty.mark(Key::Binding);
        }
    }
}

#[cfg(test)]
mod tests;
