//! Measuring what steps and drafts cost before the first request.
//!
//! Where a step takes a fraction of a millisecond, the first ones are slow for reasons of their own (cold caches, sleeping
//! threads), and a request that judged drafting by them could leave it for long. Where steps are slow nothing is measured
//! here: it would delay loading, and such disturbances are small beside them.

use std::time::{Duration, Instant};

use forerun_models::DFlashStep;
use forerun_tensor::{OutRow, Pick, SeqRows, StepOut, StepRows};

use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::{DrafterKind, StepCosts};

/// All of it takes about so long at most.
const BUDGET: Duration = Duration::from_millis(40);
/// A first step that takes longer ends it.
const SLOW: Duration = Duration::from_millis(2);
/// Rounds of every depth; those of the first warm up.
const REPEATS: usize = 5;
/// Drafts of the rounds.
const DEPTHS: [usize; 4] = [0, 1, 3, 7];
/// Tokens before the rounds.
const START: usize = 2;
/// Rows of a block of guesses.
const BLOCK: usize = 16;
/// Positions that the rounds need.
const ROOM: usize = 32;

/// Runs rounds on made-up tokens in slot 0, whose sequence then starts afresh with its first request.
pub(crate) fn measure(runner: &mut Runner, costs: &mut StepCosts) -> Result<()> {
    let fits = runner.chunk() >= 16 && runner.model().caches().context >= ROOM;
    let drafters = [
        runner.model().mtp().map(|_| DrafterKind::Mtp),
        runner.model().dflash().map(|_| DrafterKind::Dflash),
    ];
    if drafters == [None; 2] || runner.backend().info().name != "cpu" || !fits {
        return Ok(());
    }
    let started = Instant::now();
    step(runner, 0, START, true)?;
    for kind in drafters.into_iter().flatten() {
        draft(runner, kind, 1)?;
    }
    let first = Instant::now();
    step(runner, START, 1, false)?;
    if first.elapsed() > SLOW {
        return Ok(());
    }
    for repeat in 0..REPEATS {
        for depth in DEPTHS {
            for kind in drafters.into_iter().flatten() {
                let start = Instant::now();
                draft(runner, kind, depth)?;
                if repeat > 0 {
                    costs.record_draft(kind, depth, start.elapsed().as_secs_f64());
                }
            }
            let start = Instant::now();
            step(runner, START, depth + 1, false)?;
            if repeat > 0 {
                costs.record_step(depth + 1, start.elapsed().as_secs_f64());
            }
        }
        if started.elapsed() > BUDGET {
            break;
        }
    }
    Ok(())
}

fn rows(pos: usize, count: usize, first_out: usize, commit: bool) -> StepRows {
    let out = |row: usize| OutRow { row: row as u32, pick: Pick::Greedy, logits: false };
    StepRows {
        seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: count as u32, replay: 0, commit }],
        tokens: vec![0; count],
        out: (first_out..count).map(out).collect(),
    }
}

fn step(runner: &mut Runner, pos: usize, count: usize, commit: bool) -> Result<()> {
    runner.step(&rows(pos, count, if commit { count } else { 0 }, commit), &mut StepOut::default())
}

/// Drafts after the first tokens.
fn draft(runner: &mut Runner, kind: DrafterKind, depth: usize) -> Result<()> {
    let mut out = StepOut::default();
    if depth == 0 {
        return Ok(());
    }
    if kind == DrafterKind::Mtp {
        return (0..depth)
            .try_for_each(|link| runner.mtp_step(&rows(START - 1 + link, 1, 0, true), &mut out));
    }
    runner.dflash_step(DFlashStep::Context, &rows(START - 1, 1, 1, true), &mut out)?;
    let mut block = rows(START, BLOCK, 1, true);
    block.out.truncate(depth);
    runner.dflash_step(DFlashStep::Block, &block, &mut out)
}
