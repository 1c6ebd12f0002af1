//! The files and address of a cluster: its folder with keys, certificates and kubeconfigs.
//! Must not start anything.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::ClusterConfig;
use crate::address::{Address, Port};
use crate::audit;
use crate::binaries::Binaries;
use crate::certificates::{Authority, Signed};
use crate::kubeconfig::{Credential, render};

/// Names in the audit log. kwok and the controller manager may do everything: their rights are not what is tested here.
pub(crate) const COMPONENT_USERS: [&str; 4] =
    ["system:apiserver", "system:kube-controller-manager", "system:kube-scheduler", "system:kwok"];
const ADMINISTRATORS: &str = "system:masters";
/// In the CRI's format, which kwok reads as a kubelet does.
const POD_LOG: &str = "2026-01-01T00:00:00.000000000Z stdout F hello from a simulated pod\n";

/// Files and address of one cluster.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) cluster: String,
    pub(super) folder: PathBuf,
    pub(super) address: Address,
    pub(super) binaries: Binaries,
    pub(super) authority: Authority,
}

impl Site {
    /// Writes all files that components read into `folder`, which exists.
    pub(super) fn prepare(config: &ClusterConfig, folder: &Path) -> Result<Self> {
        let site = Self {
            cluster: config.name.clone(),
            folder: folder.to_owned(),
            address: Address::reserve_in(config.network)?,
            binaries: Binaries::find()?,
            authority: Authority::new(&config.name)?,
        };
        site.write("ca.crt", site.authority.pem())?;
        site.write_signed("server", &site.authority.server(site.address.ip().into())?)?;
        site.write_signed("admin", &site.authority.client("testbed-admin", Some(ADMINISTRATORS))?)?;
        let accounts = KeyPair::generate()?;
        site.write("service-accounts.key", &accounts.serialize_pem())?;
        site.write("service-accounts.pub", &accounts.public_key_pem())?;
        site.write("audit-policy.yaml", &audit::policy()?)?;
        site.write("kwok.yaml", &format!("{}\n---\n{}", site.binaries.stages()?, site.kubelet_endpoints()?))?;
        site.write("pod.log", POD_LOG)?;
        site.write("kubeconfig", &site.kubeconfig_for("testbed-admin", Some(ADMINISTRATORS))?)?;
        for (name, user, group) in [
            ("controller-manager.kubeconfig", "system:kube-controller-manager", Some(ADMINISTRATORS)),
            ("scheduler.kubeconfig", "system:kube-scheduler", None),
            ("kwok.kubeconfig", "system:kwok", Some(ADMINISTRATORS)),
        ] {
            site.write(name, &site.kubeconfig_for(user, group)?)?;
        }
        Ok(site)
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    pub(super) fn url(&self) -> String {
        format!("https://{}", self.address.at(Port::ApiServer))
    }

    pub(super) fn kubeconfig_for(&self, user: &str, group: Option<&str>) -> Result<String> {
        let signed = self.authority.client(user, group)?;
        render(&self.cluster, &self.url(), self.authority.pem(), Credential::Certificate(&signed))
    }

    pub(super) fn kubeconfig_with_token(&self, token: &str) -> Result<String> {
        render(&self.cluster, &self.url(), self.authority.pem(), Credential::Token(token))
    }

    /// What kwok does when asked for logs of a pod, to attach, or to run a command in it: every pod logs [`POD_LOG`], and
    /// commands run on this machine, in the cluster's folder.
    fn kubelet_endpoints(&self) -> Result<String> {
        let object = |kind: &str, spec: Value| {
            let metadata = json!({ "name": "testbed" });
            json!({ "apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec })
        };
        let log = self.file("pod.log");
        let objects = [
            object("ClusterLogs", json!({ "logs": [{ "logsFile": log, "follow": true }] })),
            object("ClusterAttach", json!({ "attaches": [{ "logsFile": log }] })),
            object("ClusterExec", json!({ "execs": [{ "local": { "workDir": self.folder } }] })),
        ];
        Ok(objects.iter().map(serde_saphyr::to_string).collect::<Result<Vec<_>, _>>()?.join("\n---\n"))
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        fs::write(self.folder.join(name), text).with_context(|| format!("writing {}", self.file(name)))
    }

    fn write_signed(&self, name: &str, signed: &Signed) -> Result<()> {
        self.write(&format!("{name}.crt"), &signed.certificate)?;
        self.write(&format!("{name}.key"), &signed.key)
    }
}

/// Creates the cluster's folder, readable only by us (it holds administrators' keys).
pub(super) fn make_folder(config: &ClusterConfig) -> Result<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let mut new = fs::DirBuilder::new();
    new.mode(0o700);
    if let Some(folder) = &config.folder {
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        new.create(folder)
            .with_context(|| format!("creating {} (it must not exist: it is removed at the end)", folder.display()))?;
        // Components run in other directories, so the path must be absolute.
        return Ok(folder.canonicalize()?);
    }
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("tapestry-testbed-{}-{count}-{}", std::process::id(), config.name));
        match new.create(&folder) {
            Ok(()) => return Ok(folder),
            // Of an earlier process with our ID, whose supervisor was killed.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("creating {}", folder.display())),
        }
    }
}
