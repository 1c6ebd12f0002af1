//! Which reader gets the state of which watch, and what readers get of one that they share.

mod stub;

use prometheus_client::registry::Registry;

use super::*;
use crate::kind;
use stub::{Stub, Thing, connect, decode};

/// How long anything may take.
const SOON: Duration = Duration::from_secs(20);

type Told = (Watched, WatchState);

fn set(reader: Reader, all: &Pulse, tasks: &mut JoinSet<()>) -> WatchSet<Told> {
    let wrap = Wrap { state: |watched, state| Some((watched, state)), connection: |_, _| None };
    WatchSet::new(reader, wrap, all.clone(), CancellationToken::new(), tasks)
}

fn drained(set: &mut WatchSet<Told>) -> Vec<Told> {
    let mut told = Vec::new();
    set.drain(&mut told);
    told
}

#[tokio::test]
async fn the_syncer_learns_when_a_watch_of_the_keeper_goes_out_of_sync_and_when_that_is_over() {
    let (all, mut tasks) = (Pulse::default(), JoinSet::new());
    let (mut syncer, mut keeper) = (set(Reader::Syncer, &all, &mut tasks), set(Reader::Keeper, &all, &mut tasks));
    let source = Source::new(connect("127.0.0.1:1").await, Query::all(&kind::NODE));
    let watched = Watched { reader: Reader::Keeper, side: Side::Virtual, query: Arc::clone(source.query()) };
    let watching = Watching { watched: watched.clone(), source, state: Mutex::new(WatchState::InSync) };
    let watching = Arc::new(watching);
    all.watch(&watching);
    assert_eq!(drained(&mut syncer), []);
    let state = WatchState::OutOfSync(Trouble { verb: "watch", why: "forbidden".to_owned() });
    *watching.state.lock().unwrap() = state.clone();
    assert_eq!(drained(&mut syncer), [(watched.clone(), state)]);
    assert_eq!(drained(&mut syncer), [], "told twice");
    assert_eq!(drained(&mut keeper), [], "a reader that others must not stop learns only of its own watches");
    drop(watching);
    assert_eq!(drained(&mut syncer), [(watched, WatchState::InSync)], "the keeper has started again");
}

#[tokio::test]
async fn a_watch_that_is_removed_or_replaced_while_it_is_out_of_sync_does_not_stay_so() {
    let mut tasks = JoinSet::new();
    let mut syncer = set(Reader::Syncer, &Pulse::default(), &mut tasks);
    let source = Source::new(connect("127.0.0.1:1").await, Query::all(&kind::NODE));
    let state = WatchState::OutOfSync(Trouble { verb: "watch", why: "forbidden".to_owned() });
    let share = |set: &mut WatchSet<Told>, state: &WatchState| {
        let watched = set.share((Side::Virtual, &source), decode, |_| panic!("nothing comes"));
        *set.entries[&watched].watching.state.lock().unwrap() = state.clone();
        watched
    };
    let watched = share(&mut syncer, &state);
    assert_eq!(drained(&mut syncer), [(watched.clone(), state.clone())]);
    share(&mut syncer, &WatchState::Starting);
    assert_eq!(drained(&mut syncer), [(watched.clone(), WatchState::Starting)]);
    share(&mut syncer, &state);
    assert_eq!(drained(&mut syncer), [(watched.clone(), state)]);
    syncer.remove(&watched);
    assert_eq!(drained(&mut syncer), [(watched, WatchState::InSync)]);
    assert_eq!(drained(&mut syncer), []);
}

/// A loop that reads things; facts are the changes themselves.
struct Loop {
    set: WatchSet<Change<Thing>>,
    tasks: JoinSet<()>,
}

impl Loop {
    fn start(pulse: &Pulse) -> Self {
        let mut tasks = JoinSet::new();
        let wrap = Wrap { state: |_, _| None, connection: |_, _| None };
        let set = WatchSet::new(Reader::Syncer, wrap, pulse.clone(), CancellationToken::new(), &mut tasks);
        Self { set, tasks }
    }

    fn share(&mut self, source: &Arc<Source>) -> Watched {
        self.set.share((Side::Virtual, source), decode, std::convert::identity)
    }

    /// What it is told up to and with this: the names of things that are there, or `listed`.
    async fn told_until(&mut self, awaited: &str) -> Vec<String> {
        let (bell, mut told) = (self.set.bell(), Vec::new());
        let all = async {
            loop {
                let mut changes = Vec::new();
                self.set.drain(&mut changes);
                told.extend(changes.into_iter().filter_map(|change| match change {
                    Change::Put(thing, _) => Some(thing.name),
                    Change::Listed(_) => Some("listed".to_owned()),
                    _ => None,
                }));
                if told.iter().any(|name| name == awaited) {
                    return;
                }
                bell.notified().await;
            }
        };
        let done = tokio::time::timeout(SOON, all).await;
        assert!(done.is_ok(), "never told {awaited}, but {told:?}");
        told
    }
}

