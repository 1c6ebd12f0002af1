//! Changes of a copy that flow up to its source, call by call; the gate is played with its own functions.

use tapestry_cluster::call::carry::Carry;

use super::*;

/// A source and its copy as the two API servers have them, and a syncer between them.
struct Sides {
    scene: Scene,
    source: Value,
    copy: Value,
}

fn answer(object: &Value) -> Answer {
    Answer { object: object.to_string().into() }
}

/// What an API server does with a JSON merge patch.
fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    for (field, change) in changes {
        if change.is_null() {
            target.as_object_mut().map(|target| target.remove(field));
        } else {
            if !target[field].is_object() {
                target[field] = json!({});
            }
            apply(&mut target[field], change);
        }
    }
}

fn asks(direction: &str) -> Value {
    let mut object = source("settings", &json!({"a": "1", "b": "1"}));
    object["metadata"]["annotations"] = json!({keys::SYNC_DIRECTION: direction});
    object
}

impl Sides {
    /// A pod needs a ConfigMap that asks for this direction; its copy is made.
    fn new(source: Value) -> Self {
        let mut scene = Scene::new();
        let source = serde_json::from_str(&see_source(&mut scene, source)).unwrap();
        admit(&mut scene, "web", &mounts("web", "settings", false));
        let mut sides = Self { scene, source, copy: Value::Null };
        assert_eq!(sides.step(), "CreateDependent");
        sides
    }

    fn plan(&self) -> Plan<crate::pair::Why> {
        self.scene.plan(&key("settings"))
    }

    /// Carries out the next call as the gate does; returns what it was for.
    fn step(&mut self) -> &'static str {
        let call = self.scene.call(&key("settings"));
        let done = if let Some(carry) = Carry::of(&call) {
            let up = call.target.side == Side::Virtual;
            let (from, to) = if up { (&self.copy, &self.source) } else { (&self.source, &self.copy) };
            let to = call.target.uid.as_ref().map(|_| answer(to));
            match carry.judge_source(Ok(answer(from))) {
                Ok(from) => Ok(self.write(carry.write(&from, to.as_ref()).unwrap(), up)),
                Err(refusal) => Err(refusal),
            }
        } else {
            Ok(self.write(Some(call.clone()), false))
        };
        self.scene.settle(&key("settings"), &call, done);
        call.why
    }

    fn write(&mut self, write: Option<Call>, up: bool) -> Answer {
        let object = if up { &mut self.source } else { &mut self.copy };
        let Some(write) = write else { return answer(object) };
        if write.target.kind == &kind::EVENT {
            return Answer { object: "{}".into() };
        }
        let body = write.body().unwrap().into_owned();
        if matches!(write.verb, Verb::Create(_)) {
            *object = body;
            object["metadata"]["uid"] = json!("c-1");
        } else {
            let (uid, version) = (&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]);
            assert_eq!((uid, version), (&object["metadata"]["uid"], &object["metadata"]["resourceVersion"]));
            apply(object, &body);
        }
        let text = self.scene.stamp(object.clone());
        *object = serde_json::from_slice(&text).unwrap();
        Answer { object: text }
    }

    fn steps(&mut self) -> Vec<&'static str> {
        let mut steps = Vec::new();
        while let Plan::Do(..) = self.plan() {
            steps.push(self.step());
            assert!(steps.len() < 20, "{steps:?}");
        }
        steps
    }

    /// The owner of the physical cluster writes.
    fn owner(&mut self, patch: &Value) {
        apply(&mut self.copy, patch);
        see_copy(&mut self.scene, &self.copy);
        self.copy = stamped(&self.copy, &mut self.scene);
        see_again(&mut self.scene, &self.copy);
    }

    /// The user of the virtual cluster writes.
    fn user(&mut self, patch: &Value) {
        apply(&mut self.source, patch);
        self.source = serde_json::from_str(&see_source(&mut self.scene, self.source.clone())).unwrap();
    }

    fn refuse(&mut self) {
        let call = self.scene.call(&key("settings"));
        assert_eq!(call.why, "RaiseDependent");
        let details = Details { kind: "configmaps".to_owned(), name: "settings".to_owned(), ..Details::default() };
        let status = Status { code: 403, message: "no right".to_owned(), details, ..Status::default() };
        self.scene.settle(&key("settings"), &call, Err(Refusal::Denied(Box::new(status))));
    }

    fn event(&self) -> (String, String) {
        let call = self.scene.call(&key("settings"));
        assert_eq!(call.why, "TellDependent", "{call}");
        let body = call.body().unwrap().into_owned();
        assert_eq!(body["involvedObject"]["uid"], "s-settings");
        (body["reason"].as_str().unwrap().to_owned(), body["message"].as_str().unwrap().to_owned())
    }
}

