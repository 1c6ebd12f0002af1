//! Tests of the Pod Security Standards: hand-made cases for each check and agreement with Kubernetes' own code.
//! They must not know how a check finds what it finds.

mod baseline;
mod controls;
mod restricted;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::*;

/// What is wrong with a pod, worded as Kubernetes does when it refuses one.
fn judge(level: Level, spec: &str, annotations: &[(&str, &str)]) -> String {
    let spec: SecurityShape<'_> = serde_json::from_str(spec).unwrap();
    let violations = check(level, &spec, annotations.iter().copied());
    violations.iter().map(Violation::to_string).collect::<Vec<_>>().join(", ")
}

/// A pod that meets every standard, with changes at JSON pointers.
fn pod(changes: &[(&str, Value)]) -> String {
    let mut spec = json!({
        "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{
            "name": "c",
            "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        }],
    });
    for (pointer, value) in changes {
        let mut place = &mut spec;
        for step in pointer.split('/').skip(1) {
            place = match step.parse::<usize>() {
                Ok(index) => &mut place[index],
                Err(_) => &mut place[step],
            };
        }
        *place = value.clone();
    }
    spec.to_string()
}

fn allowed(changes: &[(&str, Value)]) {
    forbidden(changes, "", "");
}

fn forbidden(changes: &[(&str, Value)], baseline: &str, restricted: &str) {
    let spec = pod(changes);
    assert_eq!(judge(Level::Privileged, &spec, &[]), "", "privileged: {spec}");
    assert_eq!(judge(Level::Baseline, &spec, &[]), baseline, "baseline: {spec}");
    assert_eq!(judge(Level::Restricted, &spec, &[]), restricted, "restricted: {spec}");
}

/// At both levels.
fn never(changes: &[(&str, Value)], message: &str) {
    forbidden(changes, message, message);
}

/// Vectors written by `vectors/security.go`, which links pod-security-admission.
#[test]
fn pods_are_judged_as_in_kubernetes() {
    #[derive(Deserialize)]
    struct Vector<'a> {
        #[serde(borrow)]
        spec: &'a RawValue,
        annotations: BTreeMap<String, String>,
        baseline: String,
        restricted: String,
    }
    let mut lines = 0;
    for line in include_str!("../../vectors/security.jsonl").lines() {
        let vector: Vector<'_> = serde_json::from_str(line).unwrap();
        let annotations: Vec<_> = vector.annotations.iter().map(|(key, value)| (&**key, &**value)).collect();
        let spec = vector.spec.get();
        assert_eq!(judge(Level::Baseline, spec, &annotations), vector.baseline, "{line}");
        assert_eq!(judge(Level::Restricted, spec, &annotations), vector.restricted, "{line}");
        lines += 1;
    }
    assert!(lines >= 160);
}

#[test]
fn a_hardened_pod_meets_every_level_and_an_empty_one_only_the_baseline() {
    allowed(&[]);
    forbidden(
        &[("/securityContext", Value::Null), ("/containers/0/securityContext", Value::Null)],
        "",
        concat!(
            r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false), "#,
            r#"unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"]), "#,
            r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true), "#,
            r#"seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
        ),
    );
}

#[test]
fn a_violation_names_the_check_as_kubernetes_does() {
    let spec = pod(&[("/hostPID", json!(true)), ("/containers/0/securityContext/procMount", json!("Unmasked"))]);
    let spec: SecurityShape<'_> = serde_json::from_str(&spec).unwrap();
    let names = |level| check(level, &spec, []).iter().map(|violation| violation.check).collect::<Vec<_>>();
    assert_eq!(names(Level::Baseline), ["hostNamespaces", "procMount"]);
    assert_eq!(names(Level::Restricted), ["hostNamespaces", "procMount_restricted"]);
}

#[test]
fn null_means_absent_everywhere() {
    let context = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "add": null, "drop": ["ALL"] }, "appArmorProfile": null,
        "privileged": null, "procMount": null, "runAsUser": null, "seLinuxOptions": null, "windowsOptions": null,
    });
    allowed(&[
        ("/hostNetwork", Value::Null),
        ("/hostUsers", Value::Null),
        ("/os", Value::Null),
        ("/volumes", json!([{ "name": "v", "emptyDir": {}, "hostPath": null }])),
        ("/initContainers", Value::Null),
        ("/ephemeralContainers", Value::Null),
        ("/securityContext/sysctls", Value::Null),
        ("/containers/0/securityContext", context),
        ("/containers/0/ports", json!([{ "containerPort": 80, "hostPort": null }])),
        ("/containers/0/lifecycle", json!({ "preStop": null, "postStart": { "httpGet": null } })),
    ]);
}

#[test]
fn init_and_ephemeral_containers_count_and_init_containers_come_first() {
    let privileged = |name: &str| {
        json!([{ "name": name, "securityContext": {
        "privileged": true, "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } } }])
    };
    never(
        &[("/ephemeralContainers", privileged("debug")), ("/initContainers", privileged("init"))],
        r#"privileged (containers "init", "debug" must not set securityContext.privileged=true)"#,
    );
}

#[test]
fn a_pod_cannot_write_a_long_message() {
    let sysctl = |number: usize| json!({ "name": format!("{number}.{}", "x".repeat(1000)) });
    let sysctls = Value::from((0..1000).map(sysctl).collect::<Vec<_>>());
    let message = judge(Level::Baseline, &pod(&[("/securityContext/sysctls", sysctls)]), &[]);
    assert!(message.len() < 1000 && message.ends_with(", …)"), "{message}");
    let annotation = ("container.apparmor.security.beta.kubernetes.io/c", &*"x".repeat(100_000));
    assert!(judge(Level::Baseline, &pod(&[]), &[annotation]).len() < 1000);
}
