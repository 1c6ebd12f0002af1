//! Changes that flow both ways: every interleaving of users, owners and of calls that read now and write later.

use std::collections::BTreeMap;

use super::*;

/// Asks for both ways.
fn shared(content: Value) -> Value {
    let mut source = source(content);
    source["metadata"]["annotations"] = json!({keys::SYNC_DIRECTION: "both"});
    source
}

fn raise(copy: &Value, source: &Value) -> Option<Value> {
    render_raise(ConfigMap, &copy.to_string(), &source.to_string(), "vc/cb").unwrap()
}

/// One source with its copies, as two API servers keep them: each write has a version.
struct Clusters {
    source: Value,
    copies: Vec<Value>,
    version: u64,
}

/// What a call has read.
#[derive(Debug, Clone)]
struct Read {
    source: Value,
    copy: Value,
}

impl Clusters {
    fn new(data: &Value, copies: usize) -> Self {
        let source = shared(json!({"data": data}));
        let mut all = Self { copies: vec![copy_of(ConfigMap, &source); copies], source, version: 10 };
        for at in 0..copies {
            all.copies[at]["metadata"]["uid"] = json!(format!("c{at}"));
            all.stamp_copy(at);
        }
        all
    }

    fn next(&mut self) -> Value {
        self.version += 1;
        json!(self.version.to_string())
    }

    fn stamp_copy(&mut self, at: usize) {
        self.copies[at]["metadata"]["resourceVersion"] = self.next();
    }

    fn user(&mut self, key: &str, value: Option<&str>) {
        merge(&mut self.source, &json!({"data": {key: value}}));
        self.source["metadata"]["resourceVersion"] = self.next();
    }

    fn owner(&mut self, at: usize, key: &str, value: Option<&str>) {
        merge(&mut self.copies[at], &json!({"data": {key: value}}));
        self.stamp_copy(at);
    }

    fn read(&self, at: usize) -> Read {
        Read { source: self.source.clone(), copy: self.copies[at].clone() }
    }

    /// Writes the copy as the gate does: only the version that was read.
    fn down(&mut self, at: usize, read: &Read) -> bool {
        let Some(change) = patch(&read.source, &read.copy) else { return false };
        if self.copies[at]["metadata"]["resourceVersion"] != read.copy["metadata"]["resourceVersion"] {
            return false;
        }
        merge(&mut self.copies[at], &change);
        self.stamp_copy(at);
        true
    }

    /// Writes the source as the gate does: only the version that was read.
    fn up(&mut self, read: &Read) -> bool {
        let Some(change) = raise(&read.copy, &read.source) else { return false };
        if self.source["metadata"]["resourceVersion"] != read.source["metadata"]["resourceVersion"] {
            return false;
        }
        assert!(change.as_object().unwrap().keys().all(|field| ["data", "binaryData"].contains(&&**field)), "{change}");
        merge(&mut self.source, &change);
        self.source["metadata"]["resourceVersion"] = self.next();
        true
    }

    /// What a syncer does with one copy until it rests.
    fn settle(&mut self, at: usize) -> bool {
        let mut wrote = false;
        for _ in 0..20 {
            let read = self.read(at);
            if !self.down(at, &read) && !self.up(&read) {
                return wrote;
            }
            wrote = true;
        }
        panic!("it never rests: {} {}", self.source, self.copies[at]);
    }

    fn settle_all(&mut self) {
        for _ in 0..20 {
            let wrote: Vec<bool> = (0..self.copies.len()).map(|at| self.settle(at)).collect();
            if !wrote.contains(&true) {
                return;
            }
        }
        panic!("copies and source never agree");
    }

    fn value(&self, key: &str) -> Option<String> {
        self.source["data"][key].as_str().map(ToOwned::to_owned)
    }

    fn assert_equal(&self) {
        let data = |object: &Value| object["data"].as_object().cloned().unwrap_or_default();
        for copy in &self.copies {
            assert_eq!(data(&self.source), data(copy));
            let digest = digest(copy);
            assert!(digest.intact && digest.changes == Changes::None && digest.ways == Some(Ways::Both), "{digest:?}");
        }
    }

    fn conflicts(&self, at: usize) -> Vec<String> {
        digest(&self.copies[at]).conflicts.map(|conflicts| conflicts.keys.into_iter().collect()).unwrap_or_default()
    }
}

