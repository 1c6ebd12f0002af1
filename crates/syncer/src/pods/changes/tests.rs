//! Later changes as plans: what is read, what is pushed by which call, what is told and what is left alone.

use serde_json::{Value, json};
use tapestry_api::keys;
use tapestry_cluster::feed::{Change, Epoch};
use tapestry_cluster::refusal::{Details, Status};
use tapestry_cluster::{Answer, Call, Refusal, Side, Sub, Verb};
use tapestry_domain::dependents::DependentKind;
use tapestry_engine::Plan;

use super::super::tests::{key, run};
use crate::dependents::row::Source;
use crate::pair::{Fact, Key};
use crate::scene::{Scene, merge, patch, vpod};

/// A running pod `web`, and what both clusters have of it.
struct Stage {
    scene: Scene,
    vpod: Value,
    copy: Value,
}

impl Stage {
    fn new() -> Self {
        Self::with(&json!({}))
    }

    fn with(extra: &Value) -> Self {
        let mut object = vpod("web");
        merge(
            &mut object,
            json!({"metadata": {"labels": {"app": "web", "tier": "front"}, "annotations": {"note": "a"}}}),
        );
        merge(&mut object, extra.clone());
        let mut scene = Scene::new();
        let (vpod, copy) = run(&mut scene, &object);
        scene.see_vpod(&vpod);
        assert_eq!(scene.plan(&key("web")), Plan::Rest);
        Self { scene, vpod, copy }
    }

    /// A user changes the virtual pod, and the watch shows it.
    fn change(&mut self, change: Value) {
        if change.get("spec").is_some() {
            let generation = self.vpod["metadata"]["generation"].as_i64().unwrap();
            self.vpod["metadata"]["generation"] = json!(generation + 1);
        }
        patch(&mut self.vpod, change);
        self.scene.see_vpod(&self.vpod);
    }

    /// The planned call.
    fn call(&self) -> Call {
        self.scene.call(&key("web"))
    }

    fn rests(&self) -> bool {
        self.scene.plan(&key("web")) == Plan::Rest
    }

    /// Carries out the planned call as a cluster would; returns it.
    fn carry_out(&mut self) -> Call {
        let call = self.call();
        let object = match (&call.verb, call.target.side) {
            (Verb::Get, Side::Virtual) => self.vpod.clone(),
            (Verb::Get, Side::Physical) => self.copy.clone(),
            (Verb::Strategic(_, change), Side::Virtual) => {
                tell(&mut self.vpod, &change["status"]);
                self.vpod.clone()
            }
            (Verb::Strategic(..), Side::Physical) => {
                push(&mut self.copy, &call);
                self.copy.clone()
            }
            other => panic!("not expected here: {other:?}"),
        };
        let object = self.scene.stamp(object);
        let version = serde_json::from_slice::<Value>(&object).unwrap()["metadata"]["resourceVersion"].clone();
        if call.target.side == Side::Physical {
            self.copy["metadata"]["resourceVersion"] = version;
        }
        self.scene.settle(&key("web"), &call, Ok(Answer { object }));
        call
    }

    /// Carries out everything; returns what for.
    fn follow(&mut self) -> Vec<&'static str> {
        let mut whys = Vec::new();
        while let Plan::Do(..) = self.scene.plan(&key("web")) {
            assert!(whys.len() < 12, "it does not end: {whys:?}");
            whys.push(self.carry_out().why);
        }
        whys
    }

    /// Reads both pods, so that a push is planned next.
    fn read(&mut self) {
        assert_eq!(self.carry_out().why, "ReadChanged");
        assert_eq!(self.carry_out().why, "ReadCopy");
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.scene.refuse(&key("web"), refusal);
    }

    fn condition(&self) -> Option<&Value> {
        let all = self.vpod["status"]["conditions"].as_array().into_iter().flatten();
        all.into_iter().find(|condition| condition["type"] == keys::CONDITION_CHANGES_PUSHED)
    }

    /// Reasons of the events that wait to be written.
    fn events(&self) -> Vec<String> {
        let calls = self.scene.pair.events.keys().map(|key| self.scene.call(&key));
        calls.map(|call| call.body().unwrap()["reason"].as_str().unwrap().to_owned()).collect()
    }

    /// Another process takes over: what is not in the clusters is forgotten.
    fn restart(&mut self) {
        let mut scene = Scene::new();
        for _ in 0..100 {
            scene.stamp(json!({"metadata": {}}));
        }
        scene.see_vpod(&self.vpod);
        scene.see_ppod(&self.copy);
        scene.see_vpod(&self.vpod);
        self.scene = scene;
    }
}

