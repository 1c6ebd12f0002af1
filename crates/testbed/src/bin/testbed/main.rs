//! `testbed`: real control planes on this machine, for trying things out; and the supervisor that tests start them through.
//! Must stay a table of subcommands.

mod demo;
mod hold;
mod supervise;
mod up;

use clap::{Parser, Subcommand};

/// Real Kubernetes control planes with simulated nodes, on this machine, until Ctrl-C.
#[derive(Parser)]
#[command(name = "testbed", version)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Up(up::Up),
    Demo(demo::Demo),
    #[command(hide = true)]
    Supervise(supervise::Supervise),
    #[command(hide = true)]
    Leash(supervise::Leash),
    #[command(hide = true)]
    Hold(hold::Hold),
}

fn main() -> anyhow::Result<()> {
    match Args::parse().verb {
        Verb::Up(up) => up.run(),
        Verb::Demo(demo) => demo.run(),
        Verb::Supervise(supervise) => supervise.run(),
        Verb::Leash(leash) => leash.run(),
        Verb::Hold(hold) => hold.run(),
    }
}
