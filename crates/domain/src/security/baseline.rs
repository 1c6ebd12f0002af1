//! The checks of the baseline standard: nothing that is known to lead out of a container.
//! It must not ask for anything: a pod that sets no security field passes.

use std::collections::BTreeSet;

use super::shape::{Container, Profile, SecurityShape};
use super::words::{Setters, containers, joined, listed, plural, quote, quoted};
use crate::excerpt::cut;

/// What may be added to the default capabilities' set: its own members.
const CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Since 1.31 with `container_engine_t`.
const SELINUX_TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];

/// Those that are isolated from other pods; since 1.32 with `tcp_rmem` and `tcp_wmem`.
const SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

const APP_ARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Profiles by field and by the annotations that came before it, which older kubelets still obey.
pub(super) fn app_armor<'t>(
    spec: &SecurityShape<'_>,
    annotations: impl IntoIterator<Item = (&'t str, &'t str)>,
) -> Option<String> {
    let mut values = BTreeSet::new();
    let setters = Setters::of(spec, |context| bad_profile(context.app_armor_profile.as_ref(), &mut values));
    let allowed = |value: &str| value.is_empty() || value == "runtime/default" || value.starts_with("localhost/");
    let annotated: BTreeSet<(&str, &str)> =
        annotations.into_iter().filter(|(key, value)| key.starts_with(APP_ARMOR_PREFIX) && !allowed(value)).collect();

    let mut parts = setters.parts();
    if !annotated.is_empty() {
        parts.push(plural("annotation", "annotations", annotated.len()).to_owned());
    }
    if parts.is_empty() {
        return None;
    }
    let count = values.len() + annotated.len();
    // The value is cut, never the key, which says where to look.
    let annotated = annotated.into_iter().map(|(key, value)| {
        let (value, more) = cut(value);
        format!("\"{key}={:?}\"", format!("{value}{more}"))
    });
    Some(format!(
        "{} ({} must not set AppArmor profile type to {})",
        plural("forbidden AppArmor profile", "forbidden AppArmor profiles", count),
        parts.join(" and "),
        joined(values.into_iter().map(quote).chain(annotated)),
    ))
}

/// Whether a profile of either kind is set to anything but the runtime's or the node's own; remembers to what.
pub(super) fn bad_profile<'s>(profile: Option<&'s Profile<'_>>, values: &mut BTreeSet<&'s str>) -> bool {
    let Some(kind) = profile.map(|profile| &*profile.kind) else { return false };
    let bad = !matches!(kind, "RuntimeDefault" | "Localhost");
    if bad {
        values.insert(kind);
    }
    bad
}

pub(super) fn capabilities(spec: &SecurityShape<'_>) -> Option<String> {
    let detail = added_capabilities(spec, &CAPABILITIES)?;
    Some(format!("non-default capabilities ({detail})"))
}

/// Which containers add what they may not.
pub(super) fn added_capabilities(spec: &SecurityShape<'_>, allowed: &[&str]) -> Option<String> {
    let (adding, added) = spec.found(|container| {
        let added = container.security_context.capabilities.add.iter().map(|name| &**name);
        added.filter(|name| !allowed.contains(name))
    });
    if adding.is_empty() {
        return None;
    }
    let (adding, added) = (containers(&adding), quoted(added));
    Some(format!("{adding} must not include {added} in securityContext.capabilities.add"))
}

pub(super) fn host_namespaces(spec: &SecurityShape<'_>) -> Option<String> {
    let shared =
        [(spec.host_network, "hostNetwork=true"), (spec.host_pid, "hostPID=true"), (spec.host_ipc, "hostIPC=true")];
    let shared: Vec<&str> = shared.into_iter().filter(|(set, _)| *set).map(|(_, words)| words).collect();
    (!shared.is_empty()).then(|| format!("host namespaces ({})", listed(shared)))
}

pub(super) fn host_path_volumes(spec: &SecurityShape<'_>) -> Option<String> {
    let from_host = spec.volumes.iter().filter(|volume| volume.sources.iter().any(|source| &**source == "hostPath"));
    let names: Vec<&str> = from_host.map(|volume| &*volume.name).collect();
    let word = plural("volume", "volumes", names.len());
    (!names.is_empty()).then(|| format!("hostPath volumes ({word} {})", quoted(names)))
}

