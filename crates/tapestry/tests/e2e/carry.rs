//! Copies of ConfigMaps and Secrets, and tokens, from one real API server to another through the gate.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::call::TokenAsk;
use tapestry_cluster::connect::Trust;
use tapestry_cluster::gate::{CallMetrics, LiveGate};
use tapestry_cluster::{
    Answer, Call, CarryMarks, Cluster, Gate as _, Kind, Lead, Name, PodRef, Refusal, Shape, Side, Target, Uid, Verb,
    kind,
};
use tapestry_domain::dependents::DependentKind;
use tapestry_testbed::Objects;
use tapestry_testbed::builders::{namespace, pod};

use crate::fixtures::{Fixture, Home};
use crate::looks::{annotation, strings, text, uid};
use crate::timing::timed;

const SECRET: &str = "v1/Secret";
const CONFIG_MAP: &str = "v1/ConfigMap";
/// "old", "new", "extra" in base64.
const OLD: &str = "b2xk";
const NEW: &str = "bmV3";
const EXTRA: &str = "ZXh0cmE=";

/// Two clusters with a gate, and a namespace of the test in each.
struct Way {
    gate: LiveGate,
    above: Objects,
    below: Objects,
    /// Its name in both.
    namespace: &'static str,
}

impl Way {
    async fn open(namespace_name: &'static str) -> Result<Self> {
        let (above, below) = (Home::Other.cluster().await?, Fixture::Still.cluster().await?);
        let connect = async |cluster: &tapestry_testbed::Cluster| {
            let kubeconfig = cluster.kubeconfig_text()?;
            let connection = Cluster::connect("test", &kubeconfig, Trust::Operator, "tapestry-e2e-carry").await?;
            ensure!(connection.pin(&Uid::new(cluster.identity())), "pinned already");
            Ok(connection)
        };
        let metrics = CallMetrics::register(&mut Registry::default()).of(&"carry".into());
        let gate = LiveGate::new(connect(above).await?, connect(below).await?, metrics);
        let way = Self { gate, above: above.objects()?, below: below.objects()?, namespace: namespace_name };
        for side in [&way.above, &way.below] {
            side.apply(&namespace(namespace_name)).await?;
        }
        Ok(way)
    }

