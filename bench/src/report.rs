//! Figures for people and programs: tables that are Markdown and fit a terminal, JSON, a section of `RESULTS.md`.
//! Must show what was measured and nothing nicer.
#![allow(clippy::print_stdout, reason = "the figures are this command's answer")]

mod churn;
mod fold;
mod medians;
mod processes;
mod scale;
mod table;

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail};
use clap::ValueEnum;

use self::table::Table;
use crate::budget::{judge, mib, partner};
use crate::figures::{Calls, Figures, Rest, Scene, Spread, Who};

/// Percent of the machine that others may take before its figures are doubtful; on a quiet machine they take one.
const NOISE: f64 = 5.0;
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/RESULTS.md");

/// How figures are told.
#[derive(clap::Args, Clone)]
pub(crate) struct Telling {
    /// How figures are printed
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Output,
    /// Append the figures to bench/RESULTS.md
    #[arg(long)]
    record: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

impl Telling {
    /// Before anything is measured: figures of a debug build are not kept.
    pub(crate) fn check(&self) -> Result<()> {
        if cfg!(debug_assertions) {
            if self.record {
                bail!("this is a debug build: figures are kept only of release builds (make bench BENCH=--record)");
            }
            eprintln!("this is a debug build: its figures mean nothing");
        }
        Ok(())
    }

