//! The life of a syncer: the election, the keeper and the work beside each other, each in tasks of its own.
//! The work may fail and start again; the keeper goes on meanwhile. Decides nothing about objects.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tapestry_cluster::connect::ConnectError;
use tapestry_cluster::gate::LiveGate;
use tapestry_engine::Desk;
use tapestry_engine::lead::{Leadership, campaign};
use tapestry_engine::run::run;
use tapestry_engine::tasks::work_with;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::supervise::{BACKOFF, KEEPER_BACKOFF, Part};
use super::{AGAIN, Physical, RunError, StartError, Syncer, entropy};
use crate::keeper::inbox::{KeeperInbox, Told};
use crate::keeper::{Keeper, Trouble, Work};
use crate::pair::Pair;
use crate::watches::Watches;

impl Syncer {
    /// Serves the binding until cancelled. While its physical cluster cannot be used, keeps its nodes alive and tries again.
    /// No new calls once cancelled, those in flight are waited for, and then leadership is given back. The same when the
    /// election ends before its time or the binding is another one, and then that is the error.
    pub async fn serve(self) -> Result<(), RunError> {
        let span = self.span.clone();
        Arc::new(self).serve_all().instrument(span).await
    }

    async fn serve_all(self: Arc<Self>) -> Result<(), RunError> {
        let (mut office, resign, stop) = (JoinSet::new(), CancellationToken::new(), self.cancel.child_token());
        let leadership = self.seat.clone().map_or_else(Leadership::always, |seat| {
            let _guard = self.vital.enter();
            // Renewals have connections of their own; a configuration that built a client before builds another one.
            let apart = self.virtual_cluster.apart().unwrap_or_else(|_| self.virtual_cluster.clone());
            let gate = Arc::new(LiveGate::to_virtual(apart.clone(), self.meters.calls.clone()));
            campaign(seat, apart, gate, Arc::clone(&self.clock), self.meters.pulse.clone(), &mut office, &resign)
        });
        let both = async {
            let (kept, worked) = tokio::join!(self.keep(&leadership, &stop), self.toil(&leadership, &stop));
            worked.and(kept)
        };
        let served = work_with(both, vec![("the election", &mut office)], &stop).await;
        resign.cancel();
        while office.join_next().await.is_some() {}
        tracing::info!("syncer stopped");
        served?
    }

    /// The keeper, in a runtime that the work cannot stall.
    async fn keep(self: &Arc<Self>, leadership: &Leadership, stop: &CancellationToken) -> Result<(), RunError> {
        let part = Part { name: "keeper", backoff: KEEPER_BACKOFF, runtime: &self.vital, stop };
        let begin = || Arc::clone(self).keep_once(leadership.clone(), stop.child_token());
        let failed = || self.kept.set(Some("lease keeper failed; restarting".to_owned()));
        let kept = part.supervise(begin, failed).await;
        stop.cancel();
        kept
    }

    async fn keep_once(self: Arc<Self>, leadership: Leadership, stop: CancellationToken) -> Result<(), RunError> {
        let mut tasks = JoinSet::new();
        let cluster = self.virtual_cluster.apart().unwrap_or_else(|_| self.virtual_cluster.clone());
        let told = Told { work: self.work.subscribe(), kubeconfig: self.kubeconfig.subscribe() };
        let pulse = self.meters.pulse.clone();
        let inbox = KeeperInbox::open(&self.name, &self.origin, &cluster, told, pulse, &stop, &mut tasks);
        let gate = Arc::new(LiveGate::to_virtual(cluster, self.meters.calls.clone()));
        let desk = Desk::new(Keeper::new(self.origin.clone(), &self.uid), fastrand::u64(..));
        let (ends, shown) = (stop.clone(), Arc::clone(&self));
        let show = move |desk: &Desk<Keeper>| {
            shown.kept.set(desk.model.lacks());
            if let Some(generation) = desk.model.generation() {
                shown.generation.send_if_modified(|known| std::mem::replace(known, generation) != generation);
            }
            if desk.model.replaced() {
                ends.cancel();
            }
        };
        // Renewing twice does no harm, and not at all ends pods.
        let leadership = leadership.or_stand_in();
        let work = run(desk, gate, inbox, Arc::clone(&self.clock), leadership, show, stop.clone());
        let worked = work_with(Box::pin(work), vec![("the keeper's watches and probe", &mut tasks)], &stop).await;
        tasks.shutdown().await;
        match worked? {
            desk if desk.model.replaced() => Err(RunError::Start(StartError::Replaced(self.name.clone()))),
            _ => Ok(()),
        }
    }

