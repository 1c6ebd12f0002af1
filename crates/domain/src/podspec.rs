//! The transformation: a virtual pod's JSON becomes the JSON of its physical copy. Every field survives unless this code
//! drops it on purpose.
//! It must not trust the virtual pod: names, keys and references in it are hostile until they are checked or replaced.

mod api_access;
mod changes;
mod dns;
mod downward;
pub mod fields;
pub mod keys;
mod metadata;
mod needs;
mod patience;
mod references;
mod rewrite;
mod sizes;
#[cfg(test)]
mod tests;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use self::changes::Carried;
pub use self::changes::{Changes, Marks, mark_metadata, mark_spec, render_changes};
pub use self::needs::{ClaimReference, Need, SpecNeeds, TokenAsk, Unsupported, has_api_access, unsupported};
pub use self::patience::mend_tolerations;
pub use self::sizes::Sizes;
use crate::dependents::DependentKind;
use crate::shape::nullable;

/// The lists of a spec that hold containers. A copy is created without the last one.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// What the physical side gives to a copy: everything that does not come from the virtual pod.
#[derive(Clone)]
pub struct Frame<'a> {
    /// Name of the physical pod.
    pub name: &'a str,
    /// The mount namespace.
    pub namespace: &'a str,
    /// The physical node it must run on.
    pub node: &'a str,
    /// Bind it there ourselves, without the physical scheduler.
    pub direct_scheduling: bool,
    /// The binding's class; `None` leaves the physical cluster's default.
    pub priority_class: Option<&'a str>,
    /// The account without any rights that all copies run as.
    pub service_account: &'a str,
    /// Resources that every container must request, because a quota counts them; zero where it has no request.
    pub explicit_requests: &'a [&'a str],
    /// The name that a ConfigMap or Secret of the pod's namespace has in the mount namespace.
    pub dependent_name: &'a dyn Fn(DependentKind, &str) -> String,
    /// The name that a PersistentVolumeClaim of the pod's namespace has in the mount namespace.
    pub claim_name: &'a dyn Fn(&str) -> String,
    /// The Secret in the mount namespace that holds the pod's tokens, by [`TokenAsk::key`].
    pub token_secret: &'a str,
    /// Host and port by which pods reach the virtual API server; `None`: they reach none, and the injected API token is left out.
    pub virtual_api_server: Option<(&'a str, u16)>,
    /// The address of the virtual cluster's DNS; `None`: pods keep the physical one's.
    pub virtual_dns: Option<&'a str>,
    /// Our labels; they win over the virtual pod's.
    pub labels: Vec<(&'a str, String)>,
    /// Our annotations, besides those in [`keys`], which are written from the virtual pod itself.
    pub annotations: Vec<(&'a str, String)>,
}

/// Why no copy is made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The text is not a pod. Its content is not repeated: it may hold what must not reach a log.
    #[error("the pod cannot be read (line {line}, column {column})")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The pod needs something that is not carried across.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl From<serde_json::Error> for Refused {
    fn from(error: serde_json::Error) -> Self {
        Self::Malformed { line: error.line(), column: error.column() }
    }
}

/// A virtual pod, cut where the transformation cuts it. Status and the API server's own metadata are skipped unread.
#[derive(Deserialize)]
struct VirtualPod<'a> {
    metadata: VirtualMetadata,
    #[serde(borrow)]
    spec: &'a RawValue,
}

#[derive(Deserialize)]
struct VirtualMetadata {
    name: String,
    #[serde(default, deserialize_with = "nullable")]
    namespace: String,
    #[serde(default, deserialize_with = "nullable")]
    uid: String,
    #[serde(default, deserialize_with = "nullable")]
    labels: Map<String, Value>,
    #[serde(default, deserialize_with = "nullable")]
    annotations: Map<String, Value>,
}

/// Who a virtual pod is in its cluster.
struct Identity {
    name: String,
    namespace: String,
}

/// The physical pod of a virtual one, ready to be created.
///
/// INVARIANT: `a_copy_names_no_object_of_the_physical_namespace`: every reference gets its mapped name, and what
/// [`unsupported`] names is refused here too, because a name left in place would read another user's object.
pub fn render_copy(vpod: &str, frame: &Frame<'_>) -> Result<Value, Refused> {
    let vpod: VirtualPod<'_> = serde_json::from_str(vpod)?;
    let needs: SpecNeeds<'_> = serde_json::from_str(vpod.spec.get())?;
    if let Some(unsupported) = unsupported(&needs) {
        return Err(unsupported.into());
    }
    let mut spec: Map<String, Value> = serde_json::from_str(vpod.spec.get())?;
    let carried = Carried::at_creation(&vpod.metadata, &spec);
    let (identity, metadata) = metadata::render(vpod.metadata, &spec, &carried, frame);
    rewrite::spec(&mut spec, &identity, &needs.api_access_volumes(), frame);
    Ok(json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec,
    }))
}

/// The ephemeral containers of a virtual pod as its copy gets them, through their own subresource; a list, empty when it has none.
///
/// What they name must be in the physical cluster first, and the whole pod must meet `podSecurity` with them.
pub fn render_ephemeral_containers(vpod: &str, frame: &Frame<'_>) -> Result<Value, Refused> {
    let vpod: VirtualPod<'_> = serde_json::from_str(vpod)?;
    let needs: SpecNeeds<'_> = serde_json::from_str(vpod.spec.get())?;
    let mut spec: Map<String, Value> = serde_json::from_str(vpod.spec.get())?;
    spec.retain(|field, value| field == "ephemeralContainers" && value.is_array());
    rewrite::containers(&mut spec, &vpod.metadata.name, &needs.api_access_volumes(), frame);
    Ok(spec.remove("ephemeralContainers").unwrap_or_else(|| json!([])))
}
