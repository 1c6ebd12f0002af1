//! What the absence of a policy means: a user deleted it, a selector no longer matches, or its whole kind is gone.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tapestry_api::binding::RESUME_DELETION;
use tapestry_api::keys;
use tapestry_testbed::builders::{Policy, node, policy};
use tapestry_testbed::{Cluster, eventually};
use tokio::sync::OnceCell;

use crate::fixtures::{Fixture, Home, bare, install, own};
use crate::harness::{BINDING, Harness, POLICY, Pattern, pattern};
use crate::looks::{SOON, annotation, condition, phase, taints};
use crate::reclaim::{deleting, running};
use crate::windows::closed;

const DEFINITION: &str = "apiextensions.k8s.io/v1/CustomResourceDefinition";
const BINDINGS: &str = "clusterbindings.cloud.tencent.com";
const POLICIES: &str = "resourceleasingpolicies.cloud.tencent.com";
const ZONE: &str = "example.com/zone";

/// One node whose pods are forced to go after two seconds, and one whose pods may stay, with a policy for each.
fn two_nodes(name: &str) -> Pattern {
    let [forced, free] = policies(name);
    pattern(name)
        .on(Fixture::Still)
        .node(node(&format!("{name}-forced")).label(ZONE, "forced"))
        .node(node(&format!("{name}-free")).label(ZONE, "free"))
        .policy(|_| forced)
        .another_policy(free)
}

fn policies(name: &str) -> [Policy; 2] {
    let of_zone = |zone: &str| policy(&format!("{name}-{zone}")).cluster(name).node_label(ZONE, zone);
    let forced = of_zone("forced").with("/spec/forceReclaim", true).with("/spec/gracefulReclaimPeriodSeconds", 2);
    [forced, of_zone("free")]
}

impl Harness {
    fn zone(&self, zone: &str) -> String {
        format!("{}-{zone}", self.name)
    }

    async fn zones_ready(&self) -> Result<()> {
        for zone in ["forced", "free"] {
            self.vnode_ready(&self.zone(zone)).await?;
        }
        let pods = ["forced", "free"].map(|zone| self.bound_to(&self.zone(zone), zone).build());
        running(self, &pods).await
    }

    async fn zones_say(&self, reason: &str) -> Result<()> {
        let says = |vnode: &Value| condition(vnode, keys::CONDITION_LENDING)["reason"] == reason;
        for zone in ["forced", "free"] {
            self.vnode_when(&self.zone(zone), &format!("says {reason}"), says).await?;
        }
        Ok(())
    }

    async fn says_definition_deleted(&self) -> Result<()> {
        let told = async || {
            let binding = self.binding().await.map_err(|error| error.to_string())?;
            let ready = condition(&binding, "Ready");
            if ready["reason"] == "DefinitionDeleted" { Ok(()) } else { Err(ready.to_string()) }
        };
        eventually("the binding says that its definition is deleted", SOON, told).await
    }

    /// Both pods run, and nothing asks them to go.
    async fn zones_run(&self) -> Result<()> {
        for zone in ["forced", "free"] {
            let vpod = self.vpod(zone).await?;
            ensure!(phase(&vpod) == "Running" && !deleting(&vpod), "{vpod}");
            ensure!(!deleting(&self.copy(zone).await?), "the copy of {zone} is being deleted");
        }
        Ok(())
    }

    /// The pod of the forced node goes, that of the other stays; when its user has deleted it, its node goes too.
    async fn forced_goes_and_free_stays(&self) -> Result<()> {
        self.vpod_when("forced", "goes", deleting).await?;
        self.play_removed(&self.physical_leaving(&self.copy("forced").await?).await?).await?;
        self.gone("forced").await?;
        self.vnode_gone(&self.zone("forced")).await?;
        self.vnode_when(&self.zone("free"), "is closed", closed).await?;
        // Longer than any grace.
        self.skip(Duration::from_mins(10));
        tokio::time::sleep(Duration::from_secs(2)).await;
        let vpod = self.vpod("free").await?;
        ensure!(phase(&vpod) == "Running" && !deleting(&vpod), "{vpod}");
        self.virtual_side.delete("v1/Pod", &self.at("free")).await?;
        self.play_removed(&self.physical_leaving(&self.copy("free").await?).await?).await?;
        self.gone("free").await?;
        self.vnode_gone(&self.zone("free")).await
    }
}

#[tokio::test]
async fn when_policies_are_deleted_their_nodes_end_like_at_the_end_of_their_windows() -> Result<()> {
    two_nodes("deleted")
        .run(async |harness| {
            harness.zones_ready().await?;
            for zone in ["forced", "free"] {
                harness.virtual_side.delete(POLICY, &harness.zone(zone)).await?;
            }
            harness.zones_say("PolicyDeleted").await?;
            harness.forced_goes_and_free_stays().await
        })
        .await
}

#[tokio::test]
async fn when_the_selector_of_the_binding_no_longer_matches_nodes_end_like_at_the_end_of_their_windows() -> Result<()> {
    two_nodes("deselected")
        .run(async |harness| {
            harness.zones_ready().await?;
            let elsewhere = json!([{ "matchExpressions": [{ "key": ZONE, "operator": "In", "values": ["none"] }] }]);
            let patch = json!({ "spec": { "nodeSelector": { "nodeSelectorTerms": elsewhere } } });
            harness.virtual_side.patch(BINDING, &harness.name, &patch).await?;
            harness.forced_goes_and_free_stays().await
        })
        .await
}

