//! One binding at work: its nodes, namespaces and policy on clusters that tests share, and its syncer in this process.
//! Must leave nothing that another test could meet, also when a test fails or panics.
//!
//! ```text
//! pattern("grace").on(Ground::Still).run(async |loom| { loom.virtual_side.create(&loom.pod("web").build()).await?; … })
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures::FutureExt as _;
use futures::future::join_all;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::connect::Trust;
use tapestry_domain::names::vnode_name;
use tapestry_engine::Now;
use tapestry_engine::clock::{Clock, SystemClock};
use tapestry_engine::serve::Readiness;
use tapestry_syncer::start::{start, user_agent};
use tapestry_testbed::builders::{self, Binding, Node, Pod, Policy, namespace, pod, policy};
use tapestry_testbed::{Cluster, ClusterConfig, Objects, Part, eventually, fleet};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::looks::{LATE, SOON, annotation, items, name, phase, takes_pods};
use crate::timing::{Note, test_name};

/// The label that a test's physical nodes carry, and that its binding selects.
pub(crate) const TEST: &str = "example.com/test";
pub(crate) const POLICY: &str = "cloud.tencent.com/v1beta1/ResourceLeasingPolicy";
pub(crate) const BINDING: &str = "cloud.tencent.com/v1beta1/ClusterBinding";

/// Where a test's physical nodes are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ground {
    /// The fleet's first physical cluster: kwok plays the kubelets.
    East,
    /// The fleet's second one.
    West,
    /// Only an API server: nothing happens there unless the test does it, so the test is the kubelet.
    Still,
    /// A cluster of the test's own, still as well.
    Own(&'static Cluster),
}

/// In which virtual cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    /// The fleet's, with scheduler and controller manager.
    Fleet,
    /// A second one: only an API server.
    Other,
}

impl Ground {
    pub(crate) async fn cluster(self) -> Result<&'static Cluster> {
        static STILL: OnceCell<Cluster> = OnceCell::const_new();
        match self {
            Self::East => fleet().await?.physical(0),
            Self::West => fleet().await?.physical(1),
            Self::Still => STILL.get_or_try_init(|| Cluster::start(bare("still"))).await,
            Self::Own(cluster) => Ok(cluster),
        }
    }

    fn is_still(self) -> bool {
        matches!(self, Self::Still | Self::Own(_))
    }
}

impl Home {
    pub(crate) async fn cluster(self) -> Result<&'static Cluster> {
        static READY: [OnceCell<()>; 2] = [OnceCell::const_new(), OnceCell::const_new()];
        static OTHER: OnceCell<Cluster> = OnceCell::const_new();
        let cluster = match self {
            Self::Fleet => fleet().await?.virtual_cluster()?,
            Self::Other => OTHER.get_or_try_init(|| Cluster::start(bare("other"))).await?,
        };
        READY[self as usize].get_or_try_init(|| install(cluster)).await?;
        Ok(cluster)
    }
}

/// A cluster that does nothing by itself.
pub(crate) fn bare(name: &str) -> ClusterConfig {
    ClusterConfig::virtual_cluster(name).without(Part::ControllerManager).without(Part::Scheduler)
}

/// Our definitions, served; and the namespace for kubeconfigs.
pub(crate) async fn install(cluster: &Cluster) -> Result<()> {
    let objects = cluster.objects()?;
    for definition in tapestry_api::crds::crds() {
        let mut definition = serde_json::to_value(definition)?;
        definition["apiVersion"] = json!("apiextensions.k8s.io/v1");
        definition["kind"] = json!("CustomResourceDefinition");
        objects.apply(&definition).await?;
    }
    for kind in [BINDING, POLICY] {
        let look = async || objects.list(kind, "").await.map(drop).map_err(|error| error.to_string());
        eventually(&format!("{kind} is served"), SOON, look).await?;
    }
    objects.apply(&namespace(keys::NAMESPACE)).await?;
    Ok(())
}

