//! Several processes of one binding: one leads, the others keep the same tables; what happens when the leader exits, dies
//! or freezes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tapestry_cluster::connect::Trust;
use tapestry_cluster::gate::{CallMetrics, LiveGate};
use tapestry_cluster::watches::Pulse;
use tapestry_cluster::{Cluster as Client, Name};
use tapestry_engine::clock::SystemClock;
use tapestry_engine::lead::{LeaseTimings, Seat, campaign};
use tapestry_syncer::start::user_agent;
use tapestry_testbed::builders::{deployment, node};
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Cluster, eventually};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{Fixture, Home};
use crate::harness::{Harness, pattern};
use crate::looks::{LATE, SOON, phase, text, uid};
use crate::process::one_copy_each;
use crate::process::syncer::{Process, http};
use crate::timing::timed;

const LEASE: &str = "coordination.k8s.io/v1/Lease";
const LOG: &str = "info,tapestry_cluster=debug";
/// Short timings, for tests that wait for a Lease to expire.
const SHORT: [&str; 3] =
    ["--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=4s", "--leader-elect-retry-period=500ms"];

fn place(harness: &Harness) -> String {
    format!("tapestry-system/syncer-{}", harness.name)
}

/// The Lease of a harness's syncers.
async fn lease(harness: &Harness) -> Result<Value> {
    harness.virtual_side.get(LEASE, &place(harness)).await?.context("no Lease")
}

