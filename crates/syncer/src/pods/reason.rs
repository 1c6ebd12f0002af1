//! What a virtual pod is told after its admission: reasons of its status, its conditions and its events. Why it is not admitted is in
//! `admission::reason`. Must not hold figures or names; those are in the message.

use tapestry_engine::reasons;

reasons! {
    /// A reason that users find on a pod. The guide explains each; a test compares the two.
    pub(crate) enum PodReason {
        /// Status `Failed`, condition `DisruptionTarget`: the copy was deleted, or is proven to be gone.
        PhysicalPodLost,
        /// Status `Failed`, condition `DisruptionTarget`: the physical cluster did not schedule the copy.
        PhysicalUnschedulable,
        /// Status `Failed` of a pod that was being deleted and whose copy ended without a report.
        Deleted,
        /// Conditions `Ready` and `DisruptionTarget`: another client deletes the copy.
        PhysicalPodTerminating,
        /// Condition `Ready`: the copy is ready, and not all readiness gates are.
        ReadinessGatesNotReady,
        /// Condition `DisruptionTarget`, before a pod is deleted that was not admitted.
        NotAdmitted,
        /// Condition `DisruptionTarget` and event: capacity goes back, and the pod is deleted.
        Reclaimed,
        /// Event: capacity goes back, and the pod was evicted.
        Evicted,
        /// Event: a pod that was not admitted was deleted.
        SentAway,
        /// Event: the physical cluster did not schedule the copy.
        FailedSchedulingPod,
        /// Event: a copy that is not known to be ours any more was left running.
        PhysicalPodLeft,
        /// Event: the tokens of a running pod cannot be renewed.
        TokenNotRenewed,
        /// Event: a resize has to wait.
        ResizeDeferred,
        /// Event: a resize cannot happen.
        ResizeInfeasible,
    }
}
