//! What the model holds of pods of its own, and how long reading one takes: virtual pod, copy, and what they name.
//! Must come before anything else in its process: memory is counted by what the process takes, not by what it frees and takes again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::Bytes;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::Change;
use tapestry_domain::dependents::{DependentKind, Marks, render_copy};
use tapestry_domain::names::{dependent_name, physical_pod_name, vnode_name};
use tapestry_syncer::dependents::row::{DependentCopy, Source};
use tapestry_syncer::origin::Origin;
use tapestry_syncer::pair::Fact;
use tapestry_syncer::pods::row::{PPod, VPod};
use tapestry_testbed::builders::pod;

use crate::figures::Spread;
use crate::figures::fold::Rows;
use crate::known::{EPOCH, Known, stamp};
use crate::machine::Memory;
use crate::sources::Dependents;
use crate::stage::{BINDING, MOUNT};

const PODS: u32 = 20_000;
const NAMESPACE: &str = "tenant";
const KINDS: [DependentKind; 2] = [DependentKind::ConfigMap, DependentKind::Secret];

/// Measures pods that name nothing, pods that share what they name, and pods that have it for themselves.
pub(super) fn measure() -> Result<Vec<Rows>> {
    // None is dropped before all are measured: the next one would get its memory.
    let mut all = Vec::new();
    let mut figures = Vec::new();
    for dependents in [Dependents::None, Dependents::Shared, Dependents::Own] {
        eprintln!("holding {PODS} pods{}", dependents.name());
        let before = Memory::of(std::process::id())?.now;
        let mut held = Held { known: Known::new()?, vpods: Vec::new(), ppods: Vec::new() };
        for index in 0..dependents.count(PODS) {
            held.see_dependents(index)?;
        }
        for index in 0..PODS {
            held.see_pod(index, dependents)?;
        }
        held.known.complete();
        let kib = Memory::of(std::process::id())?.now.saturating_sub(before);
        let in_micros = |times: &[Duration]| {
            let spread = Spread::of(times.to_vec());
            Spread { p50: spread.p50 * 1000.0, p99: spread.p99 * 1000.0 }
        };
        figures.push(Rows {
            pods: PODS,
            dependents,
            bytes_per_pod: bytes(kib) / f64::from(PODS),
            decode_vpod_us: in_micros(&held.vpods),
            decode_ppod_us: in_micros(&held.ppods),
        });
        all.push(held.known);
    }
    Ok(figures)
}

#[expect(clippy::cast_precision_loss, reason = "memory sizes in KiB are far below 2^52")]
fn bytes(kib: u64) -> f64 {
    kib as f64 * 1024.0
}

/// A model, and how long reading each pod took.
struct Held {
    known: Known,
    vpods: Vec<Duration>,
    ppods: Vec<Duration>,
}

impl Held {
    fn see_dependents(&mut self, index: u32) -> Result<()> {
        for kind in KINDS {
            let (source, copy) = objects(kind, index, &self.known.origin)?;
            let source = Source::decode(&source, kind)?.context("not a source")?;
            let copy = DependentCopy::decode(&copy, kind, &self.known.origin)?.context("not a copy of ours")?;
            self.known.see(Fact::Source(kind, Change::Put(source, EPOCH)));
            self.known.see(Fact::DependentCopy(kind, Change::Put(copy, EPOCH)));
        }
        Ok(())
    }

    fn see_pod(&mut self, index: u32, dependents: Dependents) -> Result<()> {
        let (vpod, ppod) = pair(index, dependents, &self.known.origin);
        let begin = Instant::now();
        let row = VPod::decode(&vpod, &self.known.home)?.context("not a pod of ours")?;
        self.vpods.push(begin.elapsed());
        self.known.see(Fact::VPod(Change::Put(row, EPOCH)));
        let begin = Instant::now();
        let row = PPod::decode(&ppod, &self.known.origin)?.context("not a pod")?;
        self.ppods.push(begin.elapsed());
        self.known.see(Fact::PPod(Change::Put(row, EPOCH)));
        Ok(())
    }
}

