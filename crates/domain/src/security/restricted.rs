//! The checks of the restricted standard: a pod must explicitly give up what it does not need.
//! It must not accept an unset field: it counts as the bad value, except on Windows.

use std::collections::BTreeSet;

use super::baseline::{added_capabilities, seccomp};
use super::shape::SecurityShape;
use super::words::{Setters, containers, plural, quoted};

/// Sources that reach only what the API server or a storage class provides.
const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

pub(super) fn privilege_escalation(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.is_windows() {
        return None;
    }
    let bad = spec.offenders(|container| container.security_context.allow_privilege_escalation != Some(false));
    let words = "must set securityContext.allowPrivilegeEscalation=false";
    (!bad.is_empty()).then(|| format!("allowPrivilegeEscalation != false ({} {words})", containers(&bad)))
}

pub(super) fn capabilities(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.is_windows() {
        return None;
    }
    let keeping = spec
        .offenders(|container| !container.security_context.capabilities.drop.iter().any(|dropped| &**dropped == "ALL"));
    let keeping = (!keeping.is_empty())
        .then(|| format!(r#"{} must set securityContext.capabilities.drop=["ALL"]"#, containers(&keeping)));
    let adding = added_capabilities(spec, &["NET_BIND_SERVICE"]);
    let details: Vec<String> = keeping.into_iter().chain(adding).collect();
    (!details.is_empty()).then(|| format!("unrestricted capabilities ({})", details.join("; ")))
}

pub(super) fn volumes(spec: &SecurityShape<'_>) -> Option<String> {
    let (mut names, mut sources) = (Vec::new(), BTreeSet::new());
    for volume in &spec.volumes {
        let unknown = volume.sources.is_empty().then_some("unknown");
        let named = volume.sources.iter().map(|source| &**source).filter(|source| !VOLUMES.contains(source));
        let mut bad = named.chain(unknown).peekable();
        if bad.peek().is_some() {
            names.push(&*volume.name);
            sources.extend(bad);
        }
    }
    if names.is_empty() {
        return None;
    }
    let volumes = plural("volume", "volumes", names.len());
    let uses = plural("uses", "use", names.len());
    let word = plural("restricted volume type", "restricted volume types", sources.len());
    let (names, sources) = (quoted(names), quoted(sources));
    Some(format!("restricted volume types ({volumes} {names} {uses} {word} {sources})"))
}

/// Since 1.35 not required in a user namespace, where root is not root on the host.
pub(super) fn run_as_non_root(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.in_user_namespace() {
        return None;
    }
    let setters = Setters::of(spec, |context| context.run_as_non_root == Some(false));
    if !setters.is_empty() {
        let who = setters.words();
        return Some(format!("runAsNonRoot != true ({who} must not set securityContext.runAsNonRoot=false)"));
    }
    // What the pod says holds for every container that says nothing.
    if spec.security_context.run_as_non_root == Some(true) {
        return None;
    }
    let silent = spec.offenders(|container| container.security_context.run_as_non_root.is_none());
    let words = "must set securityContext.runAsNonRoot=true";
    (!silent.is_empty()).then(|| format!("runAsNonRoot != true (pod or {} {words})", containers(&silent)))
}

/// Since 1.35 not asked in a user namespace.
pub(super) fn run_as_user(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.in_user_namespace() {
        return None;
    }
    let setters = Setters::of(spec, |context| context.run_as_user == Some(0));
    (!setters.is_empty()).then(|| format!("runAsUser=0 ({} must not set runAsUser=0)", setters.words()))
}

pub(super) fn seccomp_required(spec: &SecurityShape<'_>) -> Option<String> {
    if spec.is_windows() {
        return None;
    }
    // Report a bad profile first, as at the baseline; from here on all that are set are good.
    if let Some(bad) = seccomp(spec) {
        return Some(bad);
    }
    if spec.security_context.seccomp_profile.is_some() {
        return None;
    }
    let silent = spec.offenders(|container| container.security_context.seccomp_profile.is_none());
    let words = r#"must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost""#;
    (!silent.is_empty()).then(|| format!("seccompProfile (pod or {} {words})", containers(&silent)))
}
