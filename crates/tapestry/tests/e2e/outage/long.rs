//! Outages longer than Kubernetes' grace periods: 50 s until a node without renewals becomes unknown (the default of the
//! controller-manager, which runs here), and the time that pods tolerate it. All cases wait together, in one virtual
//! cluster. One of them is a dead syncer: the eviction of its pods shows that those of the others would be evicted, too. A
//! healthy cluster is part of the test: if all nodes are down, the controller-manager evicts no pod.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_syncer::start::user_agent;
use tapestry_testbed::builders::{Pod, node};
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Cluster, eventually};
use tokio::sync::OnceCell;

use crate::fixtures::{Fixture, bare, own};
use crate::harness::{Harness, pattern, wind_up};
use crate::looks::{SOON, condition, items, phase, taints, text, uid};
use crate::process::syncer::Process;
use crate::timing::timed;

/// `--node-monitor-grace-period` of the controller-manager.
const MONITOR_GRACE: Duration = Duration::from_secs(50);
/// How long the pods here tolerate a node that is not ready or unreachable.
const TOLERATED: Duration = Duration::from_secs(5);
/// Longer than both: the controller-manager checks every 5 s.
const LONG: Duration = MONITOR_GRACE.saturating_add(TOLERATED).saturating_add(Duration::from_secs(5));
/// What nodes of the dark and of the bright cluster have in common.
const POOL: &str = "example.com/pool";
const LEASE: &str = "coordination.k8s.io/v1/Lease";

/// A pod that Kubernetes would soon evict.
fn brief(mut pod: Pod) -> Pod {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let seconds = TOLERATED.as_secs();
        pod = pod
            .tolerate(json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds }));
    }
    pod
}

/// A pod that runs on both sides, and must stay the same.
struct Runner<'a> {
    harness: &'a Harness,
    name: &'static str,
    vpod: Value,
    ppod: Value,
}

impl<'a> Runner<'a> {
    /// Where kwok is the kubelet.
    async fn start(harness: &'a Harness, name: &'static str, pod: Pod) -> Result<Self> {
        harness.virtual_side.create(&pod.build()).await?;
        let (vpod, ppod) = harness.runs(name).await?;
        Ok(Self { harness, name, vpod, ppod })
    }

    /// Where the test is the kubelet.
    async fn play(harness: &'a Harness, name: &'static str, pod: Pod) -> Result<Self> {
        harness.virtual_side.create(&pod.build()).await?;
        harness.play_running(&harness.copy(name).await?).await?;
        let (vpod, ppod) = harness.runs(name).await?;
        Ok(Self { harness, name, vpod, ppod })
    }

    /// It is the same pod, it runs, and it is not being deleted.
    async fn lives_above(&self) -> Result<()> {
        let vpod = self.harness.vpod(self.name).await?;
        let lives = vpod["metadata"]["deletionTimestamp"].is_null() && phase(&vpod) == "Running";
        ensure!(lives && uid(&vpod) == uid(&self.vpod), "{} was touched: {vpod}", self.harness.at(self.name));
        Ok(())
    }

    /// The same for both, and no container was restarted.
    async fn lives(&self) -> Result<()> {
        self.lives_above().await?;
        let ppod = self.harness.copy(self.name).await?;
        let lives = ppod["metadata"]["deletionTimestamp"].is_null() && phase(&ppod) == "Running";
        let same = uid(&ppod) == uid(&self.ppod) && ppod["status"]["startTime"] == self.ppod["status"]["startTime"];
        ensure!(lives && same, "the copy of {} was touched: {ppod}", self.harness.at(self.name));
        ensure!(items(&ppod["status"]["containerStatuses"]).iter().all(|status| status["restartCount"] == 0), "{ppod}");
        Ok(())
    }

    async fn is_ready(&self) -> Result<()> {
        self.harness
            .vpod_when(self.name, "is ready", |vpod| condition(vpod, "Ready")["status"] == "True")
            .await
            .map(drop)
    }
}

fn dark(vnode: &Value) -> bool {
    taints(vnode).contains(&(keys::TAINT_PHYSICAL_UNREACHABLE.to_owned(), "NoSchedule".to_owned()))
}

