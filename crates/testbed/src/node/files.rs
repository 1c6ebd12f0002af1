//! The configuration of a node: kubelet, containerd, its pod network, its identity. Must not start anything.
//! Paths in here are those that the node sees; `testbed/node/init` puts this folder at `/etc`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Site;

/// Without CAP_SYS_RESOURCE no process may lower its OOM score, hence `restrict_oom_score_adj`. Plugins that need programs
/// or file systems which a machine may lack are off. The bridge plugin needs no loopback plugin beside it.
const CONTAINERD: &str = r#"version = 3
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.native", "io.containerd.differ.v1.erofs",
]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/testbed/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/node/cni"]
  conf_dir = "/etc/cni"
  use_internal_loopback = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "/opt/node/runc"
"#;

/// Writes everything that the node reads, and creates the folders that it writes to.
pub(super) fn write(site: &Site<'_>, folder: &Path) -> Result<()> {
    for inside in ["etc/cni", "kubelet", "containerd", "log"] {
        fs::create_dir_all(folder.join(inside)).with_context(|| format!("creating {inside}"))?;
    }
    let put = |name: &str, text: &str| {
        fs::write(folder.join("etc").join(name), text).with_context(|| format!("writing etc/{name}"))
    };
    let signed = site.cluster.server_certificate(site.address().into())?;
    let user = format!("system:node:{}", site.name);
    put("containerd.toml", CONTAINERD)?;
    put("cni/10-pods.conflist", &pod_network(site).to_string())?;
    put("kubelet.yaml", &serde_saphyr::to_string(&kubelet(site))?)?;
    put("kubeconfig", &site.cluster.kubeconfig_for(&user, Some("system:nodes"))?)?;
    put("ca.crt", site.cluster.authority())?;
    put("kubelet.crt", &signed.certificate)?;
    put("kubelet.key", &signed.key)?;
    put("hostname", &format!("{}\n", site.name))?;
    put("hosts", &format!("127.0.0.1 localhost\n{} {}\n", site.address(), site.name))?;
    put("resolv.conf", "")?;
    put("machine-id", &format!("{:032x}\n", u128::from(site.number)))
}

pub(super) fn kubelet_flags(site: &Site<'_>) -> [String; 4] {
    [
        "--config=/etc/kubelet.yaml".to_owned(),
        "--kubeconfig=/etc/kubeconfig".to_owned(),
        format!("--hostname-override={}", site.name),
        format!("--node-ip={}", site.address()),
    ]
}

fn kubelet(site: &Site<'_>) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "address": site.address(),
        // Nodes share a network, so they would share this port.
        "healthzPort": 0,
        "tlsCertFile": "/etc/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubelet.key",
        "authentication": { "anonymous": { "enabled": false }, "webhook": { "enabled": false }, "x509": { "clientCAFile": "/etc/ca.crt" } },
        // Only the cluster's own API server and administrator have certificates.
        "authorization": { "mode": "AlwaysAllow" },
        // No iptables.
        "makeIPTablesUtilChains": false,
        "failSwapOn": false,
        "resolvConf": "",
        // Without an address every pod gets a warning event again and again; nothing answers there.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        // How soon a changed ConfigMap reaches a volume; a minute by default.
        "syncFrequency": "2s",
        "nodeStatusUpdateFrequency": "5s",
        "nodeStatusReportFrequency": "30s",
        // The disk and memory of a developer's machine are not ours to judge.
        "evictionHard": { "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%" },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": false,
        "volumePluginDir": "/run/volume-plugins",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 0,
    })
}

/// Each node has its own range; the kernel of the shared network routes between them.
fn pod_network(site: &Site<'_>) -> Value {
    let number = site.number;
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": format!("pods{number}"),
            "isGateway": true,
            "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{ "subnet": format!("10.77.{number}.0/24") }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
            },
        }],
    })
}
