//! The shared heart of an engine: every request in progress, and the step that brings several of them forward at once.

use forerun_tensor::{StepOut, StepRows};

use crate::active::Active;
use crate::error::Result;
use crate::runner::{CHUNK_OUT_ROWS, FULL_OUT_ROWS, Runner};

pub(crate) struct Core {
    pub(crate) runner: Runner,
    /// One entry per slot.
    pub(crate) active: Vec<Option<Active>>,
    rows: StepRows,
    out: StepOut,
}

impl Core {
    pub(crate) fn new(runner: Runner, slots: usize) -> Self {
        Self {
            runner,
            active: (0..slots).map(|_| None).collect(),
            rows: StepRows::default(),
            out: StepOut::default(),
        }
    }

    /// The slot that holds the recurrent state's snapshot of `slot`.
    pub(crate) fn snapshot_slot(&self, slot: u32) -> u32 {
        slot + self.active.len() as u32
    }

    /// Runs one step that carries rows of every wanted request which can go on. Single rows come before prompt chunks,
    /// so that a long prompt does not hold up the others.
    pub(crate) fn advance(&mut self, wanted: impl Fn(u32) -> bool) -> Result<()> {
        self.rows.clear();
        let mut order: Vec<usize> = (0..self.active.len())
            .filter(|&i| wanted(i as u32) && self.active[i].as_mut().is_some_and(Active::wants_step))
            .collect();
        order.sort_by_key(|&i| self.active[i].as_ref().map_or(0, |a| a.tokens.len() - a.cached));
        let mut taken = Vec::with_capacity(order.len());
        for slot in order {
            let Some(active) = self.active[slot].as_ref() else { continue };
            let max_out =
                if self.runner.chunk() > FULL_OUT_ROWS { CHUNK_OUT_ROWS } else { self.runner.chunk() };
            if self.rows.out.len() == max_out {
                break;
            }
            let room = self.runner.chunk() - self.rows.tokens.len();
            let outs = self.rows.out.len();
            let rows = active.add_rows(room, &mut self.rows);
            if rows > 0 {
                taken.push((slot, rows, self.rows.out.len() > outs));
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        self.runner.step(&self.rows, &mut self.out)?;
        self.distribute(&taken)
    }

    fn distribute(&mut self, taken: &[(usize, usize, bool)]) -> Result<()> {
        let mut picked = self.out.picked.iter().zip(&self.rows.out);
        let mut logits = self.out.logits.as_slice();
        for &(slot, rows, has_out) in taken {
            let snapshot = slot as u32 + self.active.len() as u32;
            let Some(active) = self.active[slot].as_mut() else { continue };
            let out = if has_out {
                picked.next().map(|(p, want)| {
                    let (mine, rest) =
                        logits.split_at(if want.logits { active.vocabulary().min(logits.len()) } else { 0 });
                    logits = rest;
                    (*p, mine)
                })
            } else {
                None
            };
            active.take_results(rows, out);
            if active.snapshot_at == Some(active.cached) {
                self.runner.copy_state(slot as u32, snapshot)?;
                active.snapshot_taken = active.snapshot_at.take();
            }
        }
        Ok(())
    }
}