#[test]
fn changes_additions_and_deletions_of_the_copy_go_up_and_those_of_the_source_go_down() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1", "c": "1"}), 1);
    all.owner(0, "a", Some("2"));
    all.owner(0, "b", None);
    all.owner(0, "d", Some("new"));
    all.user("c", Some("3"));
    all.user("e", Some("user's"));
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "2", "c": "3", "d": "new", "e": "user's"}));
    assert!(all.conflicts(0).is_empty());
}

#[test]
fn a_copy_at_rest_is_not_written_and_offers_nothing() {
    let mut all = Clusters::new(&json!({"a": "1"}), 1);
    assert!(!all.settle(0));
    let digest = digest(&all.copies[0]);
    assert_eq!((digest.changes, digest.ways), (Changes::None, Some(Ways::Both)));
    assert_eq!(all.copies[0]["metadata"]["annotations"].get(keys::OFFERED), None);
}

#[test]
fn nothing_goes_up_before_it_is_offered() {
    let mut all = Clusters::new(&json!({"a": "1"}), 1);
    all.owner(0, "a", Some("2"));
    assert_eq!(digest(&all.copies[0]).changes, Changes::New);
    assert_eq!(raise(&all.copies[0], &all.source), None);
    let read = all.read(0);
    assert!(all.down(0, &read));
    assert_eq!(digest(&all.copies[0]).changes, Changes::Offered);
    assert_eq!(all.copies[0]["data"]["a"], "2", "it is left alone");
    assert_eq!(raise(&all.copies[0], &all.source), Some(json!({"data": {"a": "2"}})));
}

#[test]
fn of_a_key_that_changed_on_both_sides_the_source_wins_and_the_copy_says_which_key_and_no_value() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    all.owner(0, "a", Some("theirs-and-hidden"));
    all.owner(0, "b", Some("2"));
    all.user("a", Some("ours-and-hidden"));
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "ours-and-hidden", "b": "2"}));
    assert_eq!(all.conflicts(0), ["a"]);
    let annotations = all.copies[0]["metadata"]["annotations"].to_string();
    assert!(!annotations.contains("hidden"), "{annotations}");
}

#[test]
fn the_same_change_on_both_sides_is_no_conflict() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    all.owner(0, "a", Some("2"));
    all.user("a", Some("2"));
    all.owner(0, "b", None);
    all.user("b", None);
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "2"}));
    assert!(all.conflicts(0).is_empty());
}

#[test]
fn a_second_change_of_the_copy_between_up_and_down_is_not_reverted() {
    for second in [Some("3"), Some("1"), None] {
        let mut all = Clusters::new(&json!({"a": "1"}), 1);
        all.owner(0, "a", Some("2"));
        let read = all.read(0);
        all.down(0, &read);
        let read = all.read(0);
        // The second change comes after the copy was read and before the source is written.
        all.owner(0, "a", second);
        assert!(all.up(&read));
        assert_eq!(all.value("a").as_deref(), Some("2"));
        all.settle_all();
        all.assert_equal();
        assert_eq!(all.value("a").as_deref(), second);
        assert!(all.conflicts(0).is_empty());
    }
}

#[test]
fn a_call_of_another_leader_that_was_delayed_takes_nothing_back() {
    let mut all = Clusters::new(&json!({"a": "1"}), 1);
    all.owner(0, "a", Some("2"));
    let read = all.read(0);
    all.down(0, &read);
    let delayed = all.read(0);
    all.owner(0, "a", Some("3"));
    let read = all.read(0);
    all.down(0, &read);
    // The delayed one arrives after the next value is offered: the copy still knows that "2" came from it.
    assert!(all.up(&delayed));
    all.settle_all();
    assert_eq!(all.value("a").as_deref(), Some("3"));
    assert!(!all.up(&delayed), "another version of the source");
    assert!(all.conflicts(0).is_empty());
}

#[test]
fn a_source_that_changed_since_is_carried_down_before_anything_goes_up() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    all.owner(0, "a", Some("2"));
    let read = all.read(0);
    all.down(0, &read);
    all.user("b", Some("2"));
    assert_eq!(raise(&all.copies[0], &all.source), None);
    all.settle_all();
    assert_eq!(all.source["data"], json!({"a": "2", "b": "2"}));
}