fn stamped(object: &Value, scene: &mut Scene) -> Value {
    serde_json::from_slice(&scene.stamp(object.clone())).unwrap()
}

fn see_again(scene: &mut Scene, copy: &Value) {
    let text = copy.to_string().into();
    let row = DependentCopy::decode(&text, MAP, &scene.pair.origin).unwrap().unwrap();
    scene.see(Fact::DependentCopy(MAP, Change::Put(row, Epoch(1))));
}

#[test]
fn a_change_of_the_copy_is_offered_and_goes_up_and_is_not_reverted() {
    let mut sides = Sides::new(asks("both"));
    assert_eq!(sides.plan(), Plan::Rest);
    assert_eq!(sides.scene.call(&pod_key("web")).why, "CreateCopy");
    sides.owner(&json!({"data": {"a": "2", "b": null, "c": "3"}}));
    assert_eq!(sides.scene.call(&pod_key("web")).why, "CreateCopy", "pods need not wait for that");
    assert_eq!(sides.steps(), ["OfferDependent", "RaiseDependent", "UpdateDependent"]);
    assert_eq!(sides.source["data"], json!({"a": "2", "c": "3"}));
    assert_eq!((sides.plan(), &sides.copy["data"]), (Plan::Rest, &sides.source["data"]));
}

#[test]
fn law_11_changes_go_up_at_most_once_a_second() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    sides.steps();
    sides.owner(&json!({"data": {"a": "3"}}));
    assert_eq!(sides.plan(), Plan::Wait(sides.scene.now.steady + Duration::from_secs(1)));
    sides.user(&json!({"data": {"b": "2"}}));
    assert_eq!(sides.step(), "UpdateDependent", "what goes down does not wait");
    sides.scene.pass(Duration::from_secs(1));
    sides.steps();
    assert_eq!(sides.source["data"], json!({"a": "3", "b": "2"}));
}

#[test]
fn a_conflict_is_told_by_its_keys_and_then_forgotten() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "hidden-theirs"}}));
    sides.user(&json!({"data": {"a": "hidden-ours"}}));
    assert_eq!(sides.step(), "UpdateDependent");
    let (reason, message) = sides.event();
    assert_eq!(reason, "SyncConflict");
    assert!(message.starts_with("changed in both clusters: a;") && !message.contains("hidden"), "{message}");
    assert_eq!(sides.steps(), ["TellDependent", "ForgetConflicts"]);
    assert_eq!((sides.plan(), &sides.copy["data"]["a"]), (Plan::Rest, &json!("hidden-ours")));
}

#[test]
fn without_the_right_the_user_is_told_once_nothing_is_lost_and_changes_go_down() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    sides.step();
    sides.refuse();
    let (reason, message) = sides.event();
    assert_eq!(reason, "SyncRefused");
    assert!(message.contains("no right") && message.contains("virtual-both-ways.yaml"), "{message}");
    sides.step();
    let Plan::Wait(until) = sides.plan() else { panic!("{:?}", sides.plan()) };
    sides.user(&json!({"data": {"b": "2"}}));
    assert_eq!(sides.step(), "UpdateDependent");
    assert_eq!(sides.copy["data"], json!({"a": "2", "b": "2"}));
    assert_eq!(sides.plan(), Plan::Wait(until));
    // It is asked again and again, and the binding does not say that a right is missing.
    for _ in 0..10 {
        let Plan::Wait(until) = sides.plan() else { panic!("{:?}", sides.plan()) };
        sides.scene.pass(until.saturating_sub(sides.scene.now.steady));
        sides.refuse();
    }
    assert_eq!(sides.scene.pair.refused.tell(), None);
    // Granted.
    sides.scene.pass(Duration::from_secs(30));
    assert_eq!(sides.steps(), ["RaiseDependent", "UpdateDependent"]);
    assert_eq!(sides.source["data"], json!({"a": "2", "b": "2"}));
}

