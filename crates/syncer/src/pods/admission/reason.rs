//! Every reason why a pod is not run: what its condition and event say, and whether its controller should try another node.
//! Must not hold figures or names; those are in the message.

use tapestry_domain::placement::Misplaced;
use tapestry_domain::podspec::{Need, Unsupported};
use tapestry_engine::reasons;

reasons! {
    /// Why a pod is not run. A virtual node that lends nothing says so in the same words.
    pub(crate) enum PendingReason {
        /// The pod asks for more than the node still lends.
        OutOfLease,
        /// The virtual node is not known yet, or on its way out.
        NotLending,
        /// The binding is suspended.
        Suspended,
        /// The owner's annotation on the node.
        LendNever,
        /// No window of the owner's policy is open.
        OwnerOutOfTimeWindows,
        /// No window of the policy is open.
        OutOfTimeWindows,
        /// The owner's policies have not been read yet.
        OwnerPoliciesUnknown,
        /// The physical cluster does not serve policies any more.
        OwnerPoliciesNotServed,
        /// The syncer may not read discovery.
        PoliciesUnknown,
        /// The virtual cluster does not serve policies any more.
        PoliciesNotServed,
        /// The binding is being deleted, perhaps only with its definition.
        BindingDeletionUnconfirmed,
        /// The policy that lent the node was deleted.
        PolicyDeleted,
        /// Binding and policies do not select the node any more.
        NotSelected,
        /// The binding or the node goes.
        Leaving,
        /// The policy for the node is invalid.
        PolicyInvalid,
        /// A pod on the physical node cannot be fully read.
        PhysicalPodUnreadable,
        /// The node cannot be fully read.
        NodeUnreadable,
        /// A watch is out of sync.
        WatchOutOfSync,
        /// The quota in the mount namespace is not ours.
        QuotaNotOurs,
        /// The physical cluster refuses the quota.
        QuotaRefused,
        /// `nodeSelector` does not match the node.
        NodeSelectorMismatch,
        /// The required node affinity does not match the node.
        NodeAffinityMismatch,
        /// The pod does not tolerate a taint of the node.
        UntoleratedTaint,
        /// Another pod has a host port that the pod wants.
        HostPortConflict,
        /// The pod does not meet the Pod Security Standard of the binding.
        PodSecurityViolation,
        /// The operating system gives no random numbers for the copy's name.
        NoRandomNumbers,
        /// The binding excludes the pod's namespace.
        NamespaceExcluded,
        /// A DaemonSet made the pod, and its user did not opt in.
        DaemonSetExcluded,
        /// The pod cannot be fully read.
        PodUnreadable,
        /// The pod names an object that is not carried.
        DependentUnsupported,
        /// The pod wants a token that is not carried.
        TokenUnsupported,
        /// The pod uses a feature that is not carried.
        FeatureUnsupported,
        /// A ConfigMap or Secret that the pod names does not exist.
        DependentMissing,
        /// The name of a copy is taken in the mount namespace.
        DependentConflict,
        /// The copy of what the pod names is being deleted, and an object of its name cannot be created yet.
        DependentTerminating,
        /// The physical cluster refused a copy of what the pod names.
        DependentRefused,
        /// A claim that the pod names does not exist.
        ClaimMissing,
        /// The claim of an ephemeral volume was not made for the pod.
        ClaimNotOwned,
        /// A claim that the pod names has no volume yet.
        ClaimNotBound,
        /// A claim that the pod names lost its volume.
        ClaimLost,
        /// The volume of a claim does not exist.
        VolumeMissing,
        /// The volume of a claim is bound to another claim.
        VolumeBoundElsewhere,
        /// The volume of a claim cannot be carried.
        VolumeUnsupported,
        /// Another binding holds the volume of a claim.
        VolumeHeld,
        /// The name of a copy of a volume or claim is taken in the physical cluster.
        VolumeConflict,
        /// The physical cluster refused the copy of a volume or claim.
        VolumeRefused,
        /// The copy of a claim lost its volume.
        PhysicalClaimLost,
        /// Another claim has the copy of a volume.
        PhysicalVolumeTaken,
        /// The copy of a volume or claim is being deleted, and another pod still uses it.
        PhysicalVolumeLeaving,
        /// The virtual cluster issued no token for the pod.
        TokenRefused,
        /// The pod ran and its mapping was removed.
        MappingLost,
        /// The pod names a physical pod that does not point back.
        PhysicalPodUnmarked,
        /// The physical cluster refused the copy.
        PhysicalClusterRefused,
        /// Something that every copy needs is missing in the physical cluster.
        PhysicalClusterNotReady,
    }
}

