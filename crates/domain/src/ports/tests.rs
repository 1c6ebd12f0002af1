//! Tests of host ports.
//! They must not count a port that kube-scheduler does not count.

use super::*;

fn ports(spec: &str) -> HostPorts {
    serde_json::from_str(spec).unwrap()
}

/// A pod with one container with one host port.
fn takes(port: &str) -> HostPorts {
    ports(&format!(r#"{{"containers":[{{"ports":[{port}]}}]}}"#))
}

fn shown(spec: &str) -> Vec<String> {
    ports(spec).iter().map(HostPort::to_string).collect()
}

#[test]
fn a_pod_without_host_ports_costs_two_words() {
    for spec in ["{}", r#"{"containers":null}"#, r#"{"containers":[{"ports":[{"containerPort":80,"hostPort":0}]}]}"#] {
        assert!(ports(spec).is_empty(), "{spec}");
    }
    assert_eq!(size_of::<HostPorts>(), 16);
    assert!(size_of::<HostPort>() <= 24);
}

#[test]
fn containers_and_sidecars_count_but_not_init_containers_that_end() {
    let spec = r#"{
        "initContainers":[
            {"restartPolicy":"Always","ports":[{"hostPort":1,"containerPort":9}]},
            {"ports":[{"hostPort":2}]},
            {"restartPolicy":"OnFailure","ports":[{"hostPort":3}]}],
        "containers":[{"ports":[{"hostPort":4,"protocol":"UDP"},{"containerPort":5}]},{"ports":null},{"ports":[{"hostPort":6,"hostIP":"10.0.0.1"}]}]}"#;
    assert_eq!(shown(spec), ["1/TCP", "4/UDP", "6/TCP of 10.0.0.1"]);
}

#[test]
fn on_the_hosts_network_every_container_port_is_a_host_port() {
    let spec = r#"{"hostNetwork":true,
        "initContainers":[{"restartPolicy":"Always","ports":[{"containerPort":81}]},{"ports":[{"containerPort":82}]}],
        "containers":[{"ports":[{"containerPort":80},{"containerPort":443,"hostPort":443}]}]}"#;
    assert_eq!(shown(spec), ["81/TCP", "80/TCP", "443/TCP"]);
}

#[test]
fn an_invalid_port_is_not_taken() {
    assert!(takes(r#"{"hostPort":-1}"#).is_empty());
    assert!(takes(r#"{"hostPort":65536}"#).is_empty());
    assert!(takes(r#"{"hostPort":null,"hostIP":null,"protocol":null}"#).is_empty());
}

#[test]
fn two_pods_conflict_where_they_take_the_same_port_of_the_same_address() {
    for (one, other, conflict) in [
        (r#"{"hostPort":80}"#, r#"{"hostPort":80}"#, true),
        (r#"{"hostPort":80}"#, r#"{"hostPort":81}"#, false),
        (r#"{"hostPort":80}"#, r#"{"hostPort":80,"protocol":"TCP"}"#, true),
        (r#"{"hostPort":80,"protocol":""}"#, r#"{"hostPort":80,"protocol":"TCP"}"#, true),
        (r#"{"hostPort":80}"#, r#"{"hostPort":80,"protocol":"UDP"}"#, false),
        (r#"{"hostPort":80,"protocol":"SCTP"}"#, r#"{"hostPort":80,"protocol":"SCTP"}"#, true),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":"10.0.0.2"}"#, false),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, true),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80}"#, true),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":""}"#, true),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":"0.0.0.0"}"#, true),
        (r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":"::"}"#, true),
        (r#"{"hostPort":80,"hostIP":"fd00::1"}"#, r#"{"hostPort":80,"hostIP":"fd00:0::0:1"}"#, true),
        (r#"{"hostPort":80,"hostIP":"fd00::1"}"#, r#"{"hostPort":80,"hostIP":"fd00::2"}"#, false),
        (r#"{"hostPort":80,"hostIP":"::ffff:10.0.0.1"}"#, r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, true),
        (r#"{"hostPort":80,"hostIP":"::ffff:0.0.0.0"}"#, r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, true),
        (r#"{"hostPort":80,"hostIP":"nonsense"}"#, r#"{"hostPort":80,"hostIP":"nonsense"}"#, true),
        (r#"{"hostPort":80,"hostIP":"nonsense"}"#, r#"{"hostPort":80,"hostIP":"10.0.0.1"}"#, false),
    ] {
        let (one, other) = (takes(one), takes(other));
        assert_eq!(one.conflicts_with(&other).is_some(), conflict, "{one:?} {other:?}");
        assert_eq!(other.conflicts_with(&one).is_some(), conflict, "{other:?} {one:?}");
    }
}

#[test]
fn the_port_that_is_taken_is_named() {
    let ours = ports(r#"{"containers":[{"ports":[{"hostPort":80},{"hostPort":443,"hostIP":"10.0.0.1"}]}]}"#);
    let theirs = ports(r#"{"containers":[{"ports":[{"hostPort":9},{"hostPort":443}]}]}"#);
    assert_eq!(ours.conflicts_with(&theirs).unwrap().to_string(), "443/TCP of 10.0.0.1");
    assert_eq!(theirs.conflicts_with(&ours).unwrap().to_string(), "443/TCP");
    assert_eq!(ours.conflicts_with(&HostPorts::default()), None);
}
