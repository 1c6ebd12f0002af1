//! What readers are told, however late they come and however slow they are.

use serde::Deserialize as _;

use super::*;

#[derive(Debug, Clone, PartialEq)]
struct Thing(Uid, u64);

impl Row for Thing {
    fn uid(&self) -> &Uid {
        &self.0
    }
    fn rv(&self) -> Rv {
        Rv::new(self.1)
    }
    fn deleting(&self) -> bool {
        false
    }
}

fn put(uid: &str, rv: u64) -> Change<Thing> {
    put_in(uid, rv, 1)
}

fn put_in(uid: &str, rv: u64, epoch: u32) -> Change<Thing> {
    Change::Put(Thing(Uid::new(uid), rv), Epoch(epoch))
}

/// `["a", 7]`.
fn decode(object: &Bytes) -> Result<Option<Thing>, serde_json::Error> {
    let (uid, rv) = <(String, u64)>::deserialize(&mut serde_json::Deserializer::from_slice(object))?;
    Ok(Some(Thing(Uid::new(uid), rv)))
}

fn object(uid: &str, rv: u64) -> Bytes {
    Bytes::from(serde_json::json!([uid, rv]).to_string())
}

impl Feed {
    fn put(&self, uid: &str, rv: u64, epoch: u32) -> Offered {
        self.offer(&object(uid, rv), false, Epoch(epoch))
    }
}

#[test]
fn law_11_a_mailbox_holds_the_latest_change_of_each_object_and_no_more() {
    let feed = Feed::default();
    let (slow, quick) = (feed.subscribe(decode, Arc::default()), feed.subscribe(decode, Arc::default()));
    feed.begin();
    for rv in 0..1000 {
        feed.put("a", rv, 1);
        feed.put("b", rv, 1);
        assert_eq!(quick.drain().len(), 2);
    }
    feed.tell(Word::Listed(Epoch(1)));
    assert_eq!(slow.depth(), 2);
    assert_eq!(slow.drain(), [put("a", 999), put("b", 999), Change::Listed(Epoch(1))]);
    assert!(slow.drain().is_empty());
}

#[test]
fn a_reached_version_is_delivered_once_and_after_everything_that_it_covers() {
    let feed = Feed::default();
    let mailbox = feed.subscribe(decode, Arc::default());
    feed.begin();
    for rv in 1..4 {
        feed.tell(Word::Reached(Rv::new(rv)));
        feed.put("a", rv, 1);
    }
    feed.tell(Word::Listed(Epoch(1)));
    let told = [put("a", 3), Change::Listed(Epoch(1)), Change::Reached(Rv::new(3))];
    assert_eq!(mailbox.drain(), told);
    assert!(mailbox.drain().is_empty());
}

#[test]
fn a_reader_that_left_is_forgotten_and_nothing_is_decoded_for_it() {
    let feed = Feed::default();
    let decoded = Arc::new(Mutex::new(0));
    let count = Arc::clone(&decoded);
    let counting = move |object: &Bytes| {
        *count.lock().unwrap() += 1;
        decode(object)
    };
    let (left, stays) = (feed.subscribe(counting, Arc::default()), feed.subscribe(decode, Arc::default()));
    feed.begin();
    feed.put("a", 1, 1);
    drop(left);
    feed.put("a", 2, 1);
    assert_eq!(*decoded.lock().unwrap(), 1);
    assert_eq!((feed.readers().len(), Arc::strong_count(&decoded)), (1, 1));
    assert_eq!(stays.drain(), [put("a", 2)]);
}

#[test]
fn a_reader_that_joins_during_a_list_gets_nothing_before_a_complete_list() {
    let feed = Feed::default();
    let early = feed.subscribe(decode, Arc::default());
    assert!(feed.begin(), "a list for a new reader");
    feed.put("a", 1, 1);
    let late = feed.subscribe(decode, Arc::default());
    feed.put("b", 2, 1);
    feed.tell(Word::Listed(Epoch(1)));
    feed.tell(Word::Reached(Rv::new(2)));
    feed.put("c", 3, 1);
    assert_eq!(late.drain(), [], "its list has not begun");
    assert_eq!(early.drain().len(), 5);
    assert!(feed.new_reader().now_or_never().is_some(), "the watch is told of it");

    assert!(feed.begin());
    feed.put("b", 2, 2);
    feed.tell(Word::Listed(Epoch(2)));
    let list = [put_in("b", 2, 2), Change::Listed(Epoch(2))];
    assert_eq!((early.drain(), late.drain()), (list.to_vec(), list.to_vec()));
    feed.put("d", 4, 2);
    assert_eq!(late.drain(), [put_in("d", 4, 2)], "then what happens");
    assert!(!feed.begin(), "all are served");
    assert!(feed.new_reader().now_or_never().is_none());
}

#[test]
fn each_reader_keeps_rows_of_its_own_and_what_one_cannot_read_the_others_can() {
    #[derive(Debug, PartialEq)]
    struct Even(Thing);
    impl Row for Even {
        fn uid(&self) -> &Uid {
            self.0.uid()
        }
        fn rv(&self) -> Rv {
            self.0.rv()
        }
        fn deleting(&self) -> bool {
            true
        }
        fn unreadable(&self) -> bool {
            self.0.1 == 4
        }
    }
    let even = |object: &Bytes| match decode(object)? {
        Some(Thing(_, 7)) => Err(serde::de::Error::custom("not seven")),
        thing => Ok(thing.filter(|thing| thing.1 % 2 == 0).map(Even)),
    };
    let feed = Feed::default();
    let (all, even) = (feed.subscribe(decode, Arc::default()), feed.subscribe(even, Arc::default()));
    feed.begin();
    let seen = |offered: &Offered| offered.outline.as_ref().map(|outline| (outline.rv, outline.unreadable));
    assert_eq!(seen(&feed.put("a", 4, 1)), Some((Rv::new(4), true)), "one of them sees no more than its outline");
    assert_eq!(seen(&feed.put("b", 5, 1)), Some((Rv::new(5), false)));
    let bad = feed.put("c", 7, 1);
    assert!(bad.bad.is_some() && seen(&bad) == Some((Rv::new(7), false)));
    assert_eq!(all.drain(), [put("a", 4), put("b", 5), put("c", 7)]);
    assert_eq!(even.drain(), [Change::Put(Even(Thing(Uid::new("a"), 4)), Epoch(1))]);
    feed.offer(&object("a", 8), true, Epoch(1));
    assert_eq!(all.drain(), [Change::Gone { row: Thing(Uid::new("a"), 8), proven: false }]);
    assert_eq!(even.drain(), [Change::Gone { row: Even(Thing(Uid::new("a"), 8)), proven: true }]);
}