/// What the virtual cluster makes of our status patches.
fn tell(vpod: &mut Value, status: &Value) {
    let conditions = vpod["status"]["conditions"].as_array_mut().unwrap();
    for condition in status["conditions"].as_array().unwrap() {
        conditions.retain(|known| known["type"] != condition["type"]);
        if condition.get("$patch").is_none() {
            conditions.push(condition.clone());
        }
    }
    if status.get("observedGeneration").is_some() {
        vpod["status"]["observedGeneration"] = status["observedGeneration"].clone();
    }
}

/// What the physical cluster makes of our pushes.
fn push(copy: &mut Value, call: &Call) {
    let body = call.body().unwrap().into_owned();
    assert_eq!(body["metadata"]["uid"], copy["metadata"]["uid"], "law 2");
    assert_eq!(body["metadata"]["resourceVersion"], copy["metadata"]["resourceVersion"], "law 2");
    let Verb::Strategic(sub, change) = &call.verb else { panic!("not a push: {call}") };
    for (field, value) in change["spec"].as_object().into_iter().flatten() {
        match (value, *sub) {
            (Value::Array(list), Sub::EphemeralContainers) => {
                let there = copy["spec"].as_object_mut().unwrap().entry(field).or_insert_with(|| json!([]));
                there.as_array_mut().unwrap().extend(list.iter().cloned());
            }
            (Value::Array(list), _) if field.to_lowercase().ends_with("containers") => {
                for change in list {
                    let all = copy["spec"][field].as_array_mut().unwrap();
                    let there = all.iter_mut().find(|there| there["name"] == change["name"]).unwrap();
                    patch(there, change.clone());
                }
            }
            (value, _) => copy["spec"][field] = value.clone(),
        }
    }
    if *sub == Sub::Main {
        patch(copy, json!({"metadata": change["metadata"]}));
    }
}

fn invalid(message: &str) -> Refusal {
    Refusal::Invalid(Box::new(Status { message: message.to_owned(), ..Status::default() }))
}

fn debug(security: &Value) -> Value {
    json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", "securityContext": security}]}})
}

#[test]
fn changed_labels_and_annotations_reach_the_copy_in_one_patch_and_then_it_rests() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "api", "tier": null}, "annotations": {"more": "b"}}}));
    stage.read();
    let call = stage.call();
    assert_eq!((call.why, call.target.side, call.sub()), ("PushMetadata", Side::Physical, Sub::Main));
    assert_eq!(call.body().unwrap()["metadata"]["labels"], json!({"app": "api", "tier": null}));
    assert_eq!(stage.follow(), ["PushMetadata"]);
    let labels = &stage.copy["metadata"]["labels"];
    assert_eq!((&labels["app"], labels.get("tier")), (&json!("api"), None));
    assert_eq!(stage.copy["metadata"]["annotations"]["more"], "b");
}

#[test]
fn a_changed_image_toleration_and_deadline_reach_the_copy_and_the_generation_is_observed() {
    let mut stage = Stage::new();
    let container = json!([{"name": "c", "image": "i:2", "resources": {"requests": {"cpu": "1"}}}]);
    let tolerations = json!([{"key": keys::TAINT_VNODE, "operator": "Exists"}, {"key": "spot", "operator": "Exists"}]);
    let spec = json!({"containers": container, "tolerations": tolerations, "activeDeadlineSeconds": 60});
    stage.change(json!({"spec": spec}));
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "PushSpec"]);
    assert_eq!(stage.copy["spec"]["containers"][0]["image"], "i:2");
    assert_eq!(stage.copy["spec"]["activeDeadlineSeconds"], 60);
    assert!(
        stage.copy["spec"]["tolerations"].as_array().unwrap().contains(&json!({"key": "spot", "operator": "Exists"}))
    );
    assert_eq!(stage.copy["metadata"]["annotations"][keys::VIRTUAL_POD_GENERATION], "2");
}