#[tokio::test]
async fn law_01_when_the_definition_of_bindings_is_deleted_no_pod_ends_until_a_user_resumes() -> Result<()> {
    static HOME: OnceCell<Cluster> = OnceCell::const_new();
    let home = HOME.get_or_try_init(|| own(bare("undefined-binding"))).await?;
    two_nodes("undefined-binding")
        .home(Home::Own(home))
        .run(async |harness| {
            harness.zones_ready().await?;
            harness.virtual_side.delete(DEFINITION, BINDINGS).await?;
            harness.zones_say("BindingDeletionUnconfirmed").await?;
            harness.says_definition_deleted().await?;
            // Longer than any grace; and a new process finds nothing else.
            harness.skip(Duration::from_mins(10));
            harness.stop().await?;
            harness.start_wrong().await?;
            harness.says_definition_deleted().await?;
            harness.zones_say("BindingDeletionUnconfirmed").await?;
            harness.zones_run().await?;

            let resume = json!({ "metadata": { "annotations": { keys::RESUME: RESUME_DELETION } } });
            harness.virtual_side.patch(BINDING, &harness.name, &resume).await?;
            harness.skip(Duration::from_mins(10));
            for zone in ["forced", "free"] {
                harness.vpod_when(zone, "goes", deleting).await?;
                harness.play_removed(&harness.physical_leaving(&harness.copy(zone).await?).await?).await?;
                harness.gone(zone).await?;
                harness.vnode_gone(&harness.zone(zone)).await?;
            }
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_01_when_the_definition_of_policies_is_deleted_no_pod_goes_and_it_heals_with_the_definition() -> Result<()>
{
    static HOME: OnceCell<Cluster> = OnceCell::const_new();
    let home = HOME.get_or_try_init(|| own(bare("undefined"))).await?;
    two_nodes("undefined")
        .home(Home::Own(home))
        .run(async |harness| {
            harness.zones_ready().await?;
            harness.virtual_side.delete(DEFINITION, POLICIES).await?;
            harness.zones_say("PoliciesNotServed").await?;
            let told = async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                let known = condition(&binding, "PoliciesKnown");
                if known["reason"] == "PoliciesNotServed" { Ok(()) } else { Err(binding["status"].to_string()) }
            };
            eventually("the binding says that policies are not served", SOON, told).await?;
            // Nothing new is admitted, also when it bypasses scheduler and taints.
            let late = harness.bound_to(&harness.zone("free"), "late").tolerate_all().build();
            harness.virtual_side.create(&late).await?;
            let refused = |vpod: &Value| condition(vpod, keys::CONDITION_ADMITTED)["reason"] == "PoliciesNotServed";
            harness.vpod_when("late", "is refused", refused).await?;
            // Longer than any grace; and a new process finds nothing else.
            harness.skip(Duration::from_mins(10));
            harness.stop().await?;
            harness.start_wrong().await?;
            tokio::time::sleep(Duration::from_secs(3)).await;
            harness.zones_run().await?;
            harness.zones_say("PoliciesNotServed").await?;

            install(home).await?;
            for policy in policies(&harness.name) {
                harness.virtual_side.create(&policy.build()).await?;
            }
            harness.zones_say("Lending").await?;
            harness.play_running(&harness.copy("late").await?).await?;
            harness.runs("late").await?;
            harness.zones_run().await?;
            let binding = harness.binding().await?;
            assert_eq!(condition(&binding, "PoliciesKnown")["status"], "True", "{}", binding["status"]);
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_when_the_owners_definition_is_deleted_what_the_owner_restricted_holds() -> Result<()> {
    static FIXTURE: OnceCell<Cluster> = OnceCell::const_new();
    let fixture = FIXTURE.get_or_try_init(|| own(bare("owner-undefined"))).await?;
    install(fixture).await?;
    pattern("owner-undefined")
        .on(Fixture::Own(fixture))
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            let half = policy("half").cluster("owner-undefined").limit("cpu", "2").build();
            harness.physical_side.create(&half).await?;
            let lends = |cpu: &'static str| move |vnode: &Value| vnode["status"]["allocatable"]["cpu"] == cpu;
            let names = |vnode: &Value| annotation(vnode, keys::POLICIES_APPLIED).ends_with("owner/half");
            harness.vnode_when(harness.node(), "names the owner's policy", names).await?;
            harness.physical_side.delete(DEFINITION, POLICIES).await?;
            let told = async || {
                let binding = harness.binding().await.map_err(|error| error.to_string())?;
                let known = condition(&binding, "PoliciesKnown");
                if known["reason"] == "OwnerPoliciesNotServed" { Ok(()) } else { Err(binding["status"].to_string()) }
            };
            eventually("the binding says that the owner's policies are not served", SOON, told).await?;
            ensure!(lends("2")(&harness.vnode_when(harness.node(), "is there", |_| true).await?), "more is lent");

            // A new process does not know what the owner wrote.
            harness.stop().await?;
            harness.start().await?;
            let unserved =
                |vnode: &Value| condition(vnode, keys::CONDITION_LENDING)["reason"] == "OwnerPoliciesNotServed";
            harness.vnode_when(harness.node(), "lends nothing", |vnode| lends("0")(vnode) && unserved(vnode)).await?;

            // The owner installs the kind again without policies: then nothing is restricted.
            install(fixture).await?;
            harness.vnode_when(harness.node(), "lends everything", lends("32")).await?;
            let unnamed = |vnode: &Value| annotation(vnode, keys::POLICIES_APPLIED) == "owner-undefined";
            let vnode = harness.vnode_when(harness.node(), "names no policy of the owner", unnamed).await?;
            ensure!(!taints(&vnode).iter().any(|(key, _)| key == keys::TAINT_OUT_OF_TIME_WINDOWS), "{vnode}");
            Ok(())
        })
        .await
}