impl PendingReason {
    /// Whether the pod might run on another node: one that its controller would replace is deleted after a while.
    pub(crate) fn another_node_may_help(self) -> bool {
        match self {
            Self::OutOfLease
            | Self::NotLending
            | Self::Suspended
            | Self::LendNever
            | Self::OwnerOutOfTimeWindows
            | Self::OutOfTimeWindows
            | Self::PhysicalPodUnreadable
            | Self::NodeUnreadable
            | Self::WatchOutOfSync
            | Self::NodeSelectorMismatch
            | Self::NodeAffinityMismatch
            | Self::UntoleratedTaint
            | Self::HostPortConflict => true,
            Self::OwnerPoliciesUnknown
            | Self::OwnerPoliciesNotServed
            | Self::PoliciesUnknown
            | Self::PoliciesNotServed
            | Self::BindingDeletionUnconfirmed
            | Self::PolicyDeleted
            | Self::NotSelected
            | Self::Leaving
            | Self::PolicyInvalid
            | Self::QuotaNotOurs
            | Self::QuotaRefused
            | Self::PodSecurityViolation
            | Self::NoRandomNumbers
            | Self::NamespaceExcluded
            | Self::DaemonSetExcluded
            | Self::PodUnreadable
            | Self::DependentUnsupported
            | Self::TokenUnsupported
            | Self::FeatureUnsupported
            | Self::DependentMissing
            | Self::DependentConflict
            | Self::DependentTerminating
            | Self::DependentRefused
            | Self::ClaimMissing
            | Self::ClaimNotOwned
            | Self::ClaimNotBound
            | Self::ClaimLost
            | Self::VolumeMissing
            | Self::VolumeBoundElsewhere
            | Self::VolumeUnsupported
            | Self::VolumeHeld
            | Self::VolumeConflict
            | Self::VolumeRefused
            | Self::PhysicalClaimLost
            | Self::PhysicalVolumeTaken
            | Self::PhysicalVolumeLeaving
            | Self::TokenRefused
            | Self::MappingLost
            | Self::PhysicalPodUnmarked
            | Self::PhysicalClusterRefused
            | Self::PhysicalClusterNotReady => false,
        }
    }
}

impl PendingReason {
    /// Whether another message under the same reason is news. It is where messages name what is wrong; where they hold figures,
    /// each change of a figure would be written to the pod.
    pub(crate) fn names_the_cause(self) -> bool {
        match self {
            Self::PodSecurityViolation
            | Self::DependentUnsupported
            | Self::TokenUnsupported
            | Self::FeatureUnsupported
            | Self::DependentMissing
            | Self::DependentConflict
            | Self::DependentTerminating
            | Self::DependentRefused
            | Self::TokenRefused
            | Self::ClaimMissing
            | Self::ClaimNotOwned
            | Self::ClaimNotBound
            | Self::ClaimLost
            | Self::VolumeMissing
            | Self::VolumeBoundElsewhere
            | Self::VolumeUnsupported
            | Self::VolumeHeld
            | Self::VolumeConflict
            | Self::VolumeRefused
            | Self::PhysicalClaimLost
            | Self::PhysicalVolumeTaken
            | Self::PhysicalVolumeLeaving
            | Self::PhysicalClusterRefused
            | Self::PhysicalClusterNotReady => true,
            Self::OutOfLease
            | Self::NotLending
            | Self::Suspended
            | Self::LendNever
            | Self::OwnerOutOfTimeWindows
            | Self::OutOfTimeWindows
            | Self::OwnerPoliciesUnknown
            | Self::OwnerPoliciesNotServed
            | Self::PoliciesUnknown
            | Self::PoliciesNotServed
            | Self::BindingDeletionUnconfirmed
            | Self::PolicyDeleted
            | Self::NotSelected
            | Self::Leaving
            | Self::PolicyInvalid
            | Self::PhysicalPodUnreadable
            | Self::NodeUnreadable
            | Self::WatchOutOfSync
            | Self::QuotaNotOurs
            | Self::QuotaRefused
            | Self::NodeSelectorMismatch
            | Self::NodeAffinityMismatch
            | Self::UntoleratedTaint
            | Self::HostPortConflict
            | Self::NoRandomNumbers
            | Self::NamespaceExcluded
            | Self::DaemonSetExcluded
            | Self::PodUnreadable
            | Self::MappingLost
            | Self::PhysicalPodUnmarked => false,
        }
    }
}

impl From<&Misplaced> for PendingReason {
    fn from(misplaced: &Misplaced) -> Self {
        match misplaced {
            Misplaced::Selector => Self::NodeSelectorMismatch,
            Misplaced::Affinity => Self::NodeAffinityMismatch,
            Misplaced::Taint { .. } => Self::UntoleratedTaint,
        }
    }
}

impl From<&Unsupported> for PendingReason {
    fn from(unsupported: &Unsupported) -> Self {
        match unsupported.what {
            Need::ConfigMap | Need::Secret | Need::Endpoints => Self::DependentUnsupported,
            Need::ServiceAccountToken => Self::TokenUnsupported,
            Need::ClusterTrustBundle | Need::PodCertificate | Need::ResourceClaim | Need::DriverSecret => {
                Self::FeatureUnsupported
            }
        }
    }
}
