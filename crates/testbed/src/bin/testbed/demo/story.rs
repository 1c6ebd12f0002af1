//! The story, chapter by chapter. Every chapter ends when both clusters have reached its state, or fails with what was
//! expected and seen. Must not print what it has not checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{deployment, namespace, pod};
use tapestry_testbed::cluster::Progress;
use tapestry_testbed::{RealNode, eventually};

use super::screen::{Screen, bar};
use super::stage::{BINDING, DEADLINE, Files, LENT_PERCENT, MOUNT, OWNER, POLICY, Stage};
use super::syncer::Syncer;
use super::{needs, nodes, pods, real, text};

/// Namespace and name of the Deployment that runs on borrowed nodes.
const HELLO: (&str, &str) = ("demo", "hello");
/// Rows of a table; more scroll the beginning away.
const MOST_NODES: usize = 10;
const MOST_PODS: usize = 6;
/// Between two checks while the demo stays up.
const PAUSE: Duration = Duration::from_secs(1);

/// The settings of the story.
pub(super) struct Story {
    pub(super) screen: Arc<Screen>,
    pub(super) tapestry: PathBuf,
    /// Nodes of the physical cluster, and pods of its owner.
    pub(super) nodes: usize,
    /// Pods on borrowed nodes, at first.
    pub(super) replicas: usize,
    /// Whether to end after removing the pods again, instead of staying up.
    pub(super) check: bool,
}

/// The setup with its syncer.
struct Scene {
    stage: Stage,
    syncer: Syncer,
    virtual_kubeconfig: PathBuf,
    physical_kubeconfig: PathBuf,
    /// Label of everything we create in the physical cluster.
    origin: String,
    /// Pods that are not ours, as they were before the syncer started.
    foreign_pods: Vec<Value>,
}

impl Story {
    pub(super) async fn tell(&self) -> Result<()> {
        let begin = Instant::now();
        let screen = &self.screen;
        screen.heading("1. Two Kubernetes clusters on this machine; only the kubelets are simulated");
        let stage = self.raise().await?;
        screen.heading("2. The physical cluster has an owner; the virtual cluster has a binding and a policy");
        let (origin, foreign_pods) = self.furnish(&stage).await?;
        let Files { supervisor, virtual_kubeconfig, physical_kubeconfig, syncer_kubeconfig } = stage.files().await?;
        screen.heading("3. The syncer: every physical node appears in the virtual cluster, with what is lent of it");
        let syncer = Syncer::start(supervisor, &self.tapestry, BINDING, &syncer_kubeconfig)?;
        screen.note(&format!("tapestry syncer --cluster-binding {BINDING}, its log: {}", syncer.log().display()));
        screen.note("its accounts in both clusters have the rights of deploy/rbac, and no others");
        let scene = Scene { stage, syncer, virtual_kubeconfig, physical_kubeconfig, origin, foreign_pods };
        let told = tokio::select! {
            told = self.lend(&scene) => told,
            error = scene.syncer.ended() => Err(error),
        };
        told.map_err(|error| scene.syncer.blame(&error))?;
        screen.heading(&format!("check passed in {:.1} s", begin.elapsed().as_secs_f32()));
        Ok(())
    }

    async fn raise(&self) -> Result<Stage> {
        let begin = Instant::now();
        let screen = self.screen.clone();
        let progress: Progress = Arc::new(move |cluster, step| screen.note(&format!("{cluster:<10} {step}")));
        self.screen.live("starting etcd, kube-apiserver, controller manager and scheduler, twice");
        let stage = Box::pin(Stage::raise(self.nodes, &progress)).await?;
        self.screen.done("the clusters \"virtual\" and \"physical\" run", begin.elapsed());
        Ok(stage)
    }

    async fn furnish(&self, stage: &Stage) -> Result<(String, Vec<Value>)> {
        let nodes = self.nodes;
        let begin = Instant::now();
        self.screen.live("waiting for the owner's pods to run");
        stage.furnish_physical(nodes).await?;
        let foreign_pods = stage.foreign_pods().await?;
        let (namespace, name) = OWNER;
        let others = format!("physical: {nodes} pods of {namespace}/{name}, and a pod of another user in {MOUNT}");
        self.screen.done(&others, begin.elapsed());
        let begin = Instant::now();
        self.screen.live("creating binding and policy");
        let origin = stage.furnish_virtual().await?;
        let bound = format!("virtual: binding {BINDING}; policy {POLICY}: {LENT_PERCENT} % of idle CPU and memory");
        self.screen.done(&bound, begin.elapsed());
        Ok((origin, foreign_pods))
    }

