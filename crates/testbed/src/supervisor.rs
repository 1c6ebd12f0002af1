//! Our end of the supervisor: a process that starts children for us and outlives us just long enough to kill them.
//! Must not start a component itself; a child of this process would survive `kill -9` of it.
//! The connection to the supervisor is a pipe whose write end only this process holds (std opens it close-on-exec). However
//! we end, by return, panic, Ctrl-C or SIGKILL, the kernel closes it; end of file makes the supervisor SIGKILL the process
//! group of every child, which works on stopped processes too, and remove the folder.
//!
//! All calls are short and blocking, on std only: a fleet outlives the runtime of the test that started it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow, bail};

mod groups;
pub mod keeper;
pub mod protocol;

use protocol::{Answer, Order, PROTOCOL};
pub use protocol::{Launch, Signal, State};

/// A supervisor process with its children and its folder. Dropping it ends all of them.
#[derive(Debug)]
pub struct Supervisor {
    line: Mutex<Line>,
    process: Child,
    folder: PathBuf,
}

/// us --orders--> supervisor --answers--> us; one answer per order.
#[derive(Debug)]
struct Line {
    /// `None` only while dropping: closing it is the order to end.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Supervisor {
    /// Starts a supervisor that owns `folder`, which must exist: it is removed at the end with all that is in it.
    pub fn start(folder: &Path) -> Result<Self> {
        let executable = executable()?;
        let mut process = Command::new(&executable)
            .arg("supervise")
            .arg("--folder")
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A test runner waits until no process holds its stderr; the supervisor answers on its pipe instead.
            .stderr(Stdio::null())
            // Out of the terminal's foreground group: Ctrl-C is for us, the supervisor follows by end of file.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {}", executable.display()))?;
        let orders = process.stdin.take();
        let answers = process.stdout.take().context("the supervisor has no stdout")?;
        let mut line = Line { orders, answers: BufReader::new(answers) };
        let hello = line.hear();
        let supervisor = Self { line: Mutex::new(line), process, folder: folder.to_owned() };
        match hello {
            Ok(Answer::Hello(PROTOCOL)) => Ok(supervisor),
            other => bail!(
                "{} is not of this version ({other:?}): run `cargo build -p tapestry-testbed`",
                executable.display()
            ),
        }
    }

    /// The folder that exists as long as the supervisor.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a child under `name`, in its own process group. Fails while another one of this name runs.
    pub fn launch(&self, name: &str, launch: Launch) -> Result<State> {
        self.ask(&Order::Launch { name: name.to_owned(), launch, group: None })
    }

    /// The same, in a control group of its own below ours, in every hierarchy. The groups are removed with the supervisor.
    pub fn launch_in_group(&self, name: &str, launch: Launch) -> Result<State> {
        self.ask(&Order::Launch { name: name.to_owned(), launch, group: Some(name.to_owned()) })
    }

    /// Sends a signal to the process group of a child. Nothing happens to a child that has already ended.
    pub fn signal(&self, name: &str, signal: Signal) -> Result<State> {
        self.ask(&Order::Signal { name: name.to_owned(), signal })
    }

    /// Whether a child runs; how it ended otherwise.
    pub fn state(&self, name: &str) -> Result<State> {
        self.ask(&Order::State { name: name.to_owned() })
    }

    fn ask(&self, order: &Order) -> Result<State> {
        // A panic of another test while it held the lock leaves no half-written order: orders are written in one piece.
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.say(order).and_then(|()| line.hear()).context("the supervisor has ended").and_then(|answer| match answer {
            Answer::State(state) => Ok(state),
            Answer::Failed(why) => Err(anyhow!(why)),
            Answer::Hello(_) => bail!("the supervisor greets twice"),
        })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.line.get_mut().unwrap_or_else(PoisonError::into_inner).orders = None;
        // Nothing can be done about a failure here, and the supervisor ends by itself.
        let _ = self.process.wait();
    }
}

impl Line {
    fn say(&mut self, order: &Order) -> Result<()> {
        let mut text = serde_json::to_string(order)?;
        text.push('\n');
        Ok(self.orders.as_mut().context("the pipe to the supervisor is closed")?.write_all(text.as_bytes())?)
    }

    fn hear(&mut self) -> Result<Answer> {
        let mut text = String::new();
        self.answers.read_line(&mut text)?;
        serde_json::from_str(&text).with_context(|| format!("understanding {text:?}"))
    }
}

/// The `testbed` binary next to the running executable: `<target>/debug/deps/<test>` finds `<target>/debug/testbed`.
/// A binary of the other profile serves as well; the protocol version says whether it fits.
fn executable() -> Result<PathBuf> {
    let here = std::env::current_exe().context("finding our own executable")?;
    let folders: Vec<&Path> = here.ancestors().skip(1).take(3).collect();
    let beside = folders.iter().map(|folder| folder.join("testbed"));
    let other_profile =
        folders.iter().flat_map(|folder| ["debug/testbed", "release/testbed"].map(|path| folder.join(path)));
    beside.chain(other_profile).find(|path| path.is_file()).with_context(|| {
        format!("no `testbed` binary near {}: run `cargo build -p tapestry-testbed` (tests start control planes through it)", here.display())
    })
}