    fn place(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    fn target(&self, side: Side, kind: &'static Kind, name: &str) -> Result<Target> {
        Ok(Target::namespaced(side, kind, Name::parse(self.namespace)?, Name::parse(name)?))
    }

    /// Creates a source.
    async fn source(&self, kind: &str, name: &str, rest: Value) -> Result<Value> {
        let mut object = rest;
        (object["apiVersion"], object["kind"]) = (json!("v1"), json!(kind.trim_start_matches("v1/")));
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!(self.namespace);
        Ok(self.above.create(&object).await?)
    }

    /// Carries `name` to `<name>-copy`; to an existing one, if a UID is given.
    async fn carry(&self, kind: &'static Kind, name: &str, source: &str, copy: Option<&str>) -> Result<Done> {
        let from = self.target(Side::Virtual, kind, name)?.uid(&Uid::new(source));
        let mut target = self.target(Side::Physical, kind, &format!("{name}-copy"))?;
        target.uid = copy.map(Uid::new);
        let verb = Verb::Carry { from: Box::new(from), shape: Box::new(shape(kind)) };
        Ok(self.call(target, verb).await)
    }

    /// Asks for two tokens of an account and writes them into `web-token`.
    async fn token(&self, account: &str, pod: &Value, secret: Option<&str>) -> Result<Done> {
        let mut target = self.target(Side::Physical, &kind::SECRET, "web-token")?;
        target.uid = secret.map(Uid::new);
        let ask = |key: &str, audience: Option<&str>| TokenAsk {
            key: key.into(),
            audience: audience.map(Into::into),
            expiration_seconds: 600,
        };
        let verb = Verb::Token {
            account: Box::new(self.target(Side::Virtual, &kind::SERVICE_ACCOUNT, account)?),
            pod: Box::new(PodRef { name: Name::parse(text(&pod["metadata"]["name"]))?, uid: Uid::new(uid(pod)) }),
            asks: vec![ask("api.0", None), ask("vault.0", Some("vault"))],
            marks: Box::new(marks()),
        };
        Ok(self.call(target, verb).await)
    }

    async fn call(&self, target: Target, verb: Verb) -> Done {
        self.gate.call(Arc::new(Call { target, verb, why: "Test" }), Lead::always()).await
    }

    async fn copy(&self, kind: &str, name: &str) -> Result<Value> {
        self.below.get(kind, &self.place(name)).await?.context("there is no copy")
    }
}

type Done = Result<Answer, Refusal>;

fn shape(kind: &Kind) -> Shape {
    let dependent = if *kind == kind::SECRET { DependentKind::Secret } else { DependentKind::ConfigMap };
    Shape::Dependent(dependent, marks())
}

fn marks() -> CarryMarks {
    let origin = "virtual-cluster/binding".to_owned();
    CarryMarks {
        labels: vec![(keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY.to_owned())],
        annotations: vec![(keys::ORIGIN, origin.clone())],
        salt: origin,
    }
}

/// The object of an answer.
fn object(done: Done) -> Result<Value> {
    let answer = done.map_err(|refusal| anyhow!("{}: {}", refusal.reason(), refusal.message()))?;
    Ok(serde_json::from_slice(&answer.object)?)
}

#[tokio::test]
async fn a_secret_is_copied_and_follows_its_source_while_keys_of_others_stay() -> Result<()> {
    timed(async {
        let way = Way::open("carry-secret").await?;
        let rest = json!({ "metadata": { "labels": { "app": "db" } }, "data": { "user": OLD, "goes": OLD }, "type": "Opaque" });
        let source = way.source(SECRET, "db", rest).await?;
        let copy = object(way.carry(&kind::SECRET, "db", uid(&source), None).await?)?;
        assert_eq!(copy["data"], json!({ "user": OLD, "goes": OLD }));
        assert_eq!((annotation(&copy, keys::VIRTUAL_UID), annotation(&copy, keys::VIRTUAL_NAME)), (uid(&source), "db"));
        assert_eq!(strings(&copy["metadata"]["labels"])["app"], "db");
        assert_eq!(way.carry(&kind::SECRET, "db", uid(&source), None).await?, Err(Refusal::Exists), "the name is taken");

        // Nothing differs: the answer is the copy, at the same version.
        let again = object(way.carry(&kind::SECRET, "db", uid(&source), Some(uid(&copy))).await?)?;
        assert_eq!(again["metadata"]["resourceVersion"], copy["metadata"]["resourceVersion"]);

        way.below.patch(SECRET, &way.place("db-copy"), &json!({ "data": { "extra": EXTRA } })).await?;
        let change = json!({ "data": { "user": NEW, "goes": null, "comes": NEW } });
        let newer = way.above.patch(SECRET, &way.place("db"), &change).await?;
        let updated = object(way.carry(&kind::SECRET, "db", uid(&source), Some(uid(&copy))).await?)?;
        assert_eq!(updated["data"], json!({ "user": NEW, "comes": NEW, "extra": EXTRA }));
        assert_eq!(
            annotation(&updated, keys::VIRTUAL_RESOURCE_VERSION),
            text(&newer["metadata"]["resourceVersion"])
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_config_map_is_copied_with_its_bytes_and_an_immutable_one_is_refused_another_value() -> Result<()> {
    timed(async {
        let way = Way::open("carry-map").await?;
        let rest = json!({ "data": { "a": "plain" }, "binaryData": { "b": "AAEC" }, "immutable": true });
        let source = way.source(CONFIG_MAP, "fixed", rest.clone()).await?;
        let copy = object(way.carry(&kind::CONFIG_MAP, "fixed", uid(&source), None).await?)?;
        for field in ["data", "binaryData", "immutable"] {
            assert_eq!(copy[field], rest[field], "{field}");
        }
        // The source was deleted, and created with another value: its copy cannot follow.
        way.above.delete(CONFIG_MAP, &way.place("fixed")).await?;
        let other =
            way.source(CONFIG_MAP, "fixed", json!({ "data": { "a": "other words" }, "immutable": true })).await?;
        assert_eq!(
            way.carry(&kind::CONFIG_MAP, "fixed", uid(&source), Some(uid(&copy))).await?,
            Err(Refusal::Replaced)
        );
        match way.carry(&kind::CONFIG_MAP, "fixed", uid(&other), Some(uid(&copy))).await? {
            Err(Refusal::Invalid(status)) => ensure!(!format!("{status:?}").contains("other words"), "{status:?}"),
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_10_a_secret_with_a_service_account_token_becomes_opaque() -> Result<()> {
    timed(async {
        let way = Way::open("carry-token-secret").await?;
        let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "robot", "namespace": way.namespace } });
        way.above.create(&account).await?;
        let rest = json!({
            "metadata": { "annotations": { "kubernetes.io/service-account.name": "robot" } },
            "type": "kubernetes.io/service-account-token", "data": { "token": OLD },
        });
        let source = way.source(SECRET, "legacy", rest).await?;
        let copy = object(way.carry(&kind::SECRET, "legacy", uid(&source), None).await?)?;
        assert_eq!((&copy["type"], &copy["data"]["token"]), (&json!("Opaque"), &json!(OLD)));
        assert_eq!(annotation(&copy, "kubernetes.io/service-account.name"), "");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_02_a_source_or_copy_that_is_gone_or_another_object_stops_a_copy() -> Result<()> {
    timed(async {
        let way = Way::open("carry-gone").await?;
        let other = "00000000-0000-4000-8000-000000000000";
        let carry = async |source: &str, copy: Option<&str>| way.carry(&kind::SECRET, "db", source, copy).await;
        assert_eq!(carry(other, None).await?, Err(Refusal::Replaced), "the source does not exist");
        let source = way.source(SECRET, "db", json!({ "data": { "a": OLD } })).await?;
        assert_eq!(carry(other, None).await?, Err(Refusal::Replaced), "another source");
        ensure!(way.below.get(SECRET, &way.place("db-copy")).await?.is_none(), "it was copied");
        assert_eq!(carry(uid(&source), Some(other)).await?, Err(Refusal::Gone), "no copy");
        object(carry(uid(&source), None).await?)?;
        assert_eq!(carry(uid(&source), Some(other)).await?, Err(Refusal::Replaced), "another copy");
        let nowhere = Target::namespaced(Side::Physical, &kind::SECRET, Name::parse("nowhere")?, Name::parse("db")?);
        let from = Box::new(way.target(Side::Virtual, &kind::SECRET, "db")?.uid(&Uid::new(uid(&source))));
        let done = way.call(nowhere, Verb::Carry { from, shape: Box::new(shape(&kind::SECRET)) }).await;
        ensure!(matches!(&done, Err(Refusal::Invalid(status)) if status.code == 404), "{done:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn tokens_of_a_pod_are_accepted_by_the_virtual_cluster_until_the_pod_is_gone() -> Result<()> {
    timed(async {
        let way = Way::open("carry-tokens").await?;
        let account = |name: &str| {
            json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": way.namespace } })
        };
        let body = pod("web").namespace(way.namespace).with("/spec/serviceAccountName", "robot").on("nowhere").build();
        let web = way.above.create(&body).await?;
        match way.token("robot", &web, None).await? {
            Err(refusal @ Refusal::Invalid(_)) => ensure!(
                refusal.message() == "ServiceAccount carry-tokens/robot does not exist in the virtual cluster: create it",
                "{refusal:?}"
            ),
            other => anyhow::bail!("{other:?}"),
        }
        way.above.create(&account("robot")).await?;
        way.above.create(&account("other")).await?;
        let other = way.token("other", &web, None).await?;
        ensure!(matches!(other, Err(Refusal::Invalid(_))), "the pod runs as another account: {other:?}");

        let secret = object(way.token("robot", &web, None).await?)?;
        let kept = way.copy(SECRET, "web-token").await?;
        assert_eq!((&kept["type"], uid(&kept)), (&json!("Opaque"), uid(&secret)));
        assert_eq!(annotation(&kept, keys::VIRTUAL_POD_UID), uid(&web));
        ensure!(kept["metadata"].get("ownerReferences").is_none(), "it has an owner");
        let time = |key: &str| annotation(&kept, key).parse::<jiff::Timestamp>();
        let life = time(keys::TOKEN_EXPIRES)?.duration_since(time(keys::TOKEN_REFRESH)?);
        assert_eq!(life.as_secs(), 120, "a fifth of ten minutes is left when they are refreshed");

        for (key, audience) in [("api.0", None), ("vault.0", Some("vault"))] {
            let status = way.review(&kept, key, audience).await?;
            assert_eq!(status["authenticated"], true, "{status}");
            assert_eq!(status["user"]["username"], "system:serviceaccount:carry-tokens:robot");
            assert_eq!(status["user"]["extra"]["authentication.kubernetes.io/pod-uid"], json!([uid(&web)]));
        }
        // New ones take the place of the old, in the same Secret.
        way.below.patch(SECRET, &way.place("web-token"), &json!({ "data": { "extra": EXTRA, "api.0": OLD } })).await?;
        object(way.token("robot", &web, Some(uid(&secret))).await?)?;
        let refreshed = way.copy(SECRET, "web-token").await?;
        assert_eq!((uid(&refreshed), &refreshed["data"]["extra"]), (uid(&secret), &json!(EXTRA)));
        assert_eq!(way.review(&refreshed, "api.0", None).await?["authenticated"], true);

        let mut later = web.clone();
        later["metadata"]["uid"] = json!("00000000-0000-4000-8000-000000000000");
        assert_eq!(way.token("robot", &later, Some(uid(&secret))).await?, Err(Refusal::Replaced), "another pod");
        let at_once = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        way.above.delete_with("v1/Pod", &way.place("web"), &at_once).await?;
        assert_eq!(way.token("robot", &web, Some(uid(&secret))).await?, Err(Refusal::Replaced), "the pod is gone");
        let ended = async || match way.review(&refreshed, "api.0", None).await {
            Ok(status) if status["authenticated"] == true => Err("it is accepted".to_owned()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        tapestry_testbed::eventually("the token ends with its pod", Duration::from_mins(1), ended).await
    })
    .await
}

impl Way {
    /// What the virtual cluster says of a token of a Secret.
    async fn review(&self, secret: &Value, key: &str, audience: Option<&str>) -> Result<Value> {
        let k8s_openapi::ByteString(token) = serde_json::from_value(secret["data"][key].clone())?;
        let mut spec = json!({ "token": String::from_utf8(token)? });
        if let Some(audience) = audience {
            spec["audiences"] = json!([audience]);
        }
        let review =
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": spec });
        Ok(self.above.create(&review).await?["status"].clone())
    }
}