    /// What happens while the syncer runs.
    async fn lend(&self, scene: &Scene) -> Result<()> {
        let (screen, replicas) = (&self.screen, self.replicas);
        screen.table(&self.nodes_appear(scene, self.nodes).await?.table(MOST_NODES));
        screen.heading("4. A Deployment in the virtual cluster: its pods run in the physical one");
        scene.stage.virtual_side.create(&namespace(HELLO.0)).await?;
        let toleration = json!({ "key": keys::TAINT_VNODE, "operator": "Exists" });
        for object in needs::objects(HELLO.0) {
            scene.stage.virtual_side.create(&object).await?;
        }
        let pods = real::greeter(pod(HELLO.1), &[]).cpu("250m").memory("256Mi").tolerate(toleration);
        let hello = deployment(HELLO.1, u32::try_from(replicas)?).namespace(HELLO.0).pods(pods);
        let begin = Instant::now();
        scene.stage.virtual_side.create(&hello.build()).await?;
        let view = self.pods_run(scene, begin, replicas).await?;
        screen.table(&view.table(MOST_PODS));
        let begin = Instant::now();
        scene.stage.scale(HELLO, 2 * replicas).await?;
        self.pods_run(scene, begin, 2 * replicas).await?;
        self.foreign_pods_untouched(scene).await?;
        screen.heading("5. What the pods need is there as well, and follows changes while they run");
        self.needs_follow(scene).await?;
        let node = self.real_container(scene).await?;
        let real = usize::from(node.is_some());
        let chapter = 6 + real;
        if !self.check {
            return self.stay(scene, chapter).await;
        }
        if node.is_some() {
            real::remove_witness(&scene.stage).await?;
        }
        let heading = format!(
            "{chapter}. Scaled to zero: no pod of ours is left, nor what they needed; all other pods still run"
        );
        screen.heading(&heading);
        let begin = Instant::now();
        scene.stage.scale(HELLO, 0).await?;
        self.pods_gone(scene, begin).await?;
        self.needs_gone(scene, begin).await?;
        self.foreign_pods_untouched(scene).await?;
        self.nodes_appear(scene, self.nodes + real).await.map(drop)
    }

    async fn nodes_appear(&self, scene: &Scene, nodes: usize) -> Result<nodes::View> {
        let begin = Instant::now();
        let look = async || {
            let view = nodes::look(&scene.stage, &scene.origin).await.map_err(|error| format!("{error:#}"))?;
            let ready = view.ready();
            self.screen.live(&format!("virtual nodes {} {ready} of {nodes} Ready", bar(ready, nodes)));
            let faults = view.faults(nodes);
            if faults.is_empty() { Ok(view) } else { Err(some(&faults)) }
        };
        let what = format!("{nodes} virtual nodes are Ready and offer what the policy lends");
        let view = eventually(&what, DEADLINE, look).await?;
        let done = format!("{nodes} virtual nodes Ready, each offers {LENT_PERCENT} % of what is idle");
        self.screen.done(&done, begin.elapsed());
        Ok(view)
    }

    async fn pods_run(&self, scene: &Scene, begin: Instant, replicas: usize) -> Result<pods::View> {
        let look = async || {
            let view = pods::look(&scene.stage, HELLO.0, &scene.origin).await.map_err(|error| format!("{error:#}"))?;
            let (count, bar) = (view.count(), bar(view.count().running, replicas));
            let pods::Count { bound, copies_running, running, .. } = count;
            self.screen.live(&format!(
                "pods {bar} {bound} bound, {copies_running} run in physical, {running} of {replicas} in virtual"
            ));
            let faults = view.faults(replicas);
            if faults.is_empty() { Ok(view) } else { Err(some(&faults)) }
        };
        let what = format!("{replicas} pods of {}/{} run on both sides and point at each other", HELLO.0, HELLO.1);
        let view = eventually(&what, DEADLINE, look).await?;
        let done = format!("{replicas} pods of {}/{} are Running on both sides", HELLO.0, HELLO.1);
        self.screen.done(&done, begin.elapsed());
        Ok(view)
    }

    async fn pods_gone(&self, scene: &Scene, begin: Instant) -> Result<()> {
        let look = async || {
            let view = pods::look(&scene.stage, HELLO.0, &scene.origin).await.map_err(|error| format!("{error:#}"))?;
            let pods::Count { virtual_pods, copies, .. } = view.count();
            self.screen.live(&format!("{virtual_pods} pods left in virtual, {copies} in physical"));
            let faults = view.faults(0);
            if virtual_pods + copies == 0 { Ok(()) } else { Err(some(&faults)) }
        };
        eventually("no pod of ours is left on either side", DEADLINE, look).await?;
        self.screen.done("0 pods of ours are left on either side", begin.elapsed());
        Ok(())
    }

