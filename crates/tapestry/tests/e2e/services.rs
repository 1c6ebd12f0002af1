//! Services on real clusters: copies that the physical cluster makes endpoints for, addresses that come back, names of others.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_domain::names;
use tapestry_testbed::builders::namespace;
use tapestry_testbed::eventually;

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, event_reasons, pattern, wind_up};
use crate::looks::{SOON, annotation, items, name, text, uid};
use crate::timing::timed;

const SERVICE: &str = "v1/Service";

/// A Service of the test's namespace that selects `app=web`, with these fields besides.
pub(crate) fn service(harness: &Harness, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": harness.name},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    for (field, value) in spec.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    object
}

/// A Service of the mount namespace.
pub(crate) async fn there(harness: &Harness, name: &str) -> Result<Option<Value>> {
    Ok(harness.physical_side.get(SERVICE, &format!("{}/{name}", harness.mount)).await?)
}

/// Waits until a Service of the mount namespace satisfies a condition.
pub(crate) async fn copy_when(
    harness: &Harness,
    name: &str,
    what: &str,
    holds: impl Fn(Option<&Value>) -> bool,
) -> Result<Option<Value>> {
    eventually(&format!("Service {name} of the mount namespace {what}"), SOON, async || {
        let copy = there(harness, name).await.map_err(|error| error.to_string())?;
        if holds(copy.as_ref()) { Ok(copy) } else { Err(format!("{copy:?}")) }
    })
    .await
}

async fn copied(harness: &Harness, name: &str) -> Result<Value> {
    copy_when(harness, name, "exists", |copy| copy.is_some_and(|copy| !annotation(copy, keys::VIRTUAL_UID).is_empty()))
        .await?
        .context("it exists")
}

/// The name of a copy where its own is taken.
async fn other_name(harness: &Harness, namespace: &str, service: &str) -> Result<String> {
    let origin = harness.origin().await?;
    let (cluster, binding) = origin.split_once('/').context("an origin has two parts")?;
    Ok(names::service_name(&names::origin_hash(cluster, binding), namespace, service))
}

