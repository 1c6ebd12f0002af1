//! One load carried by one subject: pods are raised and measured, cleared and measured.
//! Must leave both clusters as empty as it found them.

use std::time::{Duration, Instant};

use anyhow::Result;
use tapestry_testbed::audit::Requests;
use tokio::time::sleep;

use crate::figures::{Calls, Cleared, Cost, Raised, Scene, Who};
use crate::load::Load;
use crate::machine::Reading;
use crate::stage::Stage;
use crate::subject::Subject;
use crate::work::Work;

/// After the last pod: what the subject still does about them counts too.
const AFTERMATH: Duration = Duration::from_secs(1);

/// Plays one load.
pub(crate) async fn play(stage: &Stage, who: Who, load: Load, run: u32) -> Result<Scene> {
    stage.set_round_trip(Duration::from_millis(load.rtt_ms));
    load.create_sources(run, &stage.clients[0]).await?;
    let subject = stage.start(who).await?;
    let played = async {
        let raised = raise(stage, &subject, load, run).await?;
        let cleared = clear(stage, &subject, load, run).await?;
        anyhow::Ok(Scene { load, who, raised, cleared })
    };
    let scene = played.await.map_err(|error| subject.blame(error))?;
    subject.stop().await?;
    load.delete_sources(run, &stage.clients[0]).await?;
    Ok(scene)
}

/// Creates the pods and waits until all of them run, seen from the virtual side.
pub(crate) async fn raise(stage: &Stage, subject: &Subject<'_>, load: Load, run: u32) -> Result<Raised> {
    let phase = Phase::begin(stage, subject).await?;
    let begin = load.create(run, &stage.clients[0], &stage.vnodes, &stage.observers).await?;
    let pods = stage.observers.all_running(load.deadline()).await?;
    let (calls, cost) = phase.end(load.pods).await?;
    Ok(Raised::new(begin, &pods, calls, cost))
}

/// Deletes the pods and waits until none is left on either side, and no copy of what they named.
pub(crate) async fn clear(stage: &Stage, subject: &Subject<'_>, load: Load, run: u32) -> Result<Cleared> {
    let phase = Phase::begin(stage, subject).await?;
    let begin = Instant::now();
    load.delete(run, &stage.clients[0]).await?;
    stage.observers.all_gone(load.deadline()).await?;
    let took = begin.elapsed();
    let (calls, cost) = phase.end(load.pods).await?;
    stage.is_empty().await?;
    Ok(Cleared::new(load.pods, took, calls, cost))
}

/// A time in which requests and processor time are counted.
pub(crate) struct Phase<'a> {
    stage: &'a Stage,
    subject: &'a Subject<'a>,
    marks: [tapestry_testbed::audit::Mark; 2],
    worked: [Work; 2],
    before: Reading,
}

impl<'a> Phase<'a> {
    pub(crate) async fn begin(stage: &'a Stage, subject: &'a Subject<'a>) -> Result<Self> {
        let marks = stage.mark().await?;
        // Reading them costs the API servers time: before and after what is measured.
        let worked = stage.work().await?;
        let before = stage.processes(subject)?.read()?;
        Ok(Self { stage, subject, marks, worked, before })
    }

    async fn end(self, pods: u32) -> Result<(Calls, Cost)> {
        sleep(AFTERMATH).await;
        self.close(pods).await
    }

    /// Ends it now.
    pub(crate) async fn close(self, pods: u32) -> Result<(Calls, Cost)> {
        let (calls, cost, _) = self.tell_all(pods).await?;
        Ok((calls, cost))
    }

    /// Ends it now; gives every request besides, by side.
    pub(crate) async fn tell_all(self, pods: u32) -> Result<(Calls, Cost, [Requests; 2])> {
        let Self { stage, subject, marks, worked, before } = self;
        let spent = before.until(stage.processes(subject)?.read()?)?;
        let memory = subject.memory()?;
        let [above, below] = stage.work().await?;
        let cost = Cost::new(spent, memory, [above.since(worked[0]), below.since(worked[1])], pods);
        let requests = stage.requests(&marks).await?;
        let calls = Calls::count(subject.who, [&requests[0], &requests[1]], pods);
        Ok((calls, cost, requests))
    }
}
