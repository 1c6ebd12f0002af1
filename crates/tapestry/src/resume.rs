//! `tapestry resume`: a user has checked the pods that the mass-delete breaker holds back, and lets them end.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;
use tapestry_api::binding::RESUME_DELETION;
use tapestry_api::condition::{DEFINITION_DELETED, DELETING};
use tapestry_api::{BindingCondition, keys};

use crate::access::{Access, block_on};
use crate::failure::Failure;
use crate::output::say;

/// How long a syncer may take to react.
const PATIENCE: Duration = Duration::from_secs(15);

/// Let the pods end that the mass-delete breaker of a binding holds back.
#[derive(clap::Args)]
#[command(
    after_help = "Each pod ends once its loss is proven. Look at them first: `tapestry status` says how many, and `kubectl get pods
-A` shows those that run nowhere. If the binding is being deleted together with its definition, all its pods end.

Example:
  tapestry resume east"
)]
pub(crate) struct Args {
    /// Name of the ClusterBinding
    binding: String,
    #[command(flatten)]
    access: Access,
}

impl Args {
    pub(crate) fn run(self) -> Result<(), Failure> {
        block_on(self.resume())
    }

    async fn resume(&self) -> Result<(), Failure> {
        let name = &self.binding;
        let server = self.access.server().await?;
        let binding = server.binding(name).await?;
        let status = binding.status.unwrap_or_default();
        let deleting = binding.metadata.deletion_timestamp.is_some();
        let is_ready = |condition: &&Condition| condition.type_ == BindingCondition::Ready.as_str();
        let ready = status.conditions.iter().find(is_ready).map(|condition| &*condition.reason);
        if deleting && ready == Some(DEFINITION_DELETED) {
            let annotations = json!({keys::RESUME: RESUME_DELETION});
            let patch = json!({"metadata": {"uid": binding.metadata.uid, "annotations": annotations}});
            server.patch_binding(name, &patch).await?;
            return say(&format!("Resumed: binding {name} is being deleted, and all its pods will end.\n"));
        }
        let Some(trip) = status.breaker else {
            if deleting && ready != Some(DELETING) {
                return Err(Failure::new(
                    format!("cannot resume {name} yet"),
                    format!("binding {name} is being deleted and its syncer has not reported yet"),
                    "try again in a few seconds; if it stays like this, check that its syncer runs (`tapestry status`)",
                ));
            }
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
                            format!("now {} of {} pods would end, not {}", there.ends, there.pods, trip.ends),
                            "check these pods, then run the command again",
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
            Err(_) => say(&format!("Recorded. No syncer has reacted yet; {pods} end when one does.\n")),
        }
    }
}
