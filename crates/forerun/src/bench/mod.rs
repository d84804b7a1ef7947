//! `forerun bench`: speed of prompts and steps, what speculation gains, and whether it is exact.

mod args;
mod coupling;
mod exact;
mod matrix;
mod progress;
mod prompts;
mod report;
mod requests;
mod spec;
mod speed;

pub(crate) use args::BenchCommand;

use crate::args::BenchArgs;
use crate::error::Result;

/// Runs the subcommand that was asked for; without one, measures speed.
pub(crate) fn bench(args: &BenchArgs) -> Result<()> {
    match &args.what {
        None => speed::bench(args),
        Some(BenchCommand::Spec(args)) => spec::spec(args),
        Some(BenchCommand::Exact(args)) => exact::exact(args),
    }
}

/// The middle value, the upper of two; NaN for none.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
