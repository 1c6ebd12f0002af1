//! How `spec.nodeSelector` of either kind becomes the domain's selector.
//! It must not widen a selector: one that cannot be parsed selects nothing, because the object is then invalid.

use k8s_openapi::api::core::v1::NodeSelector;
use tapestry_domain::selector::Selector;

use crate::invalid::Problems;

const FIELD: &str = "spec.nodeSelector";

/// The selected nodes; every node when no selector is given.
pub(crate) fn parse(given: Option<&NodeSelector>, problems: &mut Problems) -> Option<Selector> {
    let Some(given) = given else {
        return Some(Selector::default());
    };
    let read = serde_json::to_value(given).and_then(serde_json::from_value::<Selector>);
    let selector = problems.keep(FIELD, read)?;
    if selector.is_empty() {
        // Other definitions of this kind allow this; an empty selector must not lend every node by accident.
        problems.add(FIELD, "has no terms: add one, or leave nodeSelector out to select every node");
        return None;
    }
    match selector.validate() {
        Ok(()) => Some(selector),
        Err(bad) => {
            problems.add(FIELD, format!("has a requirement that cannot be met: {bad}"));
            None
        }
    }
}
