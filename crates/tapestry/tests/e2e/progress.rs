//! Which version a watch has reached, on a real API server: reported within seconds when a reader waits for it, although
//! nothing happens.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use serde_json::json;
use tapestry_cluster::connect::Trust;
use tapestry_cluster::feed::{Change, Feed};
use tapestry_cluster::gate::carry_out;
use tapestry_cluster::watch::{Query, watch};
use tapestry_cluster::{Call, Cluster as Connection, Name, Rv, Side, Target, Verb, kind};
use tapestry_syncer::origin::Origin;
use tapestry_syncer::pods::row::PPod;
use tapestry_testbed::eventually;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::fixtures::{bare, own};
use crate::looks::SOON;
use crate::timing::timed;

#[tokio::test]
async fn a_quiet_watch_reports_within_seconds_that_it_has_reached_an_awaited_version() -> Result<()> {
    timed(async {
        let server = own(bare("progress")).await?;
        let cluster =
            Connection::connect("test", &server.kubeconfig_text()?, Trust::Operator, "tapestry-e2e-progress").await?;
        ensure!(cluster.pin(&cluster.ask_identity().await?), "another cluster");
        let origin = Origin::new("v", "b", "east");
        let (feed, cancel) = (Arc::<Feed>::default(), CancellationToken::new());
        let mailbox = feed.subscribe(move |json: &Bytes| PPod::decode(json, &origin), Arc::new(Notify::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn(watch(cluster.clone(), Query::all(&kind::POD), feed, cancel.clone()));
        let told = Mutex::new((Rv::default(), 0));
        // The last version, and how many lists.
        let look = || {
            let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
            for change in mailbox.drain() {
                match change {
                    Change::Reached(rv) => told.0 = rv,
                    Change::Listed(_) => told.1 += 1,
                    _ => {}
                }
            }
            *told
        };
        eventually("the list is complete", SOON, async || match look() {
            (_, 1) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await?;
        let objects = server.objects()?;
        for turn in 0..3 {
            // No pod changes, while the cluster's version increases.
            let metadata = json!({ "name": format!("turn-{turn}"), "namespace": "default" });
            objects.create(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })).await?;
            let target = Target::cluster(Side::Physical, &kind::POD, Name::parse("pods")?);
            let call = Call { target, verb: Verb::Version, why: "Test" };
            let answer = carry_out(&cluster, &call).await.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))?;
            let needed = answer.version().context("no version")?;
            ensure!(look().0 < needed, "it was reported before a reader asked");
            let asked = Instant::now();
            eventually("the watch has reached the version", SOON, async || match look() {
                (reached, 1) if reached >= needed => Ok(()),
                other => Err(format!("{other:?} instead of {needed}")),
            })
            .await?;
            eprintln!("reported {:?} after the request", asked.elapsed());
            ensure!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
        }
        cancel.cancel();
        Ok(())
    })
    .await
}
