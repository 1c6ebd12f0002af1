//! The real binary: crashes and restarts, signals, error messages, its endpoints.

pub(crate) mod syncer;

use std::collections::BTreeSet;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_testbed::builders::{self, deployment, kubeconfig_secret, node, pod};
use tapestry_testbed::supervisor::Signal;
use tapestry_testbed::{Cluster, eventually};

use self::syncer::{Process, http};
use crate::fixtures::{Fixture, Home, bare, own};
use crate::harness::{BINDING, pattern};
use crate::looks::{LATE, SOON, annotation, condition, items, name, phase, text, uid};
use crate::stub::kubeconfig;
use crate::timing::timed;

pub(crate) const TAPESTRY: &str = env!("CARGO_BIN_EXE_tapestry");

#[tokio::test]
async fn law_08_a_syncer_killed_in_a_burst_converges_without_duplicate_or_orphan() -> Result<()> {
    pattern("burst")
        .on(Fixture::West)
        .node(node("burst-0"))
        .node(node("burst-1"))
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info,tapestry_cluster=debug")?;
            syncer.start()?;
            syncer.ready().await?;
            let web = deployment("web", 200).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            for count in [20, 90] {
                harness.copies_at_least(count).await?;
                let how = syncer.end(Signal::Kill).await?;
                ensure!(how.contains("signal: 9"), "{how}");
                syncer.start()?;
            }
            let vpods = eventually("200 pods run", LATE, async || {
                let pods =
                    harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
                let run = pods.iter().filter(|pod| phase(pod) == "Running").count();
                if run == 200 && pods.len() == 200 { Ok(pods) } else { Err(format!("{run} of {}", pods.len())) }
            })
            .await?;
            one_copy_each(&vpods, &harness.ppods().await?)?;

            // And in the middle of their end.
            let none = json!({ "spec": { "replicas": 0 } });
            harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &none).await?;
            eventually("some are gone", LATE, async || {
                let copies = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if copies < 150 { Ok(()) } else { Err(format!("{copies}")) }
            })
            .await?;
            syncer.end(Signal::Kill).await?;
            syncer.start()?;
            eventually("nothing is left", LATE, async || {
                let here =
                    harness.virtual_side.list("v1/Pod", &harness.name).await.map_err(|error| error.to_string())?;
                let there = harness.ppods().await.map_err(|error| error.to_string())?.len();
                if (here.len(), there) == (0, 0) {
                    Ok(())
                } else {
                    Err(format!("{} virtual, {there} physical, such as {:?}", here.len(), here.first()))
                }
            })
            .await
        })
        .await
}

/// One live physical pod per virtual UID, each known to its virtual pod, and no other.
pub(crate) fn one_copy_each(vpods: &[Value], ppods: &[Value]) -> Result<()> {
    let uids: BTreeSet<&str> = vpods.iter().map(uid).collect();
    let backs: Vec<&str> = ppods.iter().map(|ppod| annotation(ppod, keys::VIRTUAL_POD_UID)).collect();
    ensure!(backs.iter().copied().collect::<BTreeSet<_>>() == uids, "copies of other pods, or pods without");
    ensure!(backs.len() == uids.len(), "{} copies of {} pods", backs.len(), uids.len());
    for vpod in vpods {
        let mapped = ppods.iter().find(|ppod| name(ppod) == annotation(vpod, keys::PHYSICAL_POD_NAME));
        let mapped = mapped.with_context(|| format!("{} is mapped to nothing", name(vpod)))?;
        ensure!(annotation(mapped, keys::VIRTUAL_POD_UID) == uid(vpod), "{} is mapped to another pod", name(vpod));
        ensure!(annotation(vpod, keys::PHYSICAL_POD_UID) == uid(mapped), "{} has another UID recorded", name(vpod));
    }
    Ok(())
}

#[tokio::test]
async fn law_01_a_pod_force_deleted_while_no_syncer_runs_loses_its_copy_and_no_other_does() -> Result<()> {
    pattern("away")
        .on(Fixture::East)
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info,tapestry_cluster=debug")?;
            syncer.start()?;
            harness.vnode_ready(harness.node()).await?;
            for pod in ["stays", "goes"] {
                harness.virtual_side.create(&harness.bound(pod).build()).await?;
            }
            let (_, stays) = harness.runs("stays").await?;
            harness.runs("goes").await?;
            syncer.end(Signal::Kill).await?;
            let now = DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
            harness.virtual_side.delete_with("v1/Pod", &harness.at("goes"), &now).await?;
            syncer.start()?;
            harness.gone("goes").await?;
            // With evidence: it looked before it deleted.
            let log = syncer.log()?;
            let place = |words: &str| log.find(words).with_context(|| format!("{words:?} is not in the log"));
            let looked = place(&format!("get virtual pods/{} (LookForVirtualPod)", harness.at("goes")))?;
            ensure!(looked < place("(VirtualPodGone)")?, "deleted before it looked");
            let (_, after) = harness.runs("stays").await?;
            assert_eq!(uid(&after), uid(&stays));
            Ok(())
        })
        .await
}

