//! The parts of a control plane and their command lines (flags seen to work: reference/testbed.md).
//! Must not run them.

use std::path::PathBuf;

use super::ClusterConfig;
use super::site::Site;
use crate::address::Port;
use crate::supervisor::Launch;

/// A process of a cluster, in the order of starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The store; data in `<folder>/etcd`.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager. Without it there are no default `ServiceAccount`s, and new nodes keep their taints, so the
    /// admission plugins that rely on those are switched off.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
    /// The simulated kubelets of all nodes.
    Kwok,
}

impl Part {
    /// All of them, in the order of starting.
    pub const ALL: [Self; 5] = [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kwok];

    /// The name of the binary, of the process for its supervisor, and of its log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }

    /// Its port.
    pub(super) fn port(self) -> Port {
        match self {
            Self::Etcd => Port::Etcd,
            Self::ApiServer => Port::ApiServer,
            Self::ControllerManager => Port::ControllerManager,
            Self::Scheduler => Port::Scheduler,
            Self::Kwok => Port::Kubelet,
        }
    }

    pub(super) fn log(self, site: &Site) -> PathBuf {
        site.folder.join(format!("{}.log", self.name()))
    }

    pub(super) fn launch(self, site: &Site, config: &ClusterConfig) -> Launch {
        let mut args = match self {
            Self::Etcd => etcd(site),
            Self::ApiServer => apiserver(site, config),
            Self::ControllerManager => controller_manager(site),
            Self::Scheduler => scheduler(site),
            Self::Kwok => kwok(site),
        };
        args.extend(config.flags.get(&self).into_iter().flatten().cloned());
        Launch { program: site.binaries.path(self.name()), args, log: self.log(site) }
    }
}

fn etcd(site: &Site) -> Vec<String> {
    let clients = format!("http://{}", site.address.at(Port::Etcd));
    let peers = format!("http://{}", site.address.at(Port::EtcdPeers));
    vec![
        "--name=testbed".into(),
        format!("--data-dir={}", site.file("etcd")),
        format!("--listen-client-urls={clients}"),
        format!("--advertise-client-urls={clients}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=testbed={peers}"),
        // The data is disposable: no fsync.
        "--unsafe-no-fsync".into(),
        "--log-level=error".into(),
    ]
}

fn apiserver(site: &Site, config: &ClusterConfig) -> Vec<String> {
    let mut args = vec![
        format!("--etcd-servers=http://{}", site.address.at(Port::Etcd)),
        format!("--bind-address={}", site.address.ip()),
        format!("--secure-port={}", site.address.at(Port::ApiServer).port()),
        // The endpoint of the `kubernetes` Service may not be loopback; a documentation address needs no network.
        "--advertise-address=192.0.2.1".into(),
        "--service-cluster-ip-range=10.96.0.0/16".into(),
        format!("--tls-cert-file={}", site.file("server.crt")),
        format!("--tls-private-key-file={}", site.file("server.key")),
        format!("--client-ca-file={}", site.file("ca.crt")),
        format!("--service-account-key-file={}", site.file("service-accounts.pub")),
        format!("--service-account-signing-key-file={}", site.file("service-accounts.key")),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        "--authorization-mode=RBAC,Node".into(),
        "--allow-privileged=true".into(),
        // Without it a server that stops waits a minute for its watchers; with it, it notifies them and stops in a second.
        "--shutdown-watch-termination-grace-period=1s".into(),
        "--max-requests-inflight=4000".into(),
        "--max-mutating-requests-inflight=2000".into(),
        format!("--kubelet-certificate-authority={}", site.file("ca.crt")),
        format!("--kubelet-client-certificate={}", site.file("admin.crt")),
        format!("--kubelet-client-key={}", site.file("admin.key")),
        // Node names do not resolve here.
        "--kubelet-preferred-address-types=InternalIP".into(),
        format!("--audit-policy-file={}", site.file("audit-policy.yaml")),
        format!("--audit-log-path={}", site.file("audit.log")),
        // No rotation: marks are offsets into one file.
        "--audit-log-maxsize=0".into(),
    ];
    if !config.has(Part::ControllerManager) {
        args.push("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition".into());
    }
    args
}

fn controller_manager(site: &Site) -> Vec<String> {
    let mut args = serving(site, Port::ControllerManager, "controller-manager.kubeconfig");
    args.push(format!("--service-account-private-key-file={}", site.file("service-accounts.key")));
    args.push(format!("--root-ca-file={}", site.file("ca.crt")));
    args
}

fn scheduler(site: &Site) -> Vec<String> {
    serving(site, Port::Scheduler, "scheduler.kubeconfig")
}

/// What controller manager and scheduler share. The default rates (20–50 requests a second) would throttle tests.
fn serving(site: &Site, port: Port, kubeconfig: &str) -> Vec<String> {
    let kubeconfig = site.file(kubeconfig);
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--bind-address={}", site.address.ip()),
        format!("--secure-port={}", site.address.at(port).port()),
        format!("--tls-cert-file={}", site.file("server.crt")),
        format!("--tls-private-key-file={}", site.file("server.key")),
        "--leader-elect=false".into(),
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

fn kwok(site: &Site) -> Vec<String> {
    let kubelet = site.address.at(Port::Kubelet);
    vec![
        format!("--kubeconfig={}", site.file("kwok.kubeconfig")),
        format!("--config={}", site.file("kwok.yaml")),
        "--manage-all-nodes=true".into(),
        format!("--node-ip={}", kubelet.ip()),
        format!("--node-port={}", kubelet.port()),
        format!("--server-address={kubelet}"),
        format!("--tls-cert-file={}", site.file("server.crt")),
        format!("--tls-private-key-file={}", site.file("server.key")),
        "--node-lease-duration-seconds=40".into(),
        // It would log every lease and every patch.
        "--v=WARN".into(),
        // Pods of two clusters must not share an address.
        format!("--cidr=10.{}.0.0/16", site.address.ip().octets()[1]),
    ]
}
