//! ConfigMaps, Secrets and tokens on real clusters: there before the pod, the same as their source, gone with the last pod.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names;
use tapestry_testbed::eventually;

use crate::harness::{Harness, event_reasons, pattern};
use crate::looks::{SOON, annotation, condition, items, name, phase, text, uid};

pub(crate) fn object(harness: &Harness, kind: &str, name: &str, data: &Value) -> Value {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": harness.name}, field: data})
}

/// The name of the copy of an object in the test's namespace.
pub(crate) async fn copy_name(harness: &Harness, object: &str) -> Result<String> {
    let origin = harness.origin().await?;
    let (cluster, binding) = origin.split_once('/').context("an origin has two parts")?;
    Ok(names::dependent_name(&names::origin_hash(cluster, binding), &harness.name, object))
}

/// The copy of an object in the test's namespace.
pub(crate) async fn copy(harness: &Harness, kind: &str, object: &str) -> Result<Option<Value>> {
    let place = format!("{}/{}", harness.mount, copy_name(harness, object).await?);
    Ok(harness.physical_side.get(&format!("v1/{kind}"), &place).await?)
}

/// Waits until the copy satisfies a condition.
pub(crate) async fn copy_when(
    harness: &Harness,
    kind: &str,
    object: &str,
    what: &str,
    holds: impl Fn(Option<&Value>) -> bool,
) -> Result<()> {
    eventually(&format!("the copy of {kind} {object} {what}"), SOON, async || {
        let copy = copy(harness, kind, object).await.map_err(|error| error.to_string())?;
        if holds(copy.as_ref()) { Ok(()) } else { Err(format!("{copy:?}")) }
    })
    .await
}

/// The volume of a token that a pod asks for itself.
pub(crate) fn token_volume() -> Value {
    let token = json!({"serviceAccountToken": {"path": "token", "audience": "vault", "expirationSeconds": 3600}});
    json!({"name": "vault", "projected": {"sources": [token]}})
}

/// A pod that mounts a ConfigMap and has a Secret in its environment.
fn needy(harness: &Harness, pod: &str) -> Value {
    let volume = json!([{"name": "files", "configMap": {"name": "settings"}}]);
    let env = json!([{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}}]);
    harness.bound(pod).with("/spec/volumes", volume).with("/spec/containers/0/env", env).build()
}

async fn create_both(harness: &Harness) -> Result<()> {
    harness.virtual_side.create(&object(harness, "ConfigMap", "settings", &json!({"a": "1", "b": "2"}))).await?;
    harness.virtual_side.create(&object(harness, "Secret", "login", &json!({"password": "hunter2"}))).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_gets_its_configmap_and_secret_which_follow_their_source_and_go_with_the_last_pod() -> Result<()> {
    pattern("files")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            create_both(harness).await?;
            for pod in ["one", "two"] {
                harness.virtual_side.create(&needy(harness, pod)).await?;
            }
            let (_, ppod) = harness.runs("one").await?;
            harness.runs("two").await?;
            let settings = copy_name(harness, "settings").await?;
            assert_eq!(ppod["spec"]["volumes"][0]["configMap"]["name"], *settings);
            let env = items(&ppod["spec"]["containers"][0]["env"]).iter().find(|env| env["name"] == "PASSWORD");
            let env = env.context("the variable is lost")?;
            assert_eq!(env["valueFrom"]["secretKeyRef"]["name"], *copy_name(harness, "login").await?);
            let login = copy(harness, "Secret", "login").await?.context("no copy")?;
            assert_eq!(login["data"], json!({"password": "aHVudGVyMg=="}));

            let change = json!({"data": {"a": "3", "b": null, "c": "4"}});
            harness.virtual_side.patch("v1/ConfigMap", &harness.at("settings"), &change).await?;
            let followed = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"] == json!({"a": "3", "c": "4"}));
            copy_when(harness, "ConfigMap", "settings", "follows", followed).await?;
            harness.at_peace(&[], SOON).await?;

            harness.virtual_side.delete("v1/Pod", &harness.at("one")).await?;
            harness.gone("one").await?;
            ensure!(copy(harness, "ConfigMap", "settings").await?.is_some(), "another pod uses it");
            harness.virtual_side.delete("v1/Pod", &harness.at("two")).await?;
            harness.gone("two").await?;
            for (kind, object) in [("ConfigMap", "settings"), ("Secret", "login")] {
                copy_when(harness, kind, object, "is gone", |copy| copy.is_none()).await?;
            }
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_12_a_pod_says_which_configmap_is_missing_and_starts_when_it_is_created() -> Result<()> {
    pattern("missing")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&needy(harness, "web")).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "DependentMissing";
            let vpod = harness.vpod_when("web", "says what is missing", refused).await?;
            assert_eq!(phase(&vpod), "Pending");
            eventually("an event about it", SOON, async || {
                let reasons = event_reasons(&harness.virtual_side, &harness.name, "web").await;
                let reasons = reasons.map_err(|error| error.to_string())?;
                if reasons.contains(&"DependentMissing".to_owned()) { Ok(()) } else { Err(format!("{reasons:?}")) }
            })
            .await?;
            create_both(harness).await?;
            harness.runs("web").await?;
            let admitted = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["status"] == "True";
            harness.vpod_when("web", "is admitted", admitted).await.map(drop)
        })
        .await
}

