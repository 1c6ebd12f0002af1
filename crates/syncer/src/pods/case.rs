//! What is known of one pod beyond its rows: how far it has come, what it was told, how it ended.
//! Plain values; who changes them, and what follows from them, is in the other files of this room.

use std::sync::Arc;
use std::time::Duration;

use tapestry_cluster::{Name, Uid};
use tapestry_domain::placement::Misplaced;
use tapestry_domain::ports::HostPort;
use tapestry_domain::resources::Shortage;

use super::admission::{PendingReason, Verdict};
use super::changes::Changing;
use super::resize::Sizing;
use super::row::VPod;
use super::unscheduled::Unscheduled;
use crate::dependents::needs::Needs;
use crate::terms::Stop;

/// What we know of one virtual pod beyond its rows. Lost in a crash, and found again by asking.
#[derive(Default)]
pub(super) struct Case {
    /// Physical pods that point back to it: one, unless something went badly wrong.
    pub(super) claimants: Vec<Uid>,
    /// Whether it was admitted, and under which physical name.
    pub(super) admitted: Admitted,
    /// What it needs besides a node, once it was read; kept until its copy is gone too.
    pub(super) needs: Known,
    /// The name that its mapping had, when the mapping was removed.
    pub(super) former: Option<Name>,
    /// How far the sizes have come that it asks for and its copy does not have.
    pub(super) sizing: Option<Box<Sizing>>,
    /// How far a change of it has come on its way to the copy.
    pub(super) changing: Option<Box<Changing>>,
    /// Why it was not admitted.
    pub(super) not_admitted: Option<Box<NotAdmitted>>,
    /// What the physical cluster said when it refused the copy.
    pub(super) refused: Option<Box<Verdict>>,
    /// Creating the copy found the name taken; it is not known yet by which pod.
    pub(super) taken: bool,
    /// Proof that there is no copy.
    pub(super) ended: Option<Box<Ended>>,
    /// Proof that the virtual pod of this UID is gone.
    pub(super) vpod_gone: Option<Proof>,
    /// A client was seen to ask for the end of the pod or of its copy, which is gone since then; there is no way back from that.
    pub(super) request: Request,
    /// When a look at the other side last told us nothing new.
    pub(super) looked: Option<Duration>,
    /// The physical pod whose name and UID it recorded does not say that it is its copy.
    pub(super) unmarked: bool,
    /// What it was told when its capacity was wanted back.
    pub(super) told: Told,
    /// The grace period with which we asked for the copy's deletion.
    pub(super) asked: Option<u32>,
    /// The copy has no node, or had none when we deleted it for that.
    pub(super) unscheduled: Option<Box<Unscheduled>>,
    /// The copy was given the tolerations that it lacked, or could not be given them: we do not fight other clients over them.
    pub(super) mended: bool,
    /// Fingerprints of our last status patch and of the virtual status that was stored: the same again would change nothing.
    pub(super) pushed: Option<(u64, u64)>,
}

/// What a pod needs besides a node.
#[derive(Debug, Default, Clone)]
pub(super) enum Known {
    /// The pod was never read: perhaps only its copy is left.
    #[default]
    No,
    /// Nothing, or this.
    Yes(Option<Arc<Needs>>),
}

/// Whether a pod was admitted, and under which physical name.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Admitted {
    #[default]
    No,
    /// Under the name that its mapping has, or had before it was removed.
    AsMapped,
    /// Under a new name, which its mapping does not have yet.
    As(Name),
}

/// What a pod was told that has to go.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    #[default]
    Nothing,
    /// Its eviction was asked for and not granted.
    Asked(Duration),
    /// Its eviction was granted; until the watch shows it, asking again would change nothing.
    Evicted,
    /// That it will be deleted; also when it could not be told.
    Announced,
}

/// Whether a client asked for the end of a pod or of its copy, for the time when a list shows only that it is gone.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    #[default]
    Unknown,
    Seen,
}

/// How we know that an object is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    /// A watch showed how it was deleted: a client asked for it.
    Seen,
    /// A read did not find it: it is unknown who asked for that.
    Read,
}

/// Why a pod is not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotAdmitted {
    /// Policies allow it, and the quota in the physical cluster cannot be raised; in these words.
    Unguarded(PendingReason, Box<str>),
    /// The node is on its way out, or not known yet.
    NotLending,
    /// The node is not lent at the moment, and what people are told about it.
    Stopped(Stop, Box<str>),
    /// Less is free than the pod asks for.
    Short(Shortage),
    /// No scheduler would have put it there.
    Misplaced(Misplaced),
    /// A port of the physical node that another pod has.
    Port(HostPort),
    /// No name could be drawn for its copy.
    Nameless,
    /// It does not meet the Pod Security Standard of the binding.
    Insecure(String),
}

/// How a copy ended.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    /// Whether we know that it was there at all.
    pub(super) existed: bool,
    /// Whether a watch showed its end; otherwise a read found nothing.
    pub(super) seen: bool,
    /// Its last status, when that was a terminal one.
    pub(super) last: Option<Last>,
}

#[derive(Debug, Clone)]
pub(super) struct Last {
    pub(super) status: Box<str>,
    pub(super) generation: i64,
}

impl Case {
    /// What it needs, if that is anything.
    pub(super) fn needs(&self) -> Option<&Arc<Needs>> {
        match &self.needs {
            Known::Yes(needs) => needs.as_ref(),
            Known::No => None,
        }
    }

    /// Whether it was admitted, or has a copy all the same.
    pub(super) fn inside(&self) -> bool {
        self.is_admitted() || !self.claimants.is_empty()
    }

    pub(super) fn is_admitted(&self) -> bool {
        self.admitted != Admitted::No
    }

    /// Whether it was admitted and has no copy yet.
    pub(super) fn unmade(&self) -> bool {
        self.is_admitted() && self.claimants.is_empty()
    }

    /// The physical name under which it was admitted.
    pub(super) fn name<'a>(&'a self, vpod: &'a VPod) -> Option<&'a Name> {
        match &self.admitted {
            Admitted::No => None,
            Admitted::AsMapped => vpod.mapping.as_ref().map(|mapping| &mapping.name).or(self.former.as_ref()),
            Admitted::As(name) => Some(name),
        }
    }

    /// Its copy was there and is gone, and no client is known to have asked for that.
    pub(super) fn lost_copy(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.existed && !ended.seen) && self.request == Request::Unknown
    }

    /// A watch showed that its copy was deleted while it ran.
    pub(super) fn copy_was_deleted(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.existed && ended.seen && ended.last.is_none())
    }

    /// The virtual pod is gone, and no client is known to have asked for that.
    pub(super) fn lost_vpod(&self) -> bool {
        self.vpod_gone == Some(Proof::Read) && self.request == Request::Unknown
    }
}
