//! Hours: when the calendar and owners start and stop lending, and the status of policies.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::{SignedDuration, Timestamp, ToSpan as _};
use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_engine::clock::{Clock as _, SystemClock};
use tapestry_testbed::builders::policy;
use tapestry_testbed::eventually;

use crate::fixtures::{Fixture, install};
use crate::harness::{Harness, POLICY, event_reasons, pattern};
use crate::looks::{SOON, annotation, condition, phase, taints, text};

/// `HH:MM` in UTC.
pub(crate) fn hour(at: Timestamp) -> String {
    at.strftime("%H:%M").to_string()
}

/// The next whole minute that is at least this far away.
pub(crate) fn minute_after(now: Timestamp, minutes: i64) -> Result<Timestamp> {
    let second = now.as_second() + 60 * minutes;
    Ok(Timestamp::from_second(second - second.rem_euclid(60) + 60)?)
}

pub(crate) fn closed(vnode: &Value) -> bool {
    taints(vnode).contains(&(keys::TAINT_OUT_OF_TIME_WINDOWS.to_owned(), "NoSchedule".to_owned()))
}

async fn policy_when(harness: &Harness, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(&format!("policy {name} {what}"), SOON, async || {
        let seen = harness.virtual_side.get(POLICY, name).await.map_err(|error| error.to_string())?.unwrap_or_default();
        if holds(&seen) { Ok(seen) } else { Err(seen["status"].to_string()) }
    })
    .await
}

fn refused(vpod: &Value, reason: &str) -> bool {
    let admitted = condition(vpod, keys::CONDITION_ADMITTED);
    admitted["status"] == "False" && admitted["reason"] == reason
}

