//! Services: what a copy in the physical cluster says, how it follows its Service, and which addresses of load balancers are whose.
//! It must not carry what another cluster allocated, nor let a copy select pods that are not its tenant's.

mod carried;
pub mod ingress;
pub mod keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::carried::Carried;
use crate::dependents::Marks;
use crate::merge::{difference, insert};
use crate::metadata::{carries_annotation, carries_label, carry_annotations, carry_labels};
use crate::names;
use crate::shape::nullable;

/// Why a Service is not carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unfit {
    /// It has `externalIPs`: its copy would catch traffic to addresses that are not the tenant's.
    ExternalIps,
    /// It has no selector, and is not of type `ExternalName`: its endpoints are written by someone, and are not carried.
    NoSelector,
}

/// Why no copy is made of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncarried {
    /// It is not a Service.
    #[error("the Service cannot be read (line {line}, column {column})")]
    Unreadable {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// It is one that is not carried.
    #[error("{0}")]
    Unfit(Unfit),
}

/// What is kept of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceDigest {
    /// A mark of all that its copy has to say, or why it has none.
    pub mark: Result<u64, Unfit>,
    /// It has no address of its own, which never changes.
    pub headless: bool,
    /// It is of type `LoadBalancer`.
    pub balanced: bool,
}

/// What is kept of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyDigest {
    /// The mark of what was carried into it; `None` when it does not say.
    pub mark: Option<u64>,
    /// All that was carried is there as it was carried.
    pub intact: bool,
    /// It has no address of its own, which never changes.
    pub headless: bool,
}

/// A Service of either cluster.
#[derive(Deserialize)]
struct Service {
    metadata: Metadata,
    #[serde(default, deserialize_with = "nullable")]
    spec: Map<String, Value>,
    /// Everything else, also what is newer than this code.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Deserialize)]
struct Metadata {
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

/// What a copy says of a Service: each field as it was, but for what the physical cluster allocates.
struct Wanted {
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    spec: Map<String, Value>,
    rest: Map<String, Value>,
}

/// Each cluster allocates its own; of addresses a tenant may choose none.
const ALLOCATED: [&str; 6] =
    ["clusterIP", "clusterIPs", "healthCheckNodePort", "ipFamilies", "loadBalancerIP", "externalIPs"];
/// `spec.clusterIP` of a Service without an address.
const HEADLESS: &str = "None";
/// Asks for both families where the cluster has both, and is refused nowhere.
const PREFER_DUAL_STACK: &str = "PreferDualStack";
const REQUIRE_DUAL_STACK: &str = "RequireDualStack";

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ExternalIps => {
                "spec.externalIPs is set: the Service is not carried to the physical cluster, where it could take traffic \
                 that is meant for others; remove externalIPs, or use type LoadBalancer"
            }
            Self::NoSelector => {
                "the Service has no selector: its endpoints are not carried to the physical cluster, so that the Service is not \
                 either; add a selector, or use type ExternalName"
            }
        })
    }
}

/// Reads what a row keeps of a Service. The label of our origin is part of what its copy selects.
pub fn read_service(text: &str, origin_label: &str) -> Result<ServiceDigest, Uncarried> {
    let service = Service::parse(text)?;
    let mark = match unfit(&service.spec) {
        Some(unfit) => Err(unfit),
        None => Ok(Carried::of(&Wanted::of(&service, origin_label)).mark()),
    };
    Ok(ServiceDigest { mark, headless: service.headless(), balanced: service.kind() == "LoadBalancer" })
}

/// Reads what a row keeps of a copy.
pub fn read_copy(text: &str) -> Result<CopyDigest, Uncarried> {
    let copy = Service::parse(text)?;
    let carried = copy.carried();
    Ok(CopyDigest {
        mark: carried.as_ref().map(Carried::mark),
        intact: carried.is_some_and(|carried| carried.intact(&copy)),
        headless: copy.headless(),
    })
}

