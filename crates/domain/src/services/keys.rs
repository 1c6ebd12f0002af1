//! The labels and annotations that say, on a copy, what it is a copy of. It must not list any other key: keys live in
//! `tapestry-api`; these are here because the copy carries them, selects by them and is compared by them.

pub use crate::dependents::keys::{CARRIED, ORIGIN, VIRTUAL_NAME, VIRTUAL_NAMESPACE, VIRTUAL_UID};
