//! One binding under test: its nodes, namespaces and policy on clusters that tests share, and its syncer in this process.
//! Must leave nothing behind that could disturb another test, also when a test fails or panics.
//!
//! ```text
//! pattern("grace").on(Fixture::Still).run(async |harness| {
//! harness.virtual_side.create(&harness.pod("web").build()).await?; … })
//! ```

mod play;
mod proxies;
mod view;
mod waits;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use futures::FutureExt as _;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::Side;
use tapestry_cluster::connect::Trust;
use tapestry_domain::names::vnode_name;
use tapestry_engine::Now;
use tapestry_engine::clock::{Clock, SystemClock};
use tapestry_engine::serve::Readiness;
use tapestry_syncer::start::{Config, Meters, RunError, Syncer, user_agent};
use tapestry_testbed::audit::{Mark, Requests};
use tapestry_testbed::builders::{self, Binding, Node, Pod, Policy, namespace, pod, policy};
use tapestry_testbed::{Cluster, Objects, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Fixture, Home};
use crate::looks::{SOON, name};
use crate::timing::{Note, test_name};

use proxies::Proxies;
pub(crate) use waits::event_reasons;

/// The label that a test's physical nodes carry, and that its binding selects.
pub(crate) const TEST: &str = "example.com/test";
pub(crate) const POLICY: &str = "cloud.tencent.com/v1beta1/ResourceLeasingPolicy";
pub(crate) const BINDING: &str = "cloud.tencent.com/v1beta1/ClusterBinding";

/// The setup that a test asks for.
pub(crate) struct Pattern {
    name: String,
    home: Home,
    fixture: Fixture,
    mount: String,
    nodes: Option<Vec<Value>>,
    policies: Vec<Value>,
    binding: Binding,
    proxies: bool,
}

/// A pattern of this name: it is the binding, its clusterID (so at most 24 characters), the virtual namespace and, with
/// `-mount`, the physical one.
pub(crate) fn pattern(name: &str) -> Pattern {
    let binding = builders::binding(name).cluster_id(name).secret(keys::NAMESPACE, name).node_label(TEST, name);
    Pattern {
        name: name.to_owned(),
        home: Home::Fleet,
        fixture: Fixture::East,
        mount: format!("{name}-mount"),
        nodes: None,
        policies: vec![policy(name).cluster(name).build()],
        binding,
        proxies: false,
    }
}

impl Pattern {
    pub(crate) fn home(mut self, home: Home) -> Self {
        self.home = home;
        self
    }

    pub(crate) fn on(mut self, fixture: Fixture) -> Self {
        self.fixture = fixture;
        if fixture.is_still() {
            // There is no scheduler.
            self.binding = self.binding.with("/spec/directScheduling", true);
        }
        self
    }

    /// Adds a physical node to lend. Without any, there is one of 32 CPU, [`Harness::node`].
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

    /// Lends the nodes of another test's pattern instead of its own.
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

    /// Puts a fault proxy between the syncer and each of its two clusters: [`Harness::proxy`].
    pub(crate) fn through_proxies(mut self) -> Self {
        self.proxies = true;
        self
    }