#[test]
fn a_key_can_move_to_the_other_field_in_both_directions() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    merge(&mut all.copies[0], &json!({"data": {"a": null}, "binaryData": {"a": "AAE="}}));
    all.stamp_copy(0);
    merge(&mut all.source, &json!({"data": {"b": null}, "binaryData": {"b": "AAE="}}));
    all.source["metadata"]["resourceVersion"] = json!("99");
    all.settle_all();
    for object in [&all.source, &all.copies[0]] {
        assert_eq!((&object["data"], &object["binaryData"]), (&json!({}), &json!({"a": "AAE=", "b": "AAE="})));
    }
}

#[test]
fn two_copies_of_one_source_agree_and_a_change_of_both_is_a_conflict_of_one() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1", "c": "1"}), 2);
    all.owner(0, "a", Some("left"));
    all.owner(1, "b", None);
    all.owner(0, "c", Some("left"));
    all.owner(1, "c", Some("right"));
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "left", "c": "left"}));
    assert_eq!((all.conflicts(0), all.conflicts(1)), (vec![], vec!["c".to_owned()]));
}

#[test]
fn nothing_goes_up_to_a_source_that_does_not_ask_for_it_or_must_not_be_written_from_below() {
    let changed = |asks: &Value| {
        let mut copy = copy_of(ConfigMap, asks);
        copy["data"]["a"] = json!("2");
        let offer = patch(asks, &copy);
        merge(&mut copy, &offer.unwrap_or_default());
        copy["data"]["a"] = json!("2");
        copy
    };
    let asks = shared(json!({"data": {"a": "1"}}));
    let copy = changed(&asks);
    assert!(raise(&copy, &asks).is_some());
    let other = |change: &dyn Fn(&mut Value)| {
        let mut source = asks.clone();
        change(&mut source);
        source
    };
    for (source, ways) in [
        (other(&|source| source["metadata"]["annotations"] = json!({})), None),
        (other(&|source| source["metadata"]["annotations"][keys::SYNC_DIRECTION] = json!("up")), None),
        (other(&|source| source["immutable"] = json!(true)), Some(Ways::Down(Bar::Immutable))),
        (other(&|source| source["type"] = json!("kubernetes.io/service-account-token")), Some(Ways::Down(Bar::Token))),
        (other(&|source| source["type"] = json!("bootstrap.kubernetes.io/token")), Some(Ways::Down(Bar::Token))),
    ] {
        assert_eq!(raise(&copy, &source), None, "{source}");
        // It is one-way again: what differs becomes what the source says.
        let back = followed(&source, &copy);
        assert_eq!(back["data"], json!({"a": "1"}));
        assert_eq!((digest(&back).ways, back["metadata"]["annotations"].get(keys::OFFERED)), (ways, None));
        assert_eq!(digest(&copy_of(ConfigMap, &source)).ways, ways);
    }
    let going = other(&|source| source["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"));
    assert_eq!(raise(&copy, &going), None);
    let again = other(&|source| source["metadata"]["uid"] = json!("u2"));
    assert_eq!(raise(&copy, &again), None, "a source that was made again");
}

#[test]
fn a_source_that_was_made_again_wins_over_changes_of_the_old_copy() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    all.owner(0, "a", Some("theirs"));
    all.source["metadata"]["uid"] = json!("u2");
    all.source["data"] = json!({"a": "1"});
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "1"}));
    assert_eq!(all.conflicts(0), ["a"]);
}

#[test]
fn too_many_keys_are_carried_only_down() {
    let data: Map<String, Value> = (0..8000).map(|key| (format!("key-{key:05}"), json!("x"))).collect();
    let source = shared(json!({"data": data}));
    let mut copy = copy_of(ConfigMap, &source);
    assert_eq!(digest(&copy).ways, Some(Ways::Down(Bar::TooManyKeys)));
    copy["data"]["key-00001"] = json!("theirs");
    assert_eq!(raise(&copy, &source), None);
    assert_eq!(followed(&source, &copy)["data"]["key-00001"], "x");
}

#[test]
fn without_its_marks_a_copy_keeps_what_others_added_and_the_source_wins_where_both_have_a_key() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    all.owner(0, "a", Some("theirs"));
    all.owner(0, "c", Some("added"));
    all.copies[0]["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::CARRIED);
    all.settle_all();
    all.assert_equal();
    assert_eq!(all.source["data"], json!({"a": "1", "b": "1", "c": "added"}));
    assert_eq!(all.conflicts(0), ["a"]);
}

