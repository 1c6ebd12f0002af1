//! The copies' `ServiceAccount` at the end of a binding.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::{Answer, Refusal, Verb};
use tapestry_engine::Plan;

use super::Prerequisite;
use crate::guards::Guard;
use crate::pair::{Fact, Key};
use crate::scene::Scene;

const ACCOUNT: Key = Key::Prerequisite(Prerequisite::ServiceAccount);

/// A binding that is being deleted, with nothing left but the account.
fn leaving() -> Scene {
    let mut scene = Scene::new();
    for guard in Guard::ALL {
        scene.see(Fact::Guard(guard, Change::Listed(Epoch(1))));
    }
    scene.see_binding_leaving(json!({}));
    assert_eq!(scene.plan(&ACCOUNT), Plan::Rest, "copies may need it still");
    scene.lose_vnode("vnode-east-n1");
    scene
}

fn look(scene: &mut Scene, origin: &str) {
    let look = scene.call(&ACCOUNT);
    assert_eq!(look.verb, Verb::Peek);
    assert!(!goes(scene), "first the account");
    let account =
        json!({"metadata": {"name": keys::POD_SERVICE_ACCOUNT, "uid": "a", "annotations": {keys::ORIGIN: origin}}});
    let object = scene.stamp(account);
    scene.settle(&ACCOUNT, &look, Ok(Answer { object }));
}

/// Whether the binding is let go.
fn goes(scene: &Scene) -> bool {
    matches!(scene.plan(&Key::Binding), Plan::Do(call, _) if call.why == "Finalizer")
}

fn pod(namespace: &str, account: &str) -> Value {
    json!({
        "metadata": {"name": "other", "namespace": namespace, "uid": "other"},
        "spec": {"nodeName": "n1", "serviceAccountName": account, "containers": []}, "status": {"phase": "Running"},
    })
}

#[test]
fn the_account_that_we_made_goes_with_the_binding_under_its_uid() {
    let mut scene = leaving();
    scene.see_ppod(&pod("elsewhere", keys::POD_SERVICE_ACCOUNT));
    let origin = scene.pair.origin.full.to_string();
    look(&mut scene, &origin);
    let remove = scene.call(&ACCOUNT);
    assert_eq!(
        (remove.why, remove.target.uid.as_ref().map(tapestry_cluster::Uid::as_str)),
        ("RemovePrerequisite", Some("a"))
    );
    assert!(!goes(&scene));
    let object = scene.stamp(json!({}));
    scene.settle(&ACCOUNT, &remove, Ok(Answer { object }));
    assert!(goes(&scene));
}

#[test]
fn law_06_an_account_that_another_made_or_uses_stays() {
    let mut scene = leaving();
    look(&mut scene, "another/binding");
    assert_eq!(scene.plan(&ACCOUNT), Plan::Rest);
    assert!(goes(&scene));

    let mut scene = leaving();
    scene.see_ppod(&pod("mount", keys::POD_SERVICE_ACCOUNT));
    let origin = scene.pair.origin.full.to_string();
    look(&mut scene, &origin);
    assert_eq!(scene.plan(&ACCOUNT), Plan::Rest);
    assert!(goes(&scene));
}

#[test]
fn a_binding_goes_also_where_its_account_may_not_be_removed() {
    let mut scene = leaving();
    scene.refuse(&ACCOUNT, Refusal::Denied(Box::default()));
    assert!(goes(&scene));
}
