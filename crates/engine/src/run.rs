//! The loop: facts from mailboxes, calls through a gate, time from a clock, at one desk in one task. Without leadership it only
//! reads.
//! Holds no lock and knows no model.

use std::sync::Arc;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use jiff::SignedDuration;
use tapestry_cluster::watches::WatchSet;
use tapestry_cluster::{Gate, Lead};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::lead::Leadership;
use crate::{Desk, Model, Now};

/// Where a loop's facts wait; `bell` rings when there are some.
pub trait Inbox<S> {
    /// Takes all that wait.
    fn drain(&mut self, into: &mut Vec<S>);
    /// Every writer rings it.
    fn bell(&self) -> Arc<Notify>;
}

impl<F: 'static> Inbox<F> for WatchSet<F> {
    fn drain(&mut self, into: &mut Vec<F>) {
        Self::drain(self, into);
    }

    fn bell(&self) -> Arc<Notify> {
        Self::bell(self)
    }
}

/// How often every key is planned again although nothing seems to have changed.
pub const REPLAN_EVERY: Duration = Duration::from_mins(10);
/// How often we read the clock while nothing happens. The loop acts on a window's edge within a second, also when the clock
/// was set just before it: half a second to notice, a fifth that is not noticed, the rest to plan.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How far wall time may move against steady time before every key is planned again.
const JUMP: Duration = Duration::from_millis(200);
/// Two readings of the clock this far apart mean that the process was frozen in between: they should be half a second apart,
/// or a little more on a busy machine or after a long plan.
const FROZEN: Duration = Duration::from_secs(3);

/// Runs until cancelled, then waits for the calls in flight: each has a deadline. `show` is for metrics and readiness.
pub async fn run<M: Model>(
    mut desk: Desk<M>,
    gate: Arc<dyn Gate>,
    mut inbox: impl Inbox<M::Fact>,
    clock: Arc<dyn Clock>,
    mut leadership: Leadership,
    mut show: impl FnMut(&Desk<M>),
    cancel: CancellationToken,
) -> Desk<M> {
    let bell = inbox.bell();
    let mut calls = FuturesUnordered::new();
    let mut facts = Vec::new();
    let mut replan_at = jittered(REPLAN_EVERY);
    // Waits were computed with this offset, not with that of the last reading: many small moves add up to a jump.
    let mut ahead = clock.now().ahead();
    let mut term = None;
    // When we last read the clock, in steady time.
    let mut looked = clock.now().steady;
    desk.follow();
    loop {
        inbox.drain(&mut facts);
        let now = clock.now();
        let asleep = now.steady.saturating_sub(std::mem::replace(&mut looked, now.steady));
        if asleep > FROZEN {
            tracing::info!(
                seconds = asleep.as_secs(),
                "the process did not run for a while: planning everything again"
            );
            desk.gap(now);
        }
        for fact in facts.drain(..) {
            desk.see(fact, now);
        }
        // After the facts, so that the first plans of a term see all of them.
        let lead = leadership.lead();
        if lead.as_ref().map(Lead::term) != term {
            term = lead.as_ref().map(Lead::term);
            desk.follow();
            match lead.as_ref().map(|lead| leadership.why_stand_in(lead)) {
                Some(Some(why)) => desk.stand_in(&why, now),
                Some(None) => desk.lead(now),
                None => {}
            }
        }
        if has_jumped(ahead, now) {
            tracing::info!(by = ?now.ahead().saturating_sub(ahead), "the clock was set: planning everything again");
            ahead = now.ahead();
            desk.urge_all();
        }
        if now.steady >= replan_at {
            desk.replan();
            replan_at = now.steady + jittered(REPLAN_EVERY);
        }
        while let Some(lead) = lead.as_ref().filter(|_| !cancel.is_cancelled()) {
            let Some((key, why, call)) = desk.next(now) else { break };
            let call = Arc::new(call);
            let answer = gate.call(Arc::clone(&call), lead.clone());
            calls.push(async move { (key, why, call, answer.await) });
        }
        show(&desk);
        if cancel.is_cancelled() && calls.is_empty() {
            return desk;
        }
        let wake = desk.wake_at(now).map_or(replan_at, |at| at.min(replan_at));
        tokio::select! {
            Some(first) = calls.next() => {
                // Answers come in groups, and a turn of the loop costs more than settling one.
                let mut answered = Some(first);
                while let Some((key, why, call, done)) = answered {
                    desk.done(&key, why, &call, done, clock.now());
                    answered = calls.next().now_or_never().flatten();
                }
            }
            () = bell.notified() => {}
            () = leadership.changed() => {}
            () = sleep_until(wake, ahead, &mut looked, &*clock), if !cancel.is_cancelled() => {}
            () = cancel.cancelled(), if !cancel.is_cancelled() => {}
        }
    }
}

/// Sleeps until this steady time, until the clock jumps, or until a reading of it comes far too late. Does nothing else
/// between readings.
async fn sleep_until(wake: Duration, ahead: SignedDuration, looked: &mut Duration, clock: &dyn Clock) {
    loop {
        // Read it again: planning took time, and the timer below stops while the machine sleeps.
        let now = clock.now();
        let left = wake.saturating_sub(now.steady);
        if left.is_zero() || has_jumped(ahead, now) || now.steady.saturating_sub(*looked) > FROZEN {
            return;
        }
        *looked = now.steady;
        tokio::time::sleep(left.min(LOOK_EVERY)).await;
    }
}

fn has_jumped(ahead: SignedDuration, now: Now) -> bool {
    now.ahead().saturating_sub(ahead).unsigned_abs() > JUMP
}

fn jittered(every: Duration) -> Duration {
    every.mul_f64(0.8 + fastrand::f64() * 0.4)
}

#[cfg(test)]
mod tests;
