//! The rows of a step, one entry each.

use crate::backend::KvSpec;
use crate::error::{Result, TensorError};
use crate::step::StepRows;

/// A row of a step.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) slot: usize,
    pub(super) pos: usize,
    /// Last position that its sequence has in this step.
    pub(super) last: usize,
}

pub(super) struct Rows<'a> {
    pub(super) step: &'a StepRows,
    pub(super) list: Vec<Row>,
}

impl<'a> Rows<'a> {
    pub(super) fn new(step: &'a StepRows) -> Self {
        let mut list = Vec::new();
        step.for_each_row(|_, seq, pos| {
            let last = (seq.pos + seq.rows - 1) as usize;
            list.push(Row { slot: seq.slot as usize, pos: pos as usize, last });
        });
        Self { step, list }
    }

    pub(super) fn check_kv(&self, spec: &KvSpec) -> Result<()> {
        for r in &self.list {
            if r.slot >= spec.slots || (!spec.ring && r.last >= spec.capacity) {
                return Err(TensorError::Step(format!(
                    "slot {} at position {}: the cache has {} slots of {} positions",
                    r.slot, r.last, spec.slots, spec.capacity
                )));
            }
        }
        Ok(())
    }
}