#[test]
fn an_ephemeral_container_goes_through_its_subresource_and_is_then_marked() {
    let mut stage = Stage::new();
    stage.change(debug(&json!({})));
    stage.read();
    let call = stage.carry_out();
    assert_eq!(
        (call.why, call.sub(), call.part()),
        ("PushEphemeralContainers", Sub::EphemeralContainers, "ephemeralcontainers")
    );
    assert_eq!(stage.follow(), ["MarkPushed"]);
    assert_eq!(stage.copy["spec"]["ephemeralContainers"][0]["name"], "debug");
    assert_eq!(stage.copy["metadata"]["annotations"][keys::VIRTUAL_POD_GENERATION], "2");
}

#[test]
fn law_08_a_process_that_was_killed_between_push_and_mark_only_marks_when_it_is_back() {
    let mut stage = Stage::new();
    stage.change(debug(&json!({})));
    stage.read();
    stage.carry_out();
    stage.restart();
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "MarkPushed"]);
}

#[test]
fn law_04_a_settled_pod_rests_also_after_a_restart() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "api"}}, "spec": {"activeDeadlineSeconds": 60}}));
    stage.follow();
    assert!(stage.rests());
    stage.restart();
    assert!(stage.rests(), "{:?}", stage.scene.plan(&key("web")));
}

#[test]
fn what_the_physical_cluster_changes_in_a_copy_is_not_undone() {
    let mut stage = Stage::new();
    merge(
        &mut stage.copy,
        json!({"metadata": {"labels": {"app": "theirs", "owner": "theirs"}, "annotations": {"note": "theirs"}}}),
    );
    stage.copy["spec"]["containers"][0]["image"] = json!("mirror/i");
    stage.scene.see_ppod(&stage.copy);
    assert!(stage.rests());
    stage.change(json!({"metadata": {"labels": {"tier": "back"}}}));
    stage.follow();
    let labels = &stage.copy["metadata"]["labels"];
    assert_eq!(
        (&labels["app"], &labels["tier"], &labels["owner"]),
        (&json!("theirs"), &json!("back"), &json!("theirs"))
    );
    assert_eq!(stage.copy["spec"]["containers"][0]["image"], "mirror/i");
}

#[test]
fn a_copy_of_an_older_version_is_marked_once_and_taken_as_it_is() {
    let mut stage = Stage::new();
    for key in [keys::VIRTUAL_POD_MARKS, keys::CARRIED] {
        stage.copy["metadata"]["annotations"].as_object_mut().unwrap().remove(key);
    }
    stage.copy["metadata"]["labels"]["app"] = json!("theirs");
    stage.restart();
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "MarkPushed"]);
    assert_eq!(stage.copy["metadata"]["labels"]["app"], "theirs");
    stage.restart();
    assert!(stage.rests());
}

#[test]
fn law_12_a_forbidden_ephemeral_container_is_never_pushed_and_the_pod_says_so_once() {
    let mut stage = Stage::new();
    stage.change(debug(&json!({"privileged": true})));
    assert_eq!(stage.follow(), ["ReadChanged", "TellChange"]);
    let condition = stage.condition().unwrap();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("PodSecurityViolation")));
    assert!(condition["message"].as_str().unwrap().contains("privileged"), "{condition}");
    assert_eq!(stage.events(), ["PodSecurityViolation"]);
    assert_eq!(stage.copy["spec"].get("ephemeralContainers"), None);
    assert!(stage.scene.pair.pods.cases.values().all(|case| case.changing.as_ref().unwrap().vpod.is_none()), "law 11");

    stage.restart();
    assert_eq!(stage.follow(), ["ReadChanged"], "a new process looks, and finds that it was told");
    assert_eq!(stage.events(), [""; 0]);
}

