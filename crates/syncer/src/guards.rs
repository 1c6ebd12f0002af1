//! Backstops on the owner's side, when the binding wants them: a `ResourceQuota` kept at what is leased, and a
//! `NetworkPolicy` that isolates our pods. Watches those with our origin in the physical cluster, writes them in the mount
//! namespace. The graph: terms --Σ leased--> quota --> vnodes. An object of that name that is not ours is never touched (law 6).

pub(crate) mod cover;
pub(crate) mod plan;
pub mod row;
mod want;

use std::time::Duration;

use tapestry_api::{Binding, keys};
use tapestry_cluster::feed::Change;
use tapestry_cluster::{Kind, Name, kind};
use tapestry_engine::table::Put;
use tapestry_engine::{Dirty, Now, Reason as _, Table};

use self::cover::Grants;
use self::row::GuardRow;
use crate::bindings::Bound;
use crate::origin::Origin;
use crate::pair::Key;
use crate::pods::admission::PendingReason;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// `tapestry-leased`: not even a rogue virtual cluster uses more than is lent.
    Quota,
    /// `tapestry-isolation`: a tenant's pod sees nothing of the owner's cluster.
    NetworkPolicy,
}

/// What is known of them.
#[derive(Default)]
pub(crate) struct Guards {
    rows: [Table<GuardRow>; 2],
    looks: [Look; 2],
    /// Why one is not in force.
    troubles: [Option<Trouble>; 2],
    grants: Grants,
    /// When the quota is compared with what is leased: at most once in a while, because every pod may change either.
    due: Duration,
}

/// What the room reads of others.
pub(crate) struct Setting<'a> {
    pub(crate) origin: &'a Origin,
    /// The namespace of both.
    pub(crate) mount: &'a Name,
    /// Host and port at which pods reach the virtual API server.
    pub(crate) server: Option<(&'a str, u16)>,
    pub(crate) now: Now,
}

/// Why a backstop is not in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// An object of its name is there that is not ours.
    Foreign,
    /// The physical cluster refuses what we write, in these words.
    Refused(Box<str>),
}

impl Trouble {
    /// Why pods wait for the quota.
    pub(crate) fn quota_reason(&self) -> PendingReason {
        match self {
            Self::Foreign => PendingReason::QuotaNotOurs,
            Self::Refused(_) => PendingReason::QuotaRefused,
        }
    }
}

/// What we know of a guard object that the watch does not show.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Look {
    #[default]
    Unknown,
    Missing,
    /// An object that is not ours has its name, as we saw at this time.
    Foreign(Duration),
}

/// The sum over all nodes is not made, and the quota not written, more often than this.
const QUOTA_EVERY: Duration = Duration::from_secs(1);

impl Guard {
    pub(crate) const ALL: [Self; 2] = [Self::Quota, Self::NetworkPolicy];

    /// Its kind.
    #[must_use]
    pub fn kind(self) -> &'static Kind {
        match self {
            Self::Quota => &kind::RESOURCE_QUOTA,
            Self::NetworkPolicy => &kind::NETWORK_POLICY,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Quota => keys::QUOTA,
            Self::NetworkPolicy => keys::NETWORK_POLICY,
        }
    }

    /// Reason of the condition while it is not in force.
    pub(crate) fn reason(self, trouble: &Trouble) -> &'static str {
        match (self, trouble) {
            (Self::Quota, trouble) => trouble.quota_reason().as_str(),
            (Self::NetworkPolicy, Trouble::Foreign) => "NetworkPolicyNotOurs",
            (Self::NetworkPolicy, Trouble::Refused(_)) => "NetworkPolicyRefused",
        }
    }

    /// The message for users.
    pub(crate) fn message(self, trouble: &Trouble, mount: &Name) -> String {
        let what = format!("{} {mount}/{}", self.kind().kind, self.name());
        let follows = match self {
            Self::Quota => "nothing more is lent until it can be written",
            Self::NetworkPolicy => "pods are not isolated",
        };
        match trouble {
            Trouble::Foreign => {
                format!("{what} was not created by this binding and is left unchanged: rename or delete it; {follows}")
            }
            Trouble::Refused(why) => format!("{what} is refused: {why}; {follows}"),
        }
    }

    /// Whether this binding wants it.
    pub(crate) fn wanted(self, binding: &Binding) -> bool {
        match self {
            Self::Quota => binding.guard.quota,
            Self::NetworkPolicy => binding.guard.network_policy,
        }
    }
}