#[tokio::test]
async fn a_changed_copy_is_restored_keys_of_others_stay_and_a_stranger_of_its_name_is_not_touched() -> Result<()> {
    pattern("drifting")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            create_both(harness).await?;
            harness.virtual_side.create(&needy(harness, "web")).await?;
            harness.runs("web").await?;
            let place = format!("{}/{}", harness.mount, copy_name(harness, "settings").await?);
            let change = json!({"data": {"a": "theirs", "extra": "theirs"}});
            harness.physical_side.patch("v1/ConfigMap", &place, &change).await?;
            let wanted = json!({"a": "1", "b": "2", "extra": "theirs"});
            let restored = |copy: Option<&Value>| copy.is_some_and(|copy| copy["data"] == wanted);
            copy_when(harness, "ConfigMap", "settings", "is restored", restored).await?;

            let stranger = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": {"mine": "yes"},
                "metadata": {"name": copy_name(harness, "taken").await?, "namespace": harness.mount},
            });
            harness.physical_side.create(&stranger).await?;
            harness.virtual_side.create(&object(harness, "ConfigMap", "taken", &json!({"a": "1"}))).await?;
            let volume = json!([{"name": "files", "configMap": {"name": "taken"}}]);
            harness.virtual_side.create(&harness.bound("late").with("/spec/volumes", volume).build()).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "DependentConflict";
            harness.vpod_when("late", "says what is in its way", refused).await?;
            let there = copy(harness, "ConfigMap", "taken").await?.context("it is gone")?;
            assert_eq!(there["data"], json!({"mine": "yes"}));
            ensure!(there["metadata"]["labels"].is_null(), "it was marked");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_10_a_token_is_the_virtual_clusters_bound_to_the_virtual_pod_and_goes_with_it() -> Result<()> {
    pattern("token")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let volume = json!([token_volume()]);
            harness.virtual_side.create(&harness.bound("ci").with("/spec/volumes", volume).build()).await?;
            let (vpod, ppod) = harness.runs("ci").await?;
            let source = &ppod["spec"]["volumes"][0]["projected"]["sources"][0]["secret"];
            let place = format!("{}/{}", harness.mount, text(&source["name"]));
            let secret = harness.physical_side.get("v1/Secret", &place).await?.context("no Secret with the token")?;
            let data = secret["data"].as_object().context("no data")?;
            let [encoded] = data.values().collect::<Vec<_>>()[..] else { anyhow::bail!("not one token: {}", data.len()) };
            let token = String::from_utf8(serde_json::from_value::<ByteString>(encoded.clone())?.0)?;
            let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {"name": ""}, "spec": {"token": token, "audiences": ["vault"]}});
            let review = harness.virtual_side.create(&review).await?;
            assert_eq!(review["status"]["authenticated"], true, "{}", review["status"]["error"]);
            let user = &review["status"]["user"];
            assert_eq!(user["username"], format!("system:serviceaccount:{}:default", harness.name));
            let bound = &user["extra"]["authentication.kubernetes.io/pod-uid"];
            assert_eq!(items(bound)[0], *uid(&vpod));
            harness.virtual_side.delete("v1/Pod", &harness.at("ci")).await?;
            harness.gone("ci").await?;
            eventually("the Secret is gone", SOON, async || {
                match harness.physical_side.get("v1/Secret", &place).await.map_err(|error| error.to_string())? {
                    None => Ok(()),
                    Some(there) => Err(name(&there).to_owned()),
                }
            })
            .await
        })
        .await
}