/// The body of a new copy.
pub fn render_copy(text: &str, name: &str, namespace: &str, marks: &Marks<'_>) -> Result<Value, Uncarried> {
    let (service, wanted) = read(text, marks)?;
    let carried = Carried::of(&wanted);
    let metadata = json!({
        "name": name,
        "namespace": namespace,
        "labels": carry_labels(wanted.labels, &marks.labels),
        "annotations": carry_annotations(wanted.annotations, &service.back_pointer(&carried, marks)),
    });
    let mut copy = wanted.rest;
    copy.extend([
        ("apiVersion".to_owned(), "v1".into()),
        ("kind".to_owned(), "Service".into()),
        ("metadata".to_owned(), metadata),
        ("spec".to_owned(), Value::Object(wanted.spec)),
    ]);
    Ok(Value::Object(copy))
}

/// The JSON merge patch that makes a copy say what its Service says; `None` when nothing differs.
///
/// What we carried and the Service lost goes; what others added to the copy stays, and so does what the physical cluster allocated.
pub fn render_patch(text: &str, copy: &str, marks: &Marks<'_>) -> Result<Option<Value>, Uncarried> {
    let (service, wanted) = read(text, marks)?;
    let copy = Service::parse(copy)?;
    let before = copy.carried().unwrap_or_default();
    let carried = Carried::of(&wanted);
    let ports = wanted.ports_in(&copy);
    let labels = carry_labels(wanted.labels, &marks.labels);
    let annotations = carry_annotations(wanted.annotations, &service.back_pointer(&carried, marks));

    let mut metadata = Map::new();
    insert(&mut metadata, "labels", changes(labels, &copy.metadata.labels, &before.labels()));
    insert(&mut metadata, "annotations", changes(annotations, &copy.metadata.annotations, &before.annotations()));
    let mut spec = wanted.spec;
    spec.remove("ports");
    // The list itself is compared without what was allocated.
    let mut lost = before.spec();
    lost.remove("ports");
    let mut spec = changes(spec, &copy.spec, &lost);
    spec.extend(ports.map(|ports| ("ports".to_owned(), ports)));

    let mut patch = changes(wanted.rest, &copy.rest, &before.rest());
    insert(&mut patch, "metadata", metadata);
    insert(&mut patch, "spec", spec);
    Ok((!patch.is_empty()).then_some(Value::Object(patch)))
}

fn read(text: &str, marks: &Marks<'_>) -> Result<(Service, Wanted), Uncarried> {
    let service = Service::parse(text)?;
    if let Some(unfit) = unfit(&service.spec) {
        return Err(Uncarried::Unfit(unfit));
    }
    let origin = marks.labels.iter().find(|(key, _)| *key == keys::ORIGIN).map_or("", |(_, value)| value.as_str());
    let wanted = Wanted::of(&service, origin);
    Ok((service, wanted))
}

/// Whether a Service of this spec is not carried, and why.
fn unfit(spec: &Map<String, Value>) -> Option<Unfit> {
    let filled = |field: &str| match spec.get(field) {
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
        _ => false,
    };
    if filled("externalIPs") {
        Some(Unfit::ExternalIps)
    } else {
        (!filled("selector") && kind_of(spec) != "ExternalName").then_some(Unfit::NoSelector)
    }
}

fn kind_of(spec: &Map<String, Value>) -> &str {
    spec.get("type").and_then(Value::as_str).unwrap_or("ClusterIP")
}

impl Service {
    fn parse(text: &str) -> Result<Self, Uncarried> {
        serde_json::from_str(text).map_err(|error| Uncarried::Unreadable { line: error.line(), column: error.column() })
    }

    fn kind(&self) -> &str {
        kind_of(&self.spec)
    }

    fn headless(&self) -> bool {
        self.spec.get("clusterIP").and_then(Value::as_str) == Some(HEADLESS)
    }

    fn carried(&self) -> Option<Carried> {
        Carried::parse(self.metadata.annotations.get(keys::CARRIED)?.as_str()?)
    }

    /// The annotations that say of a copy what it is a copy of.
    fn back_pointer<'a>(&self, carried: &Carried, marks: &Marks<'a>) -> Vec<(&'a str, String)> {
        let Metadata { name, namespace, uid, .. } = &self.metadata;
        let written = [
            (keys::VIRTUAL_NAMESPACE, namespace.clone()),
            (keys::VIRTUAL_NAME, name.clone()),
            (keys::VIRTUAL_UID, uid.clone()),
            (keys::CARRIED, carried.render()),
            (keys::ORIGIN, marks.salt.to_owned()),
        ];
        marks.annotations.iter().cloned().chain(written).collect()
    }
}