/// Addresses in the EndpointSlices that the physical cluster has for a Service.
async fn endpoints(harness: &Harness, service: &str) -> Result<Vec<String>> {
    let selector = format!("kubernetes.io/service-name={service}");
    let slices =
        harness.physical_side.list_where("discovery.k8s.io/v1/EndpointSlice", &harness.mount, &selector).await?;
    let all = slices.iter().flat_map(|slice| items(&slice["endpoints"]));
    let mut all: Vec<String> = all.flat_map(|one| items(&one["addresses"])).map(|ip| text(ip).to_owned()).collect();
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

async fn endpoints_are(harness: &Harness, service: &str, wanted: &[String]) -> Result<()> {
    eventually(&format!("{service} leads to {wanted:?}"), SOON, async || {
        let there = endpoints(harness, service).await.map_err(|error| error.to_string())?;
        if there == wanted { Ok(()) } else { Err(format!("{there:?}")) }
    })
    .await
}

/// The cloud of a physical cluster gives a load balancer this address.
pub(crate) async fn play_cloud(harness: &Harness, service: &str, ip: &str) -> Result<()> {
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"}]}}});
    let place = format!("{}/{service}", harness.mount);
    harness.physical_side.patch_subresource("status", SERVICE, &place, &status).await?;
    Ok(())
}

/// Waits until a virtual Service has exactly these addresses, in any order.
pub(crate) async fn addresses_are(harness: &Harness, place: &str, wanted: &[&str]) -> Result<Value> {
    eventually(&format!("{place} has the addresses {wanted:?}"), SOON, async || {
        let service = harness.virtual_side.get(SERVICE, place).await.map_err(|error| error.to_string())?;
        let service = service.ok_or("it is gone")?;
        let entries = items(&service["status"]["loadBalancer"]["ingress"]).iter();
        let mut ips: Vec<&str> = entries.map(|entry| text(&entry["ip"])).collect();
        ips.sort_unstable();
        if ips == wanted { Ok(service.clone()) } else { Err(format!("{service}")) }
    })
    .await
}

fn carried(pattern: crate::harness::Pattern, namespaces: &[&str]) -> crate::harness::Pattern {
    pattern.binding(|binding| binding.with("/spec/serviceNamespaces", json!(namespaces)))
}

#[tokio::test]
async fn a_service_leads_to_the_copies_of_its_pods_and_follows_its_source() -> Result<()> {
    carried(pattern("svc-plain"), &["svc-plain"])
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&service(harness, "web", &json!({}))).await?;
            let headless = service(harness, "peers", &json!({"clusterIP": "None", "publishNotReadyAddresses": true}));
            harness.virtual_side.create(&headless).await?;
            for pod in ["one", "two"] {
                harness.virtual_side.create(&harness.bound(pod).label("app", "web").build()).await?;
            }
            harness.virtual_side.create(&harness.bound("other").label("app", "other").build()).await?;
            let mut ips = Vec::new();
            for pod in ["one", "two"] {
                let (_, ppod) = harness.runs(pod).await?;
                ips.push(text(&ppod["status"]["podIP"]).to_owned());
            }
            ips.sort_unstable();
            let copy = copied(harness, "web").await?;
            assert_eq!(copy["spec"]["ports"][0]["targetPort"], 8080);
            ensure!(text(&copy["spec"]["clusterIP"]).starts_with("10."), "{copy}");
            for service in ["web", "peers"] {
                endpoints_are(harness, service, &ips).await?;
            }
            assert_eq!(copied(harness, "peers").await?["spec"]["clusterIP"], "None");

            let change =
                json!({"spec": {"type": "NodePort", "selector": {"app": "other"}, "sessionAffinity": "ClientIP"}});
            harness.virtual_side.patch(SERVICE, &harness.at("web"), &change).await?;
            let followed = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["type"] == "NodePort");
            let after = copy_when(harness, "web", "follows", followed).await?.context("it exists")?;
            assert_eq!((uid(&after), &after["spec"]["clusterIP"]), (uid(&copy), &copy["spec"]["clusterIP"]));
            ensure!(after["spec"]["ports"][0]["nodePort"].is_number(), "{after}");
            let (_, other) = harness.runs("other").await?;
            endpoints_are(harness, "web", &[text(&other["status"]["podIP"]).to_owned()]).await?;
            // Its number stays when a port is added.
            let ports = json!([{"name": "more", "port": 81}, {"name": "http", "port": 80, "targetPort": 8080}]);
            harness.virtual_side.patch(SERVICE, &harness.at("web"), &json!({"spec": {"ports": ports}})).await?;
            let two = |copy: Option<&Value>| copy.is_some_and(|copy| items(&copy["spec"]["ports"]).len() == 2);
            let more = copy_when(harness, "web", "has both ports", two).await?.context("it exists")?;
            assert_eq!(more["spec"]["ports"][1]["nodePort"], after["spec"]["ports"][0]["nodePort"]);
            harness.at_peace(&[], SOON).await?;

            // To a name outside, and back; then without an address, which only another copy can have.
            for (spec, kind) in [
                (json!({"type": "ExternalName", "externalName": "db.example.com"}), "ExternalName"),
                (json!({"type": "LoadBalancer", "externalName": null}), "LoadBalancer"),
                (json!({"type": "ClusterIP"}), "ClusterIP"),
            ] {
                harness.virtual_side.patch(SERVICE, &harness.at("web"), &json!({"spec": spec})).await?;
                let is = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["type"] == kind);
                copy_when(harness, "web", &format!("is {kind}"), is).await?;
                harness.at_peace(&[], SOON).await?;
            }
            harness.virtual_side.delete(SERVICE, &harness.at("web")).await?;
            harness.virtual_side.create(&service(harness, "web", &json!({"clusterIP": "None"}))).await?;
            let none = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["clusterIP"] == "None");
            copy_when(harness, "web", "is headless", none).await?;
            harness.at_peace(&[], SOON).await?;
            for service in ["web", "peers"] {
                harness.virtual_side.delete(SERVICE, &harness.at(service)).await?;
                copy_when(harness, service, "is gone", |copy| copy.is_none()).await?;
            }
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_03_load_balancers_of_two_clusters_share_the_status_of_one_service() -> Result<()> {
    // Boxed: it holds several harnesses.
    Box::pin(timed(async {
        let (mut east, mut west) = tokio::try_join!(
            carried(pattern("svc-lb-east"), &["svc-lb-east"]).on(Fixture::East).set_up(),
            carried(pattern("svc-lb-west"), &["svc-lb-east"]).on(Fixture::West).set_up(),
        )?;
        let test = async {
            tokio::try_join!(east.start(), west.start())?;
            let place = east.at("web");
            east.virtual_side.create(&service(&east, "web", &json!({"type": "LoadBalancer"}))).await?;
            copied(&east, "web").await?;
            copied(&west, "web").await?;
            play_cloud(&east, "web", "192.0.2.1").await?;
            addresses_are(&east, &place, &["192.0.2.1"]).await?;
            play_cloud(&west, "web", "192.0.2.2").await?;
            let both = addresses_are(&east, &place, &["192.0.2.1", "192.0.2.2"]).await?;
            for harness in [&east, &west] {
                let key = format!("{}.{}", keys::LOAD_BALANCER, harness.name);
                ensure!(annotation(&both, &key).contains("192.0.2."), "{both}");
            }
            play_cloud(&east, "web", "192.0.2.3").await?;
            addresses_are(&east, &place, &["192.0.2.2", "192.0.2.3"]).await?;
            tokio::try_join!(east.at_peace(&[], SOON), west.at_peace(&[], SOON))?;
            // One of them does not carry it any more.
            east.virtual_side.patch(BINDING, &west.name, &json!({"spec": {"serviceNamespaces": []}})).await?;
            copy_when(&west, "web", "is gone", |copy| copy.is_none()).await?;
            let after = addresses_are(&east, &place, &["192.0.2.3"]).await?;
            ensure!(annotation(&after, &format!("{}.{}", keys::LOAD_BALANCER, west.name)).is_empty(), "{after}");
            east.virtual_side.patch(SERVICE, &place, &json!({"spec": {"type": "ClusterIP"}})).await?;
            let plain = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["type"] == "ClusterIP");
            copy_when(&east, "web", "has no load balancer", plain).await?;
            addresses_are(&east, &place, &[]).await?;
            east.at_peace(&[], SOON).await
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [east, west]).await
    }))
    .await
}

