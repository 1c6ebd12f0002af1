//! Schema fragments that both kinds share, in the structural form that API servers accept.
//! Limits are patterns, enums and maxima, never CEL: a rule over a list of lists exceeds the API server's cost budget.

use schemars::{Schema, SchemaGenerator, json_schema};

/// A DNS label or nothing. Nothing is allowed where the status reports its absence, or where it means a default.
pub(crate) const LABEL_OR_EMPTY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$";
/// A DNS label: cluster ids, namespaces.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A DNS subdomain or nothing: names of `Secret`s and `PriorityClass`es.
pub(crate) const SUBDOMAIN_OR_EMPTY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";
/// The name of a binding, a cluster id, or `*`.
pub(crate) const CLUSTER: &str = r"^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$";
/// A resource name such as `cpu` or `nvidia.com/gpu`.
pub(crate) const RESOURCE: &str =
    r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
/// `00:00` to `23:59`.
pub(crate) const WINDOW_START: &str = "^([01][0-9]|2[0-3]):[0-5][0-9]$";
/// `00:00` to `24:00`.
pub(crate) const WINDOW_END: &str = "^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$";
/// English names of days, full or three letters, in any case; spelt out because `(?i)` is no part of JSON schema.
pub(crate) const DAY: &str = "^([Mm][Oo][Nn]([Dd][Aa][Yy])?|[Tt][Uu][Ee]([Ss][Dd][Aa][Yy])?|[Ww][Ee][Dd]([Nn][Ee][Ss][Dd][Aa][Yy])?\
    |[Tt][Hh][Uu]([Rr][Ss][Dd][Aa][Yy])?|[Ff][Rr][Ii]([Dd][Aa][Yy])?|[Ss][Aa][Tt]([Uu][Rr][Dd][Aa][Yy])?|[Ss][Uu][Nn]([Dd][Aa][Yy])?)$";
/// The characters of IANA zone names; the status says whether the zone exists.
pub(crate) const TIME_ZONE: &str = "^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$";
/// `YYYY-MM-DD`; the format `date` refuses days that do not exist.
const DATE: &str = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$";
/// Kubernetes' own pattern of a quantity, without the minus sign: a limit is never negative.
const QUANTITY: &str =
    r"^\+?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// core/v1 `NodeSelector` with the limits that Kubernetes itself checks in code, so that the API server refuses bad ones.
/// Terms are required as in core/v1: otherwise a map of labels, whose unknown keys the API server drops, would become an empty
/// selector and lend every node.
pub(crate) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    let term = json_schema!({
        "type": "object",
        "description": "A node matches a term when it meets every requirement of it. An empty term matches no node.",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchExpressions": requirements(
                "Requirements on the node's labels.",
                &["key", "operator"],
                &serde_json::json!({ "type": "string", "minLength": 1, "maxLength": 317, "description": "The label key." }),
                &["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
                "How the label relates to the values: In and NotIn need at least one value, Exists and DoesNotExist \
                 none, Gt and Lt exactly one whole number.",
                &serde_json::json!({ "type": "array", "maxItems": 256, "x-kubernetes-list-type": "atomic",
                    "description": "The values to compare with.", "items": { "type": "string", "maxLength": 63 } }),
            ),
            "matchFields": requirements(
                "Requirements on the node's fields. Only metadata.name is supported.",
                &["key", "operator", "values"],
                &serde_json::json!({ "type": "string", "enum": ["metadata.name"], "description": "The field." }),
                &["In", "NotIn"],
                "How the field relates to the value.",
                &serde_json::json!({ "type": "array", "minItems": 1, "maxItems": 1, "x-kubernetes-list-type": "atomic",
                    "description": "The one name to compare with; several names are several terms.",
                    "items": { "type": "string", "maxLength": 253 } }),
            ),
        },
    });
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "required": ["nodeSelectorTerms"],
        "properties": {
            "nodeSelectorTerms": {
                "type": "array",
                "description": "A node is selected when it matches any of these terms. To select every node, leave nodeSelector out.",
                "minItems": 1,
                "maxItems": 64,
                "x-kubernetes-list-type": "atomic",
                "items": term,
            },
        },
    })
}

fn requirements(
    description: &str,
    required: &[&str],
    key: &serde_json::Value,
    operators: &[&str],
    operator: &str,
    values: &serde_json::Value,
) -> Schema {
    json_schema!({
        "type": "array",
        "description": description,
        "maxItems": 64,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": required,
            "properties": {
                "key": key,
                "operator": { "type": "string", "enum": operators, "description": operator },
                "values": values,
            },
        },
    })
}

/// Calendar days, each once; at most 366, a whole leap year.
pub(crate) fn dates(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 366,
        "x-kubernetes-list-type": "set",
        "items": { "type": "string", "format": "date", "pattern": DATE },
    })
}

/// A quantity that users write: a whole number, or a string such as `500m` or `8Gi`.
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "pattern": QUANTITY,
        "minimum": 0,
        "maxLength": 64,
    })
}

/// Quantities that we write, by resource name.
pub(crate) fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "x-kubernetes-int-or-string": true },
    })
}

/// Standard conditions as a map by type, so that manager and syncer can each server-side apply their own.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": { "type": "string", "maxLength": 316, "description": "What the condition is about." },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"], "description": "Whether it holds." },
                "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that this is about; if it is older than the object's, the object was not yet processed." },
                "lastTransitionTime": { "type": "string", "format": "date-time",
                    "description": "When the status last changed." },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", "description": "The reason, in one word for programs." },
                "message": { "type": "string", "maxLength": 32768, "description": "The reason, and what to change, for users." },
            },
        },
    })
}
