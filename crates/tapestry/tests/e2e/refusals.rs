//! Each way in which a call is not carried out, from real API servers through the gate, and how we classify it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_cluster::connect::{CALL_DEADLINE, Trust};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Answer, Call, Cluster, Name, Refusal, Rv, Side, Sub, Target, Uid, Verb, kind};
use tapestry_testbed::builders::{namespace, pod};

use crate::fixtures::Fixture;
use crate::looks::{condition, text, uid};
use crate::stub::{Reply, Stub, kubeconfig};
use crate::timing::timed;

async fn connect(kubeconfig: &str) -> Result<Cluster> {
    Ok(Cluster::connect("test", kubeconfig, Trust::Operator, "tapestry-e2e").await?)
}

/// A connection to the still cluster, pinned to its identity.
async fn right() -> Result<Cluster> {
    let still = Fixture::Still.cluster().await?;
    let cluster = connect(&still.kubeconfig_text()?).await?;
    ensure!(cluster.pin(&Uid::new(still.identity())), "pinned already");
    Ok(cluster)
}

fn pod_target(namespace: &str, name: &str) -> Result<Target> {
    Ok(Target::namespaced(Side::Physical, &kind::POD, Name::parse(namespace)?, Name::parse(name)?))
}

async fn call(cluster: &Cluster, target: Target, verb: Verb) -> Result<Answer, Refusal> {
    carry_out(cluster, &Call { target, verb, why: "Test" }).await
}

fn annotate(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "a": value } } })
}

