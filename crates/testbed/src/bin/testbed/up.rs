//! `testbed up`: clusters until Ctrl-C. Must leave nothing behind, also when interrupted while they start.
#![allow(clippy::print_stdout, reason = "the kubeconfig paths are this command's answer")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use tapestry_testbed::cluster::Progress;
use tapestry_testbed::fleet::{Fleet, FleetConfig};
use tokio::signal::unix::{SignalKind, signal};

/// Start clusters, print their kubeconfigs, stay until Ctrl-C, then remove everything.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  testbed up                                  one virtual and two physical clusters, 10 nodes each
  testbed up --virtual 0 --physical 1 --nodes 100
  testbed up --dir /tmp/fleet                 kubeconfigs at known places: /tmp/fleet/<cluster>/kubeconfig

Then, in another terminal:
  kubectl --kubeconfig /tmp/fleet/physical-1/kubeconfig get nodes")]
pub(crate) struct Up {
    /// Virtual clusters: scheduler and controller manager, no nodes
    #[arg(long = "virtual", value_name = "COUNT", default_value_t = 1)]
    virtual_clusters: usize,
    /// Physical clusters: the same with simulated nodes
    #[arg(long = "physical", value_name = "COUNT", default_value_t = 2)]
    physical_clusters: usize,
    /// Nodes of each physical cluster
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    nodes: usize,
    /// Where each cluster gets a folder for kubeconfig, logs and data [default: temporary folders]
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
}

impl Up {
    pub(crate) fn run(&self) -> Result<()> {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(self.stay())
    }

    async fn stay(&self) -> Result<()> {
        let begin = Instant::now();
        let progress: Progress = Arc::new(move |cluster: &str, step: &str| {
            eprintln!("{:5.1}s  {cluster:<12} {step}", begin.elapsed().as_secs_f32());
        });
        let config = FleetConfig {
            virtual_clusters: self.virtual_clusters,
            physical_clusters: self.physical_clusters,
            nodes: self.nodes,
            folder: self.dir.as_deref(),
            progress: Some(&progress),
        };
        let mut end = std::pin::pin!(interrupted());
        tokio::select! {
            fleet = Fleet::start(config) => {
                let fleet = fleet?;
                announce(&fleet, begin);
                end.as_mut().await?;
                eprintln!("ending");
            }
            result = &mut end => result?,
        }
        if let Some(dir) = &self.dir {
            // Remove it only if it is empty: it may have existed before, with other files.
            let _ = std::fs::remove_dir(dir);
        }
        Ok(())
    }
}

fn announce(fleet: &Fleet, begin: Instant) {
    println!("\nready after {:.1}s\n", begin.elapsed().as_secs_f32());
    for cluster in fleet.clusters() {
        println!("{:<12} {}", cluster.name(), cluster.kubeconfig().display());
    }
    if let Some(cluster) = fleet.clusters().last() {
        println!(
            "\ntry:  kubectl --kubeconfig {} get nodes\nCtrl-C ends and removes them.",
            cluster.kubeconfig().display()
        );
    }
}

async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => Ok(interrupt?),
        _ = terminate.recv() => Ok(()),
    }
}
