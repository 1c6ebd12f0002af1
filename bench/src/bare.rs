//! `bench bare`: carries pods with the fewest writes that could carry one (mapping patch, create, one status patch), and what they
//! name with one read and one create for each ConfigMap and Secret.
//! It is the ceiling of the machine, not an example: no preconditions, no evidence, no admission, no leases, no repair.
//!
//! It speaks through the same client stack as the syncer and renders the same copies, so what differs is what the syncer
//! does for safety.

mod copies;
mod row;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use serde_json::{Map, Value, json};
use tapestry_api::keys;
use tapestry_cluster::connect::Trust;
use tapestry_cluster::feed::{Change, Feed, Mailbox, Row};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::watch::{Query, watch};
use tapestry_cluster::{Call, Cluster, Name, Refusal, Side, Sub, Target, Uid, Verb, kind};
use tapestry_domain::names::{dependent_name, physical_pod_name};
use tapestry_domain::podspec::{Frame, render_copy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::copies::{Copies, Dependent, Users};
use self::row::{LABEL, PPod, VPod};

/// Calls in flight to both clusters together. The syncer may have as many to each of them.
pub(crate) const IN_FLIGHT: usize = 50;
/// Before a call that was not answered is made again.
const PAUSE: Duration = Duration::from_millis(100);
/// Virtual pods carry only what the physical side says of these.
const STATUS: [&str; 8] = ["phase", "reason", "message", "hostIP", "hostIPs", "podIP", "podIPs", "startTime"];

/// Carry pods between two clusters with no safety at all, until killed.
#[derive(clap::Args)]
pub(crate) struct Bare {
    /// Kubeconfig of the virtual cluster
    #[arg(long, value_name = "FILE")]
    virtual_kubeconfig: PathBuf,
    /// Kubeconfig of the physical cluster
    #[arg(long, value_name = "FILE")]
    physical_kubeconfig: PathBuf,
    /// Pods on nodes `vnode-<ID>-…` are carried
    #[arg(long, value_name = "ID")]
    cluster_id: String,
    /// The physical namespace of the copies
    #[arg(long, value_name = "NAME", default_value = "tapestry-mount")]
    mount_namespace: String,
    /// Calls in flight, to both clusters together
    #[arg(long, value_name = "COUNT", default_value_t = IN_FLIGHT)]
    in_flight: usize,
    /// Where every request is answered with 200 as soon as both lists are in
    #[arg(long, value_name = "ADDRESS")]
    health_address: std::net::SocketAddr,
}

impl Bare {
    pub(crate) async fn serve(self) -> Result<()> {
        let virtual_cluster = connect("virtual", &self.virtual_kubeconfig).await?;
        let physical_cluster = connect("physical", &self.physical_kubeconfig).await?;
        let prefix = format!("vnode-{}-", self.cluster_id);
        let (bell, mut watches) = (Arc::<Notify>::default(), JoinSet::new());
        let query = |labels: &str, fields: &str| Query {
            labels: labels.into(),
            fields: fields.into(),
            ..Query::all(&kind::POD)
        };
        let (ours, starting) = (prefix.clone(), Arc::new(AtomicBool::new(true)));
        let new = Arc::clone(&starting);
        let vpods = subscribe(&bell, &virtual_cluster, query("", "spec.nodeName!="), &mut watches, move |json| {
            VPod::decode(json, &ours, new.load(Ordering::Relaxed))
        });
        let ppods = subscribe(&bell, &physical_cluster, query(LABEL, ""), &mut watches, PPod::decode);
        let hands = Arc::new(Hands {
            virtual_cluster,
            physical_cluster,
            mount: Name::parse(&self.mount_namespace)?,
            cluster_id: self.cluster_id,
            prefix,
            copies: Copies::default(),
        });
        let (mut desk, mut calls, mut health) = (Desk::default(), FuturesUnordered::new(), JoinSet::new());
        loop {
            vpods.drain().into_iter().for_each(|change| desk.see_vpod(change));
            if desk.vpods_listed {
                starting.store(false, Ordering::Relaxed);
                ppods.drain().into_iter().for_each(|change| desk.see_ppod(change));
            }
            if desk.ppods_listed && health.is_empty() {
                health.spawn(answer(TcpListener::bind(self.health_address).await?));
            }
            while calls.len() < self.in_flight
                && let Some(task) = desk.tasks.pop_front()
            {
                let hands = Arc::clone(&hands);
                calls.push(async move { hands.carry(task).await });
            }
            tokio::select! {
                // First come, first run: a mapped pod is copied before the next one is mapped.
                Some(next) = calls.next() => next.into_iter().for_each(|task| desk.tasks.push_front(task)),
                () = bell.notified() => {}
            }
        }
    }
}

async fn connect(name: &str, kubeconfig: &Path) -> Result<Cluster> {
    let text = std::fs::read_to_string(kubeconfig).with_context(|| format!("reading {}", kubeconfig.display()))?;
    Ok(Cluster::connect(name, &text, Trust::Operator, "tapestry-bench-bare").await?)
}

fn subscribe<R: Row>(
    bell: &Arc<Notify>,
    cluster: &Cluster,
    query: Query,
    watches: &mut JoinSet<()>,
    decode: impl Fn(&Bytes) -> Result<Option<R>, serde_json::Error> + Send + 'static,
) -> Mailbox<R> {
    let feed: Arc<Feed> = Arc::default();
    let mailbox = feed.subscribe(decode, Arc::clone(bell));
    watches.spawn(watch(cluster.clone(), query, feed, CancellationToken::new()));
    mailbox
}

async fn answer(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut request = [0; 1024];
        if stream.read(&mut request).await.is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").await;
        }
    }
}