#[test]
fn conflicts_that_are_not_yet_reported_stay_noted() {
    let mut all = Clusters::new(&json!({"a": "1", "b": "1"}), 1);
    for key in ["a", "b"] {
        all.owner(0, key, Some("theirs"));
        all.user(key, Some("ours"));
        all.settle_all();
    }
    assert_eq!(all.conflicts(0), ["a", "b"]);
}

#[test]
fn offers_of_one_key_are_bounded() {
    let mut all = Clusters::new(&json!({"a": "1"}), 1);
    for value in 0..50 {
        all.owner(0, "a", Some(&value.to_string()));
        let read = all.read(0);
        all.down(0, &read);
    }
    let offers = all.copies[0]["metadata"]["annotations"][keys::OFFERED].as_str().unwrap();
    assert!(offers.len() < 200, "{offers}");
}

#[derive(Debug, Clone)]
enum Step {
    User {
        key: usize,
        delete: bool,
    },
    Owner {
        copy: usize,
        key: usize,
        delete: bool,
    },
    /// A call reads, and keeps what it read for later.
    Read {
        copy: usize,
    },
    /// The oldest or newest of these writes.
    Down {
        newest: bool,
    },
    Up {
        newest: bool,
    },
    Settle {
        copy: usize,
    },
}

const KEYS: [&str; 3] = ["a", "b", "c"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..3usize, any::<bool>()).prop_map(|(key, delete)| Step::User { key, delete }),
        (0..2usize, 0..3usize, any::<bool>()).prop_map(|(copy, key, delete)| Step::Owner { copy, key, delete }),
        (0..2usize).prop_map(|copy| Step::Read { copy }),
        any::<bool>().prop_map(|newest| Step::Down { newest }),
        any::<bool>().prop_map(|newest| Step::Up { newest }),
        (0..2usize).prop_map(|copy| Step::Settle { copy }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Each value is written once, so that it is known whose it is: users delete "b" once, and owners "c". What was changed and
    /// changed back while no call looked is no change.
    #[test]
    fn no_change_is_lost_but_by_a_noted_conflict_and_the_source_wins(
        steps in proptest::collection::vec(step(), 1..30),
        copies in 1..=2usize,
    ) {
        let mut all = Clusters::new(&json!({"a": "0", "b": "0", "c": "0"}), copies);
        let mut reads: Vec<(usize, Read)> = Vec::new();
        // By key: who wrote last, and what each wrote last.
        let mut last: BTreeMap<&str, (Option<usize>, Option<String>)> = BTreeMap::new();
        let mut deleted = std::collections::BTreeSet::new();
        for (number, step) in steps.into_iter().enumerate() {
            let mut value = |delete: bool, key: usize| (!delete || !deleted.insert(key)).then(|| format!("v{number}"));
            match step {
                Step::User { key, delete } => {
                    let (key, value) = (KEYS[key], value(delete && key == 1, key));
                    // No client can delete what is not there.
                    if all.value(key) != value {
                        all.user(key, value.as_deref());
                        last.insert(key, (None, value));
                    }
                }
                Step::Owner { copy, key, delete } => {
                    let (copy, key, value) = (copy % copies, KEYS[key], value(delete && key == 2, key));
                    if all.copies[copy]["data"][key].as_str() != value.as_deref() {
                        all.owner(copy, key, value.as_deref());
                        last.insert(key, (Some(copy), value));
                    }
                }
                Step::Read { copy } => reads.push((copy % copies, all.read(copy % copies))),
                Step::Down { newest } | Step::Up { newest } => {
                    let at = if newest { reads.len().checked_sub(1) } else { (!reads.is_empty()).then_some(0) };
                    if let Some(at) = at {
                        let (copy, mut read) = reads.remove(at);
                        if matches!(step, Step::Up { .. }) {
                            all.up(&read);
                        } else {
                            // The gate reads the source after the copy.
                            read.source = all.source.clone();
                            all.down(copy, &read);
                        }
                    }
                }
                Step::Settle { copy } => drop(all.settle(copy % copies)),
            }
        }
        all.settle_all();
        all.assert_equal();
        for (key, (who, value)) in last {
            let conflict = (0..copies).any(|copy| all.conflicts(copy).contains(&key.to_owned()));
            let kept = all.value(key) == value;
            prop_assert!(kept || (who.is_some() && conflict), "{key}: {value:?} by {who:?} was lost: {:?}", all.source);
        }
        prop_assert!(!(0..copies).any(|copy| all.settle(copy)), "it rests");
    }
}
