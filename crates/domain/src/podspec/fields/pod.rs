//! The fields of a pod's spec itself, and of what it holds besides containers and volumes.
//! It must not explain more than one sentence does.

use super::Fate::{Inside, LeftOut, Refused, Rewritten};
use super::{Shape, field, kept};

pub(super) const SHAPES: [Shape; 4] = [
    Shape {
        name: "PodSpec",
        path: "",
        like: None,
        fields: &[
            kept("activeDeadlineSeconds", "counts from the start of the copy"),
            field(
                "affinity",
                Rewritten,
                "the virtual scheduler has chosen; the copy requires the physical node of that virtual node",
            ),
            field(
                "automountServiceAccountToken",
                Rewritten,
                "`false`: no pod gets a token of the physical cluster; its virtual token is in its volumes already",
            ),
            field("containers", Inside("Container"), ""),
            field("dnsConfig", Inside("PodDNSConfig"), ""),
            field(
                "dnsPolicy",
                Rewritten,
                "`ClusterFirst` becomes `None` with the DNS of the virtual cluster, if the binding has `virtualDNS`",
            ),
            field("enableServiceLinks", Rewritten, "`false`: Services of the mount namespace are not the pod's"),
            field(
                "ephemeralContainers",
                Inside("EphemeralContainer"),
                "added to a running copy through their subresource, never created with it",
            ),
            kept("hostAliases", "means the same in both clusters"),
            kept("hostIPC", "only with `podSecurity: privileged`"),
            kept("hostNetwork", "only with `podSecurity: privileged`"),
            kept("hostPID", "only with `podSecurity: privileged`"),
            kept("hostUsers", "means the same in both clusters"),
            field(
                "hostname",
                Rewritten,
                "the virtual pod's name, where the pod has none and does not use its host's network",
            ),
            kept("hostnameOverride", "means the same in both clusters"),
            field("imagePullSecrets", Inside("LocalObjectReference"), ""),
            field("initContainers", Inside("Container"), ""),
            field(
                "nodeName",
                Rewritten,
                "the physical node, with `directScheduling`; else left out, and the physical scheduler binds the copy",
            ),
            field("nodeSelector", LeftOut, "it selects virtual nodes, and the virtual scheduler has obeyed it"),
            kept("os", "means the same in both clusters"),
            field("overhead", LeftOut, "the physical cluster computes its own from the runtime class"),
            field("preemptionPolicy", LeftOut, "follows from the priority class of the physical cluster"),
            field("priority", LeftOut, "follows from the priority class of the physical cluster"),
            field(
                "priorityClassName",
                Rewritten,
                "the binding's class: a tenant's class must not count in the physical cluster",
            ),
            field(
                "readinessGates",
                LeftOut,
                "controllers of the virtual cluster set these conditions; the virtual pod is ready when its copy and all gates are",
            ),
            field("resourceClaims", Refused, "devices by dynamic resource allocation are not carried"),
            field("resources", Inside("ResourceRequirements"), ""),
            kept("restartPolicy", "means the same in both clusters"),
            kept("runtimeClassName", "the physical cluster must have a runtime class of this name"),
            field("schedulerName", LeftOut, "the physical cluster's default scheduler binds the copy"),
            field("schedulingGates", LeftOut, "a pod with gates is not scheduled and has no copy"),
            field("schedulingGroup", LeftOut, "a group of the virtual scheduler, which has scheduled it"),
            kept("securityContext", "`podSecurity` of the binding decides what it may say"),
            field("serviceAccount", LeftOut, "the old name of `serviceAccountName`"),
            field(
                "serviceAccountName",
                Rewritten,
                "an account of the mount namespace without rights; the downward API shows the virtual one",
            ),
            kept("setHostnameAsFQDN", "means the same in both clusters, with the mount namespace in the name"),
            kept("shareProcessNamespace", "means the same in both clusters"),
            kept("subdomain", "means the same in both clusters"),
            kept("terminationGracePeriodSeconds", "means the same in both clusters"),
            field(
                "tolerations",
                Rewritten,
                "kept, but for `not-ready` and `unreachable`: the virtual cluster alone decides when to evict",
            ),
            field("topologySpreadConstraints", LeftOut, "the virtual scheduler has obeyed them"),
            field("volumes", Inside("Volume"), ""),
            field("workloadRef", LeftOut, "the older name of `schedulingGroup`"),
        ],
    },
    Shape {
        name: "PodDNSConfig",
        path: "dnsConfig",
        like: None,
        fields: &[
            field("nameservers", Rewritten, "with `virtualDNS` its address comes first, then the pod's, at most 3"),
            field("options", Rewritten, "with `virtualDNS` `ndots: 5` is added unless the pod sets `ndots`"),
            field(
                "searches",
                Rewritten,
                "with `virtualDNS` the virtual namespace's domains come first, then the pod's",
            ),
        ],
    },
    Shape {
        name: "LocalObjectReference",
        path: "imagePullSecrets[]",
        like: None,
        fields: &[field("name", Rewritten, "the name that the copy of the object has in the mount namespace")],
    },
    Shape {
        name: "ResourceRequirements",
        path: "containers[].resources",
        like: None,
        fields: &[
            kept("claims", "only with `resourceClaims` of the pod, which are refused"),
            kept("limits", "means the same in both clusters"),
            field(
                "requests",
                Rewritten,
                "with `guard.quota` a container without a request requests 0, because a quota refuses it otherwise",
            ),
        ],
    },
];
