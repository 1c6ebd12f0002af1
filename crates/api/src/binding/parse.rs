//! A binding as the syncer uses it: checked, with every default filled in. It must look
//! only at the object: the syncer checks elsewhere whether the `Secret` or the cluster exists.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::ResourceExt;
use tapestry_domain::names::{DnsLabel, DnsSubdomain};
use tapestry_domain::security::Level;
use tapestry_domain::selector::Selector;

use super::{ClusterBinding, ClusterBindingSpec, EVICT_AFTER_SECONDS, Guard, Partition, PodSecurity, VirtualApiServer};
use crate::invalid::{Invalid, Problems};
use crate::{keys, selector};

/// The longest `clusterID`: `vnode-<clusterID>-` must leave room for the name of a node in 63 characters.
const CLUSTER_ID: usize = 24;

/// A valid binding.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent switch")]
pub struct Binding {
    /// `metadata.name`.
    pub name: DnsSubdomain,
    /// `metadata.uid`, one half of the origin.
    pub uid: String,
    /// `metadata.generation`, for `observedGeneration` of conditions.
    pub generation: i64,
    /// Short name of the physical cluster.
    pub cluster_id: DnsLabel,
    /// Where the kubeconfig is, in the virtual cluster.
    pub kubeconfig: Kubeconfig,
    /// Which physical nodes may be lent.
    pub nodes: Selector,
    /// The physical namespace that receives everything.
    pub mount_namespace: DnsLabel,
    /// Virtual namespaces whose Services are carried.
    pub service_namespaces: BTreeSet<DnsLabel>,
    /// Virtual namespaces whose pods are not mirrored.
    pub excluded_namespaces: BTreeSet<DnsLabel>,
    /// Physical priority class of all pods.
    pub priority_class: DnsSubdomain,
    /// No [`keys::TAINT_VNODE`] on virtual nodes.
    pub disable_default_taint: bool,
    /// DaemonSet pods are mirrored without opting in.
    pub running_daemonset_by_default: bool,
    /// Pods get `spec.nodeName` instead of node affinity.
    pub direct_scheduling: bool,
    /// What a pod must meet before it may run in the physical cluster.
    pub pod_security: Level,
    /// The owner of the virtual cluster stopped lending.
    pub suspend: bool,
    /// How long the physical API server may be unreachable before its nodes become Unknown; `None`: without limit.
    pub evict_after: Option<Duration>,
    /// Limits in the physical cluster; all off by default.
    pub guard: Guard,
    /// Host and port at which pods reach the virtual API server.
    pub virtual_api_server: Option<(String, u16)>,
    /// Address of the virtual cluster's DNS, as pods reach it.
    pub virtual_dns: Option<String>,
    /// The clusters this binding was first connected to.
    pub pinned: Pinned,
}

/// A key in a `Secret` of the virtual cluster. This type never holds its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubeconfig {
    /// Namespace of the `Secret`.
    pub namespace: DnsLabel,
    /// Name of the `Secret`; its key is [`keys::KUBECONFIG`].
    pub name: DnsSubdomain,
    /// Whether it may say `insecure-skip-tls-verify`.
    pub insecure_skip_tls_verify: bool,
}

/// Identities (UID of `kube-system`) from the binding's status; `None` until the first connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pinned {
    /// Of the physical cluster.
    pub physical_cluster: Option<String>,
    /// Of the virtual cluster.
    pub virtual_cluster: Option<String>,
}

