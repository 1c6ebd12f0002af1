//! Rights that are removed from the shipped roles while a syncer works: what reports it, what continues, and how it heals.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Objects, eventually};

use crate::harness::{Harness, pattern};
use crate::looks::{SOON, condition, phase, text, uid};
use crate::process::syncer::{Process, http};

const LEASE: &str = "coordination.k8s.io/v1/Lease";
const ROLE: &str = "rbac.authorization.k8s.io/v1/Role";
const CLUSTER_ROLE: &str = "rbac.authorization.k8s.io/v1/ClusterRole";
/// A refusal is reported after 40 s, at the next try, which comes within 30 s; the rest is for the machine.
const TOLD: Duration = Duration::from_secs(100);
/// From then on it is retried within 30 s.
const HEALED: Duration = Duration::from_mins(1);

/// A role that lacks something.
struct Lacking<'a> {
    objects: &'a Objects,
    kind: &'static str,
    place: String,
    whole: Value,
}

impl<'a> Lacking<'a> {
    /// Takes one verb of one resource from a role.
    async fn take(objects: &'a Objects, kind: &'static str, place: String, resource: &str, verb: &str) -> Result<Self> {
        let whole = objects.get(kind, &place).await?.context("no role")?["rules"].clone();
        let mut less = whole.as_array().context("no rules")?.clone();
        for rule in less.iter_mut().filter(|rule| rule["resources"] == json!([resource])) {
            rule["verbs"].as_array_mut().context("no verbs")?.retain(|had| had != verb);
        }
        less.retain(|rule| rule["verbs"] != json!([]));
        ensure!(json!(less) != whole, "{place} grants no {verb} of {resource}");
        objects.patch(kind, &place, &json!({ "rules": less })).await?;
        Ok(Self { objects, kind, place, whole })
    }

    async fn give_back(self) -> Result<()> {
        let Self { objects, kind, place, whole } = self;
        Ok(objects.patch(kind, &place, &json!({ "rules": whole })).await.map(drop)?)
    }
}

/// Gives the syncer its own account in the virtual cluster, from which rights can be removed; its roles have this name.
async fn own_account(harness: &mut Harness) -> Result<String> {
    harness.pardon();
    let name = format!("own-{}", harness.name);
    harness.virtual_kubeconfig = harness.virtual_cluster.virtual_account_named(&name).await?;
    Ok(format!("{name}-virtual"))
}

/// Waits until condition `Ready` of the binding has this status and reason; returns its message.
async fn ready(harness: &Harness, status: &str, reason: &str, within: Duration) -> Result<String> {
    eventually(&format!("Ready={status}/{reason}"), within, async || {
        let binding = harness.binding().await.map_err(|error| error.to_string())?;
        let seen = condition(&binding, "Ready");
        let same = seen["status"] == status && seen["reason"] == reason;
        if same { Ok(seen["message"].as_str().unwrap_or_default().to_owned()) } else { Err(seen.to_string()) }
    })
    .await
}

#[tokio::test]
async fn law_12_calls_that_are_refused_for_lack_of_a_right_show_on_the_binding_and_all_heals_when_it_is_back()
-> Result<()> {
    pattern("refused")
        .run_without(async |harness| {
            let role = own_account(harness).await?;
            harness.start().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("old").build()).await?;
            harness.runs("old").await?;

            let mount = format!("{}/tapestry-syncer-physical", harness.mount);
            let (vside, pside) = (&harness.virtual_side, &harness.physical_side);
            let deletes = Lacking::take(pside, ROLE, mount, "pods", "delete").await?;
            let statuses = Lacking::take(vside, CLUSTER_ROLE, role, "pods/status", "patch").await?;
            vside.delete("v1/Pod", &harness.at("old")).await?;
            vside.create(&harness.bound("new").build()).await?;
            let told = eventually("both are reported", TOLD, async || {
                let told = ready(harness, "False", "RequestsRefused", TOLD).await.map_err(|error| error.to_string())?;
                let both = ["refuses to delete pods: ", "refuses to patch pods/status: "];
                if both.iter().all(|words| told.contains(words)) { Ok(told) } else { Err(told) }
            })
            .await?;
            ensure!(told.contains("deploy/rbac"), "{told}");
            let status = harness.tapestry(&["status", &harness.name]).await?;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            ensure!(status.contains("RequestsRefused") && status.contains("delete pods"), "{status}");
            ensure!(phase(&harness.vpod("new").await?) == "Pending", "without the right?");

            let began = Instant::now();
            deletes.give_back().await?;
            statuses.give_back().await?;
            ready(harness, "True", "Ready", HEALED).await?;
            harness.runs("new").await?;
            harness.gone("old").await?;
            eprintln!("healed {:?} after the rights were back", began.elapsed());
            ensure!(began.elapsed() < HEALED, "{:?}", began.elapsed());
            Ok(())
        })
        .await
}

/// Seconds since the Lease of the first virtual node was renewed.
async fn lease_age(harness: &Harness) -> Result<f64> {
    let lease = harness.virtual_side.get(LEASE, &format!("kube-node-lease/{}", harness.vnode())).await?;
    let renewed: Timestamp = text(&lease.context("no Lease")?["spec"]["renewTime"]).parse()?;
    Ok(harness.now().duration_since(renewed).as_secs_f64())
}

