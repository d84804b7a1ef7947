//! A loaded model on a device: runs steps of any shape through the few plans it has recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use forerun_models::{Collected, DFlashPart, DFlashStep, Model, MtpPart, MtpStep, StepShape, Taps};
use forerun_tensor::{Backend, PlanId, StepOut, StepRows};
use serde::Serialize;

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

/// Where time went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// The model's own steps, by kind of operator.
    pub steps: BTreeMap<&'static str, Duration>,
    /// Drafting with the MTP block or the DFlash drafter.
    pub draft: DraftProfile,
}

/// Where the time of drafting went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DraftProfile {
    /// What is made of the model's hidden states: the pair's projection, or the context.
    pub projection: Duration,
    /// Attention with its projections.
    pub attention: Duration,
    /// Feed-forward half.
    pub ffn: Duration,
    /// Head and choice.
    pub head: Duration,
}

impl DraftProfile {
    fn of_mtp(&mut self, part: MtpPart) -> &mut Duration {
        match part {
            MtpPart::Projection => &mut self.projection,
            MtpPart::Attention => &mut self.attention,
            MtpPart::Ffn => &mut self.ffn,
            MtpPart::Head => &mut self.head,
        }
    }

    fn of_dflash(&mut self, part: DFlashPart) -> &mut Duration {
        match part {
            DFlashPart::Context => &mut self.projection,
            DFlashPart::Attention => &mut self.attention,
            DFlashPart::Ffn => &mut self.ffn,
            DFlashPart::Head => &mut self.head,
        }
    }
}

