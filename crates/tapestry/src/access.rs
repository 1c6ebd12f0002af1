//! How verbs for people reach the virtual cluster: flags as kubectl has them, and the bindings found there.

use std::path::PathBuf;
use std::sync::Arc;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use prometheus_client::registry::Registry;
use tapestry_api::ClusterBinding;
use tapestry_cluster::Cluster;
use tapestry_engine::clock::SystemClock;
use tapestry_engine::serve::Readiness;
use tapestry_syncer::pair::Pair;
use tapestry_syncer::start::{LookError, Syncer, start};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// Which virtual cluster.
#[derive(clap::Args)]
pub(crate) struct Access {
    /// Kubeconfig of the virtual cluster [default: $KUBECONFIG, ~/.kube/config, or the cluster this runs in]
    #[arg(long, value_name = "FILE", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", global = true)]
    context: Option<String>,
}

impl Access {
    async fn config(&self) -> Result<Config, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new("the virtual cluster cannot be used", error, "check --kubeconfig and --context")
        };
        let options = KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        match &self.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path).map_err(|error| failed(&error))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| failed(&error))
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await.map_err(|error| failed(&error)),
            None => Config::infer().await.map_err(|error| failed(&error)),
        }
    }

    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new("the virtual cluster cannot be used", error, "check --kubeconfig and --context")
        };
        Client::try_from(self.config().await?).map_err(|error| failed(&error))
    }

    /// The names of all bindings, or the one that was asked for.
    pub(crate) async fn bindings(&self, only: Option<&str>) -> Result<Vec<String>, Failure> {
        if let Some(name) = only {
            return Ok(vec![name.to_owned()]);
        }
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(
                "cannot list ClusterBindings",
                error,
                "is Tapestry installed there? (tapestry crds | kubectl apply -f -)",
            )
        };
        let client = self.client().await?;
        let bindings = Api::<ClusterBinding>::all(client).list(&ListParams::default()).await;
        let bindings = bindings.map_err(|error| failed(&error))?;
        Ok(bindings.items.into_iter().filter_map(|binding| binding.metadata.name).collect())
    }

    /// What the syncer of a binding would know; nothing is written.
    pub(crate) async fn look(&self, binding: &str) -> Result<Pair, Failure> {
        self.ask(binding, Syncer::look).await
    }

    /// Asks one that is about to be the syncer of a binding, and never will.
    pub(crate) async fn ask<T>(
        &self,
        binding: &str,
        question: impl AsyncFnOnce(Syncer) -> Result<T, LookError>,
    ) -> Result<T, Failure> {
        let agent = concat!("tapestry/", env!("CARGO_PKG_VERSION"));
        let cluster = Cluster::from_config("virtual", self.config().await?, agent)
            .map_err(|error| Failure::new("the virtual cluster cannot be used", error, "check --kubeconfig"))?;
        let (ready, cancel) = (Readiness::default().gate("look"), CancellationToken::new());
        let clock = Arc::new(SystemClock::start());
        let syncer = start(binding, cluster, clock, &mut Registry::default(), ready, cancel.clone())
            .await
            .map_err(|error| Failure::from_error(&error, error.hint()))?;
        let looked = question(syncer).await;
        cancel.cancel();
        looked.map_err(|error| {
            Failure::new(
                format!("cannot read what binding {binding} sees"),
                error,
                "check that both API servers answer, and the rights of the kubeconfigs",
            )
        })
    }
}