/// What a test asks for.
pub(crate) struct Pattern {
    name: String,
    home: Home,
    ground: Ground,
    mount: String,
    nodes: Option<Vec<Value>>,
    policies: Vec<Value>,
    binding: Binding,
}

/// A pattern of this name: it is the binding, its clusterID (so at most 24 characters), the virtual namespace and, with
/// `-mount`, the physical one.
pub(crate) fn pattern(name: &str) -> Pattern {
    let binding = builders::binding(name).cluster_id(name).secret(keys::NAMESPACE, name).node_label(TEST, name);
    Pattern {
        name: name.to_owned(),
        home: Home::Fleet,
        ground: Ground::East,
        mount: format!("{name}-mount"),
        nodes: None,
        policies: vec![policy(name).cluster(name).build()],
        binding,
    }
}

impl Pattern {
    pub(crate) fn home(mut self, home: Home) -> Self {
        self.home = home;
        self
    }

    pub(crate) fn on(mut self, ground: Ground) -> Self {
        self.ground = ground;
        if ground.is_still() {
            // There is no scheduler.
            self.binding = self.binding.with("/spec/directScheduling", true);
        }
        self
    }

    /// Adds a physical node to lend. Without any, there is one of 32 CPU, [`Loom::node`].
    pub(crate) fn node(mut self, node: Node) -> Self {
        let node = node.label(TEST, &self.name).build();
        self.nodes.get_or_insert_default().push(node);
        self
    }

    /// Adds a physical node that the binding does not select.
    pub(crate) fn other_node(mut self, node: Node) -> Self {
        self.nodes.get_or_insert_default().push(node.build());
        self
    }

    /// Lends the nodes of another test's pattern instead of nodes of its own.
    pub(crate) fn nodes_of(mut self, other: &str) -> Self {
        self.nodes = Some(Vec::new());
        self.binding = self.binding.node_label(TEST, other);
        self
    }

