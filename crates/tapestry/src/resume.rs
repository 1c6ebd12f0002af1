//! `tapestry resume`: somebody has looked at what the mass-delete breaker holds back, and lets it happen.

use std::time::Duration;

use serde_json::json;
use tapestry_api::keys;

use crate::access::Access;
use crate::failure::Failure;
use crate::output::say;

/// How long a syncer may take to see it.
const PATIENCE: Duration = Duration::from_secs(15);

/// Let happen what the mass-delete breaker of a binding holds back.
#[derive(clap::Args)]
#[command(
    after_help = "The pods that would end do so, each when that is proven. Look at them first: `tapestry status` says how many, and
`kubectl get pods -A` shows those that run nowhere.

Example:
  tapestry resume east"
)]
pub(crate) struct Args {
    /// The binding
    binding: String,
    #[command(flatten)]
    access: Access,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.resume())
    }

    async fn resume(&self) -> Result<(), Failure> {
        let name = &self.binding;
        let server = self.access.server().await?;
        let binding = server.binding(name).await?;
        let Some(trip) = binding.status.and_then(|status| status.breaker) else {
            return say(&format!("Nothing to resume: the breaker of {name} has not tripped.\n"));
        };
        let patch =
            json!({"metadata": {"uid": binding.metadata.uid, "annotations": {keys::RESUME: trip.resume_mark()}}});
        server.patch_binding(name, &patch).await?;
        let cleared = async {
            loop {
                let seen = server.binding(name).await?;
                match seen.status.and_then(|status| status.breaker).filter(|there| there.id == trip.id) {
                    None => return Ok(()),
                    Some(there) if there.ends > trip.ends => {
                        return Err(Failure::new(
                            format!("cannot resume {name}"),
                            format!("meanwhile {} of {} pods would end, not {}", there.ends, there.pods, trip.ends),
                            "look at them, then run it again",
                        ));
                    }
                    Some(_) => {}
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let pods = format!("{} of {} pods", trip.ends, trip.pods);
        match tokio::time::timeout(PATIENCE, cleared).await {
            Ok(Ok(())) => say(&format!("Resumed: {pods} may end.\n")),
            Ok(Err(failure)) => Err(failure),
            Err(_) => say(&format!("Noted. No syncer has seen it yet; {pods} end when one does.\n")),
        }
    }
}