#[tokio::test]
async fn law_06_a_foreign_service_keeps_its_name_and_of_two_namespaces_one_gets_the_plain_name() -> Result<()> {
    carried(pattern("svc-names"), &["svc-names", "svc-names-too"])
        .run(async |harness| {
            let foreign = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "db", "namespace": harness.mount},
                "spec": {"selector": {"owner": "yes"}, "ports": [{"port": 5432}]},
            });
            let foreign = harness.physical_side.create(&foreign).await?;
            harness.virtual_side.create(&service(harness, "db", &json!({}))).await?;
            let other = other_name(harness, &harness.name, "db").await?;
            copied(harness, &other).await?;

            harness.virtual_side.create(&namespace("svc-names-too")).await?;
            harness.virtual_side.create(&service(harness, "web", &json!({}))).await?;
            copied(harness, "web").await?;
            let mut too = service(harness, "web", &json!({}));
            too["metadata"]["namespace"] = json!("svc-names-too");
            harness.virtual_side.create(&too).await?;
            let second = copied(harness, &other_name(harness, "svc-names-too", "web").await?).await?;
            assert_eq!(second["spec"]["selector"][keys::VIRTUAL_NAMESPACE], "svc-names-too");
            harness.at_peace(&[], SOON).await?;

            // What the owner changes is put back; what is deleted comes back.
            let place = format!("{}/web", harness.mount);
            harness.physical_side.patch(SERVICE, &place, &json!({"spec": {"selector": {"app": "theirs"}}})).await?;
            let back = |copy: Option<&Value>| copy.is_some_and(|copy| copy["spec"]["selector"]["app"] == "web");
            copy_when(harness, "web", "is restored", back).await?;
            harness.physical_side.delete(SERVICE, &place).await?;
            copied(harness, "web").await?;
            let after = there(harness, "db").await?.context("the foreign Service is gone")?;
            assert_eq!(after["metadata"]["resourceVersion"], foreign["metadata"]["resourceVersion"]);
            harness.virtual_side.delete("v1/Namespace", "svc-names-too").await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn law_12_a_service_with_external_ips_or_without_selector_is_told_and_not_carried() -> Result<()> {
    carried(pattern("svc-refused"), &["svc-refused"])
        .run(async |harness| {
            let refused = [
                ("catcher", json!({"externalIPs": ["192.0.2.9"]}), "ExternalIPsRefused"),
                ("manual", json!({"selector": null}), "NoSelector"),
            ];
            for (service, spec, reason) in refused {
                harness.virtual_side.create(&self::service(harness, service, &spec)).await?;
                eventually(&format!("an event on {service}"), SOON, async || {
                    let reasons = event_reasons(&harness.virtual_side, &harness.name, service).await;
                    let reasons = reasons.map_err(|error| error.to_string())?;
                    if reasons.contains(&reason.to_owned()) { Ok(()) } else { Err(format!("{reasons:?}")) }
                })
                .await?;
                ensure!(there(harness, service).await?.is_none(), "{service} was carried");
            }
            // The cure works at once, and what becomes dangerous goes.
            harness
                .virtual_side
                .patch(SERVICE, &harness.at("catcher"), &json!({"spec": {"externalIPs": null}}))
                .await?;
            copied(harness, "catcher").await?;
            let again = json!({"spec": {"externalIPs": ["192.0.2.9"]}});
            harness.virtual_side.patch(SERVICE, &harness.at("catcher"), &again).await?;
            copy_when(harness, "catcher", "is gone", |copy| copy.is_none()).await?;
            harness.at_peace(&[], SOON).await
        })
        .await
}