impl Wanted {
    fn of(service: &Service, origin_label: &str) -> Self {
        let Service { metadata, spec, rest } = service;
        let mut labels = metadata.labels.clone();
        labels.retain(|key, _| carries_label(key));
        let mut annotations = metadata.annotations.clone();
        annotations.retain(|key, _| carries_annotation(key));
        let mut spec = spec.clone();
        spec.retain(|field, value| !value.is_null() && !ALLOCATED.contains(&field.as_str()));
        if service.headless() {
            spec.insert("clusterIP".to_owned(), HEADLESS.into());
        }
        if spec.get("ipFamilyPolicy").and_then(Value::as_str) == Some(REQUIRE_DUAL_STACK) {
            spec.insert("ipFamilyPolicy".to_owned(), PREFER_DUAL_STACK.into());
        }
        if let Some(ports) = spec.get_mut("ports") {
            *ports = without_node_ports(ports);
        }
        if let Some(selector) = spec.get_mut("selector").and_then(Value::as_object_mut).filter(|map| !map.is_empty()) {
            // Other tenants' pods, and those of other virtual namespaces, are in the mount namespace too.
            selector.insert(keys::ORIGIN.to_owned(), origin_label.into());
            let namespace = names::label_value(&metadata.namespace).into_owned();
            selector.insert(keys::VIRTUAL_NAMESPACE.to_owned(), namespace.into());
        }
        let mut rest = rest.clone();
        rest.retain(|field, value| !value.is_null() && !["apiVersion", "kind", "status"].contains(&field.as_str()));
        Self { labels, annotations, spec, rest }
    }

    /// The list of ports that the copy must get; `None` when it has it. The list is replaced as a whole, so that each port must say
    /// which number the physical cluster gave it.
    fn ports_in(&self, copy: &Service) -> Option<Value> {
        let there = copy.spec.get("ports").filter(|ports| !ports.is_null());
        let wanted = self.spec.get("ports").cloned();
        if wanted == there.map(without_node_ports) {
            return None;
        }
        let (Some(Value::Array(mut wanted)), Some(Value::Array(there))) = (wanted.clone(), there) else {
            return Some(wanted.unwrap_or_default());
        };
        let numbered = |kind: &str| matches!(kind, "NodePort" | "LoadBalancer");
        if !numbered(kind_of(&self.spec)) || !numbered(copy.kind()) {
            return Some(Value::Array(wanted));
        }
        let mut kept = BTreeSet::new();
        let same: [fn(&Value) -> [&Value; 2]; 2] =
            [|port| [&port["protocol"], &port["port"]], |port| [&port["protocol"], &port["name"]]];
        for identity in same {
            for port in wanted.iter_mut().filter(|port| port.get("nodePort").is_none()) {
                let free = |old: &&Value| {
                    identity(old) == identity(port)
                        && old["nodePort"].as_u64().is_some_and(|number| !kept.contains(&number))
                };
                if let Some(number) = there.iter().find(free).and_then(|old| old["nodePort"].as_u64()) {
                    kept.insert(number);
                    port["nodePort"] = number.into();
                }
            }
        }
        Some(Value::Array(wanted))
    }
}

fn without_node_ports(ports: &Value) -> Value {
    let mut ports = ports.clone();
    for port in ports.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        port.remove("nodePort");
    }
    ports
}

/// What a merge patch must say: what is wanted, and that of what we carried before nothing else is left.
fn changes(wanted: Map<String, Value>, there: &Map<String, Value>, before: &BTreeSet<&str>) -> Map<String, Value> {
    let lost = before.iter().filter(|field| !wanted.contains_key(**field) && there.contains_key(**field));
    let mut changes: Map<String, Value> = lost.map(|field| ((*field).to_owned(), Value::Null)).collect();
    for (field, value) in wanted {
        if let Some(change) = difference(there.get(&field), value) {
            changes.insert(field, change);
        }
    }
    changes
}
