//! The annotations that say, on a copy, what it is a copy of. It must not list any
//! other key: keys live in `tapestry-api`; these are here because the copy both carries and is compared by them.

/// `metadata.namespace` of the source.
pub const VIRTUAL_NAMESPACE: &str = "tapestry.io/virtual-namespace";
/// `metadata.name` of the source.
pub const VIRTUAL_NAME: &str = "tapestry.io/virtual-name";
/// `metadata.uid` of the source.
pub const VIRTUAL_UID: &str = "tapestry.io/virtual-uid";
/// `metadata.resourceVersion` of the source when it was last carried.
pub const VIRTUAL_RESOURCE_VERSION: &str = "tapestry.io/virtual-resource-version";
/// JSON: each key that was carried, with a mark of its value.
pub const CARRIED: &str = "tapestry.io/carried";
/// The origin in full: it salts the marks.
pub const ORIGIN: &str = "tapestry.io/origin";
/// On a source `both`, written by its user; on its copy in which direction changes flow.
pub const SYNC_DIRECTION: &str = "tapestry.io/sync-direction";
/// JSON: marks of values of a copy that may have gone up to its source, by key.
pub const OFFERED: &str = "tapestry.io/offered";
/// JSON: keys that were changed in both clusters, until that is reported.
pub const CONFLICTS: &str = "tapestry.io/conflicts";
