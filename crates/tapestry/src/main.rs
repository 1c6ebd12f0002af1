//! The binary: crypto provider, arguments, one subcommand. Everything else is in the subcommands.

mod access;
mod calendar;
mod cli;
mod crds;
mod drift;
mod election;
mod explain;
mod failure;
mod output;
mod resume;
mod server;
mod status;
mod syncer;

use clap::Parser as _;

fn main() -> std::process::ExitCode {
    // The one provider in the tree; without this the first TLS handshake would have to guess.
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    debug_assert!(installed.is_ok(), "no other code installs a provider");
    cli::Args::parse().run()
}
