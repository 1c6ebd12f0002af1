//! Which reader gets the state of which watch.

use super::*;
use crate::{Rv, Uid, kind};

#[derive(Clone)]
struct Nothing(Uid, Rv);

impl Row for Nothing {
    fn uid(&self) -> &Uid {
        &self.0
    }
    fn rv(&self) -> Rv {
        self.1
    }
    fn deleting(&self) -> bool {
        false
    }
}

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
    let watched = Watched { reader: Reader::Keeper, side: Side::Virtual, kind: &kind::NODE };
    let feed: Arc<Feed<Nothing>> = Arc::default();
    let watching = Arc::new(Watching { watched, feed, state: Mutex::new(WatchState::InSync) });
    all.watch(&watching);
    assert_eq!(drained(&mut syncer), []);
    let state = WatchState::OutOfSync(Trouble { verb: "watch", why: "forbidden".to_owned() });
    *watching.state.lock().unwrap() = state.clone();
    assert_eq!(drained(&mut syncer), [(watched, state)]);
    assert_eq!(drained(&mut syncer), [], "told twice");
    assert_eq!(drained(&mut keeper), [], "a reader that others must not stop learns only of its own watches");
    drop(watching);
    assert_eq!(drained(&mut syncer), [(watched, WatchState::InSync)], "the keeper has started again");
}