#[tokio::test]
async fn law_01_a_running_pod_keeps_its_token_and_ca_when_the_address_of_the_virtual_api_server_is_taken_back()
-> Result<()> {
    pattern("taken-back")
        .binding(|binding| binding.with("/spec/virtualAPIServer", json!({"host": "10.9.8.7", "port": 6443})))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("early").build()).await?;
            let (vpod, _) = harness.runs("early").await?;
            let back = json!({"spec": {"virtualAPIServer": null}});
            let kind = "cloud.tencent.com/v1beta1/ClusterBinding";
            harness.virtual_side.patch(kind, &harness.name, &back).await?;
            // Once a pod is made without it, the syncer has seen the change.
            eventually("a pod is made without the injected volume", SOON, async || {
                let name = format!("late-{}", fastrand::u32(..));
                harness.virtual_side.create(&harness.bound(&name).build()).await.map_err(|error| error.to_string())?;
                let (_, ppod) = harness.runs(&name).await.map_err(|error| format!("{error:#}"))?;
                let volumes = items(&ppod["spec"]["volumes"]);
                if volumes.is_empty() { Ok(()) } else { Err(format!("{volumes:?}")) }
            })
            .await?;
            harness.at_peace(&[], SOON).await?;
            ensure!(copy(harness, "ConfigMap", "kube-root-ca.crt").await?.is_some(), "the CA is gone");
            let secrets = harness.physical_side.list("v1/Secret", &harness.mount).await?;
            let own = secrets.iter().filter(|secret| annotation(secret, keys::VIRTUAL_POD_UID) == uid(&vpod)).count();
            assert_eq!(own, 1, "the Secret with its token");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_copy_of_an_immutable_configmap_that_is_made_again_is_replaced_and_a_refused_value_deletes_nothing()
