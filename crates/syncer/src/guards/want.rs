//! How a backstop should look, and what must change for it to look so. Pure.

use std::net::IpAddr;

use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_domain::names::check_qualified_name;
use tapestry_domain::quantity::Quantity;
use tapestry_domain::resources::{ResourceName, Resources};

use super::Guard;

/// Not the Internet: the networks of an owner's nodes, pods, Services and metadata endpoints.
const PRIVATE_V4: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"];
const PRIVATE_V6: [&str; 2] = ["fc00::/7", "fe80::/10"];

/// `hard` of a quota that admits what is leased and no more. The four resources that every node has are always named:
/// what a quota does not name it does not limit.
pub(super) fn quota_for(total: &Resources) -> Map<String, Value> {
    use ResourceName::{Cpu, EphemeralStorage, Memory, Pods};
    let others = total.iter().map(|(name, _)| name).filter(|name| matches!(name, ResourceName::Other(_)));
    let hard = [Cpu, Memory, EphemeralStorage, Pods].iter().chain(others).filter_map(|name| {
        let key = quota_name(name)?;
        Some((key, json!(total.get(name).display(name.format()).to_string())))
    });
    hard.collect()
}

/// The name under which a quota counts a resource; `None` where it counts none (attachable volumes).
fn quota_name(name: &ResourceName) -> Option<String> {
    let requests = format!("requests.{name}");
    match name {
        ResourceName::Pods => Some(name.to_string()),
        ResourceName::Other(_) => {
            let counted = name.is_hugepages() || name.is_extended();
            (counted && check_qualified_name(&requests).is_ok()).then_some(requests)
        }
        ResourceName::Cpu | ResourceName::Memory | ResourceName::EphemeralStorage => Some(requests),
    }
}

/// Our pods are reached from the mount namespace only; they reach it, name servers wherever they are, and the Internet.
/// The API server of the owner, his other pods and the metadata endpoint of his cloud are in the private ranges.
/// Where pods may reach the virtual API server, they reach it at its address. A policy cannot name a host, and a port that is open to
/// any address would open the owner's API server: a host name leads to public addresses only.
pub(super) fn isolation(server: Option<(&str, u16)>) -> Value {
    let namespace = json!([{"podSelector": {}}]);
    let dns = ["UDP", "TCP"].map(|protocol| json!({"port": 53, "protocol": protocol}));
    let outside = [("0.0.0.0/0", &PRIVATE_V4[..]), ("::/0", &PRIVATE_V6[..])]
        .map(|(cidr, except)| json!({"ipBlock": {"cidr": cidr, "except": except}}));
    let mut egress = vec![json!({"ports": dns}), json!({"to": namespace}), json!({"to": outside})];
    egress.extend(server.and_then(|(host, port)| {
        let address: IpAddr = host.parse().ok()?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let to = json!([{"ipBlock": {"cidr": format!("{address}/{whole}")}}]);
        Some(json!({"to": to, "ports": [{"port": port, "protocol": "TCP"}]}))
    }));
    json!({
        "podSelector": {"matchLabels": {keys::MANAGED_BY: keys::MANAGED_BY_TAPESTRY}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": namespace}],
        "egress": egress,
    })
}

/// Whether two specs mean the same: amounts may be written in several ways.
pub(super) fn same(guard: Guard, there: &Value, want: &Value) -> bool {
    let meaning = |spec: &Value| {
        let mut spec = spec.clone();
        if let (Guard::Quota, Some(Value::Object(hard))) = (guard, spec.get_mut("hard")) {
            for amount in hard.values_mut() {
                if let Some(exact) = amount.as_str().and_then(|text| Quantity::parse(text).ok()) {
                    *amount = json!(exact.nano().to_string());
                }
            }
        }
        spec
    };
    there == want || meaning(there) == meaning(want)
}

/// The merge patch that makes `there` into `want`: what is not wanted is named with null.
pub(super) fn difference(there: &Value, want: &Value) -> Value {
    let (Value::Object(there), Value::Object(want)) = (there, want) else { return want.clone() };
    let mut patch = Map::new();
    for (key, value) in want.iter().filter(|(key, value)| there.get(*key) != Some(*value)) {
        patch.insert(key.clone(), difference(there.get(key).unwrap_or(&Value::Null), value));
    }
    for key in there.keys().filter(|key| !want.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Value::Object(patch)
}