/// What a plan was recorded for.
#[derive(Clone, Debug, PartialEq)]
enum PlanKey {
    /// The model.
    Step(StepShape),
    /// Its MTP block.
    Mtp { rows: usize, out: usize, step: MtpStep },
    /// Its DFlash drafter.
    DFlash { rows: usize, out: usize, step: DFlashStep },
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
        self.step_with(rows, &Taps::default(), out)
    }

    /// The same, and copies hidden states out ([`StepOut::taps`]).
    ///
    /// # Errors
    /// As [`Runner::step`], and when a layer does not exist.
    pub fn step_with(&mut self, rows: &StepRows, taps: &Taps, out: &mut StepOut) -> Result<()> {
        let shape = StepShape { taps: taps.clone(), ..self.shape(rows.tokens.len(), rows.out.len()) };
        self.run(PlanKey::Step(shape), rows, out)
    }

    /// From now on every step adds up the squares of what the products of the layers read; with `heads` also what the
    /// heads read. Before this is called, nothing is collected and nothing is paid for it.
    ///
    /// # Errors
    /// When memory is short.
    pub fn collect(&mut self, heads: bool) -> Result<()> {
        self.model.collect(&mut *self.backend, heads)?;
        self.plans.clear();
        Ok(())
    }

    /// What was collected so far.
    ///
    /// # Errors
    /// When the device failed.
    pub fn collected(&mut self) -> Result<Vec<Collected>> {
        Ok(self.model.collected(&mut *self.backend)?)
    }

    /// Runs a text from an empty context through the model, and all its pairs through the MTP block where one is loaded;
    /// with `heads` also through the heads.
    ///
    /// # Errors
    /// When the text is longer than the context, or the device failed.
    pub fn read_through(&mut self, tokens: &[u32], heads: bool) -> Result<()> {
        let most = if heads { FULL_OUT_ROWS.min(self.chunk) } else { self.chunk };
        let mut out = StepOut::default();
        for first in (0..tokens.len()).step_by(most) {
            let end = (first + most).min(tokens.len());
            self.step(&StepRows::of_text(&tokens[first..end], first, heads), &mut out)?;
            // The pair of a token has the one after it: the last token of the text has none.
            let pairs = end.min(tokens.len() - 1) - first;
            if self.model.mtp().is_some() && pairs > 0 {
                let step = self.model.mtp_through(heads);
                let guess = step == MtpStep::Chain;
                let rows = StepRows::of_text(&tokens[first + 1..][..pairs], first, guess);
                let shape = self.shape(pairs, rows.out.len());
                let key =
                    PlanKey::Mtp { rows: shape.max_rows, out: if guess { shape.max_out } else { 0 }, step };
                self.run(key, &rows, &mut out)?;
            }
        }
        Ok(())
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
        self.run(self.mtp_key(rows.tokens.len(), rows.out.len()), rows, out)
    }

    /// Runs a step of the DFlash drafter ([`Model::record_dflash`]). A step without rows does nothing.
    ///
    /// # Errors
    /// When no drafter is loaded or the step does not fit; the caches are then unchanged.
    pub fn dflash_step(&mut self, step: DFlashStep, rows: &StepRows, out: &mut StepOut) -> Result<()> {
        if rows.tokens.is_empty() {
            *out = StepOut::default();
            return Ok(());
        }
        self.run(self.dflash_key(step, rows.tokens.len(), rows.out.len()), rows, out)
    }

    fn dflash_key(&self, step: DFlashStep, rows: usize, out: usize) -> PlanKey {
        let shape = self.shape(rows, out);
        let out = if step == DFlashStep::Context { 0 } else { shape.max_out };
        PlanKey::DFlash { rows: shape.max_rows, out, step }
    }

    /// Makes the plans of steps that every round of drafting takes, so that no round has to wait for them.
    ///
    /// # Errors
    /// When a plan cannot be recorded or prepared.
    pub fn prepare_drafts(&mut self) -> Result<()> {
        if self.model.dflash().is_some() {
            for step in [DFlashStep::Context, DFlashStep::Block] {
                self.plan(self.dflash_key(step, 1, 1))?;
            }
        }
        if self.model.mtp().is_some() {
            for (rows, out) in [(1, 1), (2.min(self.chunk), 1)] {
                self.plan(self.mtp_key(rows, out))?;
            }
        }
        Ok(())
    }

    fn mtp_key(&self, rows: usize, out: usize) -> PlanKey {
        let shape = self.shape(rows, out);
        let (out, step) = match out {
            0 => (0, MtpStep::Pairs),
            n if n == rows => (shape.max_out, MtpStep::Chain),
            _ => (shape.max_out, MtpStep::Guess),
        };
        PlanKey::Mtp { rows: shape.max_rows, out, step }
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

    /// The number of operators that drafting so many tokens one after the other takes.
    ///
    /// # Errors
    /// When no MTP block is loaded.
    pub fn draft_operators(&self, links: usize) -> Result<usize> {
        match links.checked_sub(1) {
            None => Ok(0),
            Some(more) => {
                let of = |step| Ok::<_, EngineError>(self.model.record_mtp(1, 1, step)?.ops().len());
                Ok(of(MtpStep::Guess)? + more * of(MtpStep::Chain)?)
            }
        }
    }

    /// The number of operators that drafting a DFlash block takes, the context of the round before included.
    ///
    /// # Errors
    /// When no drafter is loaded.
    pub fn block_operators(&self) -> Result<usize> {
        let of = |out, step| Ok::<_, EngineError>(self.model.record_dflash(1, out, step)?.ops().len());
        Ok(of(0, DFlashStep::Context)? + of(1, DFlashStep::Block)?)
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
        match tokens.checked_sub(1).zip(self.model.hidden_ring()) {
            Some((newest, ring)) => Ok(self.backend.copy_ring(ring.id, from, to, newest as u32)?),
            None => Ok(()),
        }
    }

    /// Where the time of all steps so far went, when the backend profiles.
    #[must_use]
    pub fn profile(&self) -> Profile {
        let mut profile = Profile::default();
        for (key, plan) in &self.plans {
            let Some((plan, times)) = self.backend.profile(*plan) else { continue };
            match (key, self.model.mtp(), self.model.dflash()) {
                (PlanKey::Mtp { .. }, Some(mtp), _) => {
                    let parts = mtp.parts(plan).into_iter();
                    parts.zip(times).for_each(|(part, time)| *profile.draft.of_mtp(part) += time);
                }
                (PlanKey::DFlash { .. }, _, Some(dflash)) => {
                    let parts = dflash.parts(plan).into_iter();
                    parts.zip(times).for_each(|(part, time)| *profile.draft.of_dflash(part) += time);
                }
                _ => {
                    for (op, time) in plan.ops().iter().zip(times) {
                        *profile.steps.entry(op.name()).or_default() += time;
                    }
                }
            }
        }
        profile
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
            PlanKey::DFlash { rows, out, step } => self.model.record_dflash(*rows, *out, *step)?,
        };
        let plan = self.backend.prepare(plan)?;
        self.plans.push((key, plan));
        Ok(plan)
    }
}
