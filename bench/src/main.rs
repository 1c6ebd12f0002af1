//! `bench`: how much of what the machine can do does the syncer leave to its users?
//! Measures it and a bare client back to back on the same real control planes; must not judge from a debug build.
//!
//! | room | what is there |
//! |---|---|
//! | `run` | `bench run`: plays scenes, in which order |
//! | `programme` | which loads that are |
//! | `scene` | one load by one subject: raise pods, measure, clear them, measure |
//! | `rest` | nothing happens for a minute; then the process is restarted among many pods |
//! | `churn` | `bench churn`: pods come and go, round after round, in one process |
//! | `scale` | `bench scale`: many nodes, with many pods of others on them |
//! | `fold` | `bench fold`: how long the model counts, without a cluster |
//! | `known` | the model of a syncer, fed with facts |
//! | `stage` | both clusters, and what exists in them before the first pod |
//! | `subject` | the process under test: start, ready, CPU, memory, stop |
//! | `bare` | `bench bare`: the client with the fewest writes and no safety |
//! | `load` | makes and deletes virtual pods |
//! | `sources` | makes and deletes the ConfigMaps and Secrets that they name |
//! | `observers` | resuming watches on both sides that note when each pod was seen how |
//! | `figures` | what was measured, as data |
//! | `budget` | what the design allows |
//! | `machine` | the computer, and where its time went |
//! | `work` | what an API server did, by its own metrics |
//! | `report` | tables, JSON, `RESULTS.md` |

mod bare;
mod budget;
mod churn;
mod figures;
mod fold;
mod known;
mod load;
mod machine;
mod observers;
mod programme;
mod report;
mod rest;
mod run;
mod scale;
mod scene;
mod sources;
mod stage;
mod subject;
mod work;

use clap::{Parser, Subcommand};

/// Measures the syncer against a bare client, back to back on the same real control planes.
#[derive(Parser)]
#[command(name = "bench", version, args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    run: run::Run,
}

#[derive(Subcommand)]
enum Verb {
    /// Start clusters, measure, print (what `bench` alone does too)
    Run(run::Run),
    /// Pods come and go, round after round: does the memory of one process grow?
    Churn(churn::Churn),
    /// One syncer of many nodes: how soon they are there, what they cost at rest and when a pod changes
    Scale(scale::Scale),
    /// Count in memory: clusters of 10 to 5000 nodes, from scratch and pod by pod
    Fold(fold::Args),
    /// The client that the syncer is compared with; `run` starts it
    Bare(bare::Bare),
}

fn main() -> anyhow::Result<()> {
    // The one provider in the tree; without this the first TLS handshake would have to guess.
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    debug_assert!(installed.is_ok(), "no other code installs a provider");
    let Args { verb, run } = Args::parse();
    // As many workers as the syncer has, so that the two are compared under the same conditions.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match verb.unwrap_or(Verb::Run(run)) {
            Verb::Run(run) => run.run().await,
            Verb::Churn(churn) => churn.run().await,
            Verb::Scale(scale) => scale.run().await,
            Verb::Fold(fold) => fold.run(),
            Verb::Bare(bare) => bare.serve().await,
        }
    })
}