#[tokio::test]
async fn law_01_a_missing_object_is_gone_only_if_the_pinned_cluster_says_so() -> Result<()> {
    timed(async {
        let missing = || pod_target("default", "missing");
        let pinned = right().await?;
        assert_eq!(call(&pinned, missing()?, Verb::Get).await, Err(Refusal::Gone));
        // The same answer from a cluster that is not the pinned one, or when none is pinned, proves nothing.
        let kubeconfig = Fixture::Still.cluster().await?.kubeconfig_text()?;
        let (wrong, unpinned) = (connect(&kubeconfig).await?, connect(&kubeconfig).await?);
        ensure!(wrong.pin(&Uid::new("another-cluster")), "pinned already");
        for cluster in [wrong, unpinned] {
            let answer = call(&cluster, missing()?, Verb::Get).await;
            ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
        }
        // A namespace that does not exist: the pod in it does not either.
        assert_eq!(call(&pinned, pod_target("nowhere", "missing")?, Verb::Get).await, Err(Refusal::Gone));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_name_that_is_taken_exists() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let body = pod("taken").on("nowhere").build();
        let target = || pod_target("default", "taken");
        call(&cluster, target()?, Verb::Create(body.clone()))
            .await
            .map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
        assert_eq!(call(&cluster, target()?, Verb::Create(body)).await, Err(Refusal::Exists));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_02_another_object_or_another_version_is_replaced_whatever_the_verb() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let still = Fixture::Still.cluster().await?.objects()?;
        let object = still.create(&pod("replaced").on("nowhere").build()).await?;
        let old = Rv::new(text(&object["metadata"]["resourceVersion"]).parse()?);
        still.patch("v1/Pod", "default/replaced", &annotate("newer")).await?;
        let target = || pod_target("default", "replaced");
        let status = json!({ "status": { "message": "x" } });
        let named = |mut body: Value| {
            (body["apiVersion"], body["kind"]) = (json!("v1"), json!("Pod"));
            body["metadata"]["name"] = json!("replaced");
            body
        };
        let patches = [
            Verb::Merge(Sub::Main, annotate("x")),
            Verb::Merge(Sub::Status, status.clone()),
            Verb::Strategic(Sub::Main, annotate("x")),
            Verb::Strategic(Sub::Status, status.clone()),
            Verb::Apply(Sub::Main, named(annotate("x"))),
            Verb::Apply(Sub::Status, named(status)),
            Verb::Delete { grace: Some(0) },
        ];
        let other = Uid::new("00000000-0000-4000-8000-000000000000");
        for verb in patches {
            let shown = format!("{verb:?}");
            let answer = call(&cluster, target()?.uid(&other), verb.clone()).await;
            assert_eq!(answer, Err(Refusal::Replaced), "by uid: {shown}");
            let answer = call(&cluster, target()?.uid(&Uid::new(uid(&object))).rv(old), verb).await;
            assert_eq!(answer, Err(Refusal::Replaced), "by version: {shown}");
        }
        // An apply cannot resurrect what was deleted.
        let gone = pod_target("default", "replaced-gone")?.uid(&other);
        let mut body = named(annotate("x"));
        body["metadata"]["name"] = json!("replaced-gone");
        assert_eq!(call(&cluster, gone, Verb::Apply(Sub::Main, body)).await, Err(Refusal::Replaced));
        let after = still.get("v1/Pod", "default/replaced").await?.context("it was deleted")?;
        assert_eq!(after["metadata"]["annotations"]["a"], "newer");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_request_that_can_never_succeed_is_invalid() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let invalid = |answer: Result<Answer, Refusal>| match answer {
            Err(Refusal::Invalid(status)) => Ok(status),
            other => Err(anyhow::anyhow!("{other:?}")),
        };
        let bad = pod("bad").with("/spec/containers/0/name", "Not A Name").build();
        let status = invalid(call(&cluster, pod_target("default", "bad")?, Verb::Create(bad)).await)?;
        ensure!(status.message.contains("spec.containers[0].name"), "{}", status.message);
        let homeless = pod("homeless").namespace("nowhere").build();
        let status = invalid(call(&cluster, pod_target("nowhere", "homeless")?, Verb::Create(homeless)).await)?;
        ensure!(status.message.contains("nowhere"), "{}", status.message);
        let still = Fixture::Still.cluster().await?.objects()?;
        still.create(&pod("fixed").on("nowhere").build()).await?;
        let change = json!({ "spec": { "nodeName": "elsewhere" } });
        invalid(call(&cluster, pod_target("default", "fixed")?, Verb::Merge(Sub::Main, change)).await)?;
        let nonsense = json!({ "metadata": { "annotations": ["a list"] } });
        invalid(call(&cluster, pod_target("default", "fixed")?, Verb::Merge(Sub::Main, nonsense)).await)?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_request_without_the_right_is_denied() -> Result<()> {
    timed(async {
        let still = Fixture::Still.cluster().await?;
        let unprivileged = connect(&still.kubeconfig_for("unprivileged", None)?).await?;
        let forger = connect(&still.kubeconfig_with_token("not-a-token")?).await?;
        for (who, cluster) in [("unprivileged", unprivileged), ("forger", forger)] {
            let evict = Verb::Evict { grace: None };
            for verb in [Verb::Get, Verb::Create(pod("denied").build()), Verb::Delete { grace: None }, evict] {
                let shown = format!("{who}: {verb:?}");
                let answer = call(&cluster, pod_target("default", "denied")?, verb).await;
                ensure!(matches!(answer, Err(Refusal::Denied(_))), "{shown}: {answer:?}");
            }
        }
        Ok(())
    })
    .await
}

const BUDGET: &str = "policy/v1/PodDisruptionBudget";

/// A running, ready pod under budgets that allow this many disruptions each. Only the test writes their status here.
async fn guarded(name: &str, budgets: &[u32]) -> Result<Target> {
    let still = Fixture::Still.cluster().await?.objects()?;
    let object = still.create(&pod(name).label("guarded", name).on("nowhere").build()).await?;
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let running = json!({ "status": { "phase": "Running", "conditions": ready } });
    still.patch_subresource("status", "v1/Pod", &format!("default/{name}"), &running).await?;
    for (number, allowed) in budgets.iter().enumerate() {
        let budget = format!("{name}-{number}");
        let metadata = json!({ "name": budget, "namespace": "default" });
        let spec = json!({ "minAvailable": 1, "selector": { "matchLabels": { "guarded": name } } });
        let kind =
            json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec });
        still.create(&kind).await?;
        let healthy = json!({ "observedGeneration": 1, "disruptionsAllowed": allowed, "currentHealthy": 1 + allowed,
            "desiredHealthy": 1, "expectedPods": 1 + allowed });
        let status = json!({ "status": healthy });
        still.patch_subresource("status", BUDGET, &format!("default/{budget}"), &status).await?;
    }
    Ok(pod_target("default", name)?.uid(&Uid::new(uid(&object))))
}

#[tokio::test]
async fn a_budget_that_allows_no_disruption_holds_the_pod_and_one_that_does_lets_it_go() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let still = Fixture::Still.cluster().await?.objects()?;
        let evict = Verb::Evict { grace: Some(7) };
        let target = guarded("held", &[0]).await?;
        match call(&cluster, target.clone(), evict.clone()).await {
            Err(refusal @ Refusal::Held(wait, _)) => {
                assert_eq!(wait, Duration::from_secs(2));
                ensure!(refusal.message().contains("held-0"), "{}", refusal.message());
            }
            other => anyhow::bail!("{other:?}"),
        }
        // A change of the budget that no controller has observed yet holds it too.
        still.patch(BUDGET, "default/held-0", &json!({ "spec": { "minAvailable": 0 } })).await?;
        let answer = call(&cluster, target, evict.clone()).await;
        ensure!(matches!(answer, Err(Refusal::Held(..))), "{answer:?}");
        let held = still.get("v1/Pod", "default/held").await?.context("it was deleted")?;
        assert_eq!(held["metadata"]["deletionTimestamp"], Value::Null);

        let answer = call(&cluster, guarded("let-go", &[1]).await?, evict).await;
        ensure!(answer.is_ok(), "{answer:?}");
        let going = still.get("v1/Pod", "default/let-go").await?.context("its grace has not ended")?;
        assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 7);
        assert_eq!(condition(&going, "DisruptionTarget")["reason"], "EvictionByEvictionAPI");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_02_an_eviction_ends_only_the_pod_it_was_planned_for() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let other = Uid::new("00000000-0000-4000-8000-000000000000");
        let stale = guarded("evict-stale", &[]).await?.uid(&other);
        let evict = Verb::Evict { grace: None };
        assert_eq!(call(&cluster, stale, evict.clone()).await, Err(Refusal::Replaced));
        let still = Fixture::Still.cluster().await?.objects()?;
        let after = still.get("v1/Pod", "default/evict-stale").await?.context("it was deleted")?;
        assert_eq!(after["metadata"]["deletionTimestamp"], Value::Null);
        // A pod that does not run has no budget; with a version the server does not try for ten seconds.
        let waiting = still.create(&pod("evict-waiting").on("nowhere").build()).await?;
        let rv = Rv::new(text(&waiting["metadata"]["resourceVersion"]).parse()?);
        let waiting = pod_target("default", "evict-waiting")?.uid(&other).rv(rv);
        assert_eq!(call(&cluster, waiting, evict.clone()).await, Err(Refusal::Replaced));
        let missing = pod_target("default", "evict-missing")?.uid(&other);
        assert_eq!(call(&cluster, missing, evict).await, Err(Refusal::Gone));
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_12_two_budgets_for_one_pod_are_reported() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let target = guarded("two-budgets", &[1, 1]).await?;
        match call(&cluster, target, Verb::Evict { grace: None }).await {
            Err(Refusal::Invalid(status)) => ensure!(status.message.contains("more than one"), "{}", status.message),
            other => anyhow::bail!("{other:?}"),
        }
        let still = Fixture::Still.cluster().await?.objects()?;
        let after = still.get("v1/Pod", "default/two-budgets").await?.context("it was deleted")?;
        assert_eq!(after["metadata"]["deletionTimestamp"], Value::Null);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn an_eviction_from_a_namespace_that_is_deleted_is_held() -> Result<()> {
    timed(async {
        let cluster = right().await?;
        let still = Fixture::Still.cluster().await?.objects()?;
        still.create(&namespace("evict-going")).await?;
        let object = still.create(&pod("evicted").namespace("evict-going").on("nowhere").build()).await?;
        // No controller finishes the deletion here: its content stays.
        still.delete("v1/Namespace", "evict-going").await?;
        let target = pod_target("evict-going", "evicted")?.uid(&Uid::new(uid(&object)));
        let answer = call(&cluster, target, Verb::Evict { grace: None }).await;
        ensure!(matches!(answer, Err(Refusal::Held(..))), "{answer:?}");
        Ok(())
    })
    .await
}

