//! Tests of the checks that only the restricted level makes.
//! They must not depend on other checks: the pod they change meets every standard.

use serde_json::{Value, json};

use super::{allowed, forbidden, never};

#[test]
fn restricted_wants_all_capabilities_dropped() {
    let words = r#"unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"])"#;
    let drop = "/containers/0/securityContext/capabilities/drop";
    forbidden(&[(drop, json!(["all", "NET_RAW"]))], "", words);
    forbidden(&[("/containers/0/securityContext/capabilities", Value::Null)], "", words);
    allowed(&[(drop, json!(["NET_RAW", "ALL"]))]);
}

#[test]
fn restricted_knows_the_volume_types_that_reach_no_host() {
    let volumes = |sources: &[&str]| {
        let volume = |source: &&str| json!({ "name": format!("v-{source}"), *source: {} });
        [("/volumes", Value::from(sources.iter().map(volume).collect::<Vec<_>>()))]
    };
    allowed(&volumes(&["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"]));
    allowed(&volumes(&["image", "persistentVolumeClaim", "projected", "secret"]));
    forbidden(
        &volumes(&["hostPath"]),
        r#"hostPath volumes (volume "v-hostPath")"#,
        r#"restricted volume types (volume "v-hostPath" uses restricted volume type "hostPath")"#,
    );
    forbidden(
        &volumes(&["nfs", "emptyDir", "gitRepo"]),
        "",
        r#"restricted volume types (volumes "v-nfs", "v-gitRepo" use restricted volume types "gitRepo", "nfs")"#,
    );
    forbidden(
        &[("/volumes", json!([{ "name": "v" }]))],
        "",
        r#"restricted volume types (volume "v" uses restricted volume type "unknown")"#,
    );
}

#[test]
fn a_harmless_source_does_not_hide_another() {
    forbidden(
        &[("/volumes", json!([{ "name": "v", "hostPath": {}, "emptyDir": {} }]))],
        r#"hostPath volumes (volume "v")"#,
        r#"restricted volume types (volume "v" uses restricted volume type "hostPath")"#,
    );
}

#[test]
fn a_volume_type_that_is_newer_than_this_code_is_not_restricted_enough() {
    forbidden(
        &[("/volumes", json!([{ "hostMagic": {}, "name": "v" }]))],
        "",
        r#"restricted volume types (volume "v" uses restricted volume type "hostMagic")"#,
    );
}

#[test]
fn seccomp_is_not_switched_off_and_restricted_wants_it_set() {
    let (pod, container) = ("/securityContext/seccompProfile", "/containers/0/securityContext/seccompProfile");
    let profile = |kind: &str| json!({ "type": kind });
    allowed(&[(container, profile("Localhost"))]);
    allowed(&[(pod, Value::Null), (container, profile("RuntimeDefault"))]);
    let words = "must not set securityContext.seccompProfile.type to";
    never(&[(pod, profile("Unconfined"))], &format!(r#"seccompProfile (pod {words} "Unconfined")"#));
    never(&[(container, profile(""))], &format!(r#"seccompProfile (container "c" {words} "")"#));
    forbidden(
        &[(pod, Value::Null)],
        "",
        r#"seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")"#,
    );
}

#[test]
fn restricted_forbids_privilege_escalation() {
    let message =
        r#"allowPrivilegeEscalation != false (container "c" must set securityContext.allowPrivilegeEscalation=false)"#;
    for value in [json!(true), Value::Null] {
        forbidden(&[("/containers/0/securityContext/allowPrivilegeEscalation", value)], "", message);
    }
}

#[test]
fn restricted_allows_root_only_in_a_user_namespace() {
    let (pod, container) = ("/securityContext/runAsNonRoot", "/containers/0/securityContext/runAsNonRoot");
    allowed(&[(pod, Value::Null), (container, json!(true))]);
    allowed(&[(pod, json!(false)), (container, json!(false)), ("/hostUsers", json!(false))]);
    allowed(&[(pod, Value::Null), ("/hostUsers", json!(false))]);
    let explicit = "must not set securityContext.runAsNonRoot=false";
    forbidden(&[(container, json!(false))], "", &format!(r#"runAsNonRoot != true (container "c" {explicit})"#));
    forbidden(&[(pod, json!(false)), (container, json!(true))], "", &format!("runAsNonRoot != true (pod {explicit})"));
    forbidden(
        &[(pod, Value::Null)],
        "",
        r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#,
    );
}

#[test]
fn restricted_forbids_user_0_unless_in_a_user_namespace() {
    let (pod, container) = ("/securityContext/runAsUser", "/containers/0/securityContext/runAsUser");
    allowed(&[(pod, json!(1000)), (container, json!(1))]);
    allowed(&[(pod, json!(0)), (container, json!(0)), ("/hostUsers", json!(false))]);
    forbidden(&[(pod, json!(0))], "", "runAsUser=0 (pod must not set runAsUser=0)");
    forbidden(&[(container, json!(0))], "", r#"runAsUser=0 (container "c" must not set runAsUser=0)"#);
}

#[test]
fn restricted_asks_a_windows_pod_for_nothing_that_windows_does_not_know() {
    let bare = [
        ("/securityContext/seccompProfile", Value::Null),
        ("/containers/0/securityContext", Value::Null),
        ("/os", json!({ "name": "windows" })),
    ];
    allowed(&bare);
    let mut as_root = bare.to_vec();
    as_root.push(("/securityContext/runAsNonRoot", Value::Null));
    forbidden(
        &as_root,
        "",
        r#"runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)"#,
    );
}