#[tokio::test]
async fn copies_follow_the_list_of_namespaces_and_go_with_the_binding() -> Result<()> {
    pattern("svc-listed")
        .run(async |harness| {
            let web = harness.virtual_side.create(&service(harness, "web", &json!({"type": "LoadBalancer"}))).await?;
            let list = |namespaces: Value| json!({"spec": {"serviceNamespaces": namespaces}});
            harness.virtual_side.patch(BINDING, &harness.name, &list(json!([harness.name]))).await?;
            let copy = copied(harness, "web").await?;
            assert_eq!(annotation(&copy, keys::VIRTUAL_UID), uid(&web));
            play_cloud(harness, "web", "192.0.2.1").await?;
            addresses_are(harness, &harness.at("web"), &["192.0.2.1"]).await?;
            harness.virtual_side.patch(BINDING, &harness.name, &list(json!([]))).await?;
            copy_when(harness, "web", "is gone", |copy| copy.is_none()).await?;
            addresses_are(harness, &harness.at("web"), &[]).await?;

            harness.virtual_side.patch(BINDING, &harness.name, &list(json!([harness.name]))).await?;
            copied(harness, "web").await?;
            play_cloud(harness, "web", "192.0.2.2").await?;
            addresses_are(harness, &harness.at("web"), &["192.0.2.2"]).await?;
            let stranger = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "stranger", "namespace": harness.mount},
                "spec": {"ports": [{"port": 80}]},
            });
            harness.physical_side.create(&stranger).await?;
            harness.virtual_side.delete(BINDING, &harness.name).await?;
            copy_when(harness, "web", "goes with the binding", |copy| copy.is_none()).await?;
            addresses_are(harness, &harness.at("web"), &[]).await?;
            eventually("the binding is gone", SOON, async || {
                match harness.virtual_side.get(BINDING, &harness.name).await.map_err(|error| error.to_string())? {
                    None => Ok(()),
                    Some(binding) => Err(format!("{}: {}", name(&binding), binding["status"])),
                }
            })
            .await?;
            harness.pardon();
            ensure!(there(harness, "stranger").await?.is_some(), "a foreign Service was deleted");
            Ok(())
        })
        .await
}
