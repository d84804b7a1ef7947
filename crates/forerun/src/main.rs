//! The command line of Forerun.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// Writes a line to standard error. Where nobody can read it any more, it is left out.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

mod args;
mod bandwidth;
mod bench;
mod calibrate_args;
mod chart;
mod chat;
mod compare;
mod convert;
mod convert_args;
mod demo;
mod draft_args;
mod drafter_list;
mod error;
mod hub;
mod imatrix;
mod info;
mod input;
mod overlay;
mod perplexity;
mod printer;
mod progress;
mod pull;
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
        Command::Convert(args) => convert::convert(args),
        Command::Quantize(args) => convert::quantize(args),
        Command::Imatrix(args) => imatrix::imatrix(args),
        Command::Compare(args) => compare::compare(args),
        Command::Pull(args) => pull::pull(args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "forerun", &mut script);
            std::io::stdout().write_all(&script).map_err(CliError::Output)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe went away: nobody is left to tell.
        Err(CliError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(CliError::Interrupted) => ExitCode::from(130),
        Err(error) => {
            say!("error: {error}");
            if error.is_option() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
