//! How a pod reaches the API server: the virtual one, or none. Never the physical one, whose address every kubelet hands out.
//! It must not touch what a container sets itself.

use serde_json::{Map, Value, json};

use super::downward::items;
use super::{CONTAINERS, Frame};

/// What client libraries look at to find the API server.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORTS: [&str; 2] = ["KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS"];

/// `injected` are the volumes by which the virtual cluster gave its API token. Without a way to its API server they go.
pub(super) fn rewrite(spec: &mut Map<String, Value>, injected: &[&str], frame: &Frame<'_>) {
    let variables = variables(frame);
    let gone = if frame.virtual_api_server.is_some() { &[] } else { injected };
    let is_gone = |item: &Value| item.get("name").and_then(Value::as_str).is_some_and(|name| gone.contains(&name));
    if let Some(Value::Array(volumes)) = spec.get_mut("volumes") {
        volumes.retain(|volume| !is_gone(volume));
    }
    for list in CONTAINERS {
        for container in items(spec.get_mut(list)).filter_map(Value::as_object_mut) {
            if let Some(Value::Array(mounts)) = container.get_mut("volumeMounts") {
                mounts.retain(|mount| !is_gone(mount));
            }
            set_variables(container, &variables);
        }
    }
}

fn variables(frame: &Frame<'_>) -> Vec<(&'static str, String)> {
    match frame.virtual_api_server {
        // Empty: libraries then say that they are not in a cluster.
        None => vec![(HOST, String::new())],
        Some((host, port)) => {
            let ports = PORTS.into_iter().map(|name| (name, port.to_string()));
            [(HOST, host.to_owned())].into_iter().chain(ports).collect()
        }
    }
}

/// In front, as a kubelet's own are: later variables may use them.
fn set_variables(container: &mut Map<String, Value>, variables: &[(&str, String)]) {
    let theirs = match container.remove("env") {
        Some(Value::Array(env)) => env,
        _ => Vec::new(),
    };
    let missing = variables.iter().filter(|(name, _)| !theirs.iter().any(|env| env["name"] == *name));
    let ours = missing.map(|(name, value)| json!({ "name": name, "value": value }));
    let env: Vec<Value> = ours.chain(theirs.iter().cloned()).collect();
    container.insert("env".into(), env.into());
}