pub(super) fn host_ports(spec: &SecurityShape<'_>) -> Option<String> {
    // As text, because Kubernetes sorts them so.
    let (using, ports) = spec.found(|container| {
        let ports = container.ports.iter().map(|port| port.host_port);
        ports.filter(|port| *port != 0).map(|port| port.to_string())
    });
    if using.is_empty() {
        return None;
    }
    let uses = plural("uses", "use", using.len());
    let word = plural("hostPort", "hostPorts", ports.len());
    let ports = listed(ports.iter().map(String::as_str));
    Some(format!("hostPort ({} {uses} {word} {ports})", containers(&using)))
}

/// A probe is sent by the kubelet, from the host's network: to the pod only.
pub(super) fn handler_hosts(spec: &SecurityShape<'_>) -> Option<String> {
    let (mut using, hosts) = spec.found(Container::handler_hosts);
    if using.is_empty() {
        return None;
    }
    // Here alone Kubernetes sorts the containers.
    using.sort_unstable();
    let uses = plural("uses", "use", using.len());
    let word = plural("probe or lifecycle host", "probe or lifecycle hosts", hosts.len());
    Some(format!("probe or lifecycle host ({} {uses} {word} {})", containers(&using), quoted(hosts)))
}

pub(super) fn privileged(spec: &SecurityShape<'_>) -> Option<String> {
    let bad = spec.offenders(|container| container.security_context.privileged);
    (!bad.is_empty()).then(|| format!("privileged ({} must not set securityContext.privileged=true)", containers(&bad)))
}

/// Since 1.35 free in a user namespace, whose users do not exist on the host.
pub(super) fn proc_mount(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.in_user_namespace() { None } else { proc_mount_anywhere(spec) }
}

pub(super) fn proc_mount_anywhere(spec: &SecurityShape<'_>) -> Option<String> {
    let (bad, kinds) = spec.found(|container| {
        let kind = container.security_context.proc_mount.as_deref();
        kind.filter(|kind| *kind != "Default").into_iter()
    });
    let message =
        || format!("procMount ({} must not set securityContext.procMount to {})", containers(&bad), quoted(kinds));
    (!bad.is_empty()).then(message)
}

pub(super) fn selinux(spec: &SecurityShape<'_>) -> Option<String> {
    let (mut kinds, mut user, mut role) = (BTreeSet::new(), false, false);
    let setters = Setters::of(spec, |context| {
        let options = &context.se_linux_options;
        let (has_user, has_role) = (!options.user.is_empty(), !options.role.is_empty());
        let kind = Some(&*options.kind).filter(|kind| !SELINUX_TYPES.contains(kind));
        kinds.extend(kind);
        user |= has_user;
        role |= has_role;
        kind.is_some() || has_user || has_role
    });
    if setters.is_empty() {
        return None;
    }
    let mut details = Vec::new();
    if !kinds.is_empty() {
        details.push(format!("{} {}", plural("type", "types", kinds.len()), quoted(kinds)));
    }
    details.extend(user.then(|| "user may not be set".to_owned()));
    details.extend(role.then(|| "role may not be set".to_owned()));
    let details = details.join("; ");
    Some(format!("seLinuxOptions ({} set forbidden securityContext.seLinuxOptions: {details})", setters.words()))
}

pub(super) fn seccomp(spec: &SecurityShape<'_>) -> Option<String> {
    let mut kinds = BTreeSet::new();
    let setters = Setters::of(spec, |context| bad_profile(context.seccomp_profile.as_ref(), &mut kinds));
    let message = || {
        let (who, kinds) = (setters.words(), quoted(kinds));
        format!("seccompProfile ({who} must not set securityContext.seccompProfile.type to {kinds})")
    };
    (!setters.is_empty()).then(message)
}

pub(super) fn sysctls(spec: &SecurityShape<'_>) -> Option<String> {
    let names = spec.security_context.sysctls.iter().map(|sysctl| &*sysctl.name);
    let bad: Vec<&str> = names.filter(|name| !SYSCTLS.contains(name)).collect();
    (!bad.is_empty()).then(|| format!("forbidden sysctls ({})", listed(bad)))
}

pub(super) fn windows_host_process(spec: &SecurityShape<'_>) -> Option<String> {
    let setters = Setters::of(spec, |context| context.windows_options.host_process);
    let message =
        || format!("hostProcess ({} must not set securityContext.windowsOptions.hostProcess=true)", setters.words());
    (!setters.is_empty()).then(message)
}
