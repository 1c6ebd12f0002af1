//! The annotations that say, on the copy of a volume or claim, what it is a copy of. It must not list any other key: keys live in
//! `tapestry-api`; these are here because the copy is written with them.

pub use crate::dependents::keys::{VIRTUAL_NAME, VIRTUAL_NAMESPACE, VIRTUAL_UID};

/// On the copy of a volume: `<namespace>/<name>` of the virtual claim that it is for.
pub const VIRTUAL_CLAIM: &str = "tapestry.io/virtual-claim";
