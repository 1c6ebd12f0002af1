//! Why a pod has to wait for a claim, in the words of its condition and event. Must not decide whether it has to.

use tapestry_cluster::Name;
use tapestry_domain::volumes::Backend;

use super::{PendingReason, Verdict};
use crate::volumes;

impl Verdict {
    /// Why a pod has to wait for a claim; `None` when it is there, or on its way.
    pub(in crate::pods) fn of_volumes(readiness: &volumes::Readiness<'_>) -> Option<Self> {
        use volumes::Readiness;
        let (reason, message) = match readiness {
            Readiness::Ready | Readiness::NotYet => return None,
            Readiness::Secret(volume, lacks) => {
                let Self { reason, message } = Self::of(lacks)?;
                (reason, format!("PersistentVolume {volume} needs a Secret: {message}"))
            }
            Readiness::Impossible(name) => (
                PendingReason::ClaimMissing,
                format!(
                    "the pod names PersistentVolumeClaim `{}`, and no object can have that name",
                    name.chars().take(80).collect::<String>().escape_debug()
                ),
            ),
            Readiness::ClaimMissing(id) => (
                PendingReason::ClaimMissing,
                format!("{} does not exist; the pod starts when it is created", claim(id)),
            ),
            Readiness::ClaimNotOwned(id) => (
                PendingReason::ClaimNotOwned,
                format!(
                    "{} was not created for this pod; delete or rename it, so that the cluster can create the one of the pod's ephemeral volume",
                    claim(id)
                ),
            ),
            Readiness::ClaimNotBound(id) => (
                PendingReason::ClaimNotBound,
                format!("{} is not bound to a volume yet; the pod starts when it is", claim(id)),
            ),
            Readiness::ClaimLost(id) => (
                PendingReason::ClaimLost,
                format!(
                    "{} has lost its volume; restore the PersistentVolume, or delete the claim and create it again",
                    claim(id)
                ),
            ),
            Readiness::VolumeMissing(id, volume) => (
                PendingReason::VolumeMissing,
                format!(
                    "PersistentVolume {volume} of {} does not exist; restore it, or delete the claim and create it again",
                    claim(id)
                ),
            ),
            Readiness::VolumeBoundElsewhere(id, volume) => (
                PendingReason::VolumeBoundElsewhere,
                format!(
                    "PersistentVolume {volume} of {} says that it is bound to another claim; the pod starts when both name each other",
                    claim(id)
                ),
            ),
            Readiness::VolumeUnsupported(volume, backend) => {
                (PendingReason::VolumeUnsupported, unsupported(volume, *backend))
            }
            Readiness::VolumeHeld(volume, holder) => (
                PendingReason::VolumeHeld,
                format!(
                    "PersistentVolume {volume} is in use in the physical cluster of binding {}, and one cluster at a time may attach it; the pod starts when no pod uses it there",
                    holder.split('/').next().unwrap_or_default()
                ),
            ),
            Readiness::Hindered(object, trouble) => hindered(object, trouble),
            Readiness::PhysicalClaimLost(copy) => (
                PendingReason::PhysicalClaimLost,
                format!(
                    "PersistentVolumeClaim {copy} in the physical cluster has lost its volume; its owner has to restore the PersistentVolume, or delete the claim"
                ),
            ),
            Readiness::PhysicalVolumeLeaving(copy) => (
                PendingReason::PhysicalVolumeLeaving,
                format!(
                    "{copy} in the physical cluster is being deleted, and a pod still uses it; this pod starts when that pod has ended and the copy is made again"
                ),
            ),
            Readiness::PhysicalVolumeTaken(copy) => (
                PendingReason::PhysicalVolumeTaken,
                format!(
                    "PersistentVolume {copy} in the physical cluster is bound to a claim that is not ours; its owner has to delete that claim"
                ),
            ),
        };
        Some(Self { reason, message })
    }
}

fn claim(id: &volumes::Id) -> String {
    format!("PersistentVolumeClaim {}/{}", id.namespace, id.name)
}

fn unsupported(volume: &Name, backend: Backend) -> String {
    match backend {
        Backend::HostPath => format!(
            "PersistentVolume {volume} is a directory of a node (hostPath), which only a binding with `podSecurity: privileged` carries; use a volume that is reached over the network"
        ),
        Backend::Local => format!(
            "PersistentVolume {volume} is a disk of one node (local), which is not carried; use a volume that is reached over the network"
        ),
        Backend::Glusterfs | Backend::Network => {
            format!("PersistentVolume {volume} names Endpoints (glusterfs), which are not carried; use a CSI driver")
        }
    }
}

fn hindered(object: &volumes::Object<'_>, trouble: &volumes::Trouble) -> (PendingReason, String) {
    let what = match object {
        volumes::Object::Claim(id) => claim(id),
        volumes::Object::Volume(volume) => format!("PersistentVolume {volume}"),
    };
    match trouble {
        volumes::Trouble::Foreign(copy) => (
            PendingReason::VolumeConflict,
            format!(
                "{what} cannot be copied: {copy} in the physical cluster was not created by this binding, or lost its labels and annotations; rename or delete it"
            ),
        ),
        volumes::Trouble::Refused(why) => {
            (PendingReason::VolumeRefused, format!("the physical cluster refused the copy of {what}: {why}"))
        }
    }
}