#[test]
fn a_direction_that_is_not_known_is_told_once_and_changes_of_the_copy_are_reverted() {
    let mut sides = Sides::new(asks("up"));
    assert_eq!(sides.event().0, "SyncDirectionUnknown");
    assert_eq!(sides.steps(), ["TellDependent"]);
    sides.owner(&json!({"data": {"a": "2"}}));
    assert_eq!(sides.steps(), ["RevertDependent"]);
    assert_eq!(sides.source["data"]["a"], "1");
}

#[test]
fn what_cannot_flow_up_is_told_once_and_reverted() {
    let mut source = asks("both");
    source["type"] = json!("kubernetes.io/service-account-token");
    let mut sides = Sides::new(source);
    let (reason, message) = sides.event();
    assert_eq!(reason, "SyncOneWay");
    assert!(message.contains("token"), "{message}");
    assert_eq!(sides.steps(), ["TellDependent"]);
    sides.owner(&json!({"data": {"a": "2"}}));
    assert_eq!(sides.steps(), ["RevertDependent"]);
}

#[test]
fn without_the_annotation_changes_of_the_copy_are_reverted_again() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    sides.step();
    sides.user(&json!({"metadata": {"annotations": {keys::SYNC_DIRECTION: null}}}));
    assert_eq!(sides.steps(), ["UpdateDependent"]);
    assert_eq!((&sides.copy["data"]["a"], &sides.source["data"]["a"]), (&json!("1"), &json!("1")));
    assert_eq!(sides.copy["metadata"]["annotations"].get(keys::OFFERED), None);
}

#[test]
fn a_copy_that_lies_about_what_both_had_is_written_again() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    let carried: Value =
        serde_json::from_str(sides.copy["metadata"]["annotations"][keys::CARRIED].as_str().unwrap()).unwrap();
    let mut forged = carried;
    forged["a"] = json!("0123456789");
    sides.owner(&json!({"metadata": {"annotations": {keys::CARRIED: forged.to_string()}}}));
    let mut steps = sides.steps();
    sides.scene.pass(Duration::from_secs(2));
    steps.extend(sides.steps());
    assert_eq!(sides.plan(), Plan::Rest, "{steps:?}");
    assert_eq!((&sides.source["data"]["a"], &sides.copy["data"]["a"]), (&json!("1"), &json!("1")), "{steps:?}");
}

#[test]
fn changes_go_up_before_a_copy_that_no_pod_uses_is_removed() {
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    let mut gone = mounts("web", "settings", false);
    gone["status"] = json!({"phase": "Failed"});
    sides.scene.see_vpod(&gone);
    assert_eq!(sides.step(), "OfferDependent");
    assert_eq!(sides.step(), "RaiseDependent");
    assert_eq!(sides.source["data"]["a"], "2");
    assert_eq!(sides.step(), "UpdateDependent");
    assert_eq!(sides.scene.call(&key("settings")).why, "RemoveDependent");
    // One that cannot go up keeps nothing.
    let mut sides = Sides::new(asks("both"));
    sides.owner(&json!({"data": {"a": "2"}}));
    sides.step();
    sides.refuse();
    sides.scene.see_vpod(&gone);
    assert_eq!(sides.scene.call(&key("settings")).why, "RemoveDependent");
}

#[test]
fn nothing_goes_up_to_a_source_that_is_being_deleted_or_is_gone() {
    let mut sides = Sides::new(asks("both"));
    sides.user(&json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    sides.steps();
    sides.owner(&json!({"data": {"a": "2"}}));
    assert_eq!(sides.plan(), Plan::Rest);
    let row = Source::decode(&sides.source.to_string().into(), MAP).unwrap().unwrap();
    sides.scene.see(Fact::Source(MAP, Change::Gone { row, proven: true }));
    assert_eq!(sides.plan(), Plan::Rest);
}
