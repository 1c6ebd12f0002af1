//! How copies go, how they are kept, and that no data goes with them.

use super::*;

/// The pod and its copy end.
fn end(stage: &mut Stage, ppod: &Value) {
    let mut gone = ppod.clone();
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    stage.scene.lose_ppod(&gone, true);
    let row = row_of(&mut stage.scene, &finished("web"));
    stage.scene.see(Fact::VPod(Change::Gone { row, proven: true }));
}

/// A stage whose pod is over, and nothing removed yet.
fn over() -> Stage {
    let mut stage = Stage::new();
    stage.carry();
    let ppod = stage.start("web");
    end(&mut stage, &ppod);
    stage
}

/// Reads the copy of the volume, as it is.
fn look(stage: &mut Stage) {
    let call = stage.scene.call(&claim_key());
    assert_eq!((call.why, &call.verb), ("LookForVolumeOfClaim", &Verb::Peek), "{call}");
    let object = stage.scene.stamp(stage.pvolume.clone());
    stage.scene.settle(&claim_key(), &call, Ok(Answer { object }));
}

fn remove(stage: &mut Stage, key: &Key, why: &str) {
    if why == "RemoveClaim" {
        look(stage);
    }
    let call = stage.scene.call(key);
    assert_eq!((call.why, &call.verb), (why, &Verb::Delete { grace: None }), "{call}");
    assert!(call.target.uid.is_some() && call.target.rv.is_some(), "law 2: {call}");
    let deleted = if why == "RemoveClaim" { &mut stage.pclaim } else { &mut stage.pvolume };
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let deleted = deleted.clone();
    let object = stage.scene.stamp(deleted);
    stage.scene.settle(key, &call, Ok(Answer { object }));
    assert_eq!(stage.scene.plan(key), Plan::Rest, "what is being deleted is waited for");
}

#[test]
fn copies_go_after_the_last_pod_the_claim_first_and_the_hold_last() {
    let mut stage = over();
    assert_eq!(stage.why(&volume_key()), "", "first the claim");
    remove(&mut stage, &claim_key(), "RemoveClaim");
    assert_eq!(stage.why(&volume_key()), "");
    stage.lose_pclaim();
    remove(&mut stage, &volume_key(), "RemoveVolume");
    assert_eq!(stage.why(&volume_key()), "", "held until it is gone");
    stage.lose_pvolume();
    let look = stage.scene.call(&volume_key());
    assert_eq!((look.why, &look.verb), ("LookForVolume", &Verb::Get), "law 1: only a read proves it");
    stage.scene.settle(&volume_key(), &look, Err(Refusal::Gone));
    let release = stage.scene.call(&volume_key());
    assert_eq!(release.why, "ReleaseVolume", "{release}");
    stage.apply_to_vvolume(&volume_key(), &release);
    assert_eq!(stage.vvolume["metadata"]["annotations"].get(keys::VOLUME_HOLDER), None);
    for key in [claim_key(), volume_key()] {
        assert_eq!(stage.scene.plan(&key), Plan::Rest);
    }
}

#[test]
fn law_01_a_read_of_before_a_new_connection_proves_nothing() {
    let mut stage = over();
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    remove(&mut stage, &volume_key(), "RemoveVolume");
    stage.lose_pvolume();
    stage.scene.refuse(&volume_key(), Refusal::Gone);
    assert_eq!(stage.why(&volume_key()), "ReleaseVolume");
    stage.scene.pair.volumes.doubt_evidence();
    assert_eq!(stage.why(&volume_key()), "LookForVolume");
}