#[test]
fn what_a_tightened_standard_forbids_is_held_back_and_pushed_when_the_standard_allows_it() {
    let mut stage = Stage::new();
    stage.scene.see_binding(json!({"podSecurity": "restricted"}));
    stage.change(json!({"spec": {"activeDeadlineSeconds": 60}}));
    assert_eq!(stage.follow(), ["ReadChanged", "TellChange"]);
    stage.scene.see_binding(json!({"podSecurity": "baseline"}));
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "PushSpec", "TellChange"]);
    assert_eq!(stage.condition(), None, "it is told no longer");
    assert_eq!(stage.events(), ["PodSecurityViolation"]);
}

#[test]
fn law_12_what_the_physical_cluster_refuses_is_told_once_not_repeated_and_keeps_nothing_else_back() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "bad"}}, "spec": {"activeDeadlineSeconds": 60}}));
    stage.read();
    assert_eq!(stage.call().why, "PushMetadata");
    stage.refuse(invalid("no such label here"));
    assert_eq!(stage.follow(), ["PushSpec", "TellChange"]);
    let condition = stage.condition().unwrap();
    assert_eq!(condition["reason"], "PhysicalClusterRefused");
    assert!(condition["message"].as_str().unwrap().ends_with("no such label here"), "{condition}");
    assert_eq!(stage.events(), ["PhysicalClusterRefused"]);
    assert!(stage.rests());

    stage.change(json!({"metadata": {"labels": {"app": "good"}}}));
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "PushMetadata", "TellChange"]);
    assert_eq!(stage.condition(), None);
}

#[test]
fn a_denied_push_is_tried_again_after_a_while_and_an_unknown_end_sooner() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    stage.read();
    stage.refuse(Refusal::Unknown("lost".to_owned()));
    let Plan::Wait(until) = stage.scene.plan(&key("web")) else { panic!("not told, but tried again") };
    stage.scene.pass(until.saturating_sub(stage.scene.now.steady));
    stage.read();
    stage.refuse(Refusal::Denied(Box::new(Status { message: "not you".to_owned(), ..Status::default() })));
    assert_eq!(stage.follow(), ["TellChange"]);
    let Plan::Wait(until) = stage.scene.plan(&key("web")) else { panic!("tried again") };
    stage.scene.pass(until.saturating_sub(stage.scene.now.steady));
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "PushMetadata", "TellChange"]);
}

#[test]
fn law_02_a_copy_that_changed_since_it_was_read_is_read_again() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    stage.read();
    stage.refuse(Refusal::Replaced);
    assert_eq!(stage.follow(), ["ReadCopy", "PushMetadata"]);
}

#[test]
fn a_change_of_mind_is_read_again_before_anything_is_pushed() {
    let mut stage = Stage::new();
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    stage.read();
    stage.change(json!({"metadata": {"labels": {"app": "other"}}}));
    assert_eq!(stage.follow(), ["ReadChanged", "ReadCopy", "PushMetadata"]);
    assert_eq!(stage.copy["metadata"]["labels"]["app"], "other");
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    stage.read();
    stage.change(json!({"metadata": {"labels": {"app": "other"}}}));
    assert!(stage.rests(), "back to what the copy has");
}

#[test]
fn an_ephemeral_container_waits_for_the_configmap_that_it_names() {
    let mut stage = Stage::new();
    let from = json!([{"configMapRef": {"name": "settings"}}]);
    let source = json!({"metadata": {"name": "settings", "namespace": "demo", "uid": "s-uid"}});
    let text = stage.scene.stamp(source);
    let row = Source::decode(&text, DependentKind::ConfigMap).unwrap().unwrap();
    stage.scene.see(Fact::Source(DependentKind::ConfigMap, Change::Put(row, Epoch(1))));
    stage.change(json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "busybox", "envFrom": from}]}}));
    stage.read();
    assert!(stage.rests(), "not before its copy: {:?}", stage.scene.plan(&key("web")));
    let dependent = stage.scene.pair.dependents.keys().next().unwrap();
    assert!(matches!(dependent, Key::Dependent(_)));
    assert_eq!(stage.scene.call(&dependent).why, "CreateDependent");
}