#[tokio::test]
async fn a_terminated_syncer_exits_cleanly_within_five_seconds() -> Result<()> {
    pattern("term")
        .on(Fixture::East)
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            let web = deployment("web", 50).namespace(&harness.name).pods(harness.pod("web").cpu("100m"));
            harness.virtual_side.create(&web.build()).await?;
            harness.copies_at_least(5).await?;
            let began = Instant::now();
            let how = syncer.end(Signal::Terminate).await?;
            let took = began.elapsed();
            assert_eq!(how, "exit status: 0", "{}", syncer.log()?);
            ensure!(took < Duration::from_secs(5), "{took:?}");
            for words in ["stopping: waiting for calls in flight", "syncer stopped"] {
                ensure!(logs_for(&syncer.log()?, words, &harness.name), "{words}: {}", syncer.log()?);
            }
            let none = json!({ "spec": { "replicas": 0 } });
            harness.virtual_side.patch_subresource("scale", "apps/v1/Deployment", &harness.at("web"), &none).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_10_a_running_syncer_serves_metrics_health_and_log_level_and_logs_no_credential() -> Result<()> {
    pattern("serve")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let syncer = Process::new(harness, "trace")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            harness.play_running(&harness.copy("web").await?).await?;
            harness.runs("web").await?;
            for path in ["/healthz", "/livez", "/readyz"] {
                assert_eq!(http(syncer.health, "GET", path, "").await?, (200, "ok".to_owned()), "{path}");
            }
            assert_eq!(http(syncer.health, "GET", "/nothing", "").await?.0, 404);
            let (code, metrics) = http(syncer.metrics, "GET", "/metrics", "").await?;
            assert_eq!(code, 200);
            for (name, labels, value) in [
                (
                    "calls_total",
                    r#",side="physical",verb="create",resource="pods",why="CreateCopy",outcome="Ok""#,
                    " 1",
                ),
                ("ready", "", " 1"),
                ("watch_in_sync", r#",side="physical",resource="pods",reader="syncer""#, " 1"),
                ("watch_in_sync", r#",side="virtual",resource="nodes",reader="keeper""#, " 1"),
                ("watch_in_sync", r#",side="virtual",resource="clusterbindings",reader="keeper""#, " 1"),
                ("watch_in_sync", r#",side="virtual",resource="leases",reader="election""#, " 1"),
                ("watch_age_seconds", r#",side="virtual",resource="nodes",reader="syncer""#, ""),
                ("leader", "", " 1"),
                ("queue_depth", "", " 0"),
                ("call_duration_seconds_count", r#",side="physical""#, ""),
            ] {
                let line = format!(r#"tapestry_syncer_{name}{{binding="{}"{labels}}}{value}"#, harness.name);
                ensure!(metrics.contains(&line), "no {line} in\n{metrics}");
            }
            ensure!(metrics.ends_with("# EOF\n"), "{metrics}");
            let (log, binding) = (syncer.log()?, format!(r#""binding":"{}""#, harness.name));
            let unnamed =
                log.lines().filter(|line| line.contains("tapestry_cluster::gate") && !line.contains(&binding));
            assert_eq!(unnamed.collect::<Vec<_>>(), [""; 0], "every line names the binding");
            let (code, said) = http(syncer.debug, "PUT", "/debug/log-level", "tapestry=loud").await?;
            assert_eq!(code, 400);
            ensure!(said.contains("\"loud\" is not a log level"), "{said}");
            assert_eq!(http(syncer.health, "PUT", "/debug/log-level", "error").await?.0, 404);
            assert_eq!(http(syncer.debug, "PUT", "/debug/log-level", "error").await?.0, 200);
            let quiet = syncer.log()?.len();
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.copy("next").await?;
            assert_eq!(syncer.log()?.len(), quiet, "it still logs");
            assert_eq!(http(syncer.debug, "PUT", "/debug/log-level", "debug").await?.0, 200);
            harness.virtual_side.create(&harness.bound("last").build()).await?;
            harness.copy("last").await?;
            ensure!(syncer.log()?.len() > quiet, "it logs nothing");
            ensure!(logs_for(&syncer.log()?, "the log filter was changed", &harness.name), "{}", syncer.log()?);

            // The two kubeconfigs' tokens, in no line of a trace.
            let log = syncer.log()?;
            for kubeconfig in [&harness.virtual_kubeconfig, &harness.physical_kubeconfig] {
                ensure!(!log.contains(&credential(kubeconfig)?), "a credential is in the log");
            }
            // A second process finds the address taken, and says so.
            let second = tokio::process::Command::new(TAPESTRY).args(&syncer.args).kill_on_drop(true).output().await?;
            let said = failed_as_logged(&second)?;
            ensure!(said.contains("--health-address"), "{said}");
            Ok(())
        })
        .await
}

/// The part of a kubeconfig that must not be seen: the signature of its token.
fn credential(kubeconfig: &str) -> Result<String> {
    let config: Value = serde_saphyr::from_str(kubeconfig)?;
    let token = config["users"][0]["user"]["token"].as_str().unwrap_or_default();
    let (_, signature) = token.rsplit_once('.').context("no token in the kubeconfig")?;
    ensure!(signature.len() > 60, "no signature in the token");
    Ok(signature[10..50].to_owned())
}

/// Whether a log has a line with these words, and each names the binding.
fn logs_for(log: &str, words: &str, binding: &str) -> bool {
    let (mut lines, binding) = (log.lines().filter(|line| line.contains(words)).peekable(), json!(binding));
    let names = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap_or_default();
        items(&line["spans"]).iter().any(|span| span["binding"] == binding)
    };
    lines.peek().is_some() && lines.all(names)
}

/// Exit code 1; returns standard error.
fn exited(output: &Output) -> Result<String> {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{:?}: {said}", output.status);
    Ok(said)
}

/// Exit code 1 of a syncer that logs JSON: its last line says why and what to do. Returns standard error.
fn failed_as_logged(output: &Output) -> Result<String> {
    let said = exited(output)?;
    let lines: Vec<Value> = said.lines().map(serde_json::from_str).collect::<Result<_, _>>().context(said.clone())?;
    let last = lines.last().with_context(|| said.clone())?;
    ensure!(last["level"] == "ERROR" && last["message"].is_string() && last["hint"].is_string(), "{said}");
    ensure!(last["spans"][0]["binding"].is_string(), "it does not name the binding: {said}");
    Ok(said)
}

/// Exit code 1 and the three lines of an error; returns standard error.
fn failed(output: &Output) -> Result<String> {
    let said = exited(output)?;
    let last = said.lines().position(|line| line.starts_with("tapestry: ")).context(said.clone())?;
    ensure!(said.lines().skip(last).any(|line| line.starts_with("  hint: ")), "no hint: {said}");
    ensure!(!said.contains("panicked"), "{said}");
    Ok(said)
}

#[tokio::test]
async fn law_10_a_syncer_that_cannot_start_says_why_and_shows_no_credential() -> Result<()> {
    pattern("unstartable")
        .on(Fixture::Still)
        .run_without(async |harness| {
            let folder = std::env::temp_dir().join(format!("tapestry-e2e-{}-kubeconfigs", std::process::id()));
            std::fs::create_dir_all(&folder)?;
            let there = folder.join("whole");
            std::fs::write(&there, &harness.virtual_kubeconfig)?;
            let there = there.display().to_string();
            let run = async |binding: &str, kubeconfig: &str| -> Result<String> {
                let mut command = tokio::process::Command::new(TAPESTRY);
                command.args([
                    "syncer",
                    "--cluster-binding",
                    binding,
                    "--virtual-kubeconfig",
                    kubeconfig,
                    "--log",
                    "trace",
                ]);
                command.args(["--metrics-address", "127.0.0.1:0", "--health-address", "127.0.0.1:0"]);
                command.args(["--debug-address", "off"]);
                let output = command.stdin(Stdio::null()).kill_on_drop(true).output();
                failed_as_logged(&tokio::time::timeout(SOON, output).await.context("it does not end")??)
            };
            let expect = |said: &str, words: &[&str]| -> Result<()> {
                for word in words {
                    ensure!(said.contains(word), "{word:?} is not in: {said}");
                }
                ensure!(!said.contains("hunter2"), "a credential was shown: {said}");
                Ok(())
            };
            expect(&run("missing", &there).await?, &["cannot read ClusterBinding missing", "does not exist"])?;
            expect(&run("Not A Name", &there).await?, &["is not a name"])?;
            expect(
                &run(&harness.name, "/no/such/file").await?,
                &["cannot use kubeconfig /no/such/file", "check --virtual-kubeconfig"],
            )?;
            for (file, text, words) in [
                ("garbage", "users: [{user: {token: hunter2}}".to_owned(), vec!["not the YAML of a kubeconfig"]),
                (
                    "two-lines",
                    kubeconfig("https://127.0.0.1:1", r#"{"token":"hunter2\n2"}"#),
                    vec!["its token contains", "on one line"],
                ),
            ] {
                let path = folder.join(file);
                std::fs::write(&path, text)?;
                expect(&run(&harness.name, &path.display().to_string()).await?, &words)?;
            }

            // Now the binding's Secret: a command reports it; the next test shows what a syncer does about it.
            let look = async |binding: &str| -> Result<String> {
                let mut command = tokio::process::Command::new(TAPESTRY);
                command.args(["calendar", binding, "--kubeconfig", &there]).stdin(Stdio::null()).kill_on_drop(true);
                failed(&tokio::time::timeout(SOON, command.output()).await.context("it does not end")??)
            };
            let place = format!("{}/{}", keys::NAMESPACE, harness.name);
            let secret = |text: &str| kubeconfig_secret(keys::NAMESPACE, &harness.name, text);
            let server = harness.physical_cluster.url();
            let exec = r#"{"token":"hunter2","exec":{"command":"sh","apiVersion":"client.authentication.k8s.io/v1"}}"#;
            for (text, words) in [
                (
                    "users: [{user: {token: hunter2}}".to_owned(),
                    vec!["the physical cluster cannot be used", "not the YAML"],
                ),
                (kubeconfig(&server, exec), vec!["exec is not allowed"]),
                (kubeconfig(&server, r#"{"tokenFile":"/etc/hunter2"}"#), vec!["tokenFile is not allowed"]),
                (kubeconfig("http://127.0.0.1:1", r#"{"token":"hunter2"}"#), vec!["without https is not allowed"]),
            ] {
                harness.virtual_side.apply(&secret(&text)).await?;
                expect(&look(&harness.name).await?, &words)?;
            }
            let mut empty = secret("");
            empty["data"] = json!({ "config": "aHVudGVyMg==" });
            harness.virtual_side.delete("v1/Secret", &place).await?;
            expect(&look(&harness.name).await?, &["Secret", "does not exist"])?;
            harness.virtual_side.create(&empty).await?;
            expect(&look(&harness.name).await?, &["no key `kubeconfig`"])?;
            // And an invalid binding that the schema accepts.
            let permissive = builders::binding("unstartable-2").cluster_id("unstartable-2").secret("", "").build();
            harness.virtual_side.create(&permissive).await?;
            let said = look("unstartable-2").await;
            harness.virtual_side.delete(BINDING, "unstartable-2").await?;
            expect(&said?, &["ClusterBinding unstartable-2 is invalid", "spec.mountNamespace"])?;

            // A binding whose deletion no syncer has answered yet.
            let held = builders::binding("unstartable-3").cluster_id("unstartable-3").secret("", "");
            let held = held.with("/metadata/finalizers", json!(["tapestry.io/test"]));
            harness.virtual_side.create(&held.build()).await?;
            harness.virtual_side.delete(BINDING, "unstartable-3").await?;
            let args = ["resume", "unstartable-3", "--kubeconfig", &there];
            let resumed = tokio::process::Command::new(TAPESTRY).args(args).output().await?;
            harness.virtual_side.patch(BINDING, "unstartable-3", &json!({"metadata": {"finalizers": null}})).await?;
            expect(&failed(&resumed)?, &["is being deleted and its syncer has not reported yet", "try again"])?;

            // Wrong usage has another exit code.
            let usage = tokio::process::Command::new(TAPESTRY).arg("syncer").output().await?;
            assert_eq!(usage.status.code(), Some(2));
            Ok(std::fs::remove_dir_all(&folder)?)
        })
        .await
}

#[tokio::test]
async fn a_syncer_started_without_its_kubeconfig_keeps_its_nodes_alive_until_it_is_back() -> Result<()> {
    pattern("keeps-nodes")
        .on(Fixture::East)
        .run_without(async |harness| {
            let syncer = Process::new(harness, "info")?;
            syncer.start()?;
            syncer.ready().await?;
            harness.vnode_ready(harness.node()).await?;
            harness.virtual_side.create(&harness.bound("web").build()).await?;
            let (vpod, ppod) = harness.runs("web").await?;
            syncer.end(Signal::Kill).await?;
            harness.virtual_side.delete("v1/Secret", &format!("{}/{}", keys::NAMESPACE, harness.name)).await?;
            syncer.start()?;

            let says = async |reason: &str, words: &str| {
                eventually(&format!("the binding says {reason}"), SOON, async || {
                    let binding = harness.binding().await.map_err(|error| error.to_string())?;
                    let connected = condition(&binding, "Connected");
                    let told = connected["reason"] == reason && text(&connected["message"]).contains(words);
                    // `kubectl get` and `kubectl wait` see the same.
                    let (works, ready) = (connected["status"] == "True", condition(&binding, "Ready"));
                    let (phase, status) = if works { ("Ready", "True") } else { ("Failed", "False") };
                    let true_too = binding["status"]["phase"] == phase && ready["status"] == status;
                    if told && true_too { Ok(()) } else { Err(binding["status"].to_string()) }
                })
                .await
            };
            says("KubeconfigUnusable", "does not exist").await?;
            let pid = syncer.pid()?;
            harness.renews(2).await?;
            // Another problem has another reason, and no credential.
            let secret = |text: &str| kubeconfig_secret(keys::NAMESPACE, &harness.name, text);
            harness.virtual_side.apply(&secret("users: [{user: {token: hunter2}}")).await?;
            says("KubeconfigUnreadable", "not the YAML").await?;
            ensure!(!syncer.log()?.contains("hunter2"), "a credential was logged");

            harness.virtual_side.apply(&secret(&harness.physical_kubeconfig)).await?;
            syncer.ready().await?;
            says("Connected", "").await?;
            let (vpod_now, ppod_now) = harness.runs("web").await?;
            assert_eq!([uid(&vpod_now), uid(&ppod_now)], [uid(&vpod), uid(&ppod)]);
            harness.virtual_side.create(&harness.bound("next").build()).await?;
            harness.runs("next").await?;
            assert_eq!(syncer.pid()?, pid, "it was restarted");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn crds_prints_what_an_api_server_accepts() -> Result<()> {
    timed(async {
        let output = tokio::process::Command::new(TAPESTRY).arg("crds").output().await?;
        ensure!(output.status.success(), "{:?}", output.status);
        let text = String::from_utf8(output.stdout)?;
        let virtual_side = Home::Fleet.cluster().await?.objects()?;
        let mut names = Vec::new();
        for document in text.split("---\n").filter(|document| !document.trim().is_empty()) {
            let definition: Value = serde_saphyr::from_str(document)?;
            names.push(name(&virtual_side.apply(&definition).await?).to_owned());
        }
        assert_eq!(names, ["clusterbindings.cloud.tencent.com", "resourceleasingpolicies.cloud.tencent.com"]);
        Ok(())
    })
    .await
}

#[tokio::test]
async fn law_11_ten_thousand_pods_cost_less_than_a_kilobyte_each() -> Result<()> {
    let many = own(bare("many")).await?;
    // Clusters of harnesses live as long as the test binary; the processes of this one end below.
    let many: &'static Cluster = Box::leak(Box::new(many));
    let pattern = pattern("many").home(Home::Other).on(Fixture::Own(many)).node(node("many-0").cpu("900").pods(20_000));
    let test = pattern.run_without(async |harness| {
        let syncer = Process::new(harness, "info")?;
        syncer.start()?;
        syncer.ready().await?;
        let lends = async |pods: &str| {
            let what = format!("lends {pods} pods");
            harness.vnode_when("many-0", &what, |vnode| vnode["status"]["allocatable"]["pods"] == pods).await
        };
        lends("20k").await?;
        let before = resident(syncer.pid()?)?;
        // Foreign pods: each takes one place of what can be lent, so that we know when the syncer has seen them all.
        let numbers: Vec<u32> = (0..10_000).collect();
        for some in numbers.chunks(100) {
            let create = async |number: &u32| {
                let pod =
                    pod(&format!("stranger-{number}")).namespace(&harness.mount).on("many-0").cpu("50m").memory("64Mi");
                harness.physical_side.create(&pod.label("app", "stranger").build()).await
            };
            futures::future::try_join_all(some.iter().map(create)).await?;
        }
        lends("10k").await?;
        let after = resident(syncer.pid()?)?;
        let each = after.saturating_sub(before) / 10_000;
        eprintln!("resident {before} -> {after} bytes, {each} each");
        ensure!(each <= 1024, "{each} bytes for each pod: {before} -> {after}");
        Ok(())
    });
    let ended = test.await;
    many.apiserver().kill().await?;
    many.etcd().kill().await?;
    ended
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
