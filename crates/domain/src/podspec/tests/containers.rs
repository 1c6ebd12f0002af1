//! Tests of what all containers get, also those that are added to a running pod.
//! They must not compare whole pods: that is done by the tables.

use super::*;

fn names_and_values(env: &Value) -> Vec<(&str, &str)> {
    env.as_array().unwrap().iter().map(|env| (env["name"].as_str().unwrap(), env["value"].as_str().unwrap())).collect()
}

#[test]
fn containers_find_the_virtual_api_server_or_none() {
    let spec = json!({
        "containers": [{ "name": "a" }, { "name": "b", "env": [{ "name": "MINE", "value": "$(KUBERNETES_SERVICE_HOST)" }] }],
        "initContainers": [{ "name": "i", "env": null }],
    });
    let reached = render_copy(&vpod("web", &spec), &reaching()).unwrap()["spec"].take();
    let ours = [
        ("KUBERNETES_SERVICE_HOST", "api.virtual"),
        ("KUBERNETES_SERVICE_PORT", "6443"),
        ("KUBERNETES_SERVICE_PORT_HTTPS", "6443"),
    ];
    assert_eq!(names_and_values(&reached["containers"][0]["env"]), ours);
    assert_eq!(names_and_values(&reached["initContainers"][0]["env"]), ours);
    let with_own: Vec<_> = ours.into_iter().chain([("MINE", "$(KUBERNETES_SERVICE_HOST)")]).collect();
    assert_eq!(names_and_values(&reached["containers"][1]["env"]), with_own, "variables that others use come first");

    let alone = copy_of(&spec)["spec"].take();
    assert_eq!(names_and_values(&alone["containers"][0]["env"]), [("KUBERNETES_SERVICE_HOST", "")]);
}

#[test]
fn a_container_that_names_an_api_server_itself_keeps_it() {
    let own = json!([{ "name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1" }, { "name": "KUBERNETES_SERVICE_PORT", "value": "443" }]);
    let spec = json!({ "containers": [{ "name": "a", "env": own }] });
    assert_eq!(copy_of(&spec)["spec"]["containers"][0]["env"], own);
    let reached = render_copy(&vpod("web", &spec), &reaching()).unwrap();
    let env = names_and_values(&reached["spec"]["containers"][0]["env"]);
    assert_eq!(
        env,
        [
            ("KUBERNETES_SERVICE_PORT_HTTPS", "6443"),
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "443")
        ]
    );
}

#[test]
fn ephemeral_containers_are_rewritten_like_others_and_never_created_with_the_pod() {
    let debug = json!({
        "name": "debug", "image": "busybox", "targetContainerName": "app", "newInEphemeral": 1e-7,
        "env": [
            { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "db", "key": "password" } } },
        ],
        "envFrom": [{ "configMapRef": { "name": "settings" } }],
        "volumeMounts": [{ "name": "kube-api-access-x", "mountPath": "/token" }, { "name": "data", "mountPath": "/data" }],
    });
    let injected = json!({ "name": "kube-api-access-x", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } });
    let spec = json!({ "volumes": [injected], "containers": [{ "name": "app" }], "ephemeralContainers": [debug] });
    let pod = vpod("web", &spec);
    assert_eq!(render_copy(&pod, &frame()).unwrap()["spec"].get("ephemeralContainers"), None);
    assert_eq!(
        render_ephemeral_containers(&pod, &frame()).unwrap(),
        json!([{
            "name": "debug", "image": "busybox", "targetContainerName": "app", "newInEphemeral": 1e-7,
            "env": [
                { "name": "KUBERNETES_SERVICE_HOST", "value": "" },
                { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.annotations['tapestry.io/virtual-pod-name']" } } },
                { "name": "PASSWORD", "valueFrom": { "secretKeyRef": { "name": "mapped-secret-db", "key": "password" } } },
            ],
            "envFrom": [{ "configMapRef": { "name": "mapped-configmap-settings" } }],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        }])
    );
    let mounts = &render_ephemeral_containers(&pod, &reaching()).unwrap()[0]["volumeMounts"];
    assert_eq!(mounts, &debug["volumeMounts"]);
    for none in [json!({}), json!({ "ephemeralContainers": null }), json!({ "ephemeralContainers": [] })] {
        assert_eq!(render_ephemeral_containers(&vpod("web", &none), &frame()).unwrap(), json!([]));
    }
}