async fn leads(syncer: &Process, within: Duration) -> Result<()> {
    eventually("it leads", within, async || match syncer.leads().await {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
}

/// A leader, and a follower that is ready.
async fn leader_and_follower(harness: &Harness, flags: &[&str]) -> Result<(Process, Process)> {
    let first = Process::named(harness, "first", LOG, flags)?;
    first.start()?;
    first.ready().await?;
    leads(&first, SOON).await?;
    let second = Process::named(harness, "second", LOG, flags)?;
    second.start()?;
    second.ready().await?;
    ensure!(!second.leads().await?, "two lead");
    ensure!(first.leads().await?, "no process leads");
    assert_eq!(lease(harness).await?["spec"]["holderIdentity"], "first");
    Ok((first, second))
}

/// When a process first logged this; its log is JSON, a line for each event.
fn said(syncer: &Process, words: &str) -> Result<Timestamp> {
    let log = syncer.log()?;
    let line = log.lines().find(|line| line.contains(&format!(r#""message":"{words}""#)));
    let line: Value = serde_json::from_str(line.with_context(|| format!("{words:?} is not in the log"))?)?;
    Ok(text(&line["timestamp"]).parse()?)
}

/// Lists that the syncers of a harness requested since then.
fn lists(harness: &Harness, cluster: &Cluster, since: Timestamp) -> Result<Vec<String>> {
    let agent = user_agent(&harness.name);
    let mut lists = Vec::new();
    for line in std::fs::read_to_string(cluster.audit().path())?.lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let at: Timestamp = text(&event["requestReceivedTimestamp"]).parse()?;
        let uri = text(&event["requestURI"]);
        // One object is read to learn the version of all.
        let list = uri.contains("sendInitialEvents") || (event["verb"] == "list" && !uri.ends_with("?limit=1"));
        // Kinds that are not served are requested again and again.
        if at > since && text(&event["userAgent"]) == agent && list && event["responseStatus"]["code"] == 200 {
            lists.push(uri.to_owned());
        }
    }
    Ok(lists)
}

#[tokio::test]
async fn a_follower_is_warm_and_writes_within_a_second_of_a_release_without_listing_again() -> Result<()> {
    pattern("lead-release")
        .on(Fixture::East)
        .run_without(async |harness| {
            let (first, second) = leader_and_follower(harness, &[]).await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (web, copy) = harness.runs("web").await?;
            // The follower applies facts and writes nothing.
            ensure!(!second.log()?.contains("(CreateCopy)"), "the follower wrote");
            let marks = (harness.virtual_cluster.audit().mark().await?, harness.physical_cluster.audit().mark().await?);
            let ready: Timestamp = said(&second, "following")?;

            let how = first.end(Signal::Terminate).await?;
            assert_eq!(how, "exit status: 0");
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            let began = Instant::now();
            let next = harness.copy("next").await?;
            let took = began.elapsed();
            let (released, leading) = (said(&first, "leadership released")?, said(&second, "leading")?);
            let taken = leading.duration_since(released);
            eprintln!("takeover {taken:#} after the release; a new pod has its copy after {took:?}");
            ensure!(taken.as_millis() < 1000, "{taken:#}");
            ensure!(took < Duration::from_secs(10), "{took:?}");
            leads(&second, SOON).await?;
            let spec = lease(harness).await?["spec"].clone();
            assert_eq!((text(&spec["holderIdentity"]), &spec["leaseTransitions"]), ("second", &json!(1)));
            let (after, copy_after) = harness.runs("web").await?;
            assert_eq!((uid(&after), uid(&copy_after)), (uid(&web), uid(&copy)));
            assert_eq!(harness.copies("next").await?.len(), 1, "{next}");

            // Both audit logs are complete up to here.
            let _ = harness.virtual_cluster.audit().since(&marks.0).await?;
            let _ = harness.physical_cluster.audit().since(&marks.1).await?;
            for cluster in [harness.virtual_cluster, harness.physical_cluster] {
                let before = lists(harness, cluster, Timestamp::UNIX_EPOCH)?;
                ensure!(before.len() >= 10, "the audit log does not show lists: {before:?}");
                // The follower's own lists came at its start; lists of its takeover would come later.
                let since = ready.max(released);
                let again = lists(harness, cluster, since)?;
                ensure!(again.is_empty(), "{}: listed again: {again:?}", cluster.name());
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_killed_leader_is_followed_within_its_lease_and_a_second() -> Result<()> {
    pattern("lead-crash")
        .on(Fixture::West)
        .run_without(async |harness| {
            let (first, second) = leader_and_follower(harness, &[]).await?;
            harness.vnode_ready(harness.node()).await?;
            first.end(Signal::Kill).await?;
            let died = harness.now();
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            harness.copy("web").await?;
            let took = said(&second, "leading")?.duration_since(died);
            eprintln!("taken over {took:#} after the leader was killed");
            // At least the duration of the Lease, less one renewal.
            ensure!(took.as_secs() >= 10, "{took:#}: it did not wait for the Lease to expire");
            ensure!(took.as_secs() < 16, "{took:#}");
            ensure!(second.leads().await?, "another process took over");
            // Under another name: the old process could still be running.
            let third = Process::named(harness, "third", LOG, &[])?;
            third.start()?;
            third.ready().await?;
            ensure!(!third.leads().await? && second.leads().await?, "a new process took it");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_leader_that_was_frozen_while_another_took_over_does_no_harm_and_follows() -> Result<()> {
    pattern("lead-frozen")
        .on(Fixture::West)
        .node(node("lead-frozen-0"))
        .node(node("lead-frozen-1"))
        .run_without(async |harness| {
            let (first, second) = leader_and_follower(harness, &SHORT).await?;
            harness.vnode_ready(harness.node()).await?;
            let scale = async |replicas: u32| {
                let scale = json!({ "spec": { "replicas": replicas } });
                harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &scale).await
            };
            let web = deployment("web", 60).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            // In the middle of its work, with calls in flight.
            harness.copies_at_least(10).await?;
            first.signal(Signal::Stop)?;
            let frozen = Instant::now();
            leads(&second, SOON).await?;
            eprintln!("taken over {:?} after the leader froze", frozen.elapsed());
            all_run(harness, 60).await?;
            scale(20).await?;
            eventually("40 are gone", LATE, async || {
                let copies = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if copies == 20 { Ok(()) } else { Err(format!("{copies}")) }
            })
            .await?;
            // It wakes up with plans for pods that are gone, while others are being deleted.
            scale(10).await?;
            first.signal(Signal::Continue)?;
            eventually("it notices", SOON, async || match first.leads().await {
                Ok(false) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await?;
            eventually("it says so", SOON, async || {
                said(&first, "leadership lost: waiting to become leader again")
                    .map(drop)
                    .map_err(|error| error.to_string())
            })
            .await?;
            ensure!(second.leads().await?, "the new leader lost to the old one");
            scale(30).await?;
            let vpods = all_run(harness, 30).await?;
            one_copy_each(&vpods, &harness.ppods().await?)?;
            assert_eq!(http(first.health, "GET", "/readyz", "").await?.0, 200, "it follows, and is ready");

            // And leads again when the other one exits.
            second.end(Signal::Terminate).await?;
            leads(&first, Duration::from_secs(5)).await?;
            scale(0).await?;
            eventually("nothing is left", LATE, async || {
                let copies = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if copies == 0 { Ok(()) } else { Err(format!("{copies}")) }
            })
            .await
        })
        .await
}

#[tokio::test]
async fn a_leader_that_is_frozen_again_and_again_while_a_deployment_is_rescaled_trips_nothing_and_loses_nothing()
-> Result<()> {
    const REPLICAS: [u32; 2] = [20, 120];
    /// Longer than the Lease: another process leads meanwhile.
    const FROZEN: Duration = Duration::from_secs(15);
    pattern("lead-rescaled")
        .on(Fixture::West)
        .node(node("lead-rescaled-0"))
        .node(node("lead-rescaled-1"))
        .run_without(async |harness| {
            let (first, second) = leader_and_follower(harness, &SHORT).await?;
            harness.vnode_ready(harness.node()).await?;
            let web = deployment("web", REPLICAS[0]).namespace(&harness.name).pods(harness.pod("web").cpu("10m"));
            harness.virtual_side.create(&web.build()).await?;
            harness.copies_at_least(10).await?;
            let scale = async |replicas: u32| {
                let scale = json!({ "spec": { "replicas": replicas } });
                harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &scale).await
            };
            let rescale = async {
                for turn in 0.. {
                    scale(REPLICAS[(turn + 1) % 2]).await?;
                    tokio::time::sleep(Duration::from_millis(1500)).await;
                }
                anyhow::Ok(())
            };
            let freeze = async {
                // The second time the process that was frozen before leads again.
                for (frozen, other) in [(&first, &second), (&second, &first), (&first, &second)] {
                    frozen.signal(Signal::Stop)?;
                    leads(other, SOON).await?;
                    tokio::time::sleep(FROZEN).await;
                    frozen.signal(Signal::Continue)?;
                    eventually("it follows", SOON, async || match frozen.leads().await {
                        Ok(false) => Ok(()),
                        other => Err(format!("{other:?}")),
                    })
                    .await?;
                }
                anyhow::Ok(())
            };
            tokio::select! {
                ended = rescale => ended?,
                done = freeze => done?,
            }
            scale(REPLICAS[0]).await?;
            let vpods = all_run(harness, 20).await?;
            one_copy_each(&vpods, &harness.ppods().await?)?;
            let binding = harness.binding().await?;
            ensure!(binding["status"]["breaker"].is_null(), "{}", binding["status"]);
            for syncer in [&first, &second] {
                let log = syncer.log()?;
                ensure!(log.contains("the process did not run for a while"), "it did not notice that it was frozen");
                ensure!(log.contains("(CatchUp)"), "it did not ask which version it has to reach");
                for wrong in ["pods would end although no user asked for it", "(PhysicalPodLost)"] {
                    let told = log.lines().find(|line| line.contains(wrong));
                    ensure!(told.is_none(), "{told:?}");
                }
            }
            Ok(())
        })
        .await
}

async fn all_run(harness: &Harness, count: usize) -> Result<Vec<Value>> {
    eventually(&format!("{count} pods run, each with one copy"), LATE, async || {
        let pods = harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
        let copies = harness.ppods().await.map_err(|error| error.to_string())?.len();
        let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
        if (run, pods.len(), copies) == (count, count, count) {
            Ok(pods)
        } else {
            Err(format!("{run} of {} run, {copies} copies", pods.len()))
        }
    })
    .await
}

#[tokio::test]
async fn a_client_go_holder_keeps_us_from_leading_for_as_long_as_it_renews() -> Result<()> {
    pattern("lead-client-go")
        .on(Fixture::Still)
        .run_without(async |harness| {
            // The record as client-go's LeaseLock writes it; of a machine whose clock is an hour behind.
            let moment = |later: u64| {
                let wall = harness.now() - Duration::from_hours(1) + Duration::from_millis(later);
                format!("{wall:.6}")
            };
            let spec = |renewal: u64| {
                json!({
                    "holderIdentity": "host_5a1e", "leaseDurationSeconds": 5, "leaseTransitions": 3,
                    "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": moment(renewal),
                })
            };
            let (namespace, name) = ("tapestry-system", format!("syncer-{}", harness.name));
            let lease_of = |spec: Value| {
                let metadata = json!({ "namespace": namespace, "name": name });
                json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec })
            };
            harness.virtual_side.create(&lease_of(spec(0))).await?;
            let syncer = Process::named(harness, "ours", LOG, &SHORT)?;
            syncer.start()?;
            // Twice as long as the Lease lasts.
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(10) {
                harness.virtual_side.patch(LEASE, &place(harness), &json!({ "spec": spec(1) })).await?;
                tokio::time::sleep(Duration::from_millis(700)).await;
            }
            let renewed = Instant::now();
            ensure!(!syncer.leads().await?, "it took a Lease that was renewed");
            let nodes = harness.virtual_side.list("v1/Node", "").await?;
            ensure!(
                !nodes.iter().any(|node| text(&node["metadata"]["name"]) == harness.vnode()),
                "it wrote as a follower"
            );

            leads(&syncer, SOON).await?;
            let took = renewed.elapsed();
            eprintln!("taken {took:?} after the last renewal was over");
            ensure!(took > Duration::from_secs(3) && took < Duration::from_secs(7), "{took:?}");
            harness.vnode_ready(harness.node()).await?;

            // client-go reads ours: it looks at holder and duration, and at whether the record changes.
            let seen = lease(harness).await?["spec"].clone();
            assert_eq!(text(&seen["holderIdentity"]), "ours");
            assert_eq!((&seen["leaseDurationSeconds"], &seen["leaseTransitions"]), (&json!(5), &json!(4)));
            for time in ["acquireTime", "renewTime"] {
                // MicroTime: exactly six digits.
                ensure!(text(&seen[time]).len() == "2026-01-01T00:00:00.000000Z".len(), "{time}: {}", seen[time]);
            }
            eventually("it renews", Duration::from_secs(3), async || {
                let now = lease(harness).await.map_err(|error| error.to_string())?["spec"].clone();
                let renewed = now["renewTime"] != seen["renewTime"] && now["acquireTime"] == seen["acquireTime"];
                if renewed { Ok(()) } else { Err(now.to_string()) }
            })
            .await?;
            // Another process takes it by force: we follow.
            harness.virtual_side.patch(LEASE, &place(harness), &json!({ "spec": spec(2) })).await?;
            eventually("it follows", Duration::from_secs(3), async || match syncer.leads().await {
                Ok(false) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await?;
            leads(&syncer, SOON).await?;
            syncer.end(Signal::Terminate).await?;
            let left = lease(harness).await?["spec"].clone();
            assert_eq!((text(&left["holderIdentity"]), &left["leaseDurationSeconds"]), ("", &json!(1)));
            // As many as the other process wrote, and ours.
            assert_eq!(left["leaseTransitions"], 4);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_candidate_creates_the_namespace_of_the_lease_when_it_is_missing() -> Result<()> {
    timed(async {
        let cluster = Home::Fleet.cluster().await?;
        let kubeconfig = cluster.kubeconfig_text()?;
        let client = Client::connect("virtual", &kubeconfig, Trust::Operator, "tapestry-e2e-lead").await?;
        let identity = client.ask_identity().await?;
        ensure!(client.pin(&identity), "another cluster");
        let (namespace, name) = (Name::parse("lead-nowhere")?, Name::parse("syncer-missing")?);
        let seat = Seat { namespace, name, identity: "us".into(), timings: LeaseTimings::default() };
        let gate = LiveGate::new(
            client.clone(),
            client.clone(),
            CallMetrics::register(&mut Registry::default()).of(&"east".into()),
        );
        let (mut tasks, resign) = (JoinSet::new(), CancellationToken::new());
        let clock = std::sync::Arc::new(SystemClock::start());
        let leadership =
            campaign(seat, client, std::sync::Arc::new(gate), clock, Pulse::default(), &mut tasks, &resign);
        eventually("it leads", SOON, async || leadership.lead().map(drop).ok_or_else(String::new)).await?;
        let objects = cluster.objects()?;
        let lease = objects.get(LEASE, "lead-nowhere/syncer-missing").await?.context("no Lease")?;
        assert_eq!(lease["spec"]["holderIdentity"], "us");
        resign.cancel();
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        ensure!(leadership.lead().is_none(), "it believes that it leads");
        let lease = objects.get(LEASE, "lead-nowhere/syncer-missing").await?.context("no Lease")?;
        assert_eq!(lease["spec"]["holderIdentity"], "");
        objects.delete("v1/Namespace", "lead-nowhere").await?;
        Ok(())
    })
    .await
}