fn status(code: u16, details: &Value) -> String {
    json!({ "kind": "Status", "apiVersion": "v1", "code": code, "message": "m", "details": details }).to_string()
}

#[tokio::test]
async fn a_busy_cluster_is_retried_later_and_an_answer_without_a_status_proves_nothing() -> Result<()> {
    timed(async {
        let stub = Stub::serve(|asked| {
            let (_, name) = asked.rsplit_once('/').unwrap_or_default();
            match name {
                "kube-system" => {
                    let me = json!({ "kind": "Namespace", "metadata": { "name": "kube-system", "uid": "stub" } });
                    Reply::Whole(200, "", me.to_string())
                }
                "busy" => Reply::Whole(429, "retry-after: 7\r\n", status(429, &json!({}))),
                "balancer" => Reply::Whole(429, "", "slow down".to_owned()),
                "starting" => Reply::Whole(503, "", status(503, &json!({ "retryAfterSeconds": 3 }))),
                "html" => Reply::Whole(404, "", "<html>404 not found</html>".to_owned()),
                "other" => Reply::Whole(404, "", status(404, &json!({ "name": "other", "kind": "secrets" }))),
                "gateway" => Reply::Whole(502, "", "bad gateway".to_owned()),
                "torn" => Reply::Torn("{\"kind\":".to_owned()),
                "missing" => Reply::Whole(404, "", status(404, &json!({ "name": "missing", "kind": "pods" }))),
                _ => Reply::Close,
            }
        })
        .await?;
        let cluster = connect(&stub.kubeconfig()).await?;
        ensure!(cluster.pin(&Uid::new("stub")), "pinned already");
        let ask = async |name: &str| anyhow::Ok(call(&cluster, pod_target("default", name)?, Verb::Get).await);
        assert_eq!(ask("missing").await?, Err(Refusal::Gone), "the stub counts when it answers with a Status");
        for (name, wait) in [("busy", 7), ("balancer", 1), ("starting", 3)] {
            assert_eq!(ask(name).await?, Err(Refusal::Later(Duration::from_secs(wait))), "{name}");
        }
        for name in ["html", "other", "gateway", "torn", "dropped"] {
            let answer = ask(name).await?;
            ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{name}: {answer:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_11_a_call_that_is_never_answered_ends_at_its_deadline() -> Result<()> {
    timed(async {
        let stub = Stub::serve(|_| Reply::Hang).await?;
        let cluster = connect(&stub.kubeconfig()).await?;
        let began = std::time::Instant::now();
        let answer = call(&cluster, pod_target("default", "silent")?, Verb::Get).await;
        ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
        let took = began.elapsed();
        ensure!(took >= CALL_DEADLINE && took < CALL_DEADLINE + Duration::from_secs(5), "{took:?}");
        // No process listens at all: known at once.
        let closed = connect(&kubeconfig("http://127.0.0.1:1", "{}")).await?;
        let answer = call(&closed, pod_target("default", "silent")?, Verb::Get).await;
        ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
        Ok(())
    })
    .await
}
