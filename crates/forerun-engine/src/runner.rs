//! A loaded model on a device: runs steps of any shape through the few plans it has recorded.

use forerun_models::{Model, MtpStep, StepShape, Taps};
use forerun_tensor::{Backend, PlanId, StepOut, StepRows};

use crate::error::{EngineError, Result};

/// Steps of up to this many rows may all have output.
pub const FULL_OUT_ROWS: usize = 64;
/// Larger steps (prompt chunks) have at most this many output rows.
pub(crate) const CHUNK_OUT_ROWS: usize = 16;
const DECODE_ROWS: usize = 16;

/// A model, the backend that holds it, and its plans.
pub struct Runner {
    backend: Box<dyn Backend>,
    model: Model,
    chunk: usize,
    plans: Vec<(PlanKey, PlanId)>,
}

/// What a plan was recorded for.
#[derive(Clone, Debug, PartialEq)]
enum PlanKey {
    /// The model.
    Step(StepShape),
    /// Its MTP block.
    Mtp { rows: usize, out: usize, step: MtpStep },
}

impl Runner {
    /// `chunk` is the most rows that a step may have.
    #[must_use]
    pub fn new(backend: Box<dyn Backend>, model: Model, chunk: usize) -> Self {
        Self { backend, model, chunk: chunk.max(1), plans: Vec::new() }
    }

    /// The most rows that a step may have.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.chunk
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Runs a step and leaves its results in `out`.
    ///
    /// # Errors
    /// When the step does not fit; the caches are then unchanged.
    pub fn step(&mut self, rows: &StepRows, out: &mut StepOut) -> Result<()> {
        let shape = self.shape(rows.tokens.len(), rows.out.len());
        self.run(PlanKey::Step(shape), rows, out)
    }

    /// Runs a step of the MTP block, whose rows are pairs ([`Model::record_mtp`]); output rows are guessed from.
    ///
    /// # Errors
    /// When no block is loaded or the step does not fit; the caches are then unchanged.
    pub fn mtp_step(&mut self, rows: &StepRows, out: &mut StepOut) -> Result<()> {
        if rows.tokens.is_empty() {
            *out = StepOut::default();
            return Ok(());
        }
        let shape = self.shape(rows.tokens.len(), rows.out.len());
        let (out_rows, step) = match rows.out.len() {
            0 => (0, MtpStep::Pairs),
            n if n == rows.tokens.len() => (shape.max_out, MtpStep::Chain),
            _ => (shape.max_out, MtpStep::Guess),
        };
        self.run(PlanKey::Mtp { rows: shape.max_rows, out: out_rows, step }, rows, out)
    }

    fn run(&mut self, key: PlanKey, rows: &StepRows, out: &mut StepOut) -> Result<()> {
        let plan = self.plan(key)?;
        let ticket = self.backend.submit(plan, rows)?;
        self.backend.wait(ticket, out)?;
        Ok(())
    }

    /// Output rows that a step of any size has room for.
    #[must_use]
    pub fn max_out(&self) -> usize {
        if self.chunk > FULL_OUT_ROWS { CHUNK_OUT_ROWS } else { self.chunk }
    }

    /// The number of operators in the plan of a step with so many rows.
    ///
    /// # Errors
    /// When the plan cannot be recorded.
    pub fn operators(&self, rows: usize) -> Result<usize> {
        Ok(self.model.record(&self.shape(rows, 1))?.ops().len())
    }

    /// Copies the delta-net state of one slot to another (a snapshot, or back).
    ///
    /// # Errors
    /// When a slot does not exist.
    pub fn copy_state(&mut self, from: u32, to: u32) -> Result<()> {
        Ok(self.backend.copy_state(from, to)?)
    }

    /// Copies the newest hidden state that drafters may need of a slot's first `tokens` tokens to another slot.
    ///
    /// # Errors
    /// When a slot does not exist.
    pub fn copy_hidden(&mut self, from: u32, to: u32, tokens: usize) -> Result<()> {
        match tokens.checked_sub(1) {
            Some(newest) if self.model.mtp().is_some() => {
                Ok(self.backend.copy_ring(from, to, newest as u32)?)
            }
            _ => Ok(()),
        }
    }

    /// The error of a row whose logits are no numbers.
    #[must_use]
    pub fn not_a_number(&self, position: u32) -> EngineError {
        EngineError::NotANumber { path: self.model.spec().path().to_path_buf(), position }
    }

    fn shape(&self, rows: usize, out: usize) -> StepShape {
        let bucket = [DECODE_ROWS, FULL_OUT_ROWS].into_iter().find(|&b| rows <= b && rows <= self.chunk);
        let max_rows = bucket.unwrap_or(self.chunk.max(rows)).min(self.chunk.max(rows));
        let max_out = if bucket.is_some() { max_rows } else { CHUNK_OUT_ROWS.max(out).min(max_rows) };
        StepShape { max_rows, max_out, taps: Taps::default() }
    }

    fn plan(&mut self, key: PlanKey) -> Result<PlanId> {
        if let Some((_, plan)) = self.plans.iter().find(|(k, _)| *k == key) {
            return Ok(*plan);
        }
        let plan = match &key {
            PlanKey::Step(shape) => self.model.record(shape)?,
            PlanKey::Mtp { rows, out, step } => self.model.record_mtp(*rows, *out, *step)?,
        };
        let plan = self.backend.prepare(plan)?;
        self.plans.push((key, plan));
        Ok(plan)
    }
}
