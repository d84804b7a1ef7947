//! The command line of Forerun.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

mod args;
mod bandwidth;
mod bench;
mod chat;
mod demo;
mod error;
mod info;
mod perplexity;
mod progress;
mod run;
mod stats;

use args::{Cli, Command};
use error::CliError;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Run(args) => run::run(args),
        Command::Chat(args) => chat::chat(args),
        Command::Info(args) => info::info(args),
        Command::Bench(args) => bench::bench(args),
        Command::Perplexity(args) => perplexity::perplexity(args),
        Command::Completions { shell } => {
            clap_complete::generate(*shell, &mut Cli::command(), "forerun", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe went away: nobody is left to tell.
        Err(CliError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(CliError::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