/// What is to be done, complete in itself.
#[derive(Clone)]
enum Task {
    Map { vpod: VPod, name: Name },
    Create { vpod: VPod, name: Name },
    Status { namespace: Name, vpod: Name, status: Bytes },
    DeleteCopy(Name),
    Release { namespace: Name, vpod: Name },
    DeleteDependent(Dependent),
}

/// What is known, by UID of the virtual pod.
#[derive(Default)]
struct Desk {
    pods: HashMap<Uid, Known>,
    users: Users,
    tasks: VecDeque<Task>,
    vpods_listed: bool,
    ppods_listed: bool,
}

#[derive(Default)]
struct Known {
    place: Option<(Name, Name)>,
    copy: Option<Name>,
    phase: Option<Box<str>>,
    mapped: bool,
    deleting: bool,
    deleted: bool,
}

impl Desk {
    fn see_vpod(&mut self, change: Change<VPod>) {
        match change {
            Change::Put(vpod, _) => {
                let known = self.pods.entry(vpod.uid.clone()).or_default();
                known.place = Some((vpod.namespace.clone(), vpod.name.clone()));
                known.deleting |= vpod.deleting;
                self.users.add(&vpod);
                known.phase.get_or_insert_with(|| vpod.phase.clone());
                let mapped = std::mem::replace(&mut known.mapped, true) || vpod.mapped;
                match (mapped, vpod.deleting) {
                    (false, true) => self.tasks.push_back(Task::Release { namespace: vpod.namespace, vpod: vpod.name }),
                    (false, false) => {
                        if let Ok(name) = Name::parse(&physical_pod_name(vpod.name.as_str(), eight(&vpod.uid))) {
                            self.tasks.push_back(Task::Map { vpod, name });
                        }
                    }
                    (true, true) => self.delete_copy(&vpod.uid),
                    (true, false) => {}
                }
            }
            Change::Gone { row, .. } => {
                self.pods.remove(&row.uid);
                self.tasks.extend(self.users.remove(&row.uid).into_iter().map(Task::DeleteDependent));
            }
            Change::Listed(_) => self.vpods_listed = true,
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    fn see_ppod(&mut self, change: Change<PPod>) {
        match change {
            Change::Put(ppod, _) => {
                let Some(known) = self.pods.get_mut(&ppod.vuid) else { return };
                known.copy = Some(ppod.name);
                if known.phase.as_deref() != Some(&ppod.phase)
                    && let Some((namespace, vpod)) = known.place.clone()
                {
                    known.phase = Some(ppod.phase);
                    self.tasks.push_back(Task::Status { namespace, vpod, status: ppod.status });
                }
                if known.deleting {
                    self.delete_copy(&ppod.vuid);
                }
            }
            Change::Gone { row, .. } => {
                if let Some((namespace, vpod)) = self.pods.get(&row.vuid).and_then(|known| known.place.clone()) {
                    self.tasks.push_back(Task::Release { namespace, vpod });
                }
            }
            Change::Listed(_) => self.ppods_listed = true,
            Change::Unserved | Change::Reached(_) => {}
        }
    }

    /// Once, as soon as it is known which one it is.
    fn delete_copy(&mut self, vuid: &Uid) {
        let Some(known) = self.pods.get_mut(vuid) else { return };
        if let Some(copy) = known.copy.clone().filter(|_| !known.deleted) {
            known.deleted = true;
            self.tasks.push_back(Task::DeleteCopy(copy));
        }
    }
}

/// Carries out tasks.
struct Hands {
    virtual_cluster: Cluster,
    physical_cluster: Cluster,
    mount: Name,
    cluster_id: String,
    prefix: String,
    copies: Copies,
}

impl Hands {
    /// Does it; gives what is to be done next, which is the same again when no answer came.
    async fn carry(&self, task: Task) -> Option<Task> {
        if let Task::Create { vpod, .. } = &task
            && let Err(refusal) = self.carry_all(vpod).await
        {
            eprintln!("again: what {} needs: {}", vpod.name, refusal.message());
            tokio::time::sleep(PAUSE).await;
            return Some(task);
        }
        let (cluster, call) = match self.call(&task) {
            Ok(call) => call,
            Err(error) => {
                eprintln!("skipped: {error:#}");
                return None;
            }
        };
        match (carry_out(cluster, &call).await, task) {
            (Ok(_), Task::Map { vpod, name }) => Some(Task::Create { vpod, name }),
            (Ok(_) | Err(Refusal::Gone | Refusal::Exists), _) => None,
            (Err(refusal @ (Refusal::Later(_) | Refusal::Unknown(_))), task) => {
                eprintln!("again: {call}: {}", refusal.message());
                tokio::time::sleep(PAUSE).await;
                Some(task)
            }
            (Err(refusal), _) => {
                eprintln!("refused: {call}: {}", refusal.message());
                None
            }
        }
    }

    fn call(&self, task: &Task) -> Result<(&Cluster, Call)> {
        let virtual_pod = |namespace: &Name, name: &Name| {
            Target::namespaced(Side::Virtual, &kind::POD, namespace.clone(), name.clone())
        };
        let copy = |name: &Name| Target::namespaced(Side::Physical, &kind::POD, self.mount.clone(), name.clone());
        let (target, verb) = match task {
            Task::Map { vpod, name } => {
                let annotations = json!({
                    keys::PHYSICAL_POD_NAMESPACE: self.mount.as_str(), keys::PHYSICAL_POD_NAME: name.as_str(),
                });
                let patch = json!({ "metadata": { "annotations": annotations } });
                (virtual_pod(&vpod.namespace, &vpod.name), Verb::Merge(Sub::Main, patch))
            }
            Task::Create { vpod, name } => (copy(name), Verb::Create(self.render(vpod, name)?)),
            Task::Status { namespace, vpod, status } => {
                let patch = Verb::Strategic(Sub::Status, json!({ "status": render_status(status)? }));
                (virtual_pod(namespace, vpod), patch)
            }
            Task::DeleteCopy(name) => (copy(name), Verb::Delete { grace: None }),
            Task::Release { namespace, vpod } => (virtual_pod(namespace, vpod), Verb::Delete { grace: Some(0) }),
            Task::DeleteDependent(dependent) => {
                self.copies.forget(dependent);
                (self.copy_of(dependent)?, Verb::Delete { grace: None })
            }
        };
        let cluster = match target.side {
            Side::Virtual => &self.virtual_cluster,
            Side::Physical => &self.physical_cluster,
        };
        Ok((cluster, Call { target, verb, why: "Bare" }))
    }

    /// As many labels and annotations as the syncer's copies have: objects of the same size.
    fn render(&self, vpod: &VPod, name: &Name) -> Result<Value> {
        let frame = Frame {
            name: name.as_str(),
            namespace: self.mount.as_str(),
            node: vpod.node.as_str().strip_prefix(&self.prefix).context("not on a node of ours")?,
            direct_scheduling: false,
            priority_class: Some(keys::PRIORITY_CLASS),
            service_account: keys::POD_SERVICE_ACCOUNT,
            explicit_requests: &[],
            claim_name: &|name| name.to_owned(),
            dependent_name: &|_, name| dependent_name(LABEL, vpod.namespace.as_str(), name),
            token_secret: "",
            virtual_api_server: None,
            virtual_dns: None,
            labels: vec![
                (keys::MANAGED_BY, LABEL.to_owned()),
                (keys::CLUSTER_BINDING, self.cluster_id.clone()),
                (LABEL, vpod.uid.to_string()),
            ],
            annotations: vec![
                (keys::ORIGIN, format!("{LABEL}/{}", vpod.uid)),
                (keys::VIRTUAL_POD_GENERATION, "1".to_owned()),
            ],
        };
        Ok(render_copy(std::str::from_utf8(&vpod.json)?, &frame)?)
    }
}

fn render_status(status: &Bytes) -> Result<Map<String, Value>> {
    let mut status: Map<String, Value> = serde_json::from_slice(status)?;
    status.retain(|field, _| STATUS.contains(&field.as_str()) || field == "conditions" || field.ends_with("Statuses"));
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.retain(|condition| condition["type"] != "PodScheduled");
    }
    Ok(status)
}

/// The first half of a UID: random enough beside the pod's own name.
fn eight(uid: &Uid) -> [u8; 8] {
    let digits: String = uid.as_str().chars().filter(char::is_ascii_hexdigit).take(16).collect();
    u64::from_str_radix(&digits, 16).unwrap_or(0).to_be_bytes()
}
