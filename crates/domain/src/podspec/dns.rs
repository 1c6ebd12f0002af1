//! Names: a pod that asks for its cluster's DNS asks the virtual cluster's, as if it ran there.
//! It must not touch pods that use their node's resolver or bring their own.

use serde_json::{Map, Value, json};

use super::Frame;

/// What an API server takes in a pod's `dnsConfig`.
const NAMESERVERS: usize = 3;
const SEARCHES: usize = 32;
const SEARCH_CHARACTERS: usize = 2048;

/// As a kubelet of the virtual cluster would set it up, with the pod's own `dnsConfig` added in the same way.
pub(super) fn rewrite(spec: &mut Map<String, Value>, namespace: &str, frame: &Frame<'_>) {
    let Some(server) = frame.virtual_dns.filter(|_| asks_its_cluster(spec)) else { return };
    let mut config = match spec.remove("dnsConfig") {
        Some(Value::Object(config)) => config,
        _ => Map::new(),
    };
    let searches = [format!("{namespace}.svc.cluster.local"), "svc.cluster.local".into(), "cluster.local".into()];
    extend(&mut config, "nameservers", &[server.to_owned()], NAMESERVERS, usize::MAX);
    extend(&mut config, "searches", &searches, SEARCHES, SEARCH_CHARACTERS);
    let options = list(&mut config, "options");
    if !options.iter().any(|option| option["name"] == "ndots") {
        options.insert(0, json!({ "name": "ndots", "value": "5" }));
    }
    spec.insert("dnsPolicy".into(), "None".into());
    spec.insert("dnsConfig".into(), config.into());
}

/// With the host's network, kubelets take `ClusterFirst` for `Default`.
fn asks_its_cluster(spec: &Map<String, Value>) -> bool {
    match spec.get("dnsPolicy").and_then(Value::as_str).unwrap_or_default() {
        "" | "ClusterFirst" => !spec.get("hostNetwork").and_then(Value::as_bool).unwrap_or_default(),
        "ClusterFirstWithHostNet" => true,
        _ => false,
    }
}

/// The cluster's entries first, then the pod's, each once, as many as an API server takes.
fn extend(config: &mut Map<String, Value>, field: &str, first: &[String], count: usize, characters: usize) {
    let entries = list(config, field);
    let mut all: Vec<Value> = first.iter().map(|entry| Value::from(&**entry)).collect();
    for entry in entries.drain(..) {
        if !all.contains(&entry) {
            all.push(entry);
        }
    }
    let mut length = 0;
    let fits = |entry: &Value| {
        length += entry.as_str().unwrap_or_default().len() + 1;
        length <= characters.saturating_add(1)
    };
    *entries = all.into_iter().take(count).take_while(fits).collect();
}

fn list<'m>(config: &'m mut Map<String, Value>, field: &str) -> &'m mut Vec<Value> {
    let value = config.entry(field).or_insert(Value::Null);
    if !value.is_array() {
        *value = json!([]);
    }
    match value {
        Value::Array(list) => list,
        _ => unreachable!("it was made a list"),
    }
}
