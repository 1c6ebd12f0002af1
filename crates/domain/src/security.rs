//! The Pod Security Standards, as Kubernetes' own admission judges pods by them (version `latest` of 1.36).
//! It must not be milder than that admission: a pod in the physical cluster runs on another owner's machines.

mod baseline;
mod restricted;
mod shape;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

pub use self::shape::SecurityShape;
use crate::shape::{Text, nullable};

/// How much a pod may ask of its host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Anything.
    Privileged,
    /// Nothing that is known to lead out of a container.
    Baseline,
    /// Only what a hardened pod asks for, set explicitly.
    Restricted,
}

/// One way in which a pod does not meet a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Kubernetes' name of the check.
    pub check: &'static str,
    /// What is wrong and where, in Kubernetes' words; the part in brackets says what to change. Long lists and values are cut.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Where a check belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Baseline and therefore restricted.
    Both,
    /// Baseline only: restricted has a stricter one in its place.
    Baseline,
    Restricted,
}

/// What a check finds: a message, or nothing.
type Find = fn(&SecurityShape<'_>) -> Option<String>;

/// All but AppArmor's, which comes first and also reads annotations; in the order in which Kubernetes reports them.
const CHECKS: [(&str, At, Find); 18] = [
    ("capabilities_baseline", At::Baseline, baseline::capabilities),
    ("hostNamespaces", At::Both, baseline::host_namespaces),
    ("hostPathVolumes", At::Baseline, baseline::host_path_volumes),
    ("hostPorts", At::Both, baseline::host_ports),
    ("hostProbesAndHostLifecycle", At::Both, baseline::handler_hosts),
    ("privileged", At::Both, baseline::privileged),
    ("procMount", At::Baseline, baseline::proc_mount),
    ("seLinuxOptions", At::Both, baseline::selinux),
    ("seccompProfile_baseline", At::Baseline, baseline::seccomp),
    ("sysctls", At::Both, baseline::sysctls),
    ("windowsHostProcess", At::Both, baseline::windows_host_process),
    ("allowPrivilegeEscalation", At::Restricted, restricted::privilege_escalation),
    ("capabilities_restricted", At::Restricted, restricted::capabilities),
    ("procMount_restricted", At::Restricted, baseline::proc_mount_anywhere),
    ("restrictedVolumes", At::Restricted, restricted::volumes),
    ("runAsNonRoot", At::Restricted, restricted::run_as_non_root),
    ("runAsUser", At::Restricted, restricted::run_as_user),
    ("seccompProfile_restricted", At::Restricted, restricted::seccomp_required),
];

/// How a pod violates a level; empty when it meets it. Init and ephemeral containers count like the others.
///
/// `annotations` are the pod's, all of them: those that choose an AppArmor profile count.
#[must_use]
pub fn check<'t>(
    level: Level,
    spec: &SecurityShape<'_>,
    annotations: impl IntoIterator<Item = (&'t str, &'t str)>,
) -> Vec<Violation> {
    let skipped = match level {
        Level::Privileged => return Vec::new(),
        Level::Baseline => At::Restricted,
        Level::Restricted => At::Baseline,
    };
    let app_armor = baseline::app_armor(spec, annotations);
    let app_armor = app_armor.map(|message| Violation { check: "appArmorProfile", message });
    let others = CHECKS.into_iter().filter(|(_, at, _)| *at != skipped);
    let others = others.filter_map(|(check, _, find)| Some(Violation { check, message: find(spec)? }));
    app_armor.into_iter().chain(others).collect()
}

/// As [`check`], from the JSON of a whole pod: before its copy is created, and before every later push of something that counts,
/// such as ephemeral containers. As in Kubernetes, the whole pod is judged each time, not only what is new.
///
/// The error may repeat content of the pod.
pub fn check_pod(level: Level, pod: &str) -> Result<Vec<Violation>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Pod<'a> {
        #[serde(borrow, default, deserialize_with = "nullable")]
        metadata: Metadata<'a>,
        #[serde(borrow)]
        spec: SecurityShape<'a>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Metadata<'a> {
        #[serde(borrow, deserialize_with = "nullable")]
        annotations: BTreeMap<Text<'a>, Text<'a>>,
    }
    let pod: Pod<'_> = serde_json::from_str(pod)?;
    Ok(check(level, &pod.spec, pod.metadata.annotations.iter().map(|(key, value)| (&**key, &**value))))
}
