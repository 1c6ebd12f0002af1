//! The supervisor's end: the process `testbed supervise`, which keeps children until its stdin ends.
//! Must wait only for the next order, and must not use a second thread (see [`leash`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal as UnixSignal, WaitId, WaitIdOptions};

use super::groups::Groups;
use super::protocol::{Answer, Launch, Order, PROTOCOL, Signal, State};

/// Carries out the orders on stdin until it ends; then kills every child with its group and removes `folder`.
pub fn supervise(folder: &Path) -> Result<()> {
    let mut keeper = Keeper::default();
    // If an order cannot be read or answered, the holder is gone: clean up in any case.
    let served = keeper.serve();
    keeper.end();
    sweep(folder)?;
    served
}

#[derive(Default)]
struct Keeper {
    children: BTreeMap<String, Kept>,
    groups: Vec<Groups>,
}

enum Kept {
    Alive(Child),
    Ended(String),
}

impl Keeper {
    fn serve(&mut self) -> Result<()> {
        answer(&Answer::Hello(PROTOCOL))?;
        for order in std::io::stdin().lock().lines() {
            answer(&match self.obey(serde_json::from_str(&order?)?) {
                Ok(state) => Answer::State(state),
                Err(error) => Answer::Failed(format!("{error:#}")),
            })?;
        }
        Ok(())
    }

    fn obey(&mut self, order: Order) -> Result<State> {
        match order {
            Order::Launch { name, launch, group } => {
                if let State::Running(pid) = self.state(&name)? {
                    bail!("{name} is running already (process {pid})");
                }
                let groups = self.groups(group.as_deref())?;
                let child = start(&launch, &groups).with_context(|| format!("starting {name}"))?;
                let state = State::Running(child.id());
                self.children.insert(name, Kept::Alive(child));
                Ok(state)
            }
            Order::Signal { name, signal } => {
                if let Some(Kept::Alive(child)) = self.children.get(&name) {
                    // Not yet reaped, so its ID still belongs to this child, even if it ended a moment ago.
                    rustix::process::kill_process_group(Pid::from_child(child), signal.number())
                        .with_context(|| format!("{signal:?} to {name}"))?;
                }
                self.state(&name)
            }
            Order::State { name } => self.state(&name),
        }
    }

    /// The control groups for a child; none when it shares ours.
    fn groups(&mut self, name: Option<&str>) -> Result<Vec<PathBuf>> {
        let Some(name) = name else { return Ok(Vec::new()) };
        let groups = Groups::create(name).with_context(|| format!("creating the control groups of {name}"))?;
        let paths = groups.paths().to_vec();
        self.groups.push(groups);
        Ok(paths)
    }

    fn state(&mut self, name: &str) -> Result<State> {
        let Some(kept) = self.children.get_mut(name) else { return Ok(State::Unknown) };
        let how = match kept {
            Kept::Ended(how) => how.clone(),
            Kept::Alive(child) if !has_ended(child)? => return Ok(State::Running(child.id())),
            Kept::Alive(child) => end(child)?,
        };
        *kept = Kept::Ended(how.clone());
        Ok(State::Ended(how))
    }

    fn end(&mut self) {
        for kept in self.children.values_mut() {
            if let Kept::Alive(child) = kept {
                // A child that cannot be killed must not stop us from killing the next ones.
                let _ = end(child);
            }
        }
        for groups in &self.groups {
            groups.remove();
        }
    }
}

impl Signal {
    fn number(self) -> UnixSignal {
        match self {
            Self::Terminate => UnixSignal::TERM,
            Self::Kill => UnixSignal::KILL,
            Self::Stop => UnixSignal::STOP,
            Self::Continue => UnixSignal::CONT,
        }
    }
}

fn answer(answer: &Answer) -> Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn start(launch: &Launch, groups: &[PathBuf]) -> Result<Child> {
    let log = File::options().create(true).append(true).open(&launch.log)?;
    // Through /proc, because cargo may replace our file while we run.
    Ok(Command::new("/proc/self/exe")
        .args(["leash", "--holder", &std::process::id().to_string()])
        .args(groups.iter().flat_map(|group| [Path::new("--group"), group]))
        .arg("--")
        .arg(&launch.program)
        .args(&launch.args)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()?)
}

/// Checks without reaping: until it is reaped, the kernel does not reuse a child's ID.
fn has_ended(child: &Child) -> Result<bool> {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(rustix::process::waitid(WaitId::Pid(Pid::from_child(child)), look)?.is_some())
}

/// Kills what is left of the child's group, then reaps the child. Returns how it ended.
fn end(child: &mut Child) -> Result<String> {
    let _ = rustix::process::kill_process_group(Pid::from_child(child), UnixSignal::KILL);
    Ok(child.wait()?.to_string())
}

/// We kill grandchildren but cannot wait for them: one may still be creating a file while we remove the folder.
fn sweep(folder: &Path) -> Result<()> {
    for _ in 0..50 {
        match std::fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => std::thread::sleep(Duration::from_millis(20)),
            _ => return Ok(()),
        }
    }
    std::fs::remove_dir_all(folder).with_context(|| format!("removing {}", folder.display()))
}

/// Becomes `command`, tied to the life of the supervisor `holder`: should even that be killed -9, the kernel sends SIGKILL.
/// The kernel counts the *thread* that started us as the parent, so the supervisor must start children on its main thread.
pub fn leash(holder: u32, groups: &[PathBuf], command: &[String]) -> Result<()> {
    let (program, args) = command.split_first().context("no command given")?;
    rustix::process::set_parent_process_death_signal(Some(UnixSignal::KILL))?;
    let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get());
    if parent.map(i64::from) != Some(i64::from(holder)) {
        bail!("the supervisor {holder} ended before {program} could start");
    }
    for group in groups {
        super::groups::enter(group)?;
    }
    Err(Command::new(program).args(args).exec()).with_context(|| format!("starting {program}"))
}
