//! However the holder of a supervisor ends, nothing is left: no process, no folder.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use tapestry_testbed::eventually;
use tapestry_testbed::supervisor::{Launch, Signal as Order, State, Supervisor};

/// A shell with its own child; both have the folder's name as `$0`, so that the test finds them.
const TREE: &str = "sh -c 'while :; do sleep 1; done' \"$0\" & while :; do sleep 1; done";
const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn kill_9_of_the_holder_leaves_nothing_not_even_a_stopped_process() -> Result<()> {
    let folder = new_folder("holder");
    let mut holder = hold(&folder)?;
    let shells = tree_of(&folder).await?;
    // Frozen, it reacts only to SIGKILL.
    kill(shells[0], Signal::STOP)?;
    holder.kill()?;
    holder.wait()?;
    gone(&folder).await
}

#[tokio::test]
async fn kill_9_of_the_supervisor_ends_what_it_started() -> Result<()> {
    let folder = new_folder("supervisor");
    let mut holder = hold(&folder)?;
    tree_of(&folder).await?;
    let all = processes(&folder);
    let (supervisor, _) = all.iter().find(|(_, command)| command.contains(" supervise ")).context("no supervisor")?;
    kill(*supervisor, Signal::KILL)?;
    let ended = eventually("the shell it started has ended", SOON, async || {
        let left = processes(&folder);
        if left.values().any(|command| command.contains(TREE) && command.starts_with("sh ")) {
            return Err(format!("{left:?}"));
        }
        Ok(())
    })
    .await;
    // The kernel does not kill the shell's own child, and no process removes the folder: Ctrl-C, panics and test runners
    // do not kill -9 a supervisor.
    holder.kill()?;
    holder.wait()?;
    for id in processes(&folder).into_keys() {
        kill(id, Signal::KILL)?;
    }
    fs::remove_dir_all(folder)?;
    ended
}

#[tokio::test]
async fn dropping_a_supervisor_ends_its_children_before_it_returns() -> Result<()> {
    let folder = new_folder("drop");
    fs::create_dir(&folder)?;
    let supervisor = Supervisor::start(&folder)?;
    let args = vec!["-c".into(), TREE.into(), folder.display().to_string()];
    let tree = Launch { program: "sh".into(), args, log: folder.join("log") };
    supervisor.launch("tree", tree.clone())?;
    tree_of(&folder).await?;
    assert!(supervisor.launch("tree", tree.clone()).is_err(), "two children of one name");

    // A killed child frees its name, and its own children do not outlive it.
    supervisor.signal("tree", Order::Kill)?;
    eventually("the tree has ended", SOON, async || match supervisor.state("tree") {
        Ok(State::Ended(how)) if how.contains("SIGKILL") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await?;
    supervisor.launch("tree", tree)?;
    tree_of(&folder).await?;

    drop(supervisor);
    assert!(!folder.exists());
    gone(&folder).await
}

fn hold(folder: &Path) -> Result<Child> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_testbed"));
    command.arg("hold").arg("--folder").arg(folder).args(["--", "sh", "-c", TREE]).arg(folder);
    Ok(command.spawn()?)
}

fn new_folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tapestry-testbed-{}-test-{name}", std::process::id()))
}

/// Both shells of the tree, once they run.
async fn tree_of(folder: &Path) -> Result<Vec<i32>> {
    eventually("the tree runs", SOON, async || {
        let all = processes(folder);
        let shells: Vec<i32> =
            all.iter().filter(|(_, command)| command.starts_with("sh ")).map(|(id, _)| *id).collect();
        if shells.len() == 2 { Ok(shells) } else { Err(format!("{all:?}")) }
    })
    .await
}

async fn gone(folder: &Path) -> Result<()> {
    eventually("everything has gone", SOON, async || {
        let left = processes(folder);
        if left.is_empty() && !folder.exists() { Ok(()) } else { Err(format!("{left:?}, folder: {}", folder.exists())) }
    })
    .await
}

/// Processes whose command line names the folder. Those that end while we look are not there.
fn processes(folder: &Path) -> BTreeMap<i32, String> {
    let name = folder.display().to_string();
    let command_of = |path: PathBuf| -> Option<(i32, String)> {
        let id = path.file_name()?.to_str()?.parse().ok()?;
        let command = String::from_utf8_lossy(&fs::read(path.join("cmdline")).ok()?).replace('\0', " ");
        command.contains(&name).then_some((id, command))
    };
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| command_of(entry.ok()?.path())).collect()
}

fn kill(id: i32, signal: Signal) -> Result<()> {
    let id = Pid::from_raw(id).context("process 0")?;
    Ok(kill_process(id, signal)?)
}
