//! One fault after the other between the syncer and either API server: running pods keep running, new ones start later,
//! deleted ones are removed.

use std::time::Duration;

use anyhow::{Result, ensure};
use tapestry_cluster::Side;
use tapestry_testbed::eventually;
use tapestry_testbed::proxy::{Fault, Requests};

use crate::fixtures::Fixture;
use crate::harness::{Harness, Pattern, pattern};
use crate::looks::{SOON, uid};

/// How long a fault lasts after its first hit: a few tries of every caller, less than any deadline.
const WHILE: Duration = Duration::from_millis(1500);

/// What goes wrong, and for which requests.
type Case = (&'static str, Fault, Requests);

/// Answers that do not come from the API server.
fn wrong_answers() -> Vec<Case> {
    vec![
        ("too-many-requests", Fault::TooManyRequests(1), Requests::all()),
        ("internal-error", Fault::InternalError, Requests::all()),
        ("expired", Fault::Expired, Requests::lists()),
        ("html-not-found", Fault::HtmlNotFound, Requests::all()),
        ("empty-not-found", Fault::EmptyNotFound, Requests::all()),
    ]
}

/// Streams that break, or send wrong versions.
fn broken_streams() -> Vec<Case> {
    vec![
        ("expired-event", Fault::ExpiredEvent, Requests::watches()),
        ("truncated", Fault::Truncated, Requests::watches().times(6)),
        ("trickle", Fault::Trickle(256, Duration::from_millis(2)), Requests::all()),
    ]
}

/// Requests and answers that are lost or late.
fn lost_words() -> Vec<Case> {
    vec![
        ("lost", Fault::LostAnswer, Requests::writes()),
        ("lost-twice", Fault::LostAnswer, Requests::writes().of("pods").times(2)),
        ("reset", Fault::Reset, Requests::writes()),
        ("delay", Fault::Delay(Duration::from_millis(300)), Requests::all()),
        ("freeze", Fault::Freeze, Requests::all()),
    ]
}

fn disturbed(name: &str, fixture: Fixture) -> Pattern {
    pattern(name).on(fixture).through_proxies()
}

/// The scenario of this file.
async fn survives(harness: &Harness, side: Side, cases: Vec<Case>) -> Result<()> {
    harness.vnode_ready(harness.node()).await?;
    create(harness, "web").await?;
    for (case, ..) in &cases {
        create(harness, &format!("leaving-{case}")).await?;
    }
    let (web, copy) = harness.runs("web").await?;
    for (case, ..) in &cases {
        harness.runs(&format!("leaving-{case}")).await?;
    }
    for (case, fault, requests) in cases {
        let (leaving, late) = (format!("leaving-{case}"), format!("late-{case}"));
        let proxy = harness.proxy(side);
        let injection = proxy.inject(fault, requests);
        // A fault of new requests hits watches only when they restart; a freeze is worst for open ones.
        if case != "freeze" {
            proxy.reset();
        }
        create(harness, &late).await?;
        harness.virtual_side.delete("v1/Pod", &harness.at(&leaving)).await?;
        eventually(&format!("{case} hits a request"), SOON, async || match injection.hits() {
            0 => Err("no request".to_owned()),
            _ => Ok(()),
        })
        .await?;
        tokio::time::sleep(WHILE).await;
        drop(injection);
        harness.gone(&leaving).await?;
        harness.runs(&late).await?;
        let (web_after, copy_after) = harness.runs("web").await?;
        ensure!((uid(&web_after), uid(&copy_after)) == (uid(&web), uid(&copy)), "{case}: web was replaced");
    }
    harness.at_peace(&[], SOON).await
}

async fn create(harness: &Harness, name: &str) -> Result<()> {
    harness.virtual_side.create(&harness.bound(name).build()).await?;
    Ok(())
}

#[tokio::test]
async fn wrong_answers_of_the_virtual_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("wrong-v", Fixture::East)
        .run(async |harness| survives(harness, Side::Virtual, wrong_answers()).await)
        .await
}

#[tokio::test]
async fn law_01_wrong_answers_of_the_physical_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("wrong-p", Fixture::West)
        .run(async |harness| survives(harness, Side::Physical, wrong_answers()).await)
        .await
}

#[tokio::test]
async fn broken_streams_of_the_virtual_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("streams-v", Fixture::East)
        .run(async |harness| survives(harness, Side::Virtual, broken_streams()).await)
        .await
}

#[tokio::test]
async fn broken_streams_of_the_physical_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("streams-p", Fixture::West)
        .run(async |harness| survives(harness, Side::Physical, broken_streams()).await)
        .await
}

#[tokio::test]
async fn lost_requests_and_answers_of_the_virtual_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("lost-v", Fixture::East).run(async |harness| survives(harness, Side::Virtual, lost_words()).await).await
}

#[tokio::test]
async fn lost_requests_and_answers_of_the_physical_api_server_cost_time_and_nothing_else() -> Result<()> {
    disturbed("lost-p", Fixture::West).run(async |harness| survives(harness, Side::Physical, lost_words()).await).await
}

#[tokio::test]
async fn a_cut_connection_costs_time_and_nothing_else() -> Result<()> {
    disturbed("cut", Fixture::East)
        .run(async |harness| {
            harness.vnode_ready(harness.node()).await?;
            for pod in ["web", "leaving-v", "leaving-p", "leaving-both"] {
                create(harness, pod).await?;
            }
            let (web, copy) = harness.runs("web").await?;
            for pod in ["leaving-v", "leaving-p", "leaving-both"] {
                harness.runs(pod).await?;
            }
            let cases: [(&str, &[Side]); 3] =
                [("v", &[Side::Virtual]), ("p", &[Side::Physical]), ("both", &Side::BOTH)];
            for (case, sides) in cases {
                let (leaving, late) = (format!("leaving-{case}"), format!("late-{case}"));
                for side in sides {
                    harness.proxy(*side).cut();
                }
                create(harness, &late).await?;
                harness.virtual_side.delete("v1/Pod", &harness.at(&leaving)).await?;
                tokio::time::sleep(WHILE).await;
                ensure!(harness.copies(&late).await?.is_empty(), "{case}: the proxy was not cut");
                for side in sides {
                    harness.proxy(*side).restore();
                }
                harness.gone(&leaving).await?;
                harness.runs(&late).await?;
            }
            let (web_after, copy_after) = harness.runs("web").await?;
            assert_eq!((uid(&web_after), uid(&copy_after)), (uid(&web), uid(&copy)));
            harness.at_peace(&[], SOON).await
        })
        .await
}
