//! Each way in which a call is not carried out, from real API servers through the gate, and how we class it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tapestry_cluster::connect::{CALL_DEADLINE, Trust};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::{Answer, Call, Cluster, Name, Refusal, Rv, Side, Sub, Target, Uid, Verb, kind};
use tapestry_testbed::builders::pod;

use crate::grounds::Ground;
use crate::looks::{text, uid};
use crate::stub::{Reply, Stub, kubeconfig};
use crate::timing::timed;

async fn connect(kubeconfig: &str) -> Result<Cluster> {
    Ok(Cluster::connect("test", kubeconfig, Trust::Operator, "tapestry-e2e").await?)
}

/// A connection to the still cluster, pinned to who it is.
async fn right() -> Result<Cluster> {
    let still = Ground::Still.cluster().await?;
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
        let kubeconfig = Ground::Still.cluster().await?.kubeconfig_text()?;
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
        let still = Ground::Still.cluster().await?.objects()?;
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
async fn what_can_never_work_is_invalid() -> Result<()> {
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
        let still = Ground::Still.cluster().await?.objects()?;
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
async fn who_may_not_is_denied() -> Result<()> {
    timed(async {
        let still = Ground::Still.cluster().await?;
        let nobody = connect(&still.kubeconfig_for("nobody", None)?).await?;
        let forger = connect(&still.kubeconfig_with_token("not-a-token")?).await?;
        for (who, cluster) in [("nobody", nobody), ("forger", forger)] {
            for verb in [Verb::Get, Verb::Create(pod("denied").build()), Verb::Delete { grace: None }] {
                let shown = format!("{who}: {verb:?}");
                let answer = call(&cluster, pod_target("default", "denied")?, verb).await;
                ensure!(matches!(answer, Err(Refusal::Denied(_))), "{shown}: {answer:?}");
            }
        }
        Ok(())
    })
    .await
}

fn status(code: u16, details: &Value) -> String {
    json!({ "kind": "Status", "apiVersion": "v1", "code": code, "message": "m", "details": details }).to_string()
}

#[tokio::test]
async fn a_busy_cluster_is_asked_again_later_and_an_answer_that_is_none_proves_nothing() -> Result<()> {
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
                _ => Reply::Nothing,
            }
        })
        .await?;
        let cluster = connect(&stub.kubeconfig()).await?;
        ensure!(cluster.pin(&Uid::new("stub")), "pinned already");
        let ask = async |name: &str| anyhow::Ok(call(&cluster, pod_target("default", name)?, Verb::Get).await);
        assert_eq!(ask("missing").await?, Err(Refusal::Gone), "the stub is believed when it speaks properly");
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
        let stub = Stub::serve(|_| Reply::Silence).await?;
        let cluster = connect(&stub.kubeconfig()).await?;
        let began = std::time::Instant::now();
        let answer = call(&cluster, pod_target("default", "silent")?, Verb::Get).await;
        ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
        let took = began.elapsed();
        ensure!(took >= CALL_DEADLINE && took < CALL_DEADLINE + Duration::from_secs(5), "{took:?}");
        // Nobody listens at all: known at once.
        let nobody = connect(&kubeconfig("http://127.0.0.1:1", "{}")).await?;
        let answer = call(&nobody, pod_target("default", "silent")?, Verb::Get).await;
        ensure!(matches!(answer, Err(Refusal::Unknown(_))), "{answer:?}");
        Ok(())
    })
    .await
}
