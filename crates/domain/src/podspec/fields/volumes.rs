//! The fields of volumes and of their sources, as far as something in them is rewritten.
//! It must not explain more than one sentence does.

use super::Fate::{Inside, Refused, Rewritten};
use super::{Shape, field, kept};

const SAME: &str = "means the same in both clusters";
const DISK: &str =
    "the physical node mounts it, with the physical cluster's rights; `podSecurity: restricted` refuses it";
const DRIVER: &str = "passed to the physical cluster's driver as it is";
const CREDENTIAL: &str = "a Secret, whose copy has another name";
const NAME: &str = "the name that the copy of the object has in the mount namespace";
const OPTIONAL: &str =
    "means the same: a pod waits for what is required, and starts without what is optional and missing";
const ITEMS: &str = "keys of the copy, which has the keys of its source";

pub(super) const SHAPES: [Shape; 20] = [
    Shape {
        name: "Volume",
        path: "volumes[]",
        like: None,
        fields: &[
            kept("awsElasticBlockStore", DISK),
            kept("azureDisk", DISK),
            field("azureFile", Inside("AzureFileVolumeSource"), ""),
            field("cephfs", Inside("CephFSVolumeSource"), ""),
            field("cinder", Inside("CinderVolumeSource"), ""),
            field("configMap", Inside("ConfigMapVolumeSource"), ""),
            field("csi", Inside("CSIVolumeSource"), ""),
            field("downwardAPI", Inside("DownwardAPIVolumeSource"), ""),
            kept("emptyDir", SAME),
            field(
                "ephemeral",
                Rewritten,
                "becomes a PersistentVolumeClaim: the copy of the claim that the virtual cluster makes for the pod",
            ),
            kept("fc", DISK),
            field("flexVolume", Inside("FlexVolumeSource"), ""),
            kept("flocker", DISK),
            kept("gcePersistentDisk", DISK),
            kept("gitRepo", "`podSecurity: restricted` refuses it"),
            field("glusterfs", Refused, "it names Endpoints of the pod's namespace, which are not carried"),
            kept("hostPath", "only with `podSecurity: privileged`"),
            kept("image", "the physical node pulls it"),
            field("iscsi", Inside("ISCSIVolumeSource"), ""),
            kept("name", SAME),
            kept("nfs", DISK),
            field(
                "persistentVolumeClaim",
                Inside("PersistentVolumeClaimVolumeSource"),
                "the claim and its volume are copied, see the guide on volumes",
            ),
            kept("photonPersistentDisk", DISK),
            kept("portworxVolume", DISK),
            field(
                "projected",
                Inside("ProjectedVolumeSource"),
                "that of the injected API token is left out unless the binding has `virtualAPIServer`",
            ),
            kept("quobyte", DISK),
            field("rbd", Inside("RBDVolumeSource"), ""),
            field("scaleIO", Inside("ScaleIOVolumeSource"), ""),
            field("secret", Inside("SecretVolumeSource"), ""),
            field("storageos", Inside("StorageOSVolumeSource"), ""),
            kept("vsphereVolume", DISK),
        ],
    },
    Shape {
        name: "ConfigMapVolumeSource",
        path: "volumes[].configMap",
        like: None,
        fields: &[
            kept("defaultMode", SAME),
            kept("items", ITEMS),
            field("name", Rewritten, NAME),
            kept("optional", OPTIONAL),
        ],
    },
    Shape {
        name: "SecretVolumeSource",
        path: "volumes[].secret",
        like: None,
        fields: &[
            kept("defaultMode", SAME),
            kept("items", ITEMS),
            kept("optional", OPTIONAL),
            field("secretName", Rewritten, NAME),
        ],
    },
    Shape {
        name: "PersistentVolumeClaimVolumeSource",
        path: "volumes[].persistentVolumeClaim",
        like: None,
        fields: &[
            field("claimName", Rewritten, "the name that the copy of the claim has in the mount namespace"),
            kept("readOnly", SAME),
        ],
    },
    Shape {
        name: "DownwardAPIVolumeSource",
        path: "volumes[].downwardAPI",
        like: None,
        fields: &[kept("defaultMode", SAME), field("items", Inside("DownwardAPIVolumeFile"), "")],
    },
    Shape {
        name: "DownwardAPIVolumeFile",
        path: "volumes[].downwardAPI.items[]",
        like: None,
        fields: &[
            field("fieldRef", Inside("ObjectFieldSelector"), ""),
            kept("mode", SAME),
            kept("path", SAME),
            kept("resourceFieldRef", "the copy has the same requests and limits"),
        ],
    },
    Shape {
        name: "ProjectedVolumeSource",
        path: "volumes[].projected",
        like: None,
        fields: &[kept("defaultMode", SAME), field("sources", Inside("VolumeProjection"), "")],
    },
    Shape {
        name: "VolumeProjection",
        path: "volumes[].projected.sources[]",
        like: None,
        fields: &[
            field("clusterTrustBundle", Refused, "bundles of the virtual cluster are not carried"),
            field("configMap", Inside("ConfigMapProjection"), ""),
            field("downwardAPI", Inside("DownwardAPIProjection"), ""),
            field("podCertificate", Refused, "certificates of the virtual cluster are not carried"),
            field("secret", Inside("SecretProjection"), ""),
            field(
                "serviceAccountToken",
                Rewritten,
                "becomes a Secret with a token of the virtual cluster for the same audience, which is renewed",
            ),
        ],
    },
    Shape {
        name: "ConfigMapProjection",
        path: "volumes[].projected.sources[].configMap",
        like: None,
        fields: &[kept("items", ITEMS), field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
    Shape {
        name: "SecretProjection",
        path: "volumes[].projected.sources[].secret",
        like: None,
        fields: &[kept("items", ITEMS), field("name", Rewritten, NAME), kept("optional", OPTIONAL)],
    },
    Shape {
        name: "DownwardAPIProjection",
        path: "volumes[].projected.sources[].downwardAPI",
        like: None,
        fields: &[field("items", Inside("DownwardAPIVolumeFile"), "")],
    },
    Shape {
        name: "CSIVolumeSource",
        path: "volumes[].csi",
        like: None,
        fields: &[
            kept("driver", "a driver of the physical cluster"),
            kept("fsType", DRIVER),
            field("nodePublishSecretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("readOnly", SAME),
            kept(
                "volumeAttributes",
                "a driver's own; refused when the name of one contains `secret`, which would name another user's object",
            ),
        ],
    },
    Shape {
        name: "AzureFileVolumeSource",
        path: "volumes[].azureFile",
        like: None,
        fields: &[kept("readOnly", SAME), field("secretName", Rewritten, NAME), kept("shareName", DRIVER)],
    },
    Shape {
        name: "FlexVolumeSource",
        path: "volumes[].flexVolume",
        like: None,
        fields: &[
            kept("driver", "a driver of the physical node"),
            kept("fsType", DRIVER),
            kept("options", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
        ],
    },
    Shape {
        name: "CephFSVolumeSource",
        path: "volumes[].cephfs",
        like: None,
        fields: &[
            kept("monitors", DRIVER),
            kept("path", DRIVER),
            kept("readOnly", SAME),
            kept("secretFile", DRIVER),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("user", DRIVER),
        ],
    },
    Shape {
        name: "CinderVolumeSource",
        path: "volumes[].cinder",
        like: None,
        fields: &[
            kept("fsType", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("volumeID", DISK),
        ],
    },
    Shape {
        name: "RBDVolumeSource",
        path: "volumes[].rbd",
        like: None,
        fields: &[
            kept("fsType", DRIVER),
            kept("image", DRIVER),
            kept("keyring", DRIVER),
            kept("monitors", DRIVER),
            kept("pool", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("user", DRIVER),
        ],
    },
    Shape {
        name: "ISCSIVolumeSource",
        path: "volumes[].iscsi",
        like: None,
        fields: &[
            kept("chapAuthDiscovery", DRIVER),
            kept("chapAuthSession", DRIVER),
            kept("fsType", DRIVER),
            kept("initiatorName", DRIVER),
            kept("iqn", DRIVER),
            kept("iscsiInterface", DRIVER),
            kept("lun", DRIVER),
            kept("portals", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("targetPortal", DRIVER),
        ],
    },
    Shape {
        name: "ScaleIOVolumeSource",
        path: "volumes[].scaleIO",
        like: None,
        fields: &[
            kept("fsType", DRIVER),
            kept("gateway", DRIVER),
            kept("protectionDomain", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("sslEnabled", DRIVER),
            kept("storageMode", DRIVER),
            kept("storagePool", DRIVER),
            kept("system", DRIVER),
            kept("volumeName", DRIVER),
        ],
    },
    Shape {
        name: "StorageOSVolumeSource",
        path: "volumes[].storageos",
        like: None,
        fields: &[
            kept("fsType", DRIVER),
            kept("readOnly", SAME),
            field("secretRef", Inside("LocalObjectReference"), CREDENTIAL),
            kept("volumeName", DRIVER),
            kept("volumeNamespace", DRIVER),
        ],
    },
];