/// A source and its copy, as watches bring them: of the source its metadata.
fn objects(kind: DependentKind, index: u32, origin: &Origin) -> Result<(Bytes, Bytes)> {
    let name = format!("settings-{index}");
    let value = if kind == DependentKind::Secret { "aHVzaC1odXNo" } else { "listen: 0.0.0.0:8080" };
    let source = json!({
        "apiVersion": "v1", "kind": kind.as_str(), "data": { "value": value },
        "metadata": { "name": name, "namespace": NAMESPACE, "uid": format!("{kind}-{index}"), "resourceVersion": "1" },
    });
    let marks = Marks {
        labels: vec![(keys::ORIGIN, origin.label.to_string())],
        annotations: vec![(keys::ORIGIN, origin.full.to_string())],
        salt: &origin.full,
    };
    let copy_name = dependent_name(&origin.label, NAMESPACE, &name);
    let copy = render_copy(kind, &source.to_string(), &copy_name, MOUNT, &marks)?;
    let source = json!({ "metadata": source["metadata"] });
    Ok((source.to_string().into(), stamp(copy, &format!("copy-of-{kind}-{index}"))))
}

/// A running virtual pod and its copy.
fn pair(index: u32, dependents: Dependents, origin: &Origin) -> (Bytes, Bytes) {
    let name = format!("batch-7d9c6b5f4-{index}");
    let (vuid, puid) = (uid(1, index), uid(2, index));
    let copy = physical_pod_name(&name, u64::from(index).to_be_bytes());
    let vnode = vnode_name(BINDING, &format!("node-{}", index % 10));
    // Admission gives one to every pod, under a name that differs from pod to pod.
    let mut volumes = vec![json!({ "name": format!("kube-api-access-{index:05}"), "projected": { "sources": [
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
    ] } })];
    if dependents != Dependents::None {
        let settings = format!("settings-{}", if dependents == Dependents::Own { index } else { 0 });
        volumes.push(json!({ "name": "config", "configMap": { "name": settings } }));
        volumes.push(json!({ "name": "secret", "secret": { "secretName": settings } }));
    }
    let shape = |name: &str, namespace: &str, node: &str| {
        pod(name)
            .namespace(namespace)
            .on(node)
            .cpu("100m")
            .memory("64Mi")
            .label("app", "batch")
            .tolerate(json!({ "key": keys::TAINT_VNODE, "operator": "Exists" }))
            .with("/spec/volumes", volumes.clone())
            .with("/status", status())
    };
    let vpod = shape(&name, NAMESPACE, &vnode)
        .annotation(keys::PHYSICAL_POD_NAMESPACE, MOUNT)
        .annotation(keys::PHYSICAL_POD_NAME, &copy)
        .annotation(keys::PHYSICAL_POD_UID, &puid);
    let ppod = shape(&copy, MOUNT, &format!("node-{}", index % 10))
        .label(keys::ORIGIN, &origin.label)
        .label(keys::MANAGED_BY, keys::MANAGED_BY_TAPESTRY)
        .label(keys::CLUSTER_BINDING, &origin.binding_label)
        .annotation(keys::ORIGIN, &origin.full)
        .annotation(keys::VIRTUAL_POD_NAMESPACE, NAMESPACE)
        .annotation(keys::VIRTUAL_POD_NAME, &name)
        .annotation(keys::VIRTUAL_POD_UID, &vuid)
        .annotation(keys::VIRTUAL_POD_GENERATION, "1");
    (stamp(vpod.build(), &vuid), stamp(ppod.build(), &puid))
}

fn uid(side: u32, index: u32) -> String {
    format!("{index:08x}-0000-4000-8000-{side:012x}")
}

/// Of one running container.
fn status() -> Value {
    let condition =
        |kind: &str| json!({ "type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z" });
    let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"].map(condition);
    json!({
        "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{ "ip": "10.0.0.1" }], "startTime": "2026-01-01T00:00:05Z",
        "conditions": conditions,
        "containerStatuses": [{
            "name": "main", "image": "registry.example/team/service:1.2.3", "ready": true, "restartCount": 0, "started": true,
            "imageID": "registry.example/team/service@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "containerID": "containerd://0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
            "state": { "running": { "startedAt": "2026-01-01T00:00:05Z" } },
            "allocatedResources": { "cpu": "100m", "memory": "64Mi" },
            "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
        }],
    })
}