#[tokio::test]
async fn lending_and_admission_follow_the_edges_of_a_window_within_a_second() -> Result<()> {
    let start = SystemClock::start().now().wall;
    let (opens, closes) = (minute_after(start, 3)?, minute_after(start, 33)?);
    pattern("edges")
        .on(Fixture::Still)
        .policy(|policy| policy.window(&hour(opens), &hour(closes), &[]))
        .run(async |harness| {
            let vnode = harness.vnode_when(harness.node(), "is closed", closed).await?;
            assert_eq!(condition(&vnode, keys::CONDITION_LENDING)["reason"], "OutOfTimeWindows");
            let status =
                policy_when(harness, "edges", "is inactive", |policy| policy["status"]["phase"] == "Inactive").await?;
            assert_eq!(text(&status["status"]["nextTransitionTime"]).parse::<Timestamp>()?, opens);
            // It bypasses scheduler and taints, and is still not admitted.
            harness.virtual_side.create(&harness.bound("early").tolerate_all().build()).await?;
            harness.vpod_when("early", "is refused", |vpod| refused(vpod, "OutOfTimeWindows")).await?;
            assert_eq!(harness.ppods().await?.len(), 0);

            // Two seconds before the edge; the clock steps, and the wait that was planned is no longer right.
            let ahead = opens.duration_since(harness.now()) - SignedDuration::from_secs(2);
            harness.skip(Duration::try_from(ahead)?);
            harness.vnode_when(harness.node(), "is open", |vnode| !closed(vnode)).await?;
            let late = harness.now().duration_since(opens);
            ensure!(late > SignedDuration::ZERO, "it opened too early");
            harness.play_running(&harness.copy("early").await?).await?;
            harness.runs("early").await?;
            let status =
                policy_when(harness, "edges", "is active", |policy| policy["status"]["phase"] == "Active").await?;
            assert_eq!((&status["status"]["nodes"], &status["status"]["activeTimeWindow"]), (&json!(1), &json!(true)));

            let ahead = closes.duration_since(harness.now()) - SignedDuration::from_secs(2);
            harness.skip(Duration::try_from(ahead)?);
            let vnode = harness.vnode_when(harness.node(), "is closed again", closed).await?;
            let added = vnode["spec"]["taints"].as_array().into_iter().flatten();
            let added = added.filter(|taint| taint["key"] == keys::TAINT_OUT_OF_TIME_WINDOWS);
            let added: Vec<Timestamp> = added.filter_map(|taint| text(&taint["timeAdded"]).parse().ok()).collect();
            // Whole seconds, rounded up.
            ensure!(
                added[0] >= closes && added[0] <= closes + 2.seconds(),
                "closed at {} instead of {closes}",
                added[0]
            );
            assert_eq!(vnode["status"]["allocatable"]["cpu"], "0");
            // Without force running pods stay.
            assert_eq!(phase(&harness.vpod("early").await?), "Running");
            let told = event_reasons(&harness.virtual_side, "default", &harness.vnode()).await?;
            ensure!(told.iter().any(|reason| reason == "OutOfTimeWindows"), "{told:?}");
            ensure!(told.iter().any(|reason| reason == "Lending"), "{told:?}");
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_12_an_invalid_policy_says_what_to_change_and_the_next_one_is_in_force() -> Result<()> {
    pattern("slips")
        .on(Fixture::Still)
        .policy(|policy| policy.with("/spec/timeZone", "Mars/Olympus_Mons"))
        .run(async |harness| {
            let failed =
                policy_when(harness, "slips", "failed", |policy| policy["status"]["phase"] == "Failed").await?;
            let message = text(&condition(&failed, "Valid")["message"]).to_owned();
            ensure!(message.contains("spec.timeZone") && message.contains("Mars/Olympus_Mons"), "{message}");
            ensure!(harness.virtual_side.get("v1/Node", &harness.vnode()).await?.is_none(), "it lends");
            let fix = json!({ "spec": { "timeZone": "Europe/Berlin" } });
            harness.virtual_side.patch(POLICY, "slips", &fix).await?;
            harness.vnode_ready(harness.node()).await?;
            let active = |policy: &Value| condition(policy, "Active")["status"] == "True";
            policy_when(harness, "slips", "is active", active).await?;
            harness
                .virtual_side
                .create(&policy("slips-first").cluster("slips").with("/spec/priority", 7).build())
                .await?;
            let shadowed = |policy: &Value| condition(policy, "Active")["reason"] == "Shadowed";
            policy_when(harness, "slips", "is shadowed", shadowed).await?;
            Ok(())
        })
        .await
}

#[tokio::test]
async fn law_09_the_owners_policy_in_the_physical_cluster_cuts_and_ends_lending() -> Result<()> {
    pattern("owners")
        .on(Fixture::Still)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            install(harness.physical_cluster).await?;
            let half = policy("owners-mine").cluster("owners").limit("cpu", "2").build();
            harness.physical_side.create(&half).await?;
            let cut = |vnode: &Value| vnode["status"]["allocatable"]["cpu"] == "2";
            let vnode = harness.vnode_when(harness.node(), "lends two CPUs", cut).await?;
            ensure!(vnode["status"]["allocatable"]["memory"] == "256Gi", "{}", vnode["status"]["allocatable"]);
            let both = |vnode: &Value| annotation(vnode, keys::POLICIES_APPLIED) == "owners,owner/owners-mine";
            harness.vnode_when(harness.node(), "names both", both).await?;
            harness.virtual_side.create(&harness.bound("web").cpu("1").build()).await?;
            harness.play_running(&harness.copy("web").await?).await?;
            harness.runs("web").await?;

            // A window that is not open now: the owner's stop is forced, whatever the tenant's policy says.
            let now = harness.now();
            let window = json!([{ "start": hour(now + 2.hours()), "end": hour(now + 3.hours()) }]);
            let stop = json!({ "spec": { "timeWindows": window, "gracefulReclaimPeriodSeconds": 1 } });
            harness.physical_side.patch(POLICY, "owners-mine", &stop).await?;
            harness.vnode_when(harness.node(), "is closed", closed).await?;
            let leaving = harness.physical_leaving(&harness.copy("web").await?).await?;
            let vpod = harness.vpod("web").await?;
            assert_eq!(condition(&vpod, "DisruptionTarget")["status"], "True");
            harness.play_removed(&leaving).await?;
            harness.gone("web").await?;
            let told = harness.physical_side.get(POLICY, "owners-mine").await?.unwrap_or_default();
            assert_eq!(told["status"]["phase"], "Inactive");
            harness.physical_side.delete(POLICY, "owners-mine").await?;
            harness.vnode_when(harness.node(), "is open", |vnode| !closed(vnode)).await?;
            Ok(())
        })
        .await
}
