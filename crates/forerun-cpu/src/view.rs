//! A step as operators see it: one entry per row, one per sequence.

use forerun_tensor::StepRows;

/// A row of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Index among all rows of the step.
    pub(crate) index: usize,
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

/// Rows of a buffer and the sequences they belong to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Row>,
    /// Sequences that have rows here.
    pub(crate) seqs: Vec<Seq>,
}

/// A step.
pub(crate) struct View<'a> {
    pub(crate) step: &'a StepRows,
    /// Every row.
    pub(crate) all: Rows,
    /// The output rows.
    pub(crate) out: Rows,
}

impl<'a> View<'a> {
    pub(crate) fn new(step: &'a StepRows) -> Self {
        let mut all =
            Rows { rows: Vec::with_capacity(step.tokens.len()), seqs: Vec::with_capacity(step.seqs.len()) };
        let mut out = Rows::default();
        let mut wanted = step.out.iter().map(|o| o.row as usize).peekable();
        for s in &step.seqs {
            let (slot, pos, count) = (s.slot as usize, s.pos as usize, s.rows as usize);
            let first = all.rows.len();
            let seq = Seq { slot, pos, first, rows: count, replay: s.replay as usize, commit: s.commit };
            all.seqs.push(seq);
            let row = |i: usize| Row { index: first + i, slot, pos: pos + i, last: pos + count - 1 };
            all.rows.extend((0..count).map(row));
            let first_out = out.rows.len();
            while let Some(index) = wanted.next_if(|index| *index < first + count) {
                out.rows.push(row(index - first));
            }
            if out.rows.len() > first_out {
                out.seqs.push(Seq { first: first_out, rows: out.rows.len() - first_out, ..seq });
            }
        }
        Self { step, all, out }
    }
}