    /// The ConfigMap changes, and its copy with it; the pods keep running.
    async fn needs_follow(&self, scene: &Scene) -> Result<()> {
        let (screen, begin) = (&self.screen, Instant::now());
        let before = self.needs_there(scene, needs::WORDS[0]).await?;
        let bearer = before.bearer(&scene.stage).await?;
        screen.done("each pod has the copies of its ConfigMap and Secret, and a token of its own", begin.elapsed());
        screen.note(&format!("the virtual API server knows the token of a pod as {bearer}"));
        screen.table(&before.table());
        let ((name, key), begin) = (needs::GREETING, Instant::now());
        let change = json!({ "data": { key: needs::WORDS[1] } });
        scene.stage.virtual_side.patch("v1/ConfigMap", &format!("{}/{name}", HELLO.0), &change).await?;
        let after = self.needs_there(scene, needs::WORDS[1]).await?;
        let (before, after) = (before.pod_uids(), after.pod_uids());
        ensure!(before == after, "expected that the same pods still run:\n{before:?}\nsaw:\n{after:?}");
        let [old, new] = needs::WORDS;
        screen.done(
            &format!("ConfigMap {name} changed from \"{old}\" to \"{new}\", and so did its copy"),
            begin.elapsed(),
        );
        Ok(())
    }

    async fn needs_there(&self, scene: &Scene, words: &str) -> Result<needs::View> {
        let pods = 2 * self.replicas;
        eventually(&format!("{pods} pods have what they need, and \"{words}\""), DEADLINE, async || {
            let view = needs::look(&scene.stage, HELLO.0, &scene.origin).await.map_err(|error| format!("{error:#}"))?;
            self.screen.live(&format!("the copy of the ConfigMap says \"{}\"", view.words()));
            let faults = view.faults(pods);
            match view.words() {
                _ if !faults.is_empty() => Err(some(&faults)),
                seen if seen != words => Err(format!("expected \"{words}\" in the copy, saw \"{seen}\"")),
                _ => Ok(view),
            }
        })
        .await
    }

    async fn needs_gone(&self, scene: &Scene, begin: Instant) -> Result<()> {
        eventually("no copy of a ConfigMap or Secret is left", DEADLINE, async || {
            let view = needs::look(&scene.stage, HELLO.0, &scene.origin).await.map_err(|error| format!("{error:#}"))?;
            let copies = view.copies();
            self.screen.live(&format!("{copies} copies of ConfigMaps and Secrets left in physical"));
            if copies == 0 { Ok(()) } else { Err(format!("{copies} left")) }
        })
        .await?;
        self.screen.done("0 copies of ConfigMaps and Secrets are left", begin.elapsed());
        Ok(())
    }

    /// A real node joins, where that is possible, and a container on it prints what the virtual cluster gave it. The
    /// node ends when it is dropped.
    async fn real_container(&self, scene: &Scene) -> Result<Option<RealNode>> {
        if !RealNode::possible()? {
            return Ok(None);
        }
        let (screen, stage, begin) = (&self.screen, &scene.stage, Instant::now());
        screen.heading("6. A real node joins: kubelet, containerd, runc; and a virtual pod runs in a real container");
        screen.live("starting containerd and a kubelet");
        let node = real::join(stage).await?;
        screen.done(&format!("node {} is Ready in both clusters", node.name()), begin.elapsed());
        let begin = Instant::now();
        screen.live("waiting for the first lines of its log");
        let log = real::witness(stage).await?;
        screen
            .done(&format!("pod {}/{} runs; its container prints:", real::WITNESS.0, real::WITNESS.1), begin.elapsed());
        for line in &log {
            screen.note(line);
        }
        let begin = Instant::now();
        screen.live("the ConfigMap has changed; waiting for the container to see it");
        let changed = real::change(stage).await?;
        screen.done("its ConfigMap changed, and the same container prints:", begin.elapsed());
        for line in changed.iter().skip(log.len()) {
            screen.note(line);
        }
        Ok(Some(node))
    }

    async fn foreign_pods_untouched(&self, scene: &Scene) -> Result<()> {
        let begin = Instant::now();
        let now = scene.stage.foreign_pods().await?;
        let (before, count) = (&scene.foreign_pods, scene.foreign_pods.len());
        ensure!(now.len() == count, "expected the {count} pods that are not ours, saw {}", now.len());
        for (before, now) in before.iter().map(pods::unchangeable).zip(now.iter().map(pods::unchangeable)) {
            ensure!(
                before == now,
                "expected the pod {} untouched:\n{before}\nsaw:\n{now}",
                text(&before["metadata"]["name"])
            );
        }
        self.screen.done("the pods of the owner and of the other user are unchanged", begin.elapsed());
        Ok(())
    }