#[test]
fn a_pod_that_ends_is_not_pushed() {
    let mut stage = Stage::new();
    stage.vpod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
    stage.vpod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    assert_eq!(stage.call().why, "VirtualPodDeleted");
    let mut stage = Stage::new();
    stage.copy["status"]["phase"] = json!("Succeeded");
    stage.scene.see_ppod(&stage.copy);
    stage.change(json!({"metadata": {"labels": {"app": "api"}}}));
    assert_eq!(stage.call().why, "Status");
}

#[test]
fn an_ephemeral_container_does_not_wait_for_what_only_the_rest_of_the_pod_names() {
    let mut stage = Stage::new();
    // The pod was made before pods got what the virtual cluster injects: its copy has no API access, and no copy of the CA.
    assert!(stage.scene.pair.dependents.set_api_access(true));
    let source = json!({"metadata": {"name": "kube-root-ca.crt", "namespace": "demo", "uid": "s-uid"}});
    let text = stage.scene.stamp(source);
    let row = Source::decode(&text, DependentKind::ConfigMap).unwrap().unwrap();
    stage.scene.see(Fact::Source(DependentKind::ConfigMap, Change::Put(row, Epoch(1))));
    let volumes = json!([{"name": "kube-api-access-x", "projected": {"sources": [
        {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}},
    ]}}]);
    stage.vpod["spec"]["volumes"] = volumes;
    stage.change(debug(&json!({})));
    stage.read();
    assert_eq!(stage.call().why, "PushEphemeralContainers");
}

#[test]
fn law_12_a_missing_right_to_add_ephemeral_containers_shows_on_the_binding_until_it_is_granted() {
    let mut stage = Stage::new();
    let refused = |stage: &Stage| stage.scene.pair.refused.tell();
    stage.change(debug(&json!({})));
    for _ in 0..3 {
        assert_eq!(refused(&stage), None, "one refusal may be a hiccup");
        stage.read();
        assert_eq!(stage.call().why, "PushEphemeralContainers");
        stage.refuse(Refusal::Denied(Box::new(Status {
            code: 403,
            message: "not you".to_owned(),
            // As the authorizer answers.
            details: Details { kind: "pods".to_owned(), ..Details::default() },
            ..Status::default()
        })));
        stage.follow();
        let Plan::Wait(until) = stage.scene.plan(&key("web")) else { panic!("not tried again") };
        if refused(&stage).is_some() {
            break;
        }
        stage.scene.pass(until.saturating_sub(stage.scene.now.steady));
    }
    let told = refused(&stage).expect("it is reported");
    assert!(told.contains("refuses to patch pods/ephemeralcontainers: not you"), "{told}");
    let Plan::Wait(until) = stage.scene.plan(&key("web")) else { panic!("not tried again") };
    stage.scene.pass(until.saturating_sub(stage.scene.now.steady));
    assert!(refused(&stage).is_some(), "it is not forgotten before it is tried again");
    stage.follow();
    assert_eq!(refused(&stage), None);
}

#[test]
fn what_only_a_forbidden_ephemeral_container_names_is_not_copied() {
    let mut stage = Stage::new();
    let source = json!({"metadata": {"name": "settings", "namespace": "demo", "uid": "s-uid"}});
    let text = stage.scene.stamp(source);
    let row = Source::decode(&text, DependentKind::ConfigMap).unwrap().unwrap();
    stage.scene.see(Fact::Source(DependentKind::ConfigMap, Change::Put(row, Epoch(1))));
    let mut forbidden = debug(&json!({"privileged": true}));
    forbidden["spec"]["ephemeralContainers"][0]["envFrom"] = json!([{"configMapRef": {"name": "settings"}}]);
    stage.change(forbidden);
    let dependent = stage.scene.pair.dependents.keys().next().unwrap();
    assert!(matches!(dependent, Key::Dependent(_)));
    assert_eq!(stage.scene.plan(&dependent), Plan::Rest, "it was not judged yet");
    assert_eq!(stage.follow(), ["ReadChanged", "TellChange"]);
    assert_eq!(stage.scene.plan(&dependent), Plan::Rest);

    stage.scene.see_binding(json!({"podSecurity": "privileged"}));
    stage.read();
    assert_eq!(stage.scene.call(&dependent).why, "CreateDependent");
}
