//! What people are told is what plans use.

use std::time::Duration;

use serde_json::json;
use tapestry_cluster::Side;

use crate::scene::{Scene, pnode};

#[test]
fn every_figure_of_a_node_is_explained_from_allocatable_to_leased_with_its_policy() {
    let mut scene = Scene::new();
    scene.see_policy(
        "half",
        json!({"cluster": "*", "priority": 1, "resourceLimits": [{"resource": "cpu", "percent": 50}]}),
    );
    scene.see_policy_of(
        Side::Physical,
        "mine",
        json!({"cluster": "east", "resourceLimits": [{"resource": "cpu", "quantity": "1500m"}]}),
    );
    let own = json!({
        "metadata": {"name": "own", "namespace": "x", "uid": "own"},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        "status": {"phase": "Running"},
    });
    scene.see_ppod(&own);
    let story = serde_json::to_value(scene.pair.explain_node("vnode-east-n1", scene.now.wall).unwrap()).unwrap();
    assert_eq!((&story["node"], &story["lending"]), (&json!("n1"), &json!(true)));
    let cpu = &story["resources"][0];
    assert_eq!(
        *cpu,
        json!({
            "resource": "cpu", "allocatable": "4", "used": "1", "idle": "3", "leased": "1500m", "held": "0",
            "limits": [
                {"policy": "half", "percent": 50, "cap": "1500m"},
                {"policy": "owner/mine", "quantity": "1500m", "cap": "1500m"},
            ],
        })
    );
    let policies: Vec<_> = story["policies"].as_array().unwrap().iter().map(|p| (&p["name"], &p["holds"])).collect();
    assert_eq!(
        policies,
        [(&json!("half"), &json!(true)), (&json!("mine"), &json!(true)), (&json!("all"), &json!(false))]
    );
    // What is told is what is planned.
    scene.follow_node("n1");
    assert_eq!(scene.vnode("vnode-east-n1")["status"]["allocatable"]["cpu"], cpu["leased"]);
}

#[test]
fn an_agenda_has_no_gaps_and_tells_how_many_nodes_are_lent_when() {
    let mut scene = Scene::new();
    scene.see_pnode(pnode("n2"));
    scene.see_policy("all", json!({"cluster": "east", "timeWindows": [{"start": "20:00", "end": "06:00"}]}));
    let from = scene.now.wall;
    let agenda = scene.pair.agenda(from, from + Duration::from_hours(48)).unwrap();
    let told: Vec<_> = agenda.spans.iter().map(|span| (span.from.to_string(), span.lent)).collect();
    let expected = [
        ("2026-01-01T00:00:00Z", 2),
        ("2026-01-01T06:00:00Z", 0),
        ("2026-01-01T20:00:00Z", 2),
        ("2026-01-02T06:00:00Z", 0),
        ("2026-01-02T20:00:00Z", 2),
    ];
    assert_eq!(told, expected.map(|(at, lent)| (at.to_owned(), lent)));
    assert!(agenda.spans.windows(2).all(|pair| pair[0].to == pair[1].from));
    assert_eq!(agenda.spans[0].leased.to_string(), "cpu=8 memory=16Gi pods=220");
    assert!(agenda.stops.is_empty(), "hours are in the chart");
}

#[test]
fn an_agenda_says_why_nodes_are_not_lent_at_any_hour() {
    let mut scene = Scene::new();
    scene.see_pnode(pnode("n2"));
    scene.see_binding(json!({"suspend": true}));
    let from = scene.now.wall;
    let agenda = scene.pair.agenda(from, from + Duration::from_hours(48)).unwrap();
    let told: Vec<_> = agenda.stops.iter().map(|stop| (&*stop.reason, stop.nodes)).collect();
    assert_eq!(told, [("Suspended", 2)]);
    assert!(agenda.spans.iter().all(|span| span.lent == 0));
}
