//! The computer under all this: what it is, and where its processor time goes.
//! Reads `/proc` only; must not cost what it measures.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tapestry_testbed::binaries::Binaries;

/// Ticks in `/proc/*/stat` are hundredths of a second on every Linux (`USER_HZ`).
const TICK_MS: u64 = 10;

/// What figures depend on.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    /// Cores we may use.
    pub(crate) cores: usize,
    /// The processor's own name.
    pub(crate) processor: String,
    /// Memory in MiB.
    pub(crate) memory_mib: u64,
    /// Kernel version.
    pub(crate) kernel: String,
    /// Name and version of what runs beside us.
    pub(crate) versions: BTreeMap<String, String>,
    /// The clone this was built from, as it is now; `+` when it has uncommitted changes.
    pub(crate) commit: String,
    /// One-minute load average before anything was started.
    pub(crate) load_before: f64,
}

impl Machine {
    /// Looks around. `kubernetes` is what the API server says of itself; `None`: no cluster takes part.
    pub(crate) fn look(kubernetes: Option<&str>, load_before: f64) -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("reading {path}"));
        let memory_kib = field(&read("/proc/meminfo")?, "MemTotal").unwrap_or(0);
        let processors = read("/proc/cpuinfo")?;
        let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let mut versions = BTreeMap::new();
        if let Some(kubernetes) = kubernetes {
            versions.insert("Kubernetes".to_owned(), kubernetes.to_owned());
            let binaries = Binaries::find()?;
            for (name, binary) in [("etcd", "etcd"), ("kwok", "kwok")] {
                versions.insert(name.to_owned(), version(&binaries.path(binary)));
            }
        }
        Ok(Self {
            cores: std::thread::available_parallelism()?.get(),
            processor: model.map_or("unknown processor", |(_, model)| model.trim()).to_owned(),
            memory_mib: memory_kib / 1024,
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            versions,
            commit: commit(),
            load_before,
        })
    }

    /// In one line, for people.
    pub(crate) fn describe(&self) -> String {
        let versions = self.versions.iter().map(|(name, version)| format!(", {name} {version}"));
        format!(
            "{} cores ({}), {} MiB, Linux {}{}; load average before: {:.2}",
            self.cores,
            self.processor,
            self.memory_mib,
            self.kernel,
            versions.collect::<String>(),
            self.load_before,
        )
    }
}

/// The one-minute load average; NaN when it cannot be read.
pub(crate) fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// The first word of `--version` that is one: `3.7.3`, `v0.8.0`.
fn version(program: &Path) -> String {
    let said = Command::new(program).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let is_version = |word: &&str| word.trim_start_matches('v').starts_with(|c: char| c.is_ascii_digit());
    said.split_whitespace().find(is_version).unwrap_or("unknown").to_owned()
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match (git(&["rev-parse", "--short", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}+"),
        (None, _) => "unknown".to_owned(),
    }
}

/// Processor time of a process, in milliseconds, user and system.
pub(crate) fn cpu_ms(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    parse_cpu_ms(&stat).with_context(|| format!("understanding {path}"))
}

fn parse_cpu_ms(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may hold anything; utime and stime are 14 and 15.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let (user, system) = (fields.next()?.parse::<u64>().ok()?, fields.next()?.parse::<u64>().ok()?);
    Some((user + system) * TICK_MS)
}

/// Resident memory of a process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    /// Now, KiB.
    pub(crate) now: u64,
    /// The most it ever was, KiB.
    pub(crate) peak: u64,
    /// What it has allocated of what it has now, KiB; the rest is the program's own file, which the kernel drops when it must.
    pub(crate) anon: u64,
}

impl Memory {
    /// Reads it.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let missing = || format!("understanding {path}");
        Ok(Self {
            now: field(&status, "VmRSS").with_context(missing)?,
            peak: field(&status, "VmHWM").with_context(missing)?,
            anon: field(&status, "RssAnon").with_context(missing)?,
        })
    }
}