-> Result<()> {
    pattern("fixed")
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let mut settings = object(harness, "ConfigMap", "settings", &json!({"a": "1"}));
            settings["immutable"] = json!(true);
            harness.virtual_side.create(&settings).await?;
            harness.virtual_side.create(&object(harness, "Secret", "login", &json!({"password": "hunter2"}))).await?;
            harness.virtual_side.create(&needy(harness, "web")).await?;
            harness.runs("web").await?;
            let first = copy(harness, "ConfigMap", "settings").await?.context("no copy")?;
            assert_eq!(first["immutable"], true);

            harness.virtual_side.delete("v1/ConfigMap", &harness.at("settings")).await?;
            settings["data"]["a"] = json!("2");
            harness.virtual_side.create(&settings).await?;
            let replaced = |copy: Option<&Value>| {
                copy.is_some_and(|copy| copy["data"]["a"] == "2" && copy["immutable"] == true && uid(copy) != uid(&first))
            };
            copy_when(harness, "ConfigMap", "settings", "is replaced", replaced).await?;

            // A policy of the owner refuses a value: the copy in use stays as it is.
            let policy = refusing_policy(harness);
            for part in &policy {
                harness.physical_side.create(part).await?;
            }
            let before = copy(harness, "Secret", "login").await?.context("no copy")?;
            let refused = async {
                eventually("the policy is in force", SOON, async || {
                    let probe = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "probe-", "namespace": harness.mount}, "stringData": {"password": "forbidden"}});
                    match harness.physical_side.create(&probe).await {
                        Ok(_) => Err("it lets the value in".to_owned()),
                        Err(_) => Ok(()),
                    }
                })
                .await?;
                let change = json!({"stringData": {"password": "forbidden"}});
                harness.virtual_side.patch("v1/Secret", &harness.at("login"), &change).await?;
                harness.virtual_side.create(&needy(harness, "late")).await?;
                let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "DependentRefused";
                let vpod = harness.vpod_when("late", "says that the copy is refused", refused).await?;
                let message = condition(&vpod, keys::CONDITION_ADMITTED)["message"].clone();
                let there = copy(harness, "Secret", "login").await?.context("the copy in use was deleted")?;
                ensure!(uid(&there) == uid(&before) && there["data"] == before["data"], "it was replaced");
                anyhow::Ok(message)
            }
            .await;
            for part in policy.iter().rev() {
                let kind = format!("{}/{}", text(&part["apiVersion"]), text(&part["kind"]));
                harness.physical_side.delete(&kind, name(part)).await?;
            }
            let message = refused?;
            // The policy repeats the value in its message; we do not.
            let quoted = |value: &&str| text(&message).contains(*value);
            ensure!(!["forbidden", "Zm9yYmlkZGVu"].iter().any(quoted), "{message}");
            Ok(())
        })
        .await
}

/// A policy of the owner that refuses a value of Secrets in the mount namespace, and quotes it.
fn refusing_policy(harness: &Harness) -> [Value; 2] {
    let api = "admissionregistration.k8s.io/v1";
    let name = format!("refuse-{}", harness.mount);
    let here = json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": harness.mount}}});
    let rule =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]});
    // As text or in base64, whichever way the expression sees it.
    let value = "!has(object.data) || !('password' in object.data) || !(string(object.data.password) in ['forbidden', 'Zm9yYmlkZGVu'])";
    let validation = json!({"expression": value, "messageExpression": "'not with ' + string(object.data.password)"});
    [
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name},
            "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation], "failurePolicy": "Fail"},
        }),
        json!({
            "apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": here},
        }),
    ]
}

#[tokio::test]
async fn with_an_address_of_the_virtual_api_server_pods_get_it_and_a_token_for_it() -> Result<()> {
    pattern("server")
        .binding(|binding| binding.with("/spec/virtualAPIServer", json!({"host": "10.9.8.7", "port": 6443})))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (vpod, ppod) = harness.runs("web").await?;
            let injected = |pod: &Value| {
                let mut volumes = items(&pod["spec"]["volumes"]).iter();
                volumes.find(|volume| text(&volume["name"]).starts_with("kube-api-access-")).cloned()
            };
            ensure!(injected(&vpod).is_some(), "the virtual cluster injects nothing");
            let volume = injected(&ppod).context("the copy has no such volume")?;
            let sources = items(&volume["projected"]["sources"]);
            let secret = sources.iter().find_map(|source| source["secret"]["name"].as_str()).context("no token")?;
            let place = format!("{}/{secret}", harness.mount);
            ensure!(harness.physical_side.get("v1/Secret", &place).await?.is_some(), "no Secret {place}");
            ensure!(copy(harness, "ConfigMap", "kube-root-ca.crt").await?.is_some(), "no CA of the virtual cluster");
            let env = items(&ppod["spec"]["containers"][0]["env"]);
            let value = |name: &str| env.iter().find(|env| env["name"] == name).map(|env| env["value"].clone());
            assert_eq!(value("KUBERNETES_SERVICE_HOST"), Some(json!("10.9.8.7")));
            assert_eq!(value("KUBERNETES_SERVICE_PORT"), Some(json!("6443")));
            harness.at_peace(&[], SOON).await
        })
        .await
}