    /// Puts the copies into another namespace.
    pub(crate) fn mount(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.mount);
        self
    }

    /// Replaces the policy, which lends everything.
    pub(crate) fn policy(mut self, policy: impl FnOnce(Policy) -> Policy) -> Self {
        self.policies = vec![policy(builders::policy(&self.name).cluster(&self.name)).build()];
        self
    }

    pub(crate) fn another_policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy.cluster(&self.name).build());
        self
    }

    pub(crate) fn without_policy(mut self) -> Self {
        self.policies.clear();
        self
    }

    pub(crate) fn binding(mut self, change: impl FnOnce(Binding) -> Binding) -> Self {
        self.binding = change(self.binding);
        self
    }

    /// Sets up, starts the syncer, runs the test, stops, sweeps.
    pub(crate) async fn run<Test: AsyncFnOnce(&mut Loom) -> Result<()>>(self, test: Test) -> Result<()> {
        let _note = Note::begin(test_name::<Test>());
        let mut loom = self.set_up().await?;
        let run = async {
            loom.start().await?;
            test(&mut loom).await
        };
        let ended = AssertUnwindSafe(run).catch_unwind().await;
        let stopped = loom.stop().await;
        loom.sweep().await;
        match ended {
            Ok(result) => result.and(stopped),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// As [`Self::run`], but no syncer runs: the test starts one.
    pub(crate) async fn run_without<Test: AsyncFnOnce(&mut Loom) -> Result<()>>(self, test: Test) -> Result<()> {
        let _note = Note::begin(test_name::<Test>());
        let mut loom = self.set_up().await?;
        let ended = AssertUnwindSafe(test(&mut loom)).catch_unwind().await;
        let stopped = loom.stop().await;
        loom.sweep().await;
        match ended {
            Ok(result) => result.and(stopped),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Everything but the syncer.
    pub(crate) async fn set_up(self) -> Result<Loom> {
        show_logs();
        let (virtual_cluster, physical_cluster) = tokio::try_join!(self.home.cluster(), self.ground.cluster())?;
        let (virtual_side, physical_side) = (virtual_cluster.objects()?, physical_cluster.objects()?);
        let one = || vec![builders::node(&format!("{}-0", self.name)).label(TEST, &self.name).build()];
        let mut nodes = self.nodes.unwrap_or_else(one);
        if self.ground.is_still() {
            nodes.iter_mut().for_each(make_ready);
        }
        let loom = Loom {
            name: self.name,
            virtual_cluster,
            physical_cluster,
            virtual_side,
            physical_side,
            mount: self.mount,
            nodes: nodes.iter().map(|node| name(node).to_owned()).collect(),
            clock: Arc::new(SkippingClock { system: SystemClock::start(), skipped: AtomicU64::new(0) }),
            running: None,
        };
        loom.physical_side.apply(&namespace(&loom.mount)).await?;
        loom.virtual_side.create(&namespace(&loom.name)).await?;
        for node in &nodes {
            loom.physical_side.create(node).await?;
        }
        let kubeconfig = loom.physical_cluster.kubeconfig_text()?;
        loom.virtual_side.create(&builders::kubeconfig_secret(keys::NAMESPACE, &loom.name, &kubeconfig)).await?;
        loom.virtual_side.create(&self.binding.mount_namespace(&loom.mount).build()).await?;
        for policy in &self.policies {
            loom.virtual_side.create(policy).await?;
        }
        if self.home == Home::Fleet {
            loom.takes_pods().await?;
        }
        Ok(loom)
    }
}

/// What a kubelet would say of a healthy node.
fn make_ready(node: &mut Value) {
    let since = "2026-01-01T00:00:00Z";
    node["status"]["conditions"] = json!([{
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "played by a test",
        "lastHeartbeatTime": since, "lastTransitionTime": since,
    }]);
}

/// A binding at work.
pub(crate) struct Loom {
    pub(crate) name: String,
    pub(crate) virtual_cluster: &'static Cluster,
    pub(crate) physical_cluster: &'static Cluster,
    pub(crate) virtual_side: Objects,
    pub(crate) physical_side: Objects,
    /// The namespace of the copies.
    pub(crate) mount: String,
    nodes: Vec<String>,
    clock: Arc<SkippingClock>,
    running: Option<Running>,
}

/// A syncer in this process.
struct Running {
    cancel: CancellationToken,
    /// Aborts what is in it when dropped: a test that panics leaves no syncer.
    tasks: JoinSet<()>,
}

/// The machine's clock, which a test may put forward.
struct SkippingClock {
    system: SystemClock,
    skipped: AtomicU64,
}

impl Clock for SkippingClock {
    fn now(&self) -> Now {
        let Now { wall, steady } = self.system.now();
        let skipped = Duration::from_secs(self.skipped.load(Ordering::Relaxed));
        Now { wall: wall + skipped, steady: steady + skipped }
    }
}

impl Loom {
    /// Starts the syncer and waits until it is ready.
    pub(crate) async fn start(&mut self) -> Result<()> {
        let readiness = self.start_syncer().await?;
        let look = async || if readiness.waiting_for().is_empty() { Ok(()) } else { Err("not ready".to_owned()) };
        eventually(&format!("the syncer of {} is ready", self.name), SOON, look).await
    }

    /// Starts a syncer that cannot become ready.
    pub(crate) async fn start_wrong(&mut self) -> Result<()> {
        self.start_syncer().await.map(drop)
    }

    async fn start_syncer(&mut self) -> Result<Readiness> {
        let kubeconfig = self.virtual_cluster.kubeconfig_text()?;
        let agent = user_agent(&self.name);
        let cluster = tapestry_cluster::Cluster::connect("virtual", &kubeconfig, Trust::Operator, &agent).await?;
        let (cancel, readiness) = (CancellationToken::new(), Readiness::default());
        let gate = readiness.gate("everything");
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let syncer = start(&self.name, cluster, clock, &mut Registry::default(), gate, cancel.clone()).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(syncer.run());
        self.running = Some(Running { cancel, tasks });
        Ok(readiness)
    }

    /// Stops the syncer as a signal would.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let Some(Running { cancel, mut tasks }) = self.running.take() else { return Ok(()) };
        cancel.cancel();
        match tokio::time::timeout(SOON, tasks.join_next()).await {
            Ok(Some(Err(error))) if error.is_panic() => bail!("the syncer of {} panicked: {error}", self.name),
            Ok(_) => Ok(()),
            Err(_) => bail!("the syncer of {} did not stop", self.name),
        }
    }

    /// Puts the syncer's clock forward. It notices with its next fact or timer, seconds later at most.
    pub(crate) fn skip(&self, time: Duration) {
        self.clock.skipped.fetch_add(time.as_secs(), Ordering::Relaxed);
    }

    /// The first physical node.
    pub(crate) fn node(&self) -> &str {
        &self.nodes[0]
    }

    /// The virtual node of the first physical node.
    pub(crate) fn vnode(&self) -> String {
        self.vnode_of(self.node())
    }

    pub(crate) fn vnode_of(&self, node: &str) -> String {
        vnode_name(&self.name, node)
    }

    /// A pod of this test, for the scheduler: it tolerates what every virtual node has, and wants ours.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.unbound(name).node_label(TEST, &self.name)
    }

    /// A pod of this test that is bound to the first virtual node, past the scheduler.
    pub(crate) fn bound(&self, name: &str) -> Pod {
        self.bound_to(self.node(), name)
    }

    /// As [`Self::bound`], to the virtual node of any physical node.
    pub(crate) fn bound_to(&self, node: &str, name: &str) -> Pod {
        self.unbound(name).on(&self.vnode_of(node))
    }

    fn unbound(&self, name: &str) -> Pod {
        let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
        pod(name).namespace(&self.name).tolerate(toleration)
    }

    /// `namespace/name` of a virtual pod.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// A virtual pod, which must exist.
    pub(crate) async fn vpod(&self, name: &str) -> Result<Value> {
        self.virtual_side.get("v1/Pod", &self.at(name)).await?.with_context(|| format!("no virtual pod {name}"))
    }

    /// All physical pods in the mount namespace.
    pub(crate) async fn ppods(&self) -> Result<Vec<Value>> {
        Ok(self.physical_side.list("v1/Pod", &self.mount).await?)
    }

    /// The physical pods that say they are copies of the virtual pod of this name.
    pub(crate) async fn copies(&self, vpod: &str) -> Result<Vec<Value>> {
        let mut all = self.ppods().await?;
        all.retain(|ppod| annotation(ppod, keys::VIRTUAL_POD_NAME) == vpod);
        Ok(all)
    }

    /// Waits for the one copy of a virtual pod.
    pub(crate) async fn copy(&self, vpod: &str) -> Result<Value> {
        eventually(&format!("{vpod} has a copy"), SOON, async || {
            let mut copies = self.copies(vpod).await.map_err(|error| error.to_string())?;
            match copies.len() {
                1 => Ok(copies.swap_remove(0)),
                count => Err(format!("{count} copies; {}", self.told(vpod).await)),
            }
        })
        .await
    }

    /// Waits until this many physical pods are in the mount namespace.
    pub(crate) async fn copies_at_least(&self, count: usize) -> Result<()> {
        eventually(&format!("{count} pods are copied"), LATE, async || {
            let copies = self.ppods().await.map_err(|error| error.to_string())?.len();
            if copies >= count { Ok(()) } else { Err(format!("{copies}")) }
        })
        .await
    }

    /// Waits until a virtual pod satisfies a condition.
    pub(crate) async fn vpod_when(&self, pod: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(&format!("{pod} {what}"), SOON, async || {
            let seen = self.vpod(pod).await.map_err(|error| error.to_string())?;
            if condition(&seen) { Ok(seen) } else { Err(seen.to_string()) }
        })
        .await
    }

    /// Waits until a virtual pod runs; gives it and its copy.
    pub(crate) async fn runs(&self, pod: &str) -> Result<(Value, Value)> {
        let vpod = self.vpod_when(pod, "runs", |vpod| phase(vpod) == "Running").await?;
        Ok((vpod, self.copy(pod).await?))
    }

    /// Waits until neither the virtual pod nor a copy of it is left.
    pub(crate) async fn gone(&self, pod: &str) -> Result<()> {
        eventually(&format!("nothing is left of {pod}"), SOON, async || {
            let failed = |error: anyhow::Error| error.to_string();
            let vpod = self.virtual_side.get("v1/Pod", &self.at(pod)).await.map_err(|error| error.to_string())?;
            let copies = self.copies(pod).await.map_err(failed)?;
            match (vpod, copies.len()) {
                (None, 0) => Ok(()),
                (vpod, copies) => Err(format!("virtual: {vpod:?}; {copies} copies")),
            }
        })
        .await
    }

    /// Waits until a virtual node satisfies a condition.
    pub(crate) async fn vnode_when(&self, node: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        let vnode = self.vnode_of(node);
        eventually(&format!("{vnode} {what}"), SOON, async || {
            match self.virtual_side.get("v1/Node", &vnode).await.map_err(|error| error.to_string())? {
                Some(seen) if holds(&seen) => Ok(seen),
                Some(seen) => Err(format!("{} {}", seen["spec"], seen["status"])),
                None => Err("no such node".to_owned()),
            }
        })
        .await
    }

    /// Waits until the virtual node of a physical one takes pods.
    pub(crate) async fn vnode_ready(&self, node: &str) -> Result<Value> {
        self.vnode_when(node, "is ready", takes_pods).await
    }

    /// Waits until a virtual node is no more.
    pub(crate) async fn vnode_gone(&self, node: &str) -> Result<()> {
        let vnode = self.vnode_of(node);
        eventually(&format!("{vnode} is gone"), SOON, async || {
            match self.virtual_side.get("v1/Node", &vnode).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(seen) => Err(seen["spec"].to_string()),
            }
        })
        .await
    }

    /// The binding as it is now.
    pub(crate) async fn binding(&self) -> Result<Value> {
        self.virtual_side.get(BINDING, &self.name).await?.context("no binding")
    }

    /// What the virtual pod and the events say, for failures.
    async fn told(&self, pod: &str) -> String {
        let events = self.virtual_side.list("v1/Event", &self.name).await.unwrap_or_default();
        let about = events.iter().filter(|event| event["involvedObject"]["name"] == pod);
        let messages: Vec<_> = about.map(|event| event["message"].to_string()).collect();
        let vpod = self.vpod(pod).await.unwrap_or_default();
        format!("virtual: {} {}; events: {messages:?}", vpod["metadata"]["annotations"], vpod["status"])
    }

    /// A pod is refused until its namespace has a default `ServiceAccount`.
    async fn takes_pods(&self) -> Result<()> {
        let account = self.at("default");
        eventually(&format!("{} takes pods", self.name), SOON, async || {
            match self.virtual_side.get("v1/ServiceAccount", &account).await {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Removes what could cost other tests time: objects that controllers, schedulers and kubelets look after.
    pub(crate) async fn sweep(&self) {
        let sweep = async {
            let (vside, pside) = (&self.virtual_side, &self.physical_side);
            for policy in vside.list(POLICY, "").await.unwrap_or_default() {
                if policy["spec"]["cluster"] == self.name.as_str() {
                    let _ = vside.delete(POLICY, name(&policy)).await;
                }
            }
            let _ = vside.delete(BINDING, &self.name).await;
            let _ = vside.delete("v1/Namespace", &self.name).await;
            let _ = pside.delete("v1/Namespace", &self.mount).await;
            let _ = delete_pods(self.virtual_cluster, &self.name).await;
            let _ = delete_pods(self.physical_cluster, &self.mount).await;
            let ours = format!("{}={}", keys::CLUSTER_BINDING, self.name);
            let vnodes = vside.list_where("v1/Node", "", &ours).await.unwrap_or_default();
            join_all(vnodes.iter().map(|vnode| vside.delete("v1/Node", name(vnode)))).await;
            join_all(self.nodes.iter().map(|node| pside.delete("v1/Node", node))).await;
        };
        // What is left only slows down; the clusters end with the run.
        let _ = tokio::time::timeout(Duration::from_secs(20), sweep).await;
    }
}

/// Deletes all pods of a namespace at once, without grace.
async fn delete_pods(cluster: &Cluster, namespace: &str) -> Result<()> {
    let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
    let request = http::Request::delete(format!("/api/v1/namespaces/{namespace}/pods"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&options)?)?;
    let answer = cluster.client()?.request::<Value>(request).await;
    answer.map(drop).map_err(|error| anyhow!(error))
}

/// The events about an object, by reason.
pub(crate) async fn event_reasons(objects: &Objects, namespace: &str, about: &str) -> Result<Vec<String>> {
    let events = objects.list("v1/Event", namespace).await?;
    let about = events.iter().filter(|event| event["involvedObject"]["name"] == about);
    Ok(about.map(|event| event["reason"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Our logs are part of a failed test's output.
pub(crate) fn show_logs() {
    let filter =
        tracing_subscriber::EnvFilter::new("warn,tapestry_syncer=debug,tapestry_cluster=debug,kube_client=off");
    // A second test finds it done.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().with_ansi(false).try_init();
}

/// Plays the kubelet of [`Ground::Still`].
impl Loom {
    /// The copy's container runs.
    pub(crate) async fn play_running(&self, ppod: &Value) -> Result<()> {
        let state = json!({ "running": { "startedAt": "2026-01-01T00:00:01Z" } });
        self.play(ppod, "Running", "True", state).await
    }

    /// The copy's container has ended with this code.
    pub(crate) async fn play_ended(&self, ppod: &Value, code: u8) -> Result<()> {
        let times = ("2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z");
        let state = json!({ "terminated": { "exitCode": code, "startedAt": times.0, "finishedAt": times.1 } });
        self.play(ppod, if code == 0 { "Succeeded" } else { "Failed" }, "False", state).await
    }

    async fn play(&self, ppod: &Value, phase: &str, ready: &str, state: Value) -> Result<()> {
        let running = phase == "Running";
        let containers: Vec<Value> = items(&ppod["spec"]["containers"])
            .iter()
            .map(|container| {
                json!({
                    "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0,
                    "ready": running, "started": running, "state": state,
                })
            })
            .collect();
        let condition =
            |kind: &str| json!({ "type": kind, "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z" });
        let status = json!({
            "phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": containers,
            "podIP": "10.9.8.7", "podIPs": [{ "ip": "10.9.8.7" }], "hostIP": "10.9.8.1", "hostIPs": [{ "ip": "10.9.8.1" }],
            "conditions": [condition("Ready"), condition("ContainersReady")],
        });
        let place = format!("{}/{}", self.mount, name(ppod));
        self.physical_side.patch_subresource("status", "v1/Pod", &place, &json!({ "status": status })).await?;
        Ok(())
    }

    /// The kubelet has confirmed the end: the object goes.
    pub(crate) async fn play_removed(&self, ppod: &Value) -> Result<()> {
        let place = format!("{}/{}", self.mount, name(ppod));
        let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
        Ok(self.physical_side.delete_with("v1/Pod", &place, &now).await?)
    }

    /// Waits until a physical pod is being deleted; gives it as it is then.
    pub(crate) async fn physical_leaving(&self, ppod: &Value) -> Result<Value> {
        let place = format!("{}/{}", self.mount, name(ppod));
        eventually(&format!("{place} is being deleted"), SOON, async || {
            match self.physical_side.get("v1/Pod", &place).await {
                Ok(Some(seen)) if !seen["metadata"]["deletionTimestamp"].is_null() => Ok(seen),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }
}
