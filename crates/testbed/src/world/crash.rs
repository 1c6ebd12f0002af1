//! Runs repeated many times: with many seeds, and with a crash after every single call.
//! Does not check results; the story itself does.

use std::ops::Range;

use tapestry_engine::Model;

use super::journal::Failure;
use super::schedule::{CrashAt, Schedule};

/// Runs a story once to count its calls, then again for each call and crashes the leader right after it, before it gets the
/// answer: once with all other calls in flight lost, once with all of them arriving later. Returns how many calls there were.
///
/// `make` must give the same run each time; `story` runs it, lets it converge and checks what must be true then (law 8).
pub fn exhaustive_crash<M: Model>(
    make: impl Fn() -> Schedule<M>,
    story: impl Fn(&mut Schedule<M>) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let mut whole = make();
    story(&mut whole)?;
    let calls = whole.executed();
    for call in 1..=calls {
        for escape in [false, true] {
            let mut run = make();
            run.crash_at(CrashAt { call, escape });
            story(&mut run).map_err(|failure| {
                let others = if escape { "arrive later" } else { "are lost" };
                let why = format!("crash after call {call} of {calls}, the others in flight {others}: {}", failure.why);
                Failure { why, ..failure }
            })?;
        }
    }
    Ok(calls)
}

/// Runs a story with each seed and stops at the first that fails.
pub fn explore(seeds: Range<u64>, mut story: impl FnMut(u64) -> Result<(), Failure>) -> Result<(), Failure> {
    seeds.into_iter().try_for_each(&mut story)
}