    /// Tells what was measured, also when a failure ended it; only whole measurements are recorded.
    pub(crate) fn tell(&self, figures: &Figures, failed: Option<Error>) -> Result<()> {
        match self.output {
            Output::Table => println!("{}", render(figures)?),
            // Everything, also what has no place in a table.
            Output::Json => println!("{}", serde_json::to_string_pretty(figures)?),
        }
        if let Some(error) = failed {
            return Err(error.context("the figures above are what was measured before this failure"));
        }
        if self.record { record(figures) } else { Ok(()) }
    }
}

/// Appends a section to `RESULTS.md`.
fn record(figures: &Figures) -> Result<()> {
    let section = format!("\n## {}, commit {}\n\n{}", figures.when, figures.machine.commit, render(figures)?);
    let mut file = File::options().append(true).create(true).open(RESULTS).context(RESULTS)?;
    file.write_all(section.as_bytes()).context(RESULTS)?;
    eprintln!("recorded in {RESULTS}");
    Ok(())
}

/// One line, while the next scene runs.
pub(crate) fn summary(scene: &Scene) -> String {
    let Scene { raised, cleared, .. } = scene;
    format!(
        "  {:.1} pods/s, end to end {} ms (p50 / p99), {:.2} ms CPU per pod, {:.1} MiB; cleared in {:.1} s",
        raised.pods_per_second,
        spread(raised.end_to_end),
        raised.cost.cpu_ms_per_pod,
        mib(raised.cost.memory.peak),
        cleared.seconds,
    )
}

fn render(figures: &Figures) -> Result<String> {
    let mut text = String::new();
    let nodes = if figures.nodes > 0 { format!("; {} physical nodes", figures.nodes) } else { String::new() };
    writeln!(text, "{}{nodes}. `bench {}`", figures.machine.describe(), figures.command)?;
    if figures.debug_build {
        writeln!(text, "\n**Debug build: these figures mean nothing.**")?;
    }
    if !figures.scenes.is_empty() {
        let rounds = medians::most_rounds(figures);
        if rounds > 1 {
            writeln!(text, "\nMedians of all rounds of a load (lowest to highest):\n")?;
            text.push_str(&medians::render(figures));
        }
        writeln!(text, "\nFrom the first create to the last virtual pod seen running; ms are p50 / p99:\n")?;
        text.push_str(&raised(figures));
        text.push_str(&around(figures));
        // Of many rounds these would be pages: `--output json` has them.
        if rounds <= 2 {
            writeln!(text, "\nCPU of every process in the same time, ms per pod:\n")?;
            text.push_str(&processes::render(figures));
            writeln!(
                text,
                "\nWhat both API servers did in the same time, for all clients; per pod where nothing else is said:\n"
            )?;
            text.push_str(&processes::render_work(figures));
        }
        writeln!(text, "\nRequests of the subject on pods, per pod, in the same time; the last columns are totals:\n")?;
        text.push_str(&calls(figures));
        writeln!(text, "\nFrom the first delete to no pod on either side, and no copy of what one named:\n")?;
        text.push_str(&cleared(figures));
    }
    if figures.rests.iter().any(|rest| rest.idle.is_some()) {
        writeln!(text, "\nAt rest, all pods running:\n")?;
        text.push_str(&idle(&figures.rests));
    }
    if figures.rests.iter().any(|rest| rest.cold.is_some()) {
        writeln!(text, "\nRestarted among running pods; counted until 5 s after it was ready:\n")?;
        text.push_str(&cold(&figures.rests));
    }
    if let Some(churned) = &figures.churn {
        text.push_str(&churn::render(churned));
    }
    if let Some(scaled) = &figures.scale {
        text.push_str(&scale::render(scaled));
    }
    if let Some(fold) = &figures.fold {
        text.push_str(&fold::render(fold));
    }
    let verdicts = judge(figures);
    if !verdicts.is_empty() {
        writeln!(text, "\nAgainst the budgets (DESIGN §17):\n")?;
        let mut table = Table::new(&["what", "budget", "measured", ""]);
        for verdict in verdicts {
            let kept = match verdict.kept {
                Some(true) => "kept",
                Some(false) => "BROKEN",
                None => "not shown: bare did not keep the rate",
            };
            table.row([verdict.what, verdict.budget, verdict.measured, kept.to_owned()]);
        }
        text.push_str(&table.render());
    }
    Ok(text)
}

fn raised(figures: &Figures) -> String {
    let mut table = Table::new(&[
        "load",
        "who",
        "pods/s",
        "down ms",
        "up ms",
        "end to end ms",
        "CPU ms/pod",
        "RSS MiB",
        "others' CPU",
    ]);
    for (scene, bare) in pairs(figures) {
        let raised = &scene.raised;
        table.row([
            scene.load.to_string(),
            scene.who.name().to_owned(),
            format!("{:.1}", raised.pods_per_second),
            spread(raised.down),
            spread(raised.up),
            spread(raised.end_to_end),
            format!("{:.2}", raised.cost.cpu_ms_per_pod),
            format!("{:.1}", mib(raised.cost.memory.peak)),
            format!("{:.0} %", raised.cost.spent.others_percent),
        ]);
        if let Some(bare) = bare.map(|bare| &bare.raised) {
            table.row([
                String::new(),
                "÷ bare".to_owned(),
                ratio(raised.pods_per_second, bare.pods_per_second),
                ratios(raised.down, bare.down),
                ratios(raised.up, bare.up),
                ratios(raised.end_to_end, bare.end_to_end),
                ratio(raised.cost.cpu_ms_per_pod, bare.cost.cpu_ms_per_pod),
                ratio(mib(raised.cost.memory.peak), mib(bare.cost.memory.peak)),
                String::new(),
            ]);
        }
    }
    table.render()
}

/// What else the machine did: the greater part of its time goes to what is not measured here.
fn around(figures: &Figures) -> String {
    let range = |of: &dyn Fn(&Scene) -> f64| {
        let values = || figures.scenes.iter().map(of);
        let ends =
            [values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max)].map(|end| format!("{end:.1}"));
        if ends[0] == ends[1] { ends[0].clone() } else { ends.join(" to ") }
    };
    let spent = |scene: &'_ Scene| scene.raised.cost.spent.clone();
    let per_pod =
        |scene: &Scene, ms: u64| Duration::from_millis(ms).as_secs_f64() * 1000.0 / f64::from(scene.load.pods);
    let mut text = format!(
        "\nAround it, per pod: {} ms of CPU for both control planes and kwok, {} ms for the load generator with its watches.\n",
        range(&|scene| per_pod(scene, spent(scene).clusters_ms)),
        range(&|scene| per_pod(scene, spent(scene).load_ms)),
    );
    if figures.scenes.iter().any(|scene| spent(scene).others_percent > NOISE) {
        text.push_str("\n**The machine was busy with other things: compare with care, and measure again.**\n");
    }
    for scene in figures.scenes.iter().filter(|scene| scene.who == Who::Bare && !scene.keeps_up()) {
        let Scene { load, raised, .. } = scene;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "\n**{load}: bare itself managed {:.1} pods/s: the machine is too slow for this rate, delays only tell of the queue.**",
            raised.pods_per_second
        );
    }
    text
}

fn calls(figures: &Figures) -> String {
    let mut table = Table::new(&[
        "load",
        "who",
        "virtual writes",
        "virtual reads",
        "physical writes",
        "physical reads",
        "dependents written",
        "read",
        "on others",
        "refused",
    ]);
    for (scene, _) in pairs(figures) {
        let who = [scene.load.to_string(), scene.who.name().to_owned()];
        table.row(who.into_iter().chain(per_pod(&scene.raised.calls)));
    }
    table.render()
}