#[test]
fn no_data_goes_with_a_claim_whose_volume_would_be_deleted() {
    let mut stage = over();
    stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    stage.see_pvolume();
    assert_eq!(stage.why(&claim_key()), "", "not before its volume retains the data");
    let body = stage.repair();
    assert_eq!(body["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    // The watch says so; only a read is new enough.
    stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    look(&mut stage);
    assert_eq!(stage.why(&claim_key()), "");
    stage.repair();
    look(&mut stage);
    assert_eq!(stage.why(&claim_key()), "RemoveClaim");
    stage.see_pvolume();
    assert_eq!(stage.why(&claim_key()), "LookForVolumeOfClaim", "it has changed since it was read");
}

#[test]
fn no_data_goes_with_a_claim_whose_volume_lost_all_marks() {
    let mut stage = over();
    let mut stripped = stage.pvolume.clone();
    stage.lose_pvolume();
    let look = stage.scene.call(&claim_key());
    assert_eq!((look.why, &look.verb), ("LookForVolumeOfClaim", &Verb::Peek), "{look}");
    stripped["metadata"] = json!({"name": copies().0, "uid": "pv"});
    stripped["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    let object = stage.scene.stamp(stripped.clone());
    stage.scene.settle(&claim_key(), &look, Ok(Answer { object }));
    assert_eq!(stage.why(&claim_key()), "Wait");
    stage.scene.pass(Duration::from_mins(5));
    let look = stage.scene.call(&claim_key());
    stripped["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    let object = stage.scene.stamp(stripped);
    stage.scene.settle(&claim_key(), &look, Ok(Answer { object }));
    assert_eq!(stage.why(&claim_key()), "RemoveClaim");
}

#[test]
fn a_volume_that_lost_all_marks_stays_held() {
    let mut stage = over();
    let mut stripped = stage.pvolume.clone();
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    stage.lose_pvolume();
    stripped["metadata"] = json!({"name": copies().0, "uid": "pv"});
    let look = stage.scene.call(&volume_key());
    let object = stage.scene.stamp(stripped);
    stage.scene.settle(&volume_key(), &look, Ok(Answer { object }));
    assert_eq!(stage.why(&volume_key()), "Wait", "it is for the copy of our claim: perhaps it is attached");
    // An object of that name that is for something else proves that there is no copy.
    stage.scene.pass(Duration::from_mins(5));
    let look = stage.scene.call(&volume_key());
    let other = json!({"metadata": {"name": copies().0, "uid": "x"}, "spec": {"claimRef": {"namespace": "shop", "name": "other"}}});
    let object = stage.scene.stamp(other);
    stage.scene.settle(&volume_key(), &look, Ok(Answer { object }));
    assert_eq!(stage.why(&volume_key()), "ReleaseVolume");
}

#[test]
fn law_06_a_volume_that_another_claim_has_is_not_deleted() {
    let mut stage = over();
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    let ours = stage.pvolume["spec"]["claimRef"].clone();
    stage.pvolume["spec"]["claimRef"] = json!({"namespace": "shop", "name": "stranger", "uid": "x"});
    stage.see_pvolume();
    assert_eq!(stage.why(&volume_key()), "");
    // One that a stranger made under the name of our copy.
    stage.pvolume["spec"]["claimRef"] = ours;
    stage.pvolume["spec"]["claimRef"]["uid"] = json!("x");
    stage.pvolume["status"]["phase"] = json!("Bound");
    stage.see_pvolume();
    assert_eq!(stage.why(&volume_key()), "");
}

#[test]
fn a_hold_of_another_binding_is_never_removed() {
    let mut stage = over();
    stage.vvolume["metadata"]["annotations"][keys::VOLUME_HOLDER] = json!("west/b-2");
    stage.see_volume();
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    remove(&mut stage, &volume_key(), "RemoveVolume");
    stage.lose_pvolume();
    assert_eq!(stage.why(&volume_key()), "");
}

#[test]
fn what_others_change_on_the_copy_of_a_volume_is_put_back() {
    let mut stage = Stage::running();
    stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    stage.see_pvolume();
    let body = stage.repair();
    assert_eq!(body["spec"].get("claimRef"), None, "a bound volume keeps its claim");
    stage.pvolume["metadata"]["labels"] = json!({});
    stage.see_pvolume();
    stage.repair();
    assert!(stage.pvolume["metadata"]["labels"][keys::ORIGIN].is_string());
    assert_eq!(stage.why(&volume_key()), "");
    stage.pclaim["metadata"]["labels"] = json!({});
    stage.see_pclaim();
    assert_eq!(stage.why(&claim_key()), "RepairClaim");
}

#[test]
fn a_client_that_keeps_changing_a_copy_is_not_fought_without_pause() {
    let mut stage = Stage::running();
    for _ in 0..3 {
        stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
        stage.see_pvolume();
        stage.repair();
    }
    stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    stage.see_pvolume();
    assert_eq!(stage.why(&volume_key()), "Wait");
    stage.scene.pass(Duration::from_mins(1));
    stage.repair();
}

#[test]
fn a_released_volume_is_given_to_the_claim_again() {
    let mut stage = Stage::running();
    // An owner deletes the copy of the claim by force: the volume remembers it.
    stage.lose_pclaim();
    stage.pvolume["status"]["phase"] = json!("Released");
    stage.see_pvolume();
    let body = stage.repair();
    assert_eq!(body["spec"]["claimRef"]["uid"], Value::Null);
    assert_eq!(body["spec"]["claimRef"]["name"], copies().1);
    assert_eq!(stage.why(&volume_key()), "");
    stage.create_claim();
}

#[test]
fn a_claim_whose_volume_was_deleted_finds_the_new_one() {
    let mut stage = Stage::running();
    stage.lose_pvolume();
    stage.pclaim["status"]["phase"] = json!("Lost");
    stage.see_pclaim();
    stage.create_volume();
    assert_eq!(stage.pvolume["spec"]["claimRef"]["uid"], "pc");
}

#[test]
fn law_01_the_copies_of_a_claim_that_is_gone_stay_as_long_as_a_pod_uses_them() {
    let mut stage = Stage::running();
    let text = stage.scene.stamp(stage.vclaim.clone());
    let row = VClaim::decode(&text).unwrap().unwrap();
    stage.scene.see(Fact::VClaim(Change::Gone { row, proven: true }));
    let text = stage.scene.stamp(stage.vvolume.clone());
    let row = VVolume::decode(&text).unwrap().unwrap();
    stage.scene.see(Fact::VVolume(Change::Gone { row, proven: true }));
    for key in [claim_key(), volume_key()] {
        assert_eq!(stage.scene.plan(&key), Plan::Rest);
    }
    stage.pvolume["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    stage.see_pvolume();
    stage.repair();
}

#[test]
fn the_copy_of_an_earlier_claim_goes_when_no_pod_runs_with_it() {
    let mut stage = Stage::new();
    stage.carry();
    let ppod = stage.start("web");
    // Deleted and created again under the same name, with another volume.
    stage.vclaim["metadata"]["uid"] = json!("vc-2");
    stage.see_claim();
    assert_eq!(stage.why(&claim_key()), "", "a pod runs with it");
    end(&mut stage, &ppod);
    let object = mounts("next");
    stage.scene.see_vpod(&object);
    assert_eq!(stage.why(&claim_key()), "LookForVolumeOfClaim", "of the new pod it is not the claim");
}

#[test]
fn a_volume_that_another_client_deletes_is_made_again_when_no_pod_runs_with_it() {
    let mut stage = Stage::new();
    stage.carry();
    let ppod = stage.start("web");
    stage.pvolume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    stage.see_pvolume();
    assert_eq!(stage.why(&claim_key()), "", "a pod runs with it");
    stage.scene.see_vpod(&mounts("next"));
    let told = stage.scene.call(&pod_key("next"));
    assert_eq!(told.body().unwrap()["status"]["conditions"][0]["reason"], "PhysicalVolumeLeaving", "{told}");
    end(&mut stage, &ppod);
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    stage.lose_pvolume();
    stage.create_volume();
}

#[test]
fn nothing_is_removed_while_less_is_known_than_before() {
    use tapestry_cluster::watch::{Query, Trouble, WatchState};
    use tapestry_cluster::watches::{Reader, Watched};
    let mut stage = over();
    let query = Query::all(&kind::PERSISTENT_VOLUME);
    let watched = Watched { reader: Reader::Syncer, side: Side::Physical, query: Arc::new(query) };
    let trouble = Trouble { verb: "watch", why: "forbidden".into() };
    stage.scene.see(Fact::Watch(watched.clone(), WatchState::OutOfSync(trouble)));
    assert_eq!(stage.why(&claim_key()), "");
    stage.scene.see(Fact::Watch(watched, WatchState::InSync));
    assert_eq!(stage.why(&claim_key()), "LookForVolumeOfClaim");
}

#[test]
fn a_binding_waits_for_its_volumes() {
    let mut stage = over();
    assert!(!stage.scene.pair.volumes.none_left(HOLDER));
    remove(&mut stage, &claim_key(), "RemoveClaim");
    stage.lose_pclaim();
    remove(&mut stage, &volume_key(), "RemoveVolume");
    stage.lose_pvolume();
    assert!(!stage.scene.pair.volumes.none_left(HOLDER), "still held");
    stage.vvolume["metadata"]["annotations"].take();
    stage.see_volume();
    assert!(stage.scene.pair.volumes.none_left(HOLDER));
}
