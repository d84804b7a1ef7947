//! A step as operators see it: one entry per row, one per sequence.

use forerun_tensor::StepRows;

/// A row of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) slot: usize,
    pub(crate) pos: usize,
    /// Last position its sequence has in this step.
    pub(crate) last: usize,
}

/// A sequence of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seq {
    pub(crate) slot: usize,
    pub(crate) pos: usize,
    /// Its first row.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    pub(crate) replay: usize,
    pub(crate) commit: bool,
}

/// A step.
pub(crate) struct View<'a> {
    pub(crate) step: &'a StepRows,
    pub(crate) rows: Vec<Row>,
    pub(crate) seqs: Vec<Seq>,
}

impl<'a> View<'a> {
    pub(crate) fn new(step: &'a StepRows) -> Self {
        let mut rows = Vec::with_capacity(step.tokens.len());
        let mut seqs = Vec::with_capacity(step.seqs.len());
        for s in &step.seqs {
            let (slot, pos, count) = (s.slot as usize, s.pos as usize, s.rows as usize);
            let first = rows.len();
            seqs.push(Seq { slot, pos, first, rows: count, replay: s.replay as usize, commit: s.commit });
            rows.extend((0..count).map(|i| Row { slot, pos: pos + i, last: pos + count - 1 }));
        }
        Self { step, rows, seqs }
    }
}