/// Leases are renewed for longer than a node stays ready without, and the pod stays.
async fn keeps_running(harness: &Harness, web: &Value) -> Result<()> {
    let (began, mut oldest) = (Instant::now(), 0.0_f64);
    while began.elapsed() < Duration::from_secs(55) {
        oldest = oldest.max(lease_age(harness).await?);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    ensure!(oldest < 25.0, "a Lease was {oldest} s old");
    harness.vnode_ready(harness.node()).await?;
    assert_eq!(uid(&harness.vpod("web").await?), uid(web));
    Ok(())
}

/// Waits until the process says that it is not ready, with these words.
async fn lacks(syncer: &Process, words: &str, within: Duration) -> Result<()> {
    eventually(&format!("/readyz says {words:?}"), within, async || {
        match http(syncer.health, "GET", "/readyz", "").await {
            Ok((503, told)) if told.contains(words) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn law_12_node_leases_that_may_not_be_renewed_show_on_the_binding_until_they_may() -> Result<()> {
    pattern("stale-leases")
        .run_without(async |harness| {
            let role = own_account(harness).await?;
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let place = format!("kube-node-lease/{role}");
            let renewals = Lacking::take(&harness.virtual_side, ROLE, place, "leases", "patch").await?;
            ready(harness, "False", "LeasesNotRenewed", SOON).await?;
            let binding = harness.binding().await?;
            let told = text(&condition(&binding, "LeasesRenewed")["message"]);
            let words = ["patch leases", "kube-node-lease", "deploy/rbac"];
            ensure!(words.iter().all(|word| told.contains(word)), "{told}");
            assert_eq!(binding["status"]["phase"], "Failed");
            lacks(&syncer, "patch leases", SOON).await?;
            let status = harness.tapestry(&["status", &harness.name]).await?;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            ensure!(status.contains("LeasesNotRenewed"), "{status}");

            renewals.give_back().await?;
            ready(harness, "True", "Ready", HEALED).await?;
            assert_eq!(condition(&harness.binding().await?, "LeasesRenewed")["status"], "True");
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let _ = syncer.end(Signal::Terminate).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_without_the_right_to_be_elected_node_leases_are_renewed_and_everything_says_that_no_process_leads()
-> Result<()> {
    pattern("unelectable")
        .run_without(async |harness| {
            let role = own_account(harness).await?;
            let first = Process::named(harness, "first", "info", &[])?;
            let second = Process::named(harness, "second", "info", &[])?;
            first.start()?;
            first.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (web, _) = harness.runs("web").await?;
            second.start()?;
            second.ready().await?;

            let place = format!("{}/{role}", keys::NAMESPACE);
            let seat = Lacking::take(&harness.virtual_side, ROLE, place, "leases", "patch").await?;
            ready(harness, "False", "ElectionRefused", SOON).await?;
            let binding = harness.binding().await?;
            let told = text(&condition(&binding, "LeaderElected")["message"]);
            let words = ["patch leases", keys::NAMESPACE, "deploy/rbac"];
            ensure!(words.iter().all(|word| told.contains(word)), "{told}");
            assert_eq!(binding["status"]["phase"], "Failed");
            for syncer in [&first, &second] {
                lacks(syncer, "patch leases", SOON).await?;
                ensure!(!syncer.leads().await?, "it cannot lead");
            }
            let rv = binding["metadata"]["resourceVersion"].clone();
            keeps_running(harness, &web).await?;
            assert_eq!(
                harness.binding().await?["metadata"]["resourceVersion"],
                rv,
                "two processes wrote it again and again"
            );

            seat.give_back().await?;
            ready(harness, "True", "Ready", HEALED).await?;
            assert_eq!(condition(&harness.binding().await?, "LeaderElected")["status"], "True");
            first.ready().await?;
            second.ready().await?;
            ensure!(first.leads().await? != second.leads().await?, "one of them leads");
            for syncer in [first, second] {
                let _ = syncer.end(Signal::Terminate).await?;
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_syncer_started_without_the_right_to_identify_its_cluster_renews_leases_and_says_so() -> Result<()> {
    pattern("nameless")
        .run_without(async |harness| {
            let role = own_account(harness).await?;
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (web, _) = harness.runs("web").await?;
            let _ = syncer.end(Signal::Terminate).await?;

            let identity = Lacking::take(&harness.virtual_side, CLUSTER_ROLE, role, "namespaces", "get").await?;
            syncer.start()?;
            let told = ready(harness, "False", "RightMissing", SOON).await?;
            ensure!(told.contains("namespaces/kube-system") && told.contains("deploy/rbac"), "{told}");
            lacks(&syncer, "namespaces/kube-system", SOON).await?;
            keeps_running(harness, &web).await?;

            identity.give_back().await?;
            ready(harness, "True", "Ready", HEALED).await?;
            syncer.ready().await?;
            let _ = syncer.end(Signal::Terminate).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_a_syncer_started_without_the_right_to_read_its_binding_stays_up_and_starts_when_it_may() -> Result<()> {
    pattern("unread-binding")
        .run_without(async |harness| {
            let role = own_account(harness).await?;
            let binding = Lacking::take(&harness.virtual_side, CLUSTER_ROLE, role, "clusterbindings", "get").await?;
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            lacks(&syncer, "cannot read ClusterBinding unread-binding", SOON).await?;
            let pid = syncer.pid()?;
            binding.give_back().await?;
            syncer.ready().await?;
            assert_eq!(syncer.pid()?, pid, "it was not restarted");
            let _ = syncer.end(Signal::Terminate).await?;
            Ok(())
        })
        .await
}
