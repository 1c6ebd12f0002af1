//! Host ports: which ones a pod uses on its node, and whether two pods can share a node.
//! It must not cost a row of the many pods without host ports more than two words.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

use crate::shape::{Text, nullable};

/// A port of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// The address, in its shortest spelling; `None` is every address.
    pub ip: Option<Box<str>>,
    /// The protocol.
    pub protocol: Protocol,
    /// Never 0.
    pub port: u16,
}

/// The protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP, also when a port does not say.
    #[default]
    #[serde(alias = "")]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// A protocol that is newer than this code. Two of them count as the same.
    #[serde(other)]
    Other,
}

/// The host ports that a pod takes, as kube-scheduler counts them; read straight from the JSON of its `spec`.
///
/// Those of containers and sidecars: a plain init container has ended before it could conflict. On the host's
/// network every container port is one, whether or not the API server has written it down as `hostPort` yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct HostPorts(Box<[HostPort]>);

impl HostPorts {
    /// Whether the pod takes none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them, in the order of the spec.
    pub fn iter(&self) -> impl Iterator<Item = &HostPort> {
        self.0.iter()
    }

    /// The first of ours that the other pod also takes, so that both cannot be on one node.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> Option<&HostPort> {
        self.0.iter().find(|port| other.0.iter().any(|theirs| port.conflicts_with(theirs)))
    }
}

impl HostPort {
    /// Whether both cannot be taken on one node: the same protocol and port, and an address in common.
    #[must_use]
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.protocol == other.protocol
            && self.port == other.port
            && (self.ip.is_none() || other.ip.is_none() || self.ip == other.ip)
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.port, self.protocol)?;
        match &self.ip {
            None => Ok(()),
            Some(ip) => write!(f, " of {}", crate::excerpt::excerpt(ip)),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Other => "other",
        })
    }
}

impl<'de> Deserialize<'de> for HostPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SpecPorts { init_containers, containers, host_network } = SpecPorts::deserialize(deserializer)?;
        let sidecars = init_containers.iter().filter(|container| &*container.restart_policy == "Always");
        let ports = sidecars.chain(&containers).flat_map(|container| &container.ports);
        Ok(Self(ports.filter_map(|port| port.on_host(host_network)).collect()))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SpecPorts<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    init_containers: Vec<ContainerPorts<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    containers: Vec<ContainerPorts<'a>>,
    #[serde(deserialize_with = "nullable")]
    host_network: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPorts<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    ports: Vec<PortShape<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    restart_policy: Text<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PortShape<'a> {
    #[serde(borrow, rename = "hostIP", deserialize_with = "nullable")]
    host_ip: Text<'a>,
    #[serde(deserialize_with = "nullable")]
    host_port: i32,
    #[serde(deserialize_with = "nullable")]
    container_port: i32,
    #[serde(deserialize_with = "nullable")]
    protocol: Protocol,
}

impl PortShape<'_> {
    fn on_host(&self, host_network: bool) -> Option<HostPort> {
        let port = if self.host_port == 0 && host_network { self.container_port } else { self.host_port };
        let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
        Some(HostPort { ip: address(&self.host_ip), protocol: self.protocol, port })
    }
}

/// One address has many spellings; the API server checks none of them, so that what cannot be parsed is compared as text.
fn address(text: &str) -> Option<Box<str>> {
    match text.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        Ok(ip) if ip.is_unspecified() => None,
        Ok(ip) => Some(ip.to_string().into()),
        Err(_) if text.is_empty() => None,
        Err(_) => Some(text.into()),
    }
}
