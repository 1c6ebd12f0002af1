//! Leases that may not be renewed, and elections that may not be taken part in: who says so, once, and how it ends.

use tapestry_cluster::refusal::{Details, Status};

use super::*;

fn forbidden() -> Refusal {
    let details = Details { kind: "leases".to_owned(), ..Details::default() };
    let message = "leases is forbidden in the namespace \"kube-node-lease\"".to_owned();
    Refusal::Denied(Box::new(Status { code: 403, message, details, ..Status::default() }))
}

/// Ready, and connected.
fn well() -> Value {
    let said = |kind: &str| json!({"type": kind, "status": "True", "reason": kind, "message": "", "lastTransitionTime": "2025-01-01T00:00:00Z"});
    json!({"phase": "Ready", "conditions": [said("Connected"), said("Ready")]})
}

/// The binding is written as planned; gives its status.
fn write(scene: &mut Scene) -> Value {
    let call = scene.call(&Key::Binding);
    let mut status = scene.status();
    crate::scene::merge(&mut status, call.body().unwrap()["status"].clone());
    let object = json!({"metadata": {"name": "east", "uid": "b-uid", "generation": 3}, "status": status});
    let object = scene.stamp(object);
    scene.settle(&Key::Binding, &call, Ok(Answer { object }));
    status
}

fn said<'a>(status: &'a Value, kind: &str) -> &'a Value {
    status["conditions"].as_array().unwrap().iter().find(|said| said["type"] == kind).unwrap_or(&Value::Null)
}

impl Scene {
    fn status(&self) -> Value {
        let row = self.keeper.binding.as_ref().unwrap();
        json!({"conditions": row.conditions})
    }

    /// Every try for a while is refused.
    fn refuse_lease(&mut self, seconds: u64) {
        for _ in 0..=seconds / 5 {
            let call = self.call(&lease());
            self.settle(&lease(), &call, Err(forbidden()));
            self.pass(Duration::from_secs(5));
        }
    }

    fn grant_lease(&mut self) {
        let call = self.call(&lease());
        let object = self.answer(&call);
        self.settle(&lease(), &call, Ok(Answer { object }));
    }
}

#[test]
fn law_12_leases_that_are_refused_for_20_seconds_are_reported_once_until_they_are_renewed() {
    let mut scene = Scene::with_new_node();
    scene.see_binding("b-uid", &well());
    scene.refuse_lease(10);
    assert_eq!((scene.plan(&Key::Binding), scene.keeper.lacks()), (Plan::Rest, None));
    scene.refuse_lease(10);
    let status = write(&mut scene);
    let told = said(&status, "LeasesRenewed");
    assert_eq!((&told["status"], &told["reason"]), (&json!("False"), &json!("LeasesNotRenewed")));
    let words = told["message"].as_str().unwrap();
    for word in ["create leases", "kube-node-lease", "deploy/rbac"] {
        assert!(words.contains(word), "{words}");
    }
    assert_eq!(said(&status, "Ready")["status"], "True", "that is for the syncer to say, from this condition");
    assert_eq!(scene.keeper.lacks().as_deref(), Some(words));
    scene.refuse_lease(60);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "once");
    scene.grant_lease();
    assert_eq!(said(&write(&mut scene), "LeasesRenewed")["status"], "True");
    assert_eq!((scene.plan(&Key::Binding), scene.keeper.lacks()), (Plan::Rest, None));
}

#[test]
fn a_new_leader_says_that_leases_are_renewed_when_it_has_renewed_one() {
    let mut scene = Scene::with_new_node();
    scene.see_binding("b-uid", &well());
    scene.refuse_lease(20);
    write(&mut scene);
    scene.keeper.take_lead(scene.now);
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest, "it does not know yet");
    scene.grant_lease();
    assert_eq!(said(&write(&mut scene), "LeasesRenewed")["status"], "True");
}

#[test]
fn law_02_a_stand_in_renews_leases_and_reports_once_and_does_nothing_else() {
    let mut scene = Scene::with_new_node();
    scene.see_binding("b-uid", &well());
    scene.keeper.follow();
    scene.keeper.stand_in("cannot patch leases syncer-east in namespace tapestry-system: forbidden", scene.now);
    scene.see(stopped());
    scene.see(Fact::Kubeconfig(Some(Trouble {
        reason: "KubeconfigUnreadable",
        message: "mend it".to_owned(),
        generation: None,
    })));
    assert_eq!(scene.plan(&taint()), Plan::Rest, "the work of another process may be well");
    scene.grant_lease();
    let status = write(&mut scene);
    assert_eq!(status["phase"], "Failed");
    let of = |kind: &str| (said(&status, kind)["status"].clone(), said(&status, kind)["reason"].clone());
    let refused = (json!("False"), json!("ElectionRefused"));
    assert_eq!((of("LeaderElected"), of("Ready")), (refused.clone(), refused));
    assert_eq!((of("Connected").0, of("KubeconfigCurrent").0), (json!("True"), Value::Null));
    let told = said(&status, "LeaderElected")["message"].as_str().unwrap().to_owned();
    assert!(told.contains("cannot patch leases") && told.contains("deploy/rbac/virtual.yaml"), "{told}");
    assert_eq!(scene.keeper.lacks(), Some(told));
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);

    // Another process has said so already, in its words.
    let mut second = Scene::with_new_node();
    let (rv, binding) = (scene.rv, scene.keeper.binding.clone().unwrap());
    second.rv = rv;
    second.keeper.stand_in("in other words", second.now);
    second.see(Fact::Binding(Change::Put(binding, Epoch(1))));
    assert_eq!(second.plan(&Key::Binding), Plan::Rest);

    // A third process leads after all, and its report counts: we do not overwrite it.
    scene.see_binding("b-uid", &well());
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
}

#[test]
fn who_comes_to_lead_says_so_where_it_was_in_question() {
    let mut scene = Scene::with_new_node();
    scene.see_binding("b-uid", &well());
    scene.keeper.stand_in("cannot patch leases", scene.now);
    write(&mut scene);
    scene.keeper.follow();
    assert_eq!(scene.keeper.lacks(), None, "another one leads");
    scene.keeper.take_lead(scene.now);
    let status = write(&mut scene);
    assert_eq!(said(&status, "LeaderElected")["status"], "True");
    assert_eq!(said(&status, "Ready")["status"], "False", "the rest is for the syncer to say");
    assert_eq!(scene.plan(&Key::Binding), Plan::Rest);
}