    /// Prints what users can try, then prints changes, until the user ends it.
    async fn stay(&self, scene: &Scene, chapter: usize) -> Result<()> {
        self.screen.heading(&format!("{chapter}. Yours"));
        self.invite(scene);
        let mut told = String::new();
        loop {
            let now = summary(scene).await.unwrap_or_else(|error| format!("cannot read the clusters: {error:#}"));
            if now != told {
                self.screen.note(&now);
                told = now;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn invite(&self, scene: &Scene) {
        let (vconfig, pconfig) = (scene.virtual_kubeconfig.display(), scene.physical_kubeconfig.display());
        let ((namespace, name), (owner, shop)) = (HELLO, OWNER);
        let (replicas, owners) = (2 * self.replicas + 10, 6 * self.nodes);
        let line = |command: String, what: &str| vec![command, what.to_owned()];
        self.screen.list(&[
            line("kubeconfig of virtual".into(), &vconfig.to_string()),
            line("kubeconfig of physical".into(), &pconfig.to_string()),
            line("log of the syncer".into(), &scene.syncer.log().display().to_string()),
            line("metrics of the syncer".into(), &scene.syncer.metrics()),
        ]);
        let lack = if has_kubectl() { "" } else { " (they need kubectl, which is not on this machine)" };
        self.screen.text(&format!("  Things to try in another terminal{lack}:"));
        if RealNode::possible().unwrap_or(false) {
            let enter = format!("nsenter --net --target {} bash", std::process::id());
            self.screen.list(&[line(enter, "# first of all: the demo has a network of its own")]);
        }
        self.screen.list(&[
            line(format!("export KUBECONFIG={vconfig}"), ""),
            line("kubectl get nodes -o wide".into(), ""),
            line(format!("kubectl -n {namespace} get pods -o wide"), ""),
            line(format!("kubectl -n {namespace} scale deployment {name} --replicas={replicas}"), ""),
            line(
                format!("kubectl -n {namespace} delete pods --all --wait=false"),
                "# the Deployment creates new ones, and they get copies",
            ),
            line(
                format!(
                    "kubectl -n {namespace} patch configmap {} --type=merge -p '{{\"data\":{{\"{}\":\"hi\"}}}}'",
                    needs::GREETING.0,
                    needs::GREETING.1
                ),
                "# its copy follows",
            ),
            line(
                format!("kubectl delete resourceleasingpolicy {POLICY}"),
                "# running pods stay, new ones are not admitted",
            ),
        ]);
        self.screen.text("  The same as the owner of the physical cluster:");
        self.screen.list(&[
            line(format!("export KUBECONFIG={pconfig}"), ""),
            line(format!("kubectl -n {MOUNT} get pods -o wide"), ""),
            line(format!("kubectl -n {MOUNT} get configmaps,secrets"), ""),
            line(format!("kubectl -n {owner} scale deployment {shop} --replicas={owners}"), "# less is lent"),
            line("kubectl cordon node-0".into(), "# its virtual node takes no new pods"),
        ]);
        self.screen.text("  Changes are printed here. Ctrl-C ends the demo and removes everything.\n");
    }
}

async fn summary(scene: &Scene) -> Result<String> {
    let (nodes, pods) =
        tokio::try_join!(nodes::look(&scene.stage, &scene.origin), pods::look(&scene.stage, HELLO.0, &scene.origin))?;
    let (ready, cpu) = (nodes.ready(), nodes.leased_cpu());
    let pods::Count { virtual_pods, running, copies, copies_running, .. } = pods.count();
    Ok(format!(
        "virtual: {ready} nodes Ready, {cpu} CPU leased, {running} of {virtual_pods} pods Running; \
         physical: {copies_running} of {copies} copies Running"
    ))
}

fn has_kubectl() -> bool {
    let mut kubectl = std::process::Command::new("kubectl");
    let answer = kubectl.args(["version", "--client"]).stdin(std::process::Stdio::null()).output();
    answer.is_ok_and(|answer| answer.status.success())
}

/// The first faults, and how many more there are.
fn some(faults: &[String]) -> String {
    let more = match faults.len().saturating_sub(5) {
        0 => String::new(),
        more => format!("\n  ... and {more} more"),
    };
    format!("\n  {}{more}", faults[..faults.len().min(5)].join("\n  "))
}
