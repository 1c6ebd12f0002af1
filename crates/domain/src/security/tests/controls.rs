//! One allowed and one denied case for every check there is, and in every list of containers.
//! They must not leave a check out: the list of checks is compared with the cases.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::pod;
use crate::security::{CHECKS, Level, check_pod};

/// The names of the checks that a spec does not pass.
fn failed(level: Level, spec: &str) -> Vec<&'static str> {
    let pod = format!(r#"{{"metadata":{{"name":"web"}},"spec":{spec}}}"#);
    check_pod(level, &pod).unwrap().into_iter().map(|violation| violation.check).collect()
}

/// Of a container's field: what is allowed, what is denied, by which check at the baseline and by which at restricted.
type Case = (&'static str, Value, Value, Option<&'static str>, &'static str);

fn container_cases() -> Vec<Case> {
    let both = |field, good, bad, check| (field, good, bad, Some(check), check);
    let profile = |kind: &str| json!({ "type": kind });
    let probe = |host: &str| json!({ "httpGet": { "port": 80, "host": host } });
    vec![
        both("securityContext/privileged", json!(false), json!(true), "privileged"),
        both("ports", json!([{ "containerPort": 1 }]), json!([{ "containerPort": 1, "hostPort": 1 }]), "hostPorts"),
        both("livenessProbe", probe(""), probe("10.0.0.1"), "hostProbesAndHostLifecycle"),
        both("securityContext/seLinuxOptions", json!({ "level": "s0" }), json!({ "type": "spc_t" }), "seLinuxOptions"),
        both(
            "securityContext/windowsOptions",
            json!({ "hostProcess": false }),
            json!({ "hostProcess": true }),
            "windowsHostProcess",
        ),
        both("securityContext/appArmorProfile", profile("RuntimeDefault"), profile("Unconfined"), "appArmorProfile"),
        ("securityContext/procMount", json!("Default"), json!("Unmasked"), Some("procMount"), "procMount_restricted"),
        (
            "securityContext/capabilities/add",
            json!(["NET_BIND_SERVICE"]),
            json!(["SYS_ADMIN"]),
            Some("capabilities_baseline"),
            "capabilities_restricted",
        ),
        ("securityContext/capabilities/drop", json!(["ALL"]), json!(["KILL"]), None, "capabilities_restricted"),
        (
            "securityContext/seccompProfile",
            profile("Localhost"),
            profile("Unconfined"),
            Some("seccompProfile_baseline"),
            "seccompProfile_restricted",
        ),
        ("securityContext/allowPrivilegeEscalation", json!(false), json!(true), None, "allowPrivilegeEscalation"),
        ("securityContext/runAsNonRoot", json!(true), json!(false), None, "runAsNonRoot"),
        ("securityContext/runAsUser", json!(1000), json!(0), None, "runAsUser"),
    ]
}

fn pod_cases() -> Vec<Case> {
    let volume = |source: &str| json!([{ "name": "v", source: {} }]);
    vec![
        ("/hostNetwork", json!(false), json!(true), Some("hostNamespaces"), "hostNamespaces"),
        ("/hostPID", json!(false), json!(true), Some("hostNamespaces"), "hostNamespaces"),
        ("/hostIPC", json!(false), json!(true), Some("hostNamespaces"), "hostNamespaces"),
        ("/volumes", volume("emptyDir"), volume("hostPath"), Some("hostPathVolumes"), "restrictedVolumes"),
        ("/volumes", volume("csi"), volume("nfs"), None, "restrictedVolumes"),
        (
            "/securityContext/sysctls",
            json!([{ "name": "net.ipv4.tcp_syncookies" }]),
            json!([{ "name": "kernel.msgmax" }]),
            Some("sysctls"),
            "sysctls",
        ),
        (
            "/securityContext/seccompProfile",
            json!({ "type": "RuntimeDefault" }),
            Value::Null,
            None,
            "seccompProfile_restricted",
        ),
        ("/securityContext/runAsNonRoot", json!(true), Value::Null, None, "runAsNonRoot"),
        ("/securityContext/runAsUser", json!(1), json!(0), None, "runAsUser"),
    ]
}

fn judge(at: &str, (_, good, bad, baseline, restricted): &Case, base: &[(&str, Value)]) {
    let with = |value: &Value| {
        let mut changes = base.to_vec();
        changes.push((at, value.clone()));
        pod(&changes)
    };
    let baseline: Vec<_> = baseline.iter().copied().collect();
    assert_eq!(failed(Level::Restricted, &with(good)), [""; 0], "{at}");
    assert_eq!(failed(Level::Baseline, &with(bad)), baseline, "{at}");
    assert_eq!(failed(Level::Restricted, &with(bad)), [*restricted], "{at}");
    assert_eq!(failed(Level::Privileged, &with(bad)), [""; 0], "{at}");
}

#[test]
fn every_check_allows_and_denies_in_every_list_of_containers() {
    let hardened = json!([{ "name": "c", "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }]);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        let base = [(format!("/{list}"), hardened.clone())];
        let base = base.each_ref().map(|(at, value)| (at.as_str(), value.clone()));
        for case in container_cases() {
            judge(&format!("/{list}/0/{}", case.0), &case, &base);
        }
    }
    for case in pod_cases() {
        judge(case.0, &case, &[]);
    }
}

#[test]
fn no_check_is_without_a_case() {
    let cases = container_cases().into_iter().chain(pod_cases());
    let tried: BTreeSet<&str> =
        cases.flat_map(|(.., baseline, restricted)| baseline.into_iter().chain([restricted])).collect();
    let there: BTreeSet<&str> = CHECKS.iter().map(|(check, ..)| *check).chain(["appArmorProfile"]).collect();
    assert_eq!(tried, there);
}

#[test]
fn a_debug_container_that_is_added_later_is_judged_with_its_pod() {
    let mut grown: Value = serde_json::from_str(&pod(&[])).unwrap();
    assert_eq!(failed(Level::Restricted, &grown.to_string()), [""; 0]);
    grown["ephemeralContainers"] = json!([{ "name": "debug", "image": "busybox", "targetContainerName": "c" }]);
    assert_eq!(failed(Level::Baseline, &grown.to_string()), [""; 0]);
    assert_eq!(failed(Level::Restricted, &grown.to_string()), ["allowPrivilegeEscalation", "capabilities_restricted"]);
    grown["ephemeralContainers"][0]["securityContext"] = json!({ "capabilities": { "add": ["SYS_PTRACE"] } });
    assert_eq!(failed(Level::Baseline, &grown.to_string()), ["capabilities_baseline"]);
}

#[test]
fn annotations_of_the_pod_count() {
    let annotated = json!({
        "metadata": { "annotations": { "container.apparmor.security.beta.kubernetes.io/c": "unconfined" } },
        "spec": { "containers": [{ "name": "c" }] },
    });
    let violations = check_pod(Level::Baseline, &annotated.to_string()).unwrap();
    assert_eq!(violations.iter().map(|violation| violation.check).collect::<Vec<_>>(), ["appArmorProfile"]);
    assert_eq!(check_pod(Level::Baseline, r#"{"metadata":{"annotations":null},"spec":{}}"#).unwrap(), []);
}