/// `Name:   123 kB`
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    value.split_whitespace().next()?.parse().ok()
}

/// Whose processor time is counted.
#[derive(Debug, Clone)]
pub(crate) struct Processes {
    /// The process under test.
    pub(crate) subject: u32,
    /// Both clusters' parts, by name.
    pub(crate) clusters: Vec<(String, u32)>,
}

/// The clock of every process at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Reading {
    at: Instant,
    subject: u64,
    load: u64,
    clusters: BTreeMap<String, u64>,
    all: u64,
}

/// Where processor time went between two readings.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Spent {
    /// Wall time.
    #[serde(skip)]
    pub(crate) wall: Duration,
    /// The process under test, ms.
    pub(crate) subject_ms: u64,
    /// The load generator with its watches, ms.
    pub(crate) load_ms: u64,
    /// Both control planes, ms.
    pub(crate) clusters_ms: u64,
    /// The same, part by part.
    pub(crate) parts_ms: BTreeMap<String, u64>,
    /// Everything else on the machine, ms: the kernel, neighbours, and what a hypervisor took away.
    pub(crate) others_ms: u64,
    /// The same as a share of all cores: when this is large, the figures are not worth much.
    pub(crate) others_percent: f64,
}

impl Processes {
    /// Reads all clocks.
    pub(crate) fn read(&self) -> Result<Reading> {
        let stat = std::fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
        Ok(Reading {
            at: Instant::now(),
            subject: cpu_ms(self.subject)?,
            load: cpu_ms(std::process::id())?,
            // That a part has ended is not reported here: the loads fail without it.
            clusters: self.clusters.iter().map(|(part, pid)| (part.clone(), cpu_ms(*pid).unwrap_or(0))).collect(),
            all: parse_busy_ms(&stat).context("understanding /proc/stat")?,
        })
    }
}

impl Reading {
    /// What was spent from this reading to `end`.
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of an hour are far below 2^52")]
    pub(crate) fn until(self, end: Self) -> Result<Spent> {
        let wall = end.at - self.at;
        let before = |part: &String| self.clusters.get(part).copied().unwrap_or(0);
        let parts: BTreeMap<String, u64> =
            end.clusters.into_iter().map(|(part, ms)| (part.clone(), ms.saturating_sub(before(&part)))).collect();
        let (subject, load, clusters) = (end.subject - self.subject, end.load - self.load, parts.values().sum());
        let others = (end.all - self.all).saturating_sub(subject + load + clusters);
        let available = wall.as_secs_f64() * 1000.0 * std::thread::available_parallelism()?.get() as f64;
        Ok(Spent {
            wall,
            subject_ms: subject,
            load_ms: load,
            clusters_ms: clusters,
            parts_ms: parts,
            others_ms: others,
            others_percent: 100.0 * others as f64 / available.max(1.0),
        })
    }
}

/// All time that was not idle: user, nice, system, irq, softirq, steal.
fn parse_busy_ms(stat: &str) -> Option<u64> {
    let ticks: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|ticks| ticks.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6, 7].iter().map(|index| ticks.get(*index)).sum::<Option<u64>>()?;
    Some(busy * TICK_MS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_found_behind_any_program_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 25 17 0 0 20 0 3 0 100 1000 10 18446744073709551615";
        assert_eq!(parse_cpu_ms(stat), Some(420));
    }

    #[test]
    fn idle_and_waiting_time_is_not_busy_time() {
        let stat = "cpu  1 2 4 1000 1000 8 16 32 64 64\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(parse_busy_ms(stat), Some(630));
    }

    #[test]
    fn fields_of_proc_are_found_by_name() {
        assert_eq!(field("VmPeak:\t  9 kB\nVmHWM:\t  123 kB\n", "VmHWM"), Some(123));
        assert_eq!(field("VmHWMx:\t  123 kB\n", "VmHWM"), None);
    }
}
