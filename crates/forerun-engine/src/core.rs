//! The shared heart of an engine: every request in progress, and the step that brings several of them forward at once.

use std::time::{Duration, Instant};

use forerun_tensor::{StepOut, StepRows};

use crate::active::{Active, Rows};
use crate::error::Result;
use crate::runner::{FULL_OUT_ROWS, Runner};
use crate::speculation::{DFlashSettings, Speculator};

pub(crate) struct Core {
    pub(crate) runner: Runner,
    /// One entry per slot.
    pub(crate) active: Vec<Option<Active>>,
    pub(crate) speculator: Speculator,
    /// Steps so far.
    steps: u64,
    rows: StepRows,
    out: StepOut,
}

impl Core {
    pub(crate) fn new(runner: Runner, slots: usize, dflash: Option<DFlashSettings>) -> Self {
        let speculator = Speculator::new(runner.model().mtp().is_some(), dflash);
        Self {
            runner,
            active: (0..slots).map(|_| None).collect(),
            speculator,
            steps: 0,
            rows: StepRows::default(),
            out: StepOut::default(),
        }
    }

    /// The slot that holds the recurrent state's snapshot of `slot`.
    pub(crate) fn snapshot_slot(&self, slot: u32) -> u32 {
        slot + self.active.len() as u32
    }

    /// Runs one step that carries rows of every wanted request which can go on. Rounds of decoding come before prompt
    /// chunks, so that a long prompt does not hold up the others.
    pub(crate) fn advance(&mut self, wanted: impl Fn(u32) -> bool) -> Result<()> {
        let (mut decoding, mut prompts) = (Vec::new(), Vec::new());
        for active in self.active.iter_mut().flatten() {
            if wanted(active.slot) && active.wants_step() {
                if active.decodes() { decoding.push(active) } else { prompts.push(active) }
            }
        }
        // When not all fit a step, whoever waited longest goes first.
        decoding.sort_by_key(|a| a.last_step);
        decoding.truncate(FULL_OUT_ROWS.min(self.runner.chunk()));
        self.speculator.draft(&mut self.runner, &mut decoding);
        prompts.sort_by_key(|a| a.tokens.len() - a.cached);
        self.steps += 1;
        self.rows.clear();
        let mut taken = Vec::with_capacity(decoding.len() + prompts.len());
        let chunk = self.runner.chunk();
        let mut most = FULL_OUT_ROWS.min(chunk);
        if !prompts.is_empty() {
            // Prompts wait, but not for as long as others speculate.
            most -= most.div_ceil(4).min(most - 1);
        }
        let count = decoding.len();
        for (i, active) in decoding.into_iter().enumerate() {
            // Drafts never take the row of another request that decodes.
            let others = (count - 1 - i).min(most.saturating_sub(1));
            most = others + take_rows(active, self.steps, most - others, &mut self.rows, &mut taken);
        }
        // A step of more rows has less room for output.
        let wide = self.rows.out.len() < self.runner.max_out();
        let most_outs = if wide { self.runner.max_out() } else { FULL_OUT_ROWS };
        let mut most = if wide { chunk } else { FULL_OUT_ROWS.min(chunk) };
        most -= self.rows.tokens.len();
        for active in prompts {
            if self.rows.out.len() >= most_outs {
                break;
            }
            most = take_rows(active, self.steps, most, &mut self.rows, &mut taken);
        }
        if taken.is_empty() { Ok(()) } else { self.step(&taken) }
    }

    fn step(&mut self, taken: &[Taken]) -> Result<()> {
        for t in taken {
            if let Some(active) = &self.active[t.slot as usize] {
                self.speculator.before_step(&mut self.runner, active.view(), t.rows)?;
            }
        }
        let started = Instant::now();
        self.runner.step(&self.rows, &mut self.out)?;
        let time = started.elapsed();
        if self.rows.out.len() == self.rows.tokens.len() {
            self.speculator.costs.record_step(self.rows.tokens.len(), time.as_secs_f64());
        }
        self.distribute(taken, time / taken.len() as u32)
    }

    fn distribute(&mut self, taken: &[Taken], time: Duration) -> Result<()> {
        let mut picked = self.out.picked.as_slice();
        let mut wants = self.rows.out.as_slice();
        let mut logits = self.out.logits.as_slice();
        for t in taken {
            let Some(active) = self.active[t.slot as usize].as_mut() else { continue };
            let (mine, rest) = picked.split_at(t.outs.min(picked.len()));
            let (want, more) = wants.split_at(t.outs.min(wants.len()));
            (picked, wants) = (rest, more);
            let width = want.iter().filter(|w| w.logits).count() * active.vocabulary();
            let (own, rest) = logits.split_at(width.min(logits.len()));
            logits = rest;
            active.take_results(Rows { count: t.rows, picked: mine, logits: own, time });
        }
        taken.iter().try_for_each(|t| self.keep_snapshot(t.slot))
    }

    /// Keeps the recurrent state of a slot, and what drafters need beside it, where that is due.
    fn keep_snapshot(&mut self, slot: u32) -> Result<()> {
        let snapshot = self.snapshot_slot(slot);
        let Some(active) = self.active[slot as usize].as_mut() else { return Ok(()) };
        if active.snapshot_at != Some(active.cached) {
            return Ok(());
        }
        self.speculator.before_snapshot(&mut self.runner, active.view())?;
        self.runner.copy_state(slot, snapshot)?;
        self.runner.copy_hidden(slot, snapshot, active.cached)?;
        active.snapshot_taken = active.snapshot_at.take();
        Ok(())
    }

    /// Brings back what a snapshot of a slot's first `tokens` tokens kept.
    pub(crate) fn restore_snapshot(&mut self, slot: u32, tokens: usize) -> Result<()> {
        let snapshot = self.snapshot_slot(slot);
        self.runner.copy_state(snapshot, slot)?;
        self.runner.copy_hidden(snapshot, slot, tokens)
    }
}

/// What a request brought to a step.
struct Taken {
    slot: u32,
    rows: usize,
    outs: usize,
}

/// Adds a request's rows, at most `most`; returns how many more fit.
fn take_rows(
    active: &mut Active,
    now: u64,
    most: usize,
    step: &mut StepRows,
    taken: &mut Vec<Taken>,
) -> usize {
    let outs = step.out.len();
    let rows = active.add_rows(most, step);
    if rows > 0 {
        active.last_step = now;
        taken.push(Taken { slot: active.slot, rows, outs: step.out.len() - outs });
    }
    most - rows
}
