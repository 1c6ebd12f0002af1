//! The fields of containers of all three kinds, and of their environment.
//! It must not explain more than one sentence does.

use super::Fate::{Inside, Rewritten};
use super::{Shape, field, kept};

const SAME: &str = "means the same in both clusters";
const SECURITY: &str = "`podSecurity` of the binding decides what it may say";
const KEY: &str = "a key of the copy, which has the keys of its source";
const NAME: &str = "the name that the copy of the object has in the mount namespace";
const OPTIONAL: &str =
    "means the same: a pod waits for what is required, and starts without what is optional and missing";

pub(super) const SHAPES: [Shape; 10] = [
    Shape {
        name: "Container",
        path: "containers[]",
        like: None,
        fields: &[
            kept("args", SAME),
            kept("command", SAME),
            field(
                "env",
                Inside("EnvVar"),
                "`KUBERNETES_SERVICE_HOST` (with `virtualAPIServer` also `_PORT` and `_PORT_HTTPS`) is added unless the container sets it",
            ),
            field("envFrom", Inside("EnvFromSource"), ""),
            kept("image", "the physical node pulls it"),
            kept("imagePullPolicy", SAME),
            kept("lifecycle", SECURITY),
            kept("livenessProbe", SECURITY),
            kept("name", SAME),
            kept(
                "ports",
                "a `hostPort` only with `podSecurity: privileged`, and where no pod on the physical node has it",
            ),
            kept("readinessProbe", SECURITY),
            kept("resizePolicy", SAME),
            field("resources", Inside("ResourceRequirements"), ""),
            kept("restartPolicy", SAME),
            kept("restartPolicyRules", SAME),
            kept("securityContext", SECURITY),
            kept("startupProbe", SECURITY),
            kept("stdin", SAME),
            kept("stdinOnce", SAME),
            kept("terminationMessagePath", SAME),
            kept("terminationMessagePolicy", SAME),
            kept("tty", SAME),
            kept("volumeDevices", "only with a PersistentVolumeClaim, whose copy has the same `volumeMode`"),
            field("volumeMounts", Rewritten, "kept, but that of the injected API-access volume goes with the volume"),
            kept("workingDir", SAME),
        ],
    },
    Shape {
        name: "EphemeralContainer",
        path: "ephemeralContainers[]",
        like: Some("Container"),
        fields: &[kept("targetContainerName", "the copy's containers have the same names")],
    },
    Shape {
        name: "EnvVar",
        path: "containers[].env[]",
        like: None,
        fields: &[kept("name", SAME), kept("value", SAME), field("valueFrom", Inside("EnvVarSource"), "")],
    },
    Shape {
        name: "EnvVarSource",
        path: "containers[].env[].valueFrom",
        like: None,
        fields: &[
            field("configMapKeyRef", Inside("ConfigMapKeySelector"), ""),
            field("fieldRef", Inside("ObjectFieldSelector"), ""),
            kept("fileKeyRef", "a file in a volume of the pod"),
            kept("resourceFieldRef", "the copy has the same requests and limits"),
            field("secretKeyRef", Inside("SecretKeySelector"), ""),
        ],
    },
    Shape {
        name: "ConfigMapKeySelector",
        path: "containers[].env[].valueFrom.configMapKeyRef",
        like: None,
        fields: &[kept("key", KEY), field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
    Shape {
        name: "SecretKeySelector",
        path: "containers[].env[].valueFrom.secretKeyRef",
        like: None,
        fields: &[kept("key", KEY), field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
    Shape {
        name: "ObjectFieldSelector",
        path: "containers[].env[].valueFrom.fieldRef",
        like: None,
        fields: &[
            kept("apiVersion", SAME),
            field(
                "fieldPath",
                Rewritten,
                "name, namespace, UID, node and account show the virtual pod's; addresses, labels and annotations the copy's",
            ),
        ],
    },
    Shape {
        name: "EnvFromSource",
        path: "containers[].envFrom[]",
        like: None,
        fields: &[
            field("configMapRef", Inside("ConfigMapEnvSource"), ""),
            kept("prefix", SAME),
            field("secretRef", Inside("SecretEnvSource"), ""),
        ],
    },
    Shape {
        name: "ConfigMapEnvSource",
        path: "containers[].envFrom[].configMapRef",
        like: None,
        fields: &[field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
    Shape {
        name: "SecretEnvSource",
        path: "containers[].envFrom[].secretRef",
        like: None,
        fields: &[field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
];
