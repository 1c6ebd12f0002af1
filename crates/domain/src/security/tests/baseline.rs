//! Tests of the checks that both levels make, and for how restricted sharpens some of them.
//! They must not depend on other checks: the pod they change meets every standard.

use serde_json::{Value, json};

use super::{allowed, forbidden, judge, never, pod};
use crate::security::Level;

#[test]
fn host_namespaces_are_not_shared() {
    allowed(&[("/hostNetwork", json!(false)), ("/hostPID", json!(false)), ("/hostIPC", json!(false))]);
    never(&[("/hostNetwork", json!(true))], "host namespaces (hostNetwork=true)");
    never(&[("/hostIPC", json!(true)), ("/hostPID", json!(true))], "host namespaces (hostPID=true, hostIPC=true)");
}

#[test]
fn privileged_containers_are_forbidden() {
    allowed(&[("/containers/0/securityContext/privileged", json!(false))]);
    never(
        &[("/containers/0/securityContext/privileged", json!(true))],
        r#"privileged (container "c" must not set securityContext.privileged=true)"#,
    );
}

#[test]
fn windows_host_processes_are_forbidden() {
    let on = |at: &'static str, value: bool| (at, json!({ "hostProcess": value }));
    let (pod, container) = ("/securityContext/windowsOptions", "/containers/0/securityContext/windowsOptions");
    allowed(&[on(pod, false), on(container, false)]);
    let words = "must not set securityContext.windowsOptions.hostProcess=true";
    never(&[on(pod, true)], &format!("hostProcess (pod {words})"));
    never(&[on(pod, true), on(container, true)], &format!(r#"hostProcess (pod and container "c" {words})"#));
}

#[test]
fn baseline_lets_only_default_capabilities_be_added_and_restricted_only_one() {
    let add = |names: &[&str]| [("/containers/0/securityContext/capabilities/add", json!(names))];
    allowed(&add(&[]));
    allowed(&add(&["NET_BIND_SERVICE"]));
    let words =
        |names: &str| format!(r#"(container "c" must not include {names} in securityContext.capabilities.add)"#);
    forbidden(&add(&["CHOWN"]), "", &format!("unrestricted capabilities {}", words(r#""CHOWN""#)));
    forbidden(
        &add(&["SYS_ADMIN", "NET_RAW", "KILL"]),
        &format!("non-default capabilities {}", words(r#""NET_RAW", "SYS_ADMIN""#)),
        &format!("unrestricted capabilities {}", words(r#""KILL", "NET_RAW", "SYS_ADMIN""#)),
    );
}

#[test]
fn host_ports_are_forbidden() {
    let ports = |ports: &[i32]| {
        let port = |port: &i32| json!({ "containerPort": 80, "hostPort": port });
        [("/containers/0/ports", Value::from(ports.iter().map(port).collect::<Vec<_>>()))]
    };
    allowed(&ports(&[0]));
    never(&ports(&[8080]), r#"hostPort (container "c" uses hostPort 8080)"#);
    never(&ports(&[9090, 0, 443]), r#"hostPort (container "c" uses hostPorts 443, 9090)"#);
}

#[test]
fn probes_and_lifecycle_handlers_go_to_the_pod_itself() {
    let http = |host: &str| json!({ "httpGet": { "port": 80, "host": host } });
    let tcp = |host: &str| json!({ "tcpSocket": { "port": 80, "host": host } });
    let at = |field: &str| format!("/containers/0/{field}");
    allowed(&[(&at("livenessProbe"), http("")), (&at("startupProbe"), json!({ "tcpSocket": { "port": 80 } }))]);
    for field in ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/postStart", "lifecycle/preStop"] {
        let message = r#"probe or lifecycle host (container "c" uses probe or lifecycle host "10.0.0.1")"#;
        never(&[(&at(field), http("10.0.0.1"))], message);
        never(&[(&at(field), tcp("10.0.0.1"))], message);
    }
    never(
        &[(&at("livenessProbe"), http("b")), (&at("lifecycle/preStop"), tcp("a"))],
        r#"probe or lifecycle host (container "c" uses probe or lifecycle hosts "a", "b")"#,
    );
}

#[test]
fn app_armor_is_not_switched_off_by_field() {
    let (pod, container) = ("/securityContext/appArmorProfile", "/containers/0/securityContext/appArmorProfile");
    let profile = |kind: &str| json!({ "type": kind });
    allowed(&[(pod, profile("RuntimeDefault")), (container, profile("Localhost"))]);
    never(
        &[(pod, profile("Unconfined"))],
        r#"forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")"#,
    );
    never(
        &[(pod, profile("")), (container, profile("Unconfined"))],
        r#"forbidden AppArmor profiles (pod and container "c" must not set AppArmor profile type to "", "Unconfined")"#,
    );
}

#[test]
fn app_armor_is_not_switched_off_by_annotation() {
    let c = "container.apparmor.security.beta.kubernetes.io/c";
    for value in ["", "runtime/default", "localhost/mine"] {
        assert_eq!(judge(Level::Restricted, &pod(&[]), &[(c, value), ("other", "unconfined")]), "");
    }
    assert_eq!(
        judge(Level::Baseline, &pod(&[]), &[(c, "unconfined")]),
        r#"forbidden AppArmor profile (annotation must not set AppArmor profile type to "container.apparmor.security.beta.kubernetes.io/c="unconfined"")"#,
    );
    assert_eq!(judge(Level::Privileged, &pod(&[]), &[(c, "unconfined")]), "");
}

#[test]
fn selinux_keeps_to_container_types_without_user_and_role() {
    let (pod, container) = ("/securityContext/seLinuxOptions", "/containers/0/securityContext/seLinuxOptions");
    for kind in ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"] {
        allowed(&[(pod, json!({ "type": kind, "level": "s0" })), (container, json!({ "type": kind }))]);
    }
    never(
        &[(pod, json!({ "type": "spc_t" }))],
        r#"seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "spc_t")"#,
    );
    never(
        &[(pod, json!({ "type": "b", "role": "r" })), (container, json!({ "type": "a", "user": "u" }))],
        r#"seLinuxOptions (pod and container "c" set forbidden securityContext.seLinuxOptions: types "a", "b"; user may not be set; role may not be set)"#,
    );
}

#[test]
fn proc_stays_masked_unless_baseline_sees_a_user_namespace() {
    let mount = |kind: &str| ("/containers/0/securityContext/procMount", json!(kind));
    allowed(&[mount("Default")]);
    let message = r#"procMount (container "c" must not set securityContext.procMount to "Unmasked")"#;
    never(&[mount("Unmasked")], message);
    never(&[mount("Unmasked"), ("/hostUsers", json!(true))], message);
    forbidden(&[mount("Unmasked"), ("/hostUsers", json!(false))], "", message);
}

#[test]
fn only_isolated_sysctls_are_set() {
    let sysctls = |names: &[&str]| {
        let sysctl = |name: &&str| json!({ "name": name, "value": "1" });
        [("/securityContext/sysctls", Value::from(names.iter().map(sysctl).collect::<Vec<_>>()))]
    };
    allowed(&sysctls(&[
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
    ]));
    never(&sysctls(&["net.core.somaxconn", "kernel.msgmax"]), "forbidden sysctls (net.core.somaxconn, kernel.msgmax)");
}