    /// The work, started again when it fails.
    async fn toil(self: &Arc<Self>, leadership: &Leadership, stop: &CancellationToken) -> Result<(), RunError> {
        let runtime = tokio::runtime::Handle::current();
        let part = Part { name: "work", backoff: BACKOFF, runtime: &runtime, stop };
        let begin = || Arc::clone(self).live(leadership.clone(), stop.child_token());
        let toiled = part.supervise(begin, || {
            self.ready.set(Some("a part of the syncer failed; restarting it".to_owned()));
            let message = "a part of the syncer failed unexpectedly: only the Leases of the nodes are renewed until it has started \
                           again, which it does by itself; if this recurs, report it with the syncer's log";
            let trouble = Trouble { reason: "SyncerPanicked", message: message.to_owned(), generation: None };
            self.work.send_replace(Work::Stopped(trouble));
        });
        let toiled = toiled.await;
        stop.cancel();
        toiled
    }

    async fn live(self: Arc<Self>, leadership: Leadership, stop: CancellationToken) -> Result<(), RunError> {
        match stop.run_until_cancelled(self.connect_in_time()).await.transpose()? {
            Some(physical) => Arc::clone(&self).work(physical, leadership, stop).await?,
            None => return Ok(()),
        }
        if self.replaced.load(Ordering::Relaxed) {
            return Err(RunError::Start(StartError::Replaced(self.name.clone())));
        }
        Ok(())
    }

    /// Connects the physical cluster, however long that takes; says why it takes long.
    async fn connect_in_time(&self) -> Result<Physical, RunError> {
        let mut wait = AGAIN.0;
        loop {
            let row = match self.confirm_home().await {
                Ok(()) => self.read_own_binding().await,
                Err(why) => Err(why),
            };
            let (why, generation) = match row {
                Ok(row) => match self.connect_as(&row).await {
                    Ok(physical) => return Ok(physical),
                    Err(why) => (why, Some(row.generation())),
                },
                Err(replaced @ StartError::Replaced(_)) => return Err(RunError::Start(replaced)),
                Err(why) => (why, None),
            };
            let trouble = Trouble { reason: why.reason(), message: why.told(), generation };
            self.ready.set(Some(trouble.message.clone()));
            // When the virtual cluster does not answer, that says nothing of what was wrong before.
            let unanswered =
                matches!(why, StartError::Unanswered { .. } | StartError::ConnectVirtual(ConnectError::Unreachable(_)));
            if !unanswered && !self.work.borrow().stopped_for(&trouble) {
                tracing::error!(
                    reason = trouble.reason,
                    cause = trouble.message,
                    "the syncer cannot work yet: only Leases are renewed"
                );
                self.work.send_replace(Work::Stopped(trouble));
                wait = AGAIN.0;
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        }
    }

    async fn work(
        self: Arc<Self>,
        Physical { cluster, home, digest }: Physical,
        leadership: Leadership,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        tracing::info!(cluster = cluster.name(), mount = %home.mount, "syncer starts");
        let mut tasks = JoinSet::new();
        let pair = Pair::new(self.origin.clone(), home.clone(), &self.uid, Box::new(entropy));
        let gate = LiveGate::new(self.virtual_cluster.clone(), cluster.clone(), self.meters.calls.clone());
        let follow = Arc::clone(&self).follow_kubeconfig(cluster.clone(), digest, stop.clone());
        tasks.spawn(follow.in_current_span());
        let clusters = [self.virtual_cluster.clone(), cluster];
        let inbox = Watches::open(self.scope(&home), &clusters, self.meters.pulse.clone(), &stop, &mut tasks);
        let desk = Desk::new(pair, fastrand::u64(..));
        self.work.send_if_modified(Work::start);
        let shown = Arc::clone(&self);
        let show = move |desk: &Desk<Pair>| {
            shown.show(desk);
            if desk.model.ready() {
                shown.work.send_if_modified(Work::go);
            }
        };
        let clock = Arc::clone(&self.clock);
        let work = Box::pin(run(desk, Arc::new(gate), inbox, clock, leadership, show, stop.clone()));
        let worked = work_with(work, vec![("the watches and probes", &mut tasks)], &stop).await;
        tasks.shutdown().await;
        Ok(worked.map(drop)?)
    }
}
