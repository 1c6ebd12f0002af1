//! The syncer's accounts and what they may do: the shipped roles, checked with the API servers' authorizers and audit logs.

use std::collections::BTreeSet;
use std::fmt::Debug;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_syncer::rights::Ask;
use tapestry_testbed::audit::Request;
use tapestry_testbed::builders::{node, pod};
use tapestry_testbed::{Objects, eventually};

use crate::fixtures::Fixture;
use crate::harness::{BINDING, Harness, POLICY, pattern};
use crate::looks::SOON;

/// The same question that the API server asked its authorizer.
fn ask(side: Side, request: &Request) -> Ask<'_> {
    let (resource, group) = request.resource.split_once('.').unwrap_or((&request.resource, ""));
    // The log fills the name in from the body; the authorizer does not see it.
    let created = request.verb == "create" && request.subresource.is_empty();
    Ask {
        side,
        verb: &request.verb,
        group,
        resource,
        part: &request.subresource,
        namespace: &request.namespace,
        name: if created { "" } else { &request.name },
    }
}

#[tokio::test]
async fn law_10_a_syncer_requests_only_what_is_declared_and_is_never_refused() -> Result<()> {
    pattern("least")
        .on(Fixture::East)
        .node(node("least-0").cpu("4"))
        .policy(|policy| policy.with("/spec/forceReclaim", true).with("/spec/gracefulReclaimPeriodSeconds", 60))
        .binding(|binding| binding.with("/spec/guard", json!({ "quota": true, "networkPolicy": true })))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for name in ["one", "two", "goes"] {
                harness.virtual_side.create(&harness.bound(name).cpu("1").build()).await?;
                harness.runs(name).await?;
            }
            harness.virtual_side.delete("v1/Pod", &harness.at("goes")).await?;
            harness.gone("goes").await?;
            // No pod is evicted for capacity that a node had before the syncer first saw it.
            harness.skip(Duration::from_secs(121));
            // One CPU is lent and two are used.
            let less = json!({ "spec": { "resourceLimits": [{ "resource": "cpu", "quantity": "1" }] } });
            harness.virtual_side.patch(POLICY, &harness.name, &less).await?;
            eventually("one of them is evicted", SOON, async || {
                let copies = harness.ppods().await.map_err(|error| error.to_string())?;
                if copies.len() == 1 { Ok(()) } else { Err(format!("{} copies", copies.len())) }
            })
            .await?;
            let off = json!({ "spec": { "guard": { "quota": false, "networkPolicy": false } } });
            harness.virtual_side.patch(BINDING, &harness.name, &off).await?;
            eventually("the guards are gone", SOON, async || {
                let quota =
                    harness.physical_side.get("v1/ResourceQuota", &format!("{}/{}", harness.mount, keys::QUOTA)).await;
                if let Ok(None) = quota { Ok(()) } else { Err(format!("{quota:?}")) }
            })
            .await?;
            harness.stop().await?;
            let seen = declared(harness).await?;
            for (side, verb, resource) in [
                // What no plan reads, but every start.
                (Side::Virtual, "get", "namespaces"),
                (Side::Virtual, "get", "clusterbindings"),
                (Side::Virtual, "get", "secrets"),
                (Side::Physical, "get", "namespaces"),
                (Side::Virtual, "create", "pods/eviction"),
                (Side::Virtual, "create", "leases"),
                (Side::Physical, "create", "pods"),
                (Side::Physical, "watch", "pods"),
            ] {
                let what = (side, verb.to_owned(), resource.to_owned());
                ensure!(seen.contains(&what), "{what:?} is not in the audit log: {seen:?}");
            }
            Ok(())
        })
        .await
}

/// Checks that every request is declared, and returns them.
async fn declared(harness: &Harness) -> Result<BTreeSet<(Side, String, String)>> {
    let mut seen = BTreeSet::new();
    for (side, (cluster, requests)) in Side::BOTH.into_iter().zip(harness.asked().await?) {
        let account = match side {
            Side::Virtual => "tapestry-syncer",
            Side::Physical => &harness.mount,
        };
        for request in &requests.0 {
            assert_eq!(request.user, format!("system:serviceaccount:{}:{account}", keys::NAMESPACE));
            // Discovery, which every authenticated user may read.
            if request.resource.starts_with('/') {
                continue;
            }
            let ask = ask(side, request);
            ensure!(ask.is_declared(&harness.mount), "{}: {ask:?} is not declared", cluster.name());
            let part = if ask.part.is_empty() { String::new() } else { format!("/{}", ask.part) };
            seen.insert((side, ask.verb.to_owned(), format!("{}{part}", ask.resource)));
        }
    }
    Ok(seen)
}

fn refused<T: Debug>(what: &str, answer: &Result<T, kube::Error>) -> Result<()> {
    let refused = matches!(answer, Err(kube::Error::Api(status)) if status.code == 403);
    ensure!(refused, "{what}: {answer:?}");
    Ok(())
}

#[tokio::test]
async fn law_10_the_shipped_accounts_may_do_nothing_else() -> Result<()> {
    pattern("confined")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let audit = harness.physical_cluster.audit();
            let mark = audit.mark().await?;
            let there = Objects::connect(&harness.physical_kubeconfig).await?;
            ensure!(there.list("v1/Pod", "").await.is_ok(), "idle capacity cannot be computed");
            refused("a pod elsewhere", &there.create(&pod("x").namespace("default").build()).await)?;
            refused("a pod elsewhere is deleted", &there.delete("v1/Pod", "default/x").await)?;
            refused("a Secret elsewhere", &there.get("v1/Secret", "default/x").await)?;
            refused("all Secrets", &there.list("v1/Secret", "").await)?;
            refused("a node", &there.patch("v1/Node", harness.node(), &json!({ "spec": { "unschedulable": true } })).await)?;
            let theirs = format!("{}/theirs", harness.mount);
            refused("the owner's quota", &there.delete("v1/ResourceQuota", &theirs).await)?;
            refused("all quotas", &there.list("v1/ResourceQuota", "").await)?;
            let token = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
            let account = format!("{}/{}", harness.mount, keys::POD_SERVICE_ACCOUNT);
            refused("a token", &there.create_subresource("token", "v1/ServiceAccount", &account, &token).await)?;

            // The audit log shows refused requests, which every other test relies on.
            let told = audit.since(&mark).await?.only(|request| request.forbidden && request.user.ends_with(&harness.mount));
            assert_eq!(told.count(), 8, "\n{}", told.summary());

            let here = Objects::connect(&harness.virtual_kubeconfig).await?;
            ensure!(here.get(BINDING, &harness.name).await?.is_some(), "its own binding cannot be read");
            refused("a new pod", &here.create(&harness.pod("x").build()).await)?;
            let change = json!({ "data": {} });
            refused("a user's Secret is changed", &here.patch("v1/Secret", &harness.at("x"), &change).await)?;
            refused("a user's ConfigMap is deleted", &here.delete("v1/ConfigMap", &harness.at("x")).await)?;
            refused("a policy", &here.patch(POLICY, &harness.name, &json!({ "spec": { "priority": 1 } })).await)?;
            refused("another Lease", &here.get("coordination.k8s.io/v1/Lease", "kube-system/x").await)?;
            let more: Value = json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "confined-more" },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
                "subjects": [{ "kind": "ServiceAccount", "namespace": keys::NAMESPACE, "name": "tapestry-syncer" }],
            });
            refused("more rights", &here.create(&more).await)
        })
        .await
}
