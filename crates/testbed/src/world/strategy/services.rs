//! What the API server does to Services: it allocates addresses and numbers, and lets no address come or go. Knows nothing of copies.

use serde_json::{Value, json};

use super::super::server::Denial;
use super::{drop_empty, put};

/// Allocates what the type needs, and drops what it does not.
pub(super) fn normalise(service: &mut Value) {
    let kind = service["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
    put(&mut service["spec"], "type", json!(kind));
    if kind == "ExternalName" {
        put(&mut service["spec"], "clusterIP", Value::Null);
    } else if service["spec"]["clusterIP"].is_null() {
        put(&mut service["spec"], "clusterIP", json!("10.0.0.1"));
    }
    let numbered = matches!(kind.as_str(), "NodePort" | "LoadBalancer");
    for port in service["spec"].get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["nodePort"].as_u64().or_else(|| Some(30_000 + port["port"].as_u64()? % 1000));
        put(port, "nodePort", number.filter(|_| numbered).map_or(Value::Null, Into::into));
    }
    drop_empty(&mut service["spec"], "selector");
    drop_empty(&mut service["spec"], "ports");
    if !service["status"]["loadBalancer"].is_object() || kind != "LoadBalancer" {
        service["status"] = json!({"loadBalancer": {}});
    }
    drop_empty(&mut service["status"]["loadBalancer"], "ingress");
}

/// Refuses a name that is no DNS label, and another address.
pub(super) fn validate(old: Option<&Value>, new: &Value) -> Result<(), Denial> {
    let name = new["metadata"]["name"].as_str().unwrap_or_default();
    if !tapestry_domain::names::is_service_name(name) {
        return Err(Denial::invalid("metadata.name", "not a DNS label that starts with a letter"));
    }
    let address = |service: &Value| service["spec"]["clusterIP"].as_str().map(ToOwned::to_owned);
    match (old.and_then(address), address(new)) {
        (Some(old), Some(new)) if old != new => Err(Denial::invalid("spec.clusterIPs[0]", "may not change once set")),
        _ => Ok(()),
    }
}
