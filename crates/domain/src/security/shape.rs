//! The part of a pod's `spec` that the Pod Security Standards look at.
//! It must not judge, and must not lose a difference that a standard makes, such as an empty profile against an absent one.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};

use crate::shape::{Text, nullable};

/// The part of a pod's `spec` that counts, read straight from its JSON. Everything else is skipped while reading.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityShape<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    init_containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    ephemeral_containers: Vec<Container<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) volumes: Vec<Volume<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) security_context: Context<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    os: Named<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) host_network: bool,
    #[serde(rename = "hostPID", deserialize_with = "nullable")]
    pub(super) host_pid: bool,
    #[serde(rename = "hostIPC", deserialize_with = "nullable")]
    pub(super) host_ipc: bool,
    host_users: Option<bool>,
}

impl<'a> SecurityShape<'a> {
    /// Every container, in the order in which Kubernetes visits and reports them.
    pub(super) fn all_containers(&self) -> impl Iterator<Item = &Container<'a>> {
        self.init_containers.iter().chain(&self.containers).chain(&self.ephemeral_containers)
    }

    /// The names of the containers that are bad.
    pub(super) fn offenders<'s>(&'s self, bad: impl Fn(&'s Container<'a>) -> bool) -> Vec<&'s str> {
        self.all_containers().filter(|container| bad(container)).map(|container| &*container.name).collect()
    }

    /// The names of the containers in which something bad is found, and all that is found, sorted.
    pub(super) fn found<'s, I>(&'s self, look: impl Fn(&'s Container<'a>) -> I) -> (Vec<&'s str>, BTreeSet<I::Item>)
    where
        I: Iterator<Item: Ord>,
    {
        let (mut names, mut found) = (Vec::new(), BTreeSet::new());
        for container in self.all_containers() {
            let mut bad = look(container).peekable();
            if bad.peek().is_some() {
                names.push(&*container.name);
                found.extend(bad);
            }
        }
        (names, found)
    }

    /// Whether it says that it runs on Windows, which knows none of Linux' fields.
    pub(super) fn is_windows(&self) -> bool {
        &*self.os.name == "windows"
    }

    /// Whether its root is not root on the host.
    pub(super) fn in_user_namespace(&self) -> bool {
        self.host_users == Some(false)
    }
}

/// A container of any of the three lists.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Container<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) name: Text<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) security_context: Context<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) ports: Vec<Port>,
    #[serde(borrow, deserialize_with = "nullable")]
    liveness_probe: Handler<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    readiness_probe: Handler<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    startup_probe: Handler<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    lifecycle: Lifecycle<'a>,
}

impl Container<'_> {
    /// The hosts that its probes and lifecycle handlers name instead of the pod itself.
    pub(super) fn handler_hosts(&self) -> impl Iterator<Item = &str> {
        let Lifecycle { post_start, pre_stop } = &self.lifecycle;
        let handlers = [&self.liveness_probe, &self.readiness_probe, &self.startup_probe, post_start, pre_stop];
        let hosts = handlers.into_iter().flat_map(|handler| [&*handler.http_get.host, &*handler.tcp_socket.host]);
        hosts.filter(|host| !host.is_empty())
    }
}

/// A `securityContext`, of the pod or of a container; what only the other one has stays empty.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Context<'a> {
    pub(super) allow_privilege_escalation: Option<bool>,
    #[serde(borrow)]
    pub(super) app_armor_profile: Option<Profile<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) capabilities: Capabilities<'a>,
    #[serde(deserialize_with = "nullable")]
    pub(super) privileged: bool,
    #[serde(borrow)]
    pub(super) proc_mount: Option<Text<'a>>,
    pub(super) run_as_non_root: Option<bool>,
    pub(super) run_as_user: Option<i64>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) se_linux_options: SeLinux<'a>,
    #[serde(borrow)]
    pub(super) seccomp_profile: Option<Profile<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) sysctls: Vec<Named<'a>>,
    #[serde(deserialize_with = "nullable")]
    pub(super) windows_options: Windows,
}

/// A seccomp or AppArmor profile.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Profile<'a> {
    #[serde(borrow, rename = "type", deserialize_with = "nullable")]
    pub(super) kind: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Capabilities<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) add: Vec<Text<'a>>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) drop: Vec<Text<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct SeLinux<'a> {
    #[serde(borrow, rename = "type", deserialize_with = "nullable")]
    pub(super) kind: Text<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) user: Text<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) role: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Windows {
    #[serde(deserialize_with = "nullable")]
    pub(super) host_process: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Named<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    pub(super) name: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Port {
    #[serde(deserialize_with = "nullable")]
    pub(super) host_port: i32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Lifecycle<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    post_start: Handler<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    pre_stop: Handler<'a>,
}

/// A probe or a lifecycle handler. `exec` and `grpc` name no host.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Handler<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    http_get: Target<'a>,
    #[serde(borrow, deserialize_with = "nullable")]
    tcp_socket: Target<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Target<'a> {
    #[serde(borrow, deserialize_with = "nullable")]
    host: Text<'a>,
}

/// A volume, and which fields hold its source.
#[derive(Debug, Default)]
pub(super) struct Volume<'a> {
    pub(super) name: Text<'a>,
    /// The source's field, also one that is newer than this code. The API server lets in no volume with two.
    pub(super) sources: Vec<Text<'a>>,
}

/// By hand, because the source is the only other field a volume has, whatever it is called.
impl<'de: 'a, 'a> Deserialize<'de> for Volume<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Volume<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a volume")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut volume = Volume::default();
                while let Some(key) = map.next_key::<Text<'de>>()? {
                    if &*key == "name" {
                        volume.name = map.next_value::<Option<Text<'de>>>()?.unwrap_or_default();
                    } else if map.next_value::<Option<IgnoredAny>>()?.is_some() {
                        volume.sources.push(key);
                    }
                }
                Ok(volume)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}