fn cleared(figures: &Figures) -> String {
    let mut table = Table::new(&[
        "load",
        "who",
        "s",
        "pods/s",
        "virtual writes",
        "reads",
        "physical writes",
        "reads",
        "dependents written",
        "read",
        "on others",
        "refused",
        "CPU ms/pod",
    ]);
    for (scene, bare) in pairs(figures) {
        let cleared = &scene.cleared;
        let pace = match bare {
            None => format!("{:.1}", cleared.pods_per_second),
            Some(bare) => {
                let ratio = ratio(cleared.pods_per_second, bare.cleared.pods_per_second);
                format!("{:.1} ({ratio})", cleared.pods_per_second)
            }
        };
        let who = [scene.load.to_string(), scene.who.name().to_owned(), format!("{:.1}", cleared.seconds), pace];
        let cpu = format!("{:.2}", cleared.cost.cpu_ms_per_pod);
        table.row(who.into_iter().chain(per_pod(&cleared.calls)).chain([cpu]));
    }
    table.render()
}

fn idle(rests: &[Rest]) -> String {
    let mut table = Table::new(&[
        "pods",
        "who",
        "s",
        "CPU of a core",
        "RSS MiB",
        "allocated MiB",
        "lease writes",
        "other writes",
        "reads",
    ]);
    for (rest, idle) in rests.iter().filter_map(|rest| Some((rest, rest.idle.as_ref()?))) {
        table.row([
            format!("{}{}", rest.pods, rest.dependents.name()),
            rest.who.name().to_owned(),
            idle.seconds.to_string(),
            format!("{:.2} %", idle.cpu_percent),
            format!("{:.1}", mib(idle.memory.now)),
            format!("{:.1}", mib(idle.memory.anon)),
            idle.calls.leases().to_string(),
            listed(&idle.calls),
            reads(&idle.calls).to_string(),
        ]);
    }
    table.render()
}

fn cold(rests: &[Rest]) -> String {
    let mut table = Table::new(&[
        "pods",
        "who",
        "ready ms",
        "bare lists ms",
        "CPU ms",
        "peak RSS MiB",
        "allocated MiB",
        "lease writes",
        "other writes",
        "reads",
    ]);
    for (rest, cold) in rests.iter().filter_map(|rest| Some((rest, rest.cold.as_ref()?))) {
        table.row([
            format!("{}{}", rest.pods, rest.dependents.name()),
            rest.who.name().to_owned(),
            format!("{:.0}", cold.ready_ms),
            format!("{:.0}", cold.lists_ms),
            cold.cpu_ms.to_string(),
            format!("{:.1}", mib(cold.memory.peak)),
            format!("{:.1}", mib(cold.memory.anon)),
            cold.calls.leases().to_string(),
            listed(&cold.calls),
            reads(&cold.calls).to_string(),
        ]);
    }
    table.render()
}

/// The syncer before the bare client, whichever went first; each syncer with its partner.
fn pairs(figures: &Figures) -> Vec<(&Scene, Option<&Scene>)> {
    let mut loads = Vec::new();
    for scene in &figures.scenes {
        if !loads.contains(&scene.load) {
            loads.push(scene.load);
        }
    }
    let mut pairs = Vec::new();
    for load in loads {
        for who in [Who::Bare, Who::Syncer] {
            let of_both = figures.scenes.iter().filter(|scene| scene.load == load && scene.who == who);
            pairs.extend(of_both.map(|scene| (scene, partner(figures, scene).filter(|_| who == Who::Syncer))));
        }
    }
    pairs
}

fn per_pod(calls: &Calls) -> [String; 8] {
    [
        format!("{:.2}", calls.virtual_writes),
        format!("{:.2}", calls.virtual_reads),
        format!("{:.2}", calls.physical_writes),
        format!("{:.2}", calls.physical_reads),
        calls.dependents[0].to_string(),
        calls.dependents[1].to_string(),
        calls.other.to_string(),
        calls.refused.to_string(),
    ]
}

fn listed(calls: &Calls) -> String {
    let needless = calls.needless();
    if needless.is_empty() {
        return "none".to_owned();
    }
    needless.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join("; ")
}

fn reads(calls: &Calls) -> usize {
    let reads = calls.kinds.iter().filter(|(kind, _)| kind.contains(" get ") || kind.contains(" list "));
    reads.map(|(_, count)| count).sum()
}

fn spread(spread: Spread) -> String {
    format!("{} / {}", number(spread.p50), number(spread.p99))
}

/// Milliseconds with a digit after the point only where it says something.
fn number(ms: f64) -> String {
    if ms < 10.0 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}

fn ratio(ours: f64, theirs: f64) -> String {
    if theirs > 0.0 { format!("{:.2}×", ours / theirs) } else { "–".to_owned() }
}

fn ratios(ours: Spread, theirs: Spread) -> String {
    format!("{} / {}", ratio(ours.p50, theirs.p50), ratio(ours.p99, theirs.p99))
}
