//! What changes from step to step: the rows that go in and the results that come out.

use crate::error::{Result, TensorError};
use crate::noise::LEAST_TEMPERATURE;
use crate::plan::Plan;

/// The rows that one sequence brings to a step: consecutive tokens at consecutive positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeqRows {
    /// Slot of the sequence in every cache. A slot occurs at most once in a step.
    pub slot: u32,
    /// Absolute position of the first row. At 0 the sequence starts afresh: zero state, no history. Later it is where the
    /// slot's delta-net state stands plus `replay`.
    pub pos: u32,
    /// Number of rows, at least 1. Their tokens follow those of the sequences before in [`StepRows::tokens`].
    pub rows: u32,
    /// How many rows of the slot's tape were accepted: they are replayed into the delta-net state first. The tape rows
    /// beyond are dropped. Always 0 at position 0 and after a committed step.
    pub replay: u32,
    /// Whether every row of this step is certain (prompt text). Then the state is written after the last row and the tape
    /// is left empty; otherwise the rows stay on the tape until the next step says how many count.
    pub commit: bool,
}

/// How the token after an output row is chosen on the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pick {
    /// No token; only the row's normaliser (and logits, when asked for).
    None,
    /// This token, whatever its logit: scoring known text.
    Given(u32),
    /// The arg max of the logits, ties to the lower id.
    Greedy,
    /// The arg max of `logit / temperature + noise(seed, position, id)`, ties to the lower id.
    Noise {
        /// Temperature, at least [`LEAST_TEMPERATURE`] and finite.
        temperature: f32,
        /// Seed of the request.
        seed: u64,
        /// Absolute position of the token to be chosen (one past the row's own).
        position: u32,
    },
}

/// A row whose logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutRow {
    /// Index of the row among all rows of the step.
    pub row: u32,
    /// How to choose the next token.
    pub pick: Pick,
    /// Whether to copy the row's logits to [`StepOut::logits`].
    pub logits: bool,
}

/// One step: rows of any number of sequences, and which of them produce output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepRows {
    /// The sequences, in row order.
    pub seqs: Vec<SeqRows>,
    /// Token ids, one per row.
    pub tokens: Vec<u32>,
    /// Output rows, ascending by `row`.
    pub out: Vec<OutRow>,
}

impl StepRows {
    /// Certain rows of slot 0 alone, from position `first` on; with `out` every row has output, and no token is chosen.
    #[must_use]
    pub fn of_text(tokens: &[u32], first: usize, out: bool) -> Self {
        let rows = tokens.len() as u32;
        let none = |row| OutRow { row, pick: Pick::None, logits: false };
        Self {
            seqs: vec![SeqRows { slot: 0, pos: first as u32, rows, replay: 0, commit: true }],
            tokens: tokens.to_vec(),
            out: if out { (0..rows).map(none).collect() } else { Vec::new() },
        }
    }

    /// Empties the step, keeping its buffers.
    pub fn clear(&mut self) {
        self.seqs.clear();
        self.tokens.clear();
        self.out.clear();
    }

    /// Checks what a step must be for any backend: counts that agree, a plan it fits, no slot twice, output rows in order,
    /// temperatures that divide.
    /// Caches and vocabularies are the backend's to check.
    ///
    /// # Errors
    /// Names what was found and what was expected.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        let fail = |message: String| Err(TensorError::Step(message));
        let rows = self.tokens.len();
        if rows == 0 || rows > plan.max_rows() {
            return fail(format!("{rows} rows, expected 1 to {}", plan.max_rows()));
        }
        let counted: u64 = self.seqs.iter().map(|s| u64::from(s.rows)).sum();
        if counted != rows as u64 {
            return fail(format!("sequences of {counted} rows for {rows} tokens"));
        }
        for (i, seq) in self.seqs.iter().enumerate() {
            if seq.rows == 0 || seq.pos.checked_add(seq.rows).is_none() {
                return fail(format!("slot {}: {} rows at position {}", seq.slot, seq.rows, seq.pos));
            }
            if seq.pos == 0 && seq.replay > 0 {
                return fail(format!(
                    "slot {}: replay of {} rows at position 0, expected none",
                    seq.slot, seq.replay
                ));
            }
            if self.seqs[..i].iter().any(|other| other.slot == seq.slot) {
                return fail(format!("slot {} twice, expected every slot once", seq.slot));
            }
        }
        if self.out.len() > plan.max_out() {
            return fail(format!("{} output rows, expected at most {}", self.out.len(), plan.max_out()));
        }
        let ascending = self.out.windows(2).all(|w| w[0].row < w[1].row);
        if !ascending || self.out.last().is_some_and(|o| o.row as usize >= rows) {
            return fail(format!("output rows that are not ascending within the step's {rows} rows"));
        }
        for out in &self.out {
            if let Pick::Noise { temperature, .. } = out.pick
                && !(temperature >= LEAST_TEMPERATURE && temperature.is_finite())
            {
                return fail(format!(
                    "row {}: temperature {temperature}, expected at least {LEAST_TEMPERATURE} and finite",
                    out.row
                ));
            }
        }
        Ok(())
    }

    /// Calls `f(row, sequence, position)` for every row in order.
    pub fn for_each_row(&self, mut f: impl FnMut(usize, &SeqRows, u32)) {
        let mut row = 0;
        for seq in &self.seqs {
            for i in 0..seq.rows {
                f(row, seq, seq.pos + i);
                row += 1;
            }
        }
    }
}

/// What the device found for one output row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Picked {
    /// The chosen token; `u32::MAX` for [`Pick::None`].
    pub token: u32,
    /// The chosen token's raw logit; NaN for [`Pick::None`].
    pub logit: f32,
    /// `ln Σ exp(logit)` over the raw logits, so that a token's logprob is its logit less this.
    pub log_sum: f32,
    /// Whether any logit was NaN. Nothing else of the row means anything then.
    pub nan: bool,
}

impl Picked {
    /// Natural logarithm of the chosen token's probability under the raw logits.
    #[must_use]
    pub fn logprob(&self) -> f32 {
        self.logit - self.log_sum
    }
}

/// Results of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOut {
    /// One entry per [`StepRows::out`] row, in order.
    pub picked: Vec<Picked>,
    /// Logits `[requested rows, vocabulary]` of the output rows with `logits` set, in order.
    pub logits: Vec<f32>,
    /// Outputs that the plan taps ([`crate::plan::Op::Output`]), by slot: `[rows, cols]`.
    pub taps: Vec<Vec<f32>>,
}