fn reachable(vnode: &Value) -> &str {
    text(&condition(vnode, keys::CONDITION_PHYSICAL_CLUSTER_REACHABLE)["status"])
}

/// Whether the node has the taint by which Kubernetes evicts.
fn given_up(vnode: &Value) -> bool {
    items(&vnode["spec"]["taints"]).iter().any(|taint| taint["effect"] == "NoExecute")
}

fn leaving(vpod: &Value) -> bool {
    !vpod["metadata"]["deletionTimestamp"].is_null()
}

async fn vnode(harness: &Harness) -> Result<Value> {
    harness.virtual_side.get("v1/Node", &harness.vnode()).await?.context("no virtual node")
}

/// Marks a pod as not ready, as the controller-manager does when it thinks that a node is dead.
async fn flip_ready(harness: &Harness, pod: &str) -> Result<()> {
    let mut conditions = items(&harness.vpod(pod).await?["status"]["conditions"]).to_vec();
    for condition in conditions.iter_mut().filter(|condition| condition["type"] == "Ready") {
        condition["status"] = json!("False");
    }
    let patch = json!({ "status": { "conditions": conditions } });
    harness.virtual_side.patch_subresource("status", "v1/Pod", &harness.at(pod), &patch).await?;
    Ok(())
}

/// Checks every two seconds while the outage lasts: no harmful state appears, not even for a moment.
async fn all_the_while(began: Instant, look: impl AsyncFn() -> Result<()>) -> Result<()> {
    while began.elapsed() < LONG {
        look().await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    Ok(())
}

/// `partition: Hold`, the default: the physical API server is gone, and no pod is.
async fn hold(cluster: &Cluster, harness: &Harness, bright: &Harness) -> Result<()> {
    harness.vnode_ready(harness.node()).await?;
    bright.vnode_ready(bright.node()).await?;
    let web = Runner::play(harness, "web", brief(harness.bound("web"))).await?;
    let beside = Runner::start(bright, "web", brief(bright.bound("web"))).await?;
    let mark = harness.virtual_cluster.audit().mark().await?;

    cluster.apiserver().kill().await?;
    let began = Instant::now();
    harness
        .vnode_when(harness.node(), "says that its cluster is unreachable", |vnode| {
            dark(vnode) && reachable(vnode) == "False"
        })
        .await?;
    let took = began.elapsed();
    ensure!(took < Duration::from_secs(15), "visible only after {took:?}");
    flip_ready(harness, "web").await?;
    // One pod that may run only there, and some that may run on either.
    harness.virtual_side.create(&brief(harness.pod("late")).build()).await?;
    for pod in ["either-0", "either-1", "either-2"] {
        let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
        let either = tapestry_testbed::builders::pod(pod).namespace(&bright.name).tolerate(toleration);
        bright.virtual_side.create(&either.node_label(POOL, "long").build()).await?;
    }
    for pod in ["either-0", "either-1", "either-2"] {
        let (vpod, _) = bright.runs(pod).await?;
        assert_eq!(text(&vpod["spec"]["nodeName"]), bright.vnode());
    }
    all_the_while(began, async || {
        let seen = vnode(harness).await?;
        let held = dark(&seen) && condition(&seen, "Ready")["status"] == "True" && !given_up(&seen);
        ensure!(held, "the node was given up after {:?}: {} {}", began.elapsed(), seen["spec"], seen["status"]);
        web.lives_above().await?;
        let late = harness.vpod("late").await?;
        ensure!(late["spec"]["nodeName"].is_null(), "placed on an unreachable cluster: {late}");
        beside.lives().await
    })
    .await?;
    assert_eq!(condition(&harness.vpod("web").await?, "Ready")["status"], "False", "statuses are frozen");

    cluster.apiserver().start()?;
    Box::pin(cluster.ready()).await?;
    let returned = Instant::now();
    let back = |vnode: &Value| !dark(vnode) && reachable(vnode) == "True";
    harness.vnode_when(harness.node(), "is as before", back).await?;
    web.is_ready().await?;
    let late = harness.copy("late").await?;
    harness.play_running(&late).await?;
    harness.runs("late").await?;
    let took = returned.elapsed();
    eprintln!("everything is ready {took:?} after the return");
    // The probe asks every 5 s; watches must not stay in back-off after it was answered.
    ensure!(took < Duration::from_secs(12), "{took:?} after the return");
    web.lives().await?;
    beside.lives().await?;
    // Statuses of running pods are written before new pods start.
    let said = harness.virtual_cluster.audit().since(&mark).await?.by_agent(&user_agent(&harness.name));
    let about = |pod: &str, subresource: &str| {
        let these = said.only(|request| {
            request.namespace == harness.name && request.name == pod && request.subresource == subresource
        });
        these.0.iter().map(|request| request.received).min().with_context(|| format!("no write for {pod}"))
    };
    let (ready, mapped) = (about("web", "status")?, about("late", "")?);
    ensure!(ready < mapped, "late was mapped at {mapped}, and web became ready at {ready}");
    harness.at_peace(&[], SOON).await?;
    bright.at_peace(&[], SOON).await
}

/// No process renews: the node becomes unknown and Kubernetes evicts pods that do not tolerate it. A syncer that comes
/// back finishes that, and leaves the others as they are.
async fn dead(harness: &Harness) -> Result<()> {
    let syncer = Process::new(harness, "info,tapestry_cluster=debug")?;
    syncer.start()?;
    harness.vnode_ready(harness.node()).await?;
    let stays = Runner::start(harness, "stays", harness.bound("stays")).await?;
    let goes = Runner::start(harness, "goes", brief(harness.bound("goes"))).await?;
    syncer.end(Signal::Kill).await?;
    let began = Instant::now();
    eventually("the node is unknown and its pod evicted", LONG + SOON, async || {
        let seen = vnode(harness).await.map_err(|error| error.to_string())?;
        let vpod = harness.vpod("goes").await.map_err(|error| error.to_string())?;
        let unknown = condition(&seen, "Ready")["status"] == "Unknown" && given_up(&seen);
        let told = format!("{} {}", condition(&seen, "Ready"), vpod["metadata"]);
        if unknown && leaving(&vpod) { Ok(()) } else { Err(told) }
    })
    .await?;
    let took = began.elapsed();
    eprintln!("without a syncer: evicted after {took:?}");
    // When it died, the last renewal was ten seconds old at most.
    ensure!(took + Duration::from_secs(10) > MONITOR_GRACE, "{took:?}: too early for missing renewals");
    stays.lives_above().await?;
    assert_eq!(condition(&harness.vpod("stays").await?, "Ready")["status"], "False", "the controller-manager said so");
    // No syncer ran that could end a copy.
    let copies = harness.ppods().await?;
    ensure!(copies.len() == 2 && copies.iter().all(|ppod| !leaving(ppod)), "{copies:?}");
    ensure!(copies.iter().any(|ppod| uid(ppod) == uid(&goes.ppod)), "{copies:?}");

    syncer.start()?;
    harness
        .vnode_when(harness.node(), "is ready again", |vnode| {
            condition(vnode, "Ready")["status"] == "True" && !given_up(vnode)
        })
        .await?;
    harness.gone("goes").await?;
    stays.is_ready().await?;
    stays.lives().await?;
    harness.at_peace(&[], SOON).await
}

/// A physical node that is not ready is no outage: the syncer mirrors it, and Kubernetes evicts as usual.
async fn broken(harness: &Harness) -> Result<()> {
    let kubelet_says = async |ready: &str| {
        let ready = json!([{
            "type": "Ready", "status": ready, "reason": "SaidByATest", "message": "",
            "lastTransitionTime": "2026-01-02T00:00:00Z", "lastHeartbeatTime": "2026-01-02T00:00:00Z",
        }]);
        let status = json!({ "status": { "conditions": ready } });
        harness.physical_side.patch_subresource("status", "v1/Node", harness.node(), &status).await
    };
    harness.vnode_ready(harness.node()).await?;
    let stays = Runner::play(harness, "stays", harness.bound("stays")).await?;
    let goes = Runner::play(harness, "goes", brief(harness.bound("goes"))).await?;
    kubelet_says("False").await?;
    let vnode = harness
        .vnode_when(harness.node(), "is not ready", |vnode| condition(vnode, "Ready")["status"] == "False")
        .await?;
    assert_eq!((dark(&vnode), reachable(&vnode)), (false, "True"), "the API server answers");
    let copy = harness.physical_leaving(&goes.ppod).await?;
    harness.play_removed(&copy).await?;
    harness.gone("goes").await?;
    kubelet_says("True").await?;
    harness
        .vnode_when(harness.node(), "is ready again", |vnode| {
            condition(vnode, "Ready")["status"] == "True" && !given_up(vnode)
        })
        .await?;
    stays.is_ready().await?;
    stays.lives().await?;
    Runner::play(harness, "late", harness.pod("late")).await?.lives().await
}

/// The clock of the syncer's machine is set forward by hours, and back by more: no node looks dead, nothing ends.
async fn clocks(harness: &Harness) -> Result<()> {
    harness.vnode_ready(harness.node()).await?;
    let web = Runner::start(harness, "web", brief(harness.bound("web"))).await?;
    let place = format!("kube-node-lease/{}", harness.vnode());
    let renewed = async || -> Result<Timestamp> {
        let lease = harness.virtual_side.get(LEASE, &place).await?.context("no Lease")?;
        Ok(text(&lease["spec"]["renewTime"]).parse()?)
    };
    let renewed_after = async |what: &str, moment: Timestamp| {
        eventually(what, SOON, async || match renewed().await {
            Ok(at) if at > moment => Ok(at),
            other => Err(format!("{other:?}")),
        })
        .await
    };
    let start = renewed().await?;
    harness.set_clock(SignedDuration::from_hours(5));
    let ahead = renewed_after("renewed with the clock ahead", start + Duration::from_hours(4)).await?;
    web.lives().await?;
    harness.set_clock(SignedDuration::from_hours(-11));
    let began = Instant::now();
    all_the_while(began, async || {
        let seen = vnode(harness).await?;
        let ready = condition(&seen, "Ready")["status"] == "True" && !given_up(&seen);
        ensure!(ready, "not ready after {:?}: {} {}", began.elapsed(), seen["spec"], seen["status"]);
        web.lives().await
    })
    .await?;
    // For the controller-manager only a later time is a renewal.
    renewed_after("renewed with the clock set back", ahead).await?;
    // And it works as before.
    Runner::start(harness, "late", harness.pod("late")).await?.lives().await?;
    harness.at_peace(&[], SOON).await
}

#[tokio::test]
async fn law_01_outages_longer_than_every_grace_end_no_pod_while_a_syncer_renews() -> Result<()> {
    static DARK: OnceCell<Cluster> = OnceCell::const_new();
    // Boxed: it holds several harnesses.
    Box::pin(timed(async {
        let cluster = DARK.get_or_try_init(|| own(bare("dark"))).await?;
        let pooled = |name: &str| node(name).label(POOL, "long");
        let (mut held, mut bright, lost, mut broke, mut clock) = tokio::try_join!(
            pattern("long-dark").on(Fixture::Own(cluster)).node(pooled("long-dark-0")).set_up(),
            // More nodes than can be down: otherwise the controller-manager would suspect its own network and evict no pod.
            pattern("long-bright").on(Fixture::East).node(pooled("long-bright-0")).node(node("long-bright-1")).set_up(),
            pattern("long-dead").on(Fixture::West).set_up(),
            pattern("long-broken").on(Fixture::Still).set_up(),
            pattern("long-clocks").on(Fixture::East).set_up(),
        )?;
        let test = async {
            tokio::try_join!(held.start(), bright.start(), broke.start(), clock.start())?;
            tokio::try_join!(hold(cluster, &held, &bright), dead(&lost), broken(&broke), clocks(&clock)).map(drop)
        };
        let ended = Box::pin(test).await;
        wind_up(ended, [held, bright, lost, broke, clock]).await
    }))
    .await
}