impl Binding {
    /// Parses a binding as an API server sent it; returns all problems at once.
    pub fn parse(binding: &ClusterBinding) -> Result<Self, Invalid> {
        let ClusterBinding { metadata, spec, status } = binding;
        let mut problems = Problems::default();
        let name = problems.keep("metadata.name", DnsSubdomain::parse(&binding.name_any()));
        if metadata.uid.is_none() {
            problems.add("metadata.uid", "is missing: a binding is valid only as an API server returns it");
        }
        let cluster_id = problems.keep("spec.clusterID", parse_cluster_id(&spec.cluster_id));
        let kubeconfig = parse_kubeconfig(spec, &mut problems);
        let nodes = selector::parse(spec.node_selector.as_ref(), &mut problems);
        let mount_namespace = given(&spec.mount_namespace, "name the physical namespace that receives the pods")
            .and_then(|name| DnsLabel::parse(name).map_err(|bad| bad.to_string()));
        let mount_namespace = problems.keep("spec.mountNamespace", mount_namespace);
        let services = spec.service_namespaces.iter().map(String::as_str);
        let service_namespaces = parse_namespaces("spec.serviceNamespaces", services, &mut problems);
        let excluded_namespaces = match &spec.excluded_namespaces {
            Some(given) => parse_namespaces("spec.excludedNamespaces", given.iter().map(String::as_str), &mut problems),
            None => parse_namespaces("", keys::EXCLUDED_NAMESPACES.iter().copied(), &mut problems),
        };
        let priority_class = match spec.pod_priority_class_name.as_str() {
            "" => keys::PRIORITY_CLASS,
            given => given,
        };
        let priority_class = problems.keep("spec.podPriorityClassName", DnsSubdomain::parse(priority_class));
        let virtual_api_server =
            spec.virtual_api_server.as_ref().and_then(|server| parse_server(server, &mut problems));
        let virtual_dns = spec.virtual_dns.as_ref().and_then(|dns| {
            let ip = dns.ip.parse::<std::net::IpAddr>().map_err(|_| "is not an IP address");
            problems.keep("spec.virtualDNS.ip", ip).map(|ip| ip.to_string())
        });
        let status = status.as_ref();
        let pinned = Pinned {
            physical_cluster: status.and_then(|status| status.physical_cluster_uid.clone()),
            virtual_cluster: status.and_then(|status| status.virtual_cluster_uid.clone()),
        };
        let read = || {
            Some(Self {
                name: name?,
                uid: metadata.uid.clone()?,
                generation: metadata.generation.unwrap_or_default(),
                cluster_id: cluster_id?,
                kubeconfig: kubeconfig?,
                nodes: nodes?,
                mount_namespace: mount_namespace?,
                service_namespaces,
                excluded_namespaces,
                priority_class: priority_class?,
                disable_default_taint: spec.disable_node_default_taint,
                running_daemonset_by_default: spec.running_daemonset_by_default,
                direct_scheduling: spec.direct_scheduling,
                pod_security: match spec.pod_security {
                    PodSecurity::Privileged => Level::Privileged,
                    PodSecurity::Baseline => Level::Baseline,
                    PodSecurity::Restricted => Level::Restricted,
                },
                suspend: spec.suspend,
                evict_after: match spec.partition {
                    Partition::Hold => None,
                    Partition::Evict => Some(seconds(spec.evict_after_seconds.unwrap_or(EVICT_AFTER_SECONDS))),
                },
                guard: spec.guard.unwrap_or_default(),
                virtual_api_server,
                virtual_dns,
                pinned,
            })
        };
        problems.or(read())
    }

    /// Host and port at which pods reach the virtual API server.
    #[must_use]
    pub fn virtual_api_server(&self) -> Option<(&str, u16)> {
        self.virtual_api_server.as_ref().map(|(host, port)| (host.as_str(), *port))
    }

    /// Whether pods of this virtual namespace are not mirrored.
    #[must_use]
    pub fn excludes(&self, namespace: &str) -> bool {
        self.excluded_namespaces.iter().any(|excluded| excluded.as_str() == namespace)
    }
}

/// The schema allows no negative number.
fn seconds(count: i32) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// The host becomes the value of an environment variable: it is a host and nothing else.
fn parse_server(server: &VirtualApiServer, problems: &mut Problems) -> Option<(String, u16)> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '-');
    let host = if !server.host.is_empty() && server.host.len() <= 253 && server.host.chars().all(legal) {
        Ok(server.host.clone())
    } else {
        Err("is not a host name or IP address")
    };
    let port = u16::try_from(server.port).ok().filter(|port| *port > 0).ok_or("is not a port");
    let host = problems.keep("spec.virtualAPIServer.host", host);
    host.zip(problems.keep("spec.virtualAPIServer.port", port))
}

fn parse_cluster_id(id: &str) -> Result<DnsLabel, String> {
    let label = DnsLabel::parse(id).map_err(|bad| bad.to_string())?;
    match id.len() {
        ..=CLUSTER_ID => Ok(label),
        length => Err(format!("`{id}` is {length} characters long, at most {CLUSTER_ID} are allowed")),
    }
}

fn parse_kubeconfig(spec: &ClusterBindingSpec, problems: &mut Problems) -> Option<Kubeconfig> {
    let name = given(&spec.secret_ref.name, "name the Secret that holds the kubeconfig")
        .and_then(|name| DnsSubdomain::parse(name).map_err(|bad| bad.to_string()));
    let namespace = given(&spec.secret_ref.namespace, "name the namespace of the Secret that holds the kubeconfig")
        .and_then(|name| DnsLabel::parse(name).map_err(|bad| bad.to_string()));
    let (name, namespace) =
        (problems.keep("spec.secretRef.name", name), problems.keep("spec.secretRef.namespace", namespace));
    Some(Kubeconfig { namespace: namespace?, name: name?, insecure_skip_tls_verify: spec.insecure_skip_tls_verify })
}

fn parse_namespaces<'a>(
    field: &str,
    names: impl Iterator<Item = &'a str>,
    problems: &mut Problems,
) -> BTreeSet<DnsLabel> {
    let parse = |(i, name)| problems.keep(&format!("{field}[{i}]"), DnsLabel::parse(name));
    names.enumerate().filter_map(parse).collect()
}

/// The text, or what to do if it is empty.
fn given<'a>(text: &'a str, otherwise: &str) -> Result<&'a str, String> {
    if text.is_empty() { Err(format!("is empty: {otherwise}")) } else { Ok(text) }
}

#[cfg(test)]
mod tests;
