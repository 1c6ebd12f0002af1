//! How commands for users reach the virtual cluster: flags like kubectl's, and the bindings found there.
//! Every binding is read by itself, so that one whose cluster is down delays no other.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::Config;
use prometheus_client::registry::Registry;
use tapestry_cluster::connect::ConnectError;
use tapestry_cluster::kubeconfig;
use tapestry_syncer::start::{self, LookError, Meters, StartError, Syncer};

use crate::failure::Failure;
use crate::output::plain;
use crate::server::Server;

/// After this long the command says what it waits for.
const SLOW: Duration = Duration::from_secs(2);

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

/// The result for one binding.
pub(crate) type Looked<T> = (String, Result<T, Failure>);

impl Access {
    pub(crate) async fn server(&self) -> Result<Server, Failure> {
        let config = load(self.kubeconfig.as_deref(), self.context.as_deref(), "--kubeconfig").await?;
        // Building the client runs its exec plugin.
        let built = tokio::task::spawn_blocking(|| Server::new(config));
        let built = tell_when_slow("the credential plugin of the kubeconfig (user.exec)", built).await;
        built.unwrap_or_else(|ended| Err(Failure::new("cannot connect", ended, "")))
    }
}

/// Runs a command, and does not wait for tasks that it leaves behind.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

/// Loads the kubeconfig that `flag` names, or the one that kubectl would use, or the account of the pod this runs in.
pub(crate) async fn load(path: Option<&Path>, context: Option<&str>, flag: &str) -> Result<Config, Failure> {
    let found = kubeconfig::find(path, context).await;
    found.map_err(|error| {
        let Some(path) = path else {
            let hint = format!("name the virtual cluster's kubeconfig with {flag} or $KUBECONFIG");
            return Failure::new("cannot find a usable kubeconfig of the virtual cluster", error, hint);
        };
        Failure::new(format!("cannot use kubeconfig {}", path.display()), error, format!("check {flag}"))
    })
}

/// Runs `ask` with a read-only syncer of each binding, all at once; yields answers as they are ready.
pub(crate) fn ask_each<T>(
    server: &Server,
    bindings: Vec<String>,
    question: impl AsyncFn(Syncer) -> Result<T, LookError> + Copy,
) -> FuturesUnordered<impl Future<Output = Looked<T>>> {
    let ask = |binding: String| async move {
        let clusters = format!("the clusters of binding {binding}");
        let answer = tell_when_slow(&clusters, ask(server, &binding, question)).await;
        (binding, answer)
    };
    bindings.into_iter().map(ask).collect()
}

/// The same, with all answers in the order of the names.
pub(crate) async fn ask_all<T>(
    server: &Server,
    bindings: Vec<String>,
    question: impl AsyncFn(Syncer) -> Result<T, LookError> + Copy,
) -> Vec<Looked<T>> {
    let mut all: Vec<Looked<T>> = ask_each(server, bindings, question).collect().await;
    all.sort_by(|(left, _), (right, _)| left.cmp(right));
    all
}

/// Runs `ask` with a syncer of a binding that only reads.
async fn ask<T>(
    server: &Server,
    binding: &str,
    question: impl AsyncFn(Syncer) -> Result<T, LookError>,
) -> Result<T, Failure> {
    let config = start::Config::new(binding, server.cluster(), Meters::register(&mut Registry::default()));
    // However this ends, also when its caller drops it, its watches end too.
    let _stop = config.cancel.clone().drop_guard();
    let failed = |error: StartError| {
        let hint = match error {
            StartError::ConnectVirtual(ConnectError::Unreachable(_)) | StartError::Unanswered { .. } => {
                "check --kubeconfig, and that the virtual cluster's API server answers"
            }
            _ => error.hint(),
        };
        Failure::from_error(&error, hint).about(&format!("binding {binding}"))
    };
    let syncer = Syncer::open(config).await.map_err(failed)?;
    question(syncer).await.map_err(|error| match error {
        LookError::Start(error) => failed(error),
        error => {
            let hint = error.hint();
            Failure::new(format!("cannot read the clusters of binding {binding}"), error, hint)
        }
    })
}

async fn tell_when_slow<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if let Ok(done) = tokio::time::timeout(SLOW, &mut work).await {
        return done;
    }
    // When standard error is closed there is no reader.
    let _ = writeln!(std::io::stderr(), "tapestry: waiting for {} ...", plain(what));
    work.await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(text: &str) -> String {
        let file = std::env::temp_dir().join(format!("tapestry-kubeconfig-{}-{}", std::process::id(), text.len()));
        std::fs::write(&file, text).unwrap();
        let said = load(Some(&file), None, "--kubeconfig").await.map(drop).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(!said.contains("hunter2"), "{said}");
        assert!(said.contains("cause: ") && said.contains("hint: check --kubeconfig"), "{said}");
        said
    }

    #[tokio::test]
    async fn law_10_a_kubeconfig_that_cannot_be_used_is_named_and_never_quoted() {
        let whole = |cluster: &str, user: &str, context: &str| {
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: {context}\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
                 clusters: [{{name: c, cluster: {cluster}}}]\nusers: [{{name: u, user: {user}}}]\n"
            )
        };
        for (text, why) in [
            ("users: [{user: {token: hunter2}}".to_owned(), "not the YAML"),
            ("users:\n- name: u\n  user: hunter2\n".to_owned(), "not the YAML"),
            ("token: hunter2\nkind: [".to_owned(), "not the YAML"),
            ("\"hunter2\"".to_owned(), "not the YAML"),
            (String::new(), "no current-context"),
            (whole("{server: 'https://h'}", "{token: hunter2}", "d"), "current-context names no context"),
            (whole("{}", "{token: hunter2}", "c"), "no server"),
            (whole("{server: 'https://h', certificate-authority-data: hunter2-}", "{}", "c"), "not base64"),
            (whole("{server: 'https://h', certificate-authority: /no/such}", "{}", "c"), "cannot read /no/such"),
        ] {
            let said = refused(&text).await;
            assert!(said.contains(why), "{why}: {said}");
        }
    }

    #[tokio::test]
    async fn a_kubeconfig_that_is_a_folder_or_not_there_is_named() {
        let folder = std::env::temp_dir();
        let said = load(Some(&folder), None, "--kubeconfig").await.map(drop).unwrap_err().to_string();
        assert!(said.contains("Is a directory"), "{said}");
        let said =
            load(Some(Path::new("/no/such/file")), None, "--kubeconfig").await.map(drop).unwrap_err().to_string();
        assert!(said.contains("/no/such/file: No such file"), "{said}");
    }

    #[tokio::test]
    async fn a_context_that_is_not_there_is_named() {
        let file = std::env::temp_dir().join(format!("tapestry-context-{}", std::process::id()));
        std::fs::write(&file, "apiVersion: v1\nkind: Config\n").unwrap();
        let said = load(Some(&file), Some("other"), "--kubeconfig").await.map(drop).unwrap_err().to_string();
        std::fs::remove_file(&file).unwrap();
        assert!(said.contains("it has no context \"other\""), "{said}");
    }
}
