//! Credential plugins: the programs that an operator's kubeconfig names (`exec`, `auth-provider`), under the deadline of a
//! call. Never quotes what they print.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use kube::Config;

use crate::connect::ConnectError;

/// How many may hang at a time; each is a thread and a process.
const MOST: usize = 4;

/// The programs of one kubeconfig that have not ended yet.
#[derive(Default)]
pub(crate) struct Plugins {
    running: Arc<()>,
}

impl Plugins {
    /// Builds a client that may need a credential from a program. Blocks while the program runs, up to the deadline; a
    /// program that takes longer is abandoned.
    pub(crate) fn build_in_time<T: Send + 'static>(
        &self,
        config: Config,
        deadline: Duration,
        build: impl FnOnce(&Config) -> Result<T, ConnectError> + Send + 'static,
    ) -> Result<T, ConnectError> {
        let user = &config.auth_info;
        let (what, field) = match (&user.exec, &user.auth_provider) {
            (Some(_), _) => ("exec plugin", "exec"),
            (None, Some(_)) => ("auth-provider", "auth-provider"),
            (None, None) => return build(&config),
        };
        let failed = |why: String| Err(ConnectError::BuildClient(why));
        let running = Arc::clone(&self.running);
        // One reference is ours, one is this run's.
        if Arc::strong_count(&running) > MOST + 1 {
            return failed(format!("{MOST} runs of the {what} (user.{field}) have not ended yet"));
        }
        let (built_tx, built) = sync_channel(1);
        let run = move || {
            let built = build(&config);
            drop(running);
            // The reader that waited may have ended.
            let _ = built_tx.send(built);
        };
        let thread = std::thread::Builder::new().name(what.to_owned()).spawn(run);
        if let Err(error) = thread {
            return failed(format!("no thread for the {what}: {error}"));
        }
        match built.recv_timeout(deadline) {
            Ok(built) => built,
            Err(RecvTimeoutError::Timeout) => failed(format!(
                "the {what} of the kubeconfig (user.{field}) gave no credential within {deadline:?}; run its command by hand to see what it waits for"
            )),
            Err(RecvTimeoutError::Disconnected) => {
                failed(format!("the {what} of the kubeconfig (user.{field}) failed"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