/// Whether the binding wants a quota.
pub(crate) fn quota_wanted(bound: Option<&Bound>) -> bool {
    bound.is_some_and(|bound| Guard::Quota.wanted(&bound.binding))
}

/// The resources of which each container of a copy must name a request: those for which Kubernetes' quota insists on it.
pub(crate) fn explicit_requests(binding: &Binding) -> &'static [&'static str] {
    if binding.guard.quota { &["cpu", "memory"] } else { &[] }
}

impl Guards {
    /// The one of ours that exists.
    fn row(&self, guard: Guard) -> Option<&GuardRow> {
        self.rows[guard as usize].iter().max_by_key(|row| row.rv)
    }

    /// What is wrong with those that this binding wants.
    pub(crate) fn trouble(&self, binding: &Binding) -> Option<(Guard, &Trouble)> {
        let mut wanted = Guard::ALL.into_iter().filter(|guard| guard.wanted(binding));
        wanted.find_map(|guard| Some((guard, self.troubles[guard as usize].as_ref()?)))
    }

    /// Whether no guard object of ours is left.
    pub(crate) fn none_left(&self) -> bool {
        self.rows.iter().all(|rows| rows.complete() && rows.is_empty())
    }

    /// Folds in what the watch says of one; returns whether the quota admits something else than before.
    #[must_use]
    pub(crate) fn observe(&mut self, guard: Guard, change: Change<GuardRow>, dirty: &mut Dirty<Key>) -> bool {
        let (rows, look) = (&mut self.rows[guard as usize], &mut self.looks[guard as usize]);
        let mut changed = false;
        match change {
            Change::Put(row, epoch) => {
                let lets_in = (row.spec.clone(), row.enforced.clone());
                self.troubles[guard as usize] = None;
                // It counts every pod: only what it admits matters here.
                changed = match rows.put(row, Some(epoch)) {
                    Put::Fresh(Some(before)) => (before.spec, before.enforced) != lets_in,
                    Put::Fresh(None) => true,
                    Put::Stale => false,
                };
            }
            Change::Gone { row, .. } => {
                // One that only lost its label is still there, at this very version; an answer about one that is gone is older.
                rows.remove_proven(&row.uid, row.rv.before());
                *look = Look::Unknown;
            }
            Change::Unserved => {}
            Change::Listed(epoch) => {
                for uid in rows.listed(epoch) {
                    rows.remove(&uid);
                    *look = Look::Unknown;
                }
            }
            Change::Reached(_) => return false,
        }
        dirty.mark(Key::Binding);
        dirty.mark(Key::Guard(guard));
        changed && guard == Guard::Quota
    }

    /// Something was observed that may change what is leased: the quota is looked at, now or when its time has come.
    pub(crate) fn stir_quota(&mut self, now: Now, dirty: &mut Dirty<Key>) {
        if self.due <= now.steady {
            self.due = now.steady.max(self.due + QUOTA_EVERY);
        }
        dirty.mark(Key::Guard(Guard::Quota));
    }

    /// Why the quota does not admit what policies allow.
    pub(crate) fn quota_trouble(&self, bound: Option<&Bound>) -> Option<&Trouble> {
        self.troubles[Guard::Quota as usize].as_ref().filter(|_| quota_wanted(bound))
    }
}

#[cfg(test)]
mod tests;
