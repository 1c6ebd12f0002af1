//! The syncers' ServiceAccounts in these clusters, from `deploy/rbac`, with exactly the shipped rights (law 10).
//! Must not add to them; a test that acts as administrator uses the cluster's own kubeconfig.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tapestry_api::keys;
use tokio::sync::Mutex;

use crate::builders::namespace;
use crate::{Cluster, Objects, eventually};

const VIRTUAL: &str = include_str!("../../../deploy/rbac/virtual.yaml");
const BOTH_WAYS: &str = include_str!("../../../deploy/rbac/virtual-both-ways.yaml");
const PHYSICAL: &str = include_str!("../../../deploy/rbac/physical.yaml");
/// The placeholder in `deploy/rbac/physical.yaml`.
const MOUNT: &str = "tapestry-a";
/// The name of the account in `deploy/rbac/virtual.yaml`, with which those of its roles begin.
const SYNCER: &str = "tapestry-syncer";
/// Longer than any run.
const HOURS_24: u32 = 24 * 60 * 60;

impl Cluster {
    /// Applies `deploy/rbac/virtual.yaml`; returns the kubeconfig of its account.
    pub async fn virtual_account(&self) -> Result<String> {
        self.virtual_account_named(SYNCER).await
    }

    /// The same under another name, with its own roles: for tests that remove rights.
    pub async fn virtual_account_named(&self, name: &str) -> Result<String> {
        let account = account(self, &VIRTUAL.replace(SYNCER, name), name).await;
        account.with_context(|| format!("account {name} of {}", self.name()))
    }

    /// Applies `deploy/rbac/virtual-both-ways.yaml` for the account of this name, in addition to its other rights.
    pub async fn grant_both_ways(&self, name: &str) -> Result<()> {
        let objects = self.objects()?;
        for document in BOTH_WAYS.replace(SYNCER, name).split("---\n").skip(1) {
            objects.apply(&serde_saphyr::from_str(document)?).await?;
        }
        Ok(())
    }

    /// Applies `deploy/rbac/physical.yaml` for this mount namespace, which must exist; returns the kubeconfig of its account.
    pub async fn physical_account(&self, mount: &str) -> Result<String> {
        let account = account(self, &PHYSICAL.replace(MOUNT, mount), mount).await;
        account.with_context(|| format!("the account of {mount} in {}", self.name()))
    }

    /// Removes what the deletion of the mount namespace leaves.
    pub async fn remove_physical_account(&self, mount: &str) -> Result<()> {
        let binding = format!("tapestry-syncer-physical-{mount}");
        self.delete("rbac.authorization.k8s.io/v1/ClusterRoleBinding", &binding).await?;
        Ok(self.delete("v1/ServiceAccount", &format!("{}/{mount}", keys::NAMESPACE)).await?)
    }
}

async fn account(cluster: &Cluster, yaml: &str, name: &str) -> Result<String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
    let objects = cluster.objects()?;
    let documents = yaml.split("---\n").skip(1).map(serde_saphyr::from_str).collect::<Result<Vec<Value>, _>>()?;
    {
        // Two tests would race to create what they share.
        let _turn = ONE_AT_A_TIME.lock().await;
        objects.apply(&namespace(keys::NAMESPACE)).await?;
        for document in &documents {
            objects.apply(document).await?;
        }
    }
    let place = format!("{}/{name}", keys::NAMESPACE);
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "expirationSeconds": HOURS_24 },
    });
    let answer = objects.create_subresource("token", "v1/ServiceAccount", &place, &request).await?;
    let token = answer["status"]["token"].as_str().context("no token")?;
    let kubeconfig = cluster.kubeconfig_with_token(token)?;
    let own = Objects::connect(&kubeconfig).await?;
    for role in documents.iter().filter(|document| document["rules"].is_array()) {
        granted(&own, role).await?;
    }
    Ok(kubeconfig)
}

/// Waits until the API server has observed a role and its binding, which takes a moment.
async fn granted(own: &Objects, role: &Value) -> Result<()> {
    let rule = &role["rules"][0];
    let resource = rule["resources"][0].as_str().unwrap_or_default();
    let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": {
            "verb": rule["verbs"][0], "group": rule["apiGroups"][0], "resource": resource, "subresource": part,
            "namespace": role["metadata"]["namespace"], "name": rule["resourceNames"][0],
        } },
    });
    eventually(&format!("{} is granted", role["metadata"]), Duration::from_mins(1), async || {
        let answer = own.create(&review).await.map_err(|error| error.to_string())?;
        if answer["status"]["allowed"] == true { Ok(()) } else { Err(answer["status"].to_string()) }
    })
    .await
}
