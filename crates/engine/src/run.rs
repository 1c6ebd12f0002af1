//! The loop: facts from mailboxes, calls through a gate, time from a clock, all met at one desk in one task.
//! Holds no lock and knows no model.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tapestry_cluster::Gate;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::{Desk, Model};

/// Where a loop's facts wait; `bell` is rung when there are some.
pub trait Inbox<S> {
    /// Takes all that wait.
    fn drain(&mut self, into: &mut Vec<S>);
    /// Rung by every writer.
    fn bell(&self) -> Arc<Notify>;
}

/// How often everything is looked at again although nothing seems to have changed.
pub const REPLAN_EVERY: Duration = Duration::from_mins(10);

/// Runs until cancelled, then waits for the calls in flight: each has a deadline. `show` is for metrics and readiness.
pub async fn run<M: Model>(
    mut desk: Desk<M>,
    gate: Arc<dyn Gate>,
    mut inbox: impl Inbox<M::Seen>,
    clock: Arc<dyn Clock>,
    mut show: impl FnMut(&Desk<M>),
    cancel: CancellationToken,
) -> Desk<M> {
    let bell = inbox.bell();
    let mut calls = FuturesUnordered::new();
    let mut facts = Vec::new();
    let mut replan_at = jittered(REPLAN_EVERY);
    loop {
        inbox.drain(&mut facts);
        let now = clock.now();
        for fact in facts.drain(..) {
            desk.see(fact, now);
        }
        if now.steady >= replan_at {
            desk.replan();
            replan_at = now.steady + jittered(REPLAN_EVERY);
        }
        while let Some((key, call)) = (!cancel.is_cancelled()).then(|| desk.next(now)).flatten() {
            let call = Arc::new(call);
            let answer = gate.call(Arc::clone(&call));
            calls.push(async move { (key, call, answer.await) });
        }
        show(&desk);
        if cancel.is_cancelled() && calls.is_empty() {
            return desk;
        }
        let wake = desk.wake_at(now).map_or(replan_at, |at| at.min(replan_at)).saturating_sub(now.steady);
        tokio::select! {
            Some((key, call, done)) = calls.next() => desk.done(&key, &call, done, clock.now()),
            () = bell.notified() => {}
            () = tokio::time::sleep(wake), if !cancel.is_cancelled() => {}
            () = cancel.cancelled(), if !cancel.is_cancelled() => {}
        }
    }
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + fastrand::f64() * 0.4)
}