    /// Sets up, starts the syncer, runs the test, stops it, cleans up.
    pub(crate) async fn run<Test: AsyncFnOnce(&mut Harness) -> Result<()>>(self, test: Test) -> Result<()> {
        let _note = Note::begin(test_name::<Test>());
        let mut harness = self.set_up().await?;
        let run = async {
            harness.start().await?;
            test(&mut harness).await
        };
        let ended = AssertUnwindSafe(run).catch_unwind().await;
        let stopped = harness.stop().await;
        harness.sweep().await;
        match ended {
            Ok(result) => result.and(stopped),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Like [`Self::run`], but without a syncer: the test starts one.
    pub(crate) async fn run_without<Test: AsyncFnOnce(&mut Harness) -> Result<()>>(self, test: Test) -> Result<()> {
        let _note = Note::begin(test_name::<Test>());
        let mut harness = self.set_up().await?;
        let ended = AssertUnwindSafe(test(&mut harness)).catch_unwind().await;
        let stopped = harness.stop().await;
        harness.sweep().await;
        match ended {
            Ok(result) => result.and(stopped),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Sets up everything except the syncer.
    pub(crate) async fn set_up(self) -> Result<Harness> {
        show_logs();
        let ((virtual_cluster, virtual_kubeconfig), physical_cluster) =
            tokio::try_join!(self.home.open(), self.fixture.cluster())?;
        let (virtual_side, physical_side) = (virtual_cluster.objects()?, physical_cluster.objects()?);
        let one = || vec![builders::node(&format!("{}-0", self.name)).label(TEST, &self.name).build()];
        let mut nodes = self.nodes.unwrap_or_else(one);
        if self.fixture.is_still() {
            nodes.iter_mut().for_each(play::make_ready);
        }
        // From here on the API servers audit our syncer's requests.
        let marks = tokio::try_join!(virtual_cluster.audit().mark(), physical_cluster.audit().mark())?;
        physical_side.apply(&namespace(&self.mount)).await?;
        let physical_kubeconfig = physical_cluster.physical_account(&self.mount).await?;
        let proxies = if self.proxies {
            Some(Proxies::with_kubeconfigs(&virtual_kubeconfig, &physical_kubeconfig).await?)
        } else {
            None
        };
        let harness = Harness {
            name: self.name,
            virtual_cluster,
            physical_cluster,
            virtual_side,
            physical_side,
            virtual_kubeconfig,
            physical_kubeconfig,
            marks: [marks.0, marks.1],
            mount: self.mount,
            shared: self.fixture.is_shared(),
            // A server that a test restarts forbids everything until it has read its roles.
            pardoned: !self.fixture.is_shared() || matches!(self.home, Home::Own(_)),
            nodes: nodes.iter().map(|node| name(node).to_owned()).collect(),
            clock: Arc::new(SkippingClock::start()),
            proxies,
            running: None,
        };
        harness.virtual_side.create(&namespace(&harness.name)).await?;
        for node in &nodes {
            harness.physical_side.create(node).await?;
        }
        let secret = builders::kubeconfig_secret(keys::NAMESPACE, &harness.name, harness.kubeconfig(Side::Physical));
        harness.virtual_side.create(&secret).await?;
        harness.virtual_side.create(&self.binding.mount_namespace(&harness.mount).build()).await?;
        for policy in &self.policies {
            harness.virtual_side.create(policy).await?;
        }
        if self.home.has_accounts() {
            harness.takes_pods().await?;
        }
        Ok(harness)
    }
}

/// A binding under test.
pub(crate) struct Harness {
    pub(crate) name: String,
    pub(crate) virtual_cluster: &'static Cluster,
    pub(crate) physical_cluster: &'static Cluster,
    pub(crate) virtual_side: Objects,
    pub(crate) physical_side: Objects,
    /// The syncer's account on each side, with the shipped rights.
    pub(crate) virtual_kubeconfig: String,
    pub(crate) physical_kubeconfig: String,
    /// The position in the audit logs of both clusters at the start of the test.
    marks: [Mark; 2],
    /// The namespace of the copies.
    pub(crate) mount: String,
    nodes: Vec<String>,
    /// Whether other tests use the physical cluster too.
    shared: bool,
    /// Whether API servers may refuse its requests for lack of rights.
    pardoned: bool,
    clock: Arc<SkippingClock>,
    proxies: Option<Proxies>,
    running: Option<Running>,
}

/// A syncer in this process.
struct Running {
    cancel: CancellationToken,
    /// Aborts its tasks when dropped: a test that panics leaves no syncer.
    tasks: JoinSet<Result<(), RunError>>,
}

/// The machine's clock, which a test may set forward.
struct SkippingClock {
    system: SystemClock,
    skipped: AtomicU64,
    /// Seconds by which tests have set the wall clock, in total.
    set: AtomicI64,
}

impl SkippingClock {
    fn start() -> Self {
        Self { system: SystemClock::start(), skipped: AtomicU64::new(0), set: AtomicI64::new(0) }
    }
}

impl Clock for SkippingClock {
    fn now(&self) -> Now {
        let Now { wall, steady } = self.system.now();
        let skipped = Duration::from_secs(self.skipped.load(Ordering::Relaxed));
        let set = SignedDuration::from_secs(self.set.load(Ordering::Relaxed));
        Now { wall: wall + skipped + set, steady: steady + skipped }
    }
}

impl Harness {
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
        let kubeconfig = self.kubeconfig(Side::Virtual);
        let agent = user_agent(&self.name);
        let cluster = tapestry_cluster::Cluster::connect("virtual", kubeconfig, Trust::Operator, &agent).await?;
        let (cancel, readiness) = (CancellationToken::new(), Readiness::default());
        let meters = Meters::register(&mut Registry::default());
        let clock = Arc::clone(&self.clock) as Arc<dyn Clock>;
        let (told, stop) = (readiness.clone(), cancel.clone());
        let config = Config { clock, readiness: told, cancel: stop, ..Config::new(&self.name, cluster, meters) };
        let syncer = Box::pin(Syncer::open(config)).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(syncer.serve());
        self.running = Some(Running { cancel, tasks });
        Ok(readiness)
    }

    /// Stops the syncer as a signal would. In every test, no request of it may have been refused for lack of rights.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        self.end().await?;
        for (cluster, requests) in self.asked().await? {
            let forbidden = requests.only(|request| request.forbidden && !self.pardoned);
            ensure!(forbidden.count() == 0, "beyond its rights in {}:\n{}", cluster.name(), forbidden.summary());
        }
        Ok(())
    }

    /// All requests of the syncer to both clusters, virtual first.
    pub(crate) async fn asked(&self) -> Result<[(&'static Cluster, Requests); 2]> {
        let (here, there) = (self.virtual_cluster, self.physical_cluster);
        let all = tokio::try_join!(here.audit().since(&self.marks[0]), there.audit().since(&self.marks[1]))?;
        let agent = user_agent(&self.name);
        Ok([(here, all.0.by_agent(&agent)), (there, all.1.by_agent(&agent))])
    }

    async fn end(&mut self) -> Result<()> {
        let Some(Running { cancel, mut tasks }) = self.running.take() else { return Ok(()) };
        cancel.cancel();
        match tokio::time::timeout(SOON, tasks.join_next()).await {
            Ok(Some(Err(error))) if error.is_panic() => bail!("the syncer of {} panicked: {error}", self.name),
            Ok(Some(Ok(Err(error)))) => Err(anyhow!(error).context(format!("the syncer of {} gave up", self.name))),
            Ok(_) => Ok(()),
            Err(_) => bail!("the syncer of {} did not stop", self.name),
        }
    }

    /// Runs a command of the CLI on the virtual cluster and returns its output.
    pub(crate) async fn tapestry(&self, args: &[&str]) -> Result<std::process::Output> {
        let kubeconfig = self.virtual_cluster.kubeconfig();
        let mut command = tokio::process::Command::new(crate::process::TAPESTRY);
        Ok(command.args(args).arg("--kubeconfig").arg(kubeconfig).output().await?)
    }

    /// Sets the syncer's clock forward. It notices with its next fact or timer, seconds later at most.
    pub(crate) fn skip(&self, time: Duration) {
        self.clock.skipped.fetch_add(time.as_secs(), Ordering::Relaxed);
    }

    /// Sets the syncer's wall clock, forward or back, as an administrator does; no time passes.
    pub(crate) fn set_clock(&self, by: SignedDuration) {
        self.clock.set.fetch_add(by.as_secs(), Ordering::Relaxed);
    }

    /// From now on the test removes rights of the syncer on purpose.
    pub(crate) fn pardon(&mut self) {
        self.pardoned = true;
    }

    /// The wall time of the syncer.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now().wall
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

    /// A pod of this test that is bound to the first virtual node, without the scheduler.
    pub(crate) fn bound(&self, name: &str) -> Pod {
        self.bound_to(self.node(), name)
    }

    /// Like [`Self::bound`], to the virtual node of any physical node.
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

    /// Removes objects that controllers, schedulers and kubelets work on, because they would slow other tests down.
    pub(crate) async fn sweep(&self) {
        let sweep = async {
            let (vside, pside) = (&self.virtual_side, &self.physical_side);
            for policy in vside.list(POLICY, "").await.unwrap_or_default() {
                if policy["spec"]["cluster"] == self.name.as_str() {
                    let _ = vside.delete(POLICY, name(&policy)).await;
                }
            }
            // No syncer runs any more that would remove finalizers.
            let free = json!({ "metadata": { "finalizers": null } });
            let _ = vside.patch(BINDING, &self.name, &free).await;
            let _ = vside.delete(BINDING, &self.name).await;
            let _ = vside.delete("v1/Namespace", &self.name).await;
            let _ = delete_pods(self.virtual_cluster, &self.name).await;
            let ours = format!("{}={}", keys::CLUSTER_BINDING, self.name);
            let vnodes = vside.list_where("v1/Node", "", &ours).await.unwrap_or_default();
            join_all(vnodes.iter().map(async |vnode| {
                let _ = vside.patch("v1/Node", name(vnode), &free).await;
                vside.delete("v1/Node", name(vnode)).await
            }))
            .await;
            if !self.shared {
                return;
            }
            let _ = pside.delete("v1/Namespace", &self.mount).await;
            let _ = self.physical_cluster.remove_physical_account(&self.mount).await;
            let _ = delete_pods(self.physical_cluster, &self.mount).await;
            join_all(self.nodes.iter().map(|node| pside.delete("v1/Node", node))).await;
        };
        // Leftovers only slow tests down; the clusters end with the run.
        let _ = tokio::time::timeout(Duration::from_secs(20), sweep).await;
    }
}

/// Ends a test of several harnesses: stops and cleans up all of them, however it ended; the first failure counts.
pub(crate) async fn wind_up<const N: usize>(ended: Result<()>, mut harnesses: [Harness; N]) -> Result<()> {
    let mut all = ended;
    for harness in &mut harnesses {
        all = all.and(harness.stop().await);
    }
    join_all(harnesses.iter().map(Harness::sweep)).await;
    all
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

/// Our logs are part of a failed test's output.
pub(crate) fn show_logs() {
    use tracing_subscriber::filter::LevelFilter;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let filter = tracing_subscriber::filter::Targets::new()
        .with_default(LevelFilter::WARN)
        .with_targets([("tapestry_syncer", LevelFilter::DEBUG), ("tapestry_cluster", LevelFilter::DEBUG)])
        .with_targets([("tapestry_testbed", LevelFilter::INFO), ("kube_client", LevelFilter::OFF)]);
    let lines = tracing_subscriber::fmt::layer().with_test_writer().with_ansi(false);
    // An earlier test may have set it.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
}