#[tokio::test]
async fn one_watch_serves_several_loops_and_a_late_one_gets_a_complete_list_first() {
    let stub = Stub::start().await;
    stub.put("a");
    let sources = Sources::new(stub.cluster().await);
    let query = Query::all(&kind::NODE);
    let (mut early, mut late) = (Loop::start(&Pulse::default()), Loop::start(&Pulse::default()));
    early.share(&sources.of(&query));
    assert_eq!(early.told_until("listed").await, ["a", "listed"]);
    stub.put("b");
    assert_eq!(early.told_until("b").await, ["b"]);

    late.share(&sources.of(&query));
    assert_eq!(late.told_until("listed").await, ["a", "b", "listed"]);
    stub.put("c");
    assert_eq!(late.told_until("c").await, ["c"]);
    early.told_until("c").await;
    stub.until_open(1).await;
}

#[tokio::test]
async fn a_watch_of_metadata_is_not_shared_with_a_watch_of_whole_objects() {
    let sources = Sources::new(connect("127.0.0.1:1").await);
    let whole = Query::all(&kind::SECRET);
    let metadata = Query { metadata_only: true, ..whole.clone() };
    let (first, second) = (sources.of(&whole), sources.of(&metadata));
    assert!(!Arc::ptr_eq(&first, &second) && second.query().metadata_only);
    assert!(Arc::ptr_eq(&second, &sources.of(&metadata)));
}

#[tokio::test]
async fn a_shared_watch_ends_with_its_last_reader() {
    let stub = Stub::start().await;
    let sources = Sources::new(stub.cluster().await);
    let query = Query::all(&kind::NODE);
    let (mut one, mut other) = (Loop::start(&Pulse::default()), Loop::start(&Pulse::default()));
    let watched = one.share(&sources.of(&query));
    other.share(&sources.of(&query));
    one.told_until("listed").await;
    other.told_until("listed").await;
    one.set.remove(&watched);
    stub.put("a");
    // The other one reads on.
    other.told_until("a").await;
    stub.until_open(1).await;
    drop(other);
    stub.until_open(0).await;
    assert_eq!(one.tasks.len(), 1, "a watch that was removed costs nothing: only the look at all of them is left");
    one.share(&sources.of(&query));
    assert_eq!(one.told_until("listed").await, ["a", "listed"], "a new watch");
}

#[tokio::test]
async fn watches_of_one_kind_with_different_queries_coexist_and_share_their_metrics() {
    let stub = Stub::start().await;
    stub.put("a");
    let mut registry = Registry::default();
    let pulses = Pulses::register(&mut registry);
    let (mut east, mut west) = (Loop::start(&pulses.of(&"east".into())), Loop::start(&pulses.of(&"west".into())));
    let cluster = stub.cluster().await;
    let add = |reads: &mut Loop, labels: &str| {
        let query = Query { labels: labels.to_owned(), ..Query::all(&kind::NODE) };
        reads.set.add(cluster.clone(), (Side::Virtual, query), decode, std::convert::identity)
    };
    let first = add(&mut east, "x=1");
    assert_eq!(east.told_until("listed").await, ["a", "listed"]);
    let second = add(&mut east, "x=2");
    assert_ne!(first, second);
    assert_eq!(east.told_until("listed").await, ["a", "listed"]);
    add(&mut west, "x=1");
    west.told_until("listed").await;
    stub.until_open(3).await;

    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for binding in ["east", "west"] {
        let line =
            format!("watch_in_sync{{binding=\"{binding}\",side=\"virtual\",resource=\"nodes\",reader=\"syncer\"}} 1");
        assert_eq!(text.lines().filter(|found| found.starts_with(&line)).count(), 1, "{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("# TYPE")).count(), 3, "{text}");

    east.set.remove(&first);
    stub.until_open(2).await;
    stub.put("b");
    assert_eq!(east.told_until("b").await, ["b"], "of the one that is left");
}

#[tokio::test]
async fn a_loop_is_told_that_a_watch_of_it_panicked() {
    let stub = Stub::start().await;
    stub.put("a");
    let mut reads = Loop::start(&Pulse::default());
    let broken = |_: &Bytes| -> Result<Option<Thing>, serde_json::Error> { panic!("a row that cannot be") };
    let query = Query::all(&kind::NODE);
    reads.set.add(stub.cluster().await, (Side::Virtual, query), broken, std::convert::identity);
    let ended = tokio::time::timeout(SOON, reads.tasks.join_next()).await;
    assert!(matches!(ended, Ok(Some(Ok(())))), "{ended:?}");
}
