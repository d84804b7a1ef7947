//! A model and an MTP block on a backend, and steps of both.

use std::sync::Arc;

use forerun_models::{CacheConfig, Model, ModelError, ModelSpec, MtpSource, MtpStep, StepShape, Taps};
use forerun_tensor::{Backend, KvType, OutRow, Pick, PlanId, SeqRows, StepOut, StepRows};

use crate::fake::Fake;

pub(crate) const MOST_ROWS: usize = 64;

/// A loaded model and block with their plans.
pub(crate) struct Runner {
    backend: Box<dyn Backend>,
    held: u64,
    pub(crate) model: PlanId,
    /// Pairs that are guessed from.
    pub(crate) guesses: PlanId,
    chain: PlanId,
    /// Pairs of which only keys and values are made.
    pub(crate) pairs: PlanId,
}

/// Rows of a sequence in a step.
pub(crate) struct Rows<'a> {
    pub(crate) slot: u32,
    pub(crate) pos: usize,
    pub(crate) tokens: &'a [u32],
    /// Rows with output, ascending.
    pub(crate) out: Vec<usize>,
}

impl<'a> Rows<'a> {
    /// Rows of slot 0, all with output.
    pub(crate) fn all(pos: usize, tokens: &'a [u32]) -> Self {
        Self { slot: 0, pos, tokens, out: (0..tokens.len()).collect() }
    }
}

impl Runner {
    /// The block is that of `file`; the model's own where that is `None`.
    pub(crate) fn load(
        mut backend: Box<dyn Backend>,
        model: &Fake,
        file: Option<&Fake>,
        head_ids: Option<&Arc<[u32]>>,
    ) -> Result<Self, ModelError> {
        let spec = ModelSpec::read(model)?;
        let block = match file {
            Some(file) => spec.read_mtp(file)?,
            None => spec.mtp.clone().expect("an MTP block"),
        };
        let caches = CacheConfig { slots: 3, context: 64, kv: KvType::F32, ..CacheConfig::default() };
        let mut loaded = Model::load(model, spec, &mut *backend, &caches, &mut |_| true)?;
        let from = MtpSource { source: file.unwrap_or(model), block: &block, model, head_ids };
        loaded.load_mtp(from, &mut *backend, &mut |_| true)?;
        let held = loaded.held_bytes();
        let taps = Taps { normed: true, ..Taps::default() };
        let plan = loaded.record(&StepShape { max_rows: MOST_ROWS, max_out: 0, taps })?;
        let model = backend.prepare(plan)?;
        let mut mtp =
            |out, step| backend.prepare(loaded.record_mtp(MOST_ROWS, out, step)?).map_err(ModelError::from);
        let guesses = mtp(MOST_ROWS, MtpStep::Guess)?;
        let chain = mtp(MOST_ROWS, MtpStep::Chain)?;
        let pairs = mtp(0, MtpStep::Pairs)?;
        Ok(Self { backend, held, model, guesses, chain, pairs })
    }

    /// Bytes of the weights of model and block.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held
    }

    /// Runs rows of different slots.
    pub(crate) fn run(&mut self, plan: PlanId, rows: &[Rows<'_>]) -> StepOut {
        let mut step = StepRows::default();
        for r in rows {
            let (first, count) = (step.tokens.len(), r.tokens.len() as u32);
            step.seqs.push(SeqRows { slot: r.slot, pos: r.pos as u32, rows: count, replay: 0, commit: true });
            let out = |i: &usize| OutRow { row: (first + i) as u32, pick: Pick::Greedy, logits: true };
            step.out.extend(r.out.iter().map(out));
            step.tokens.extend_from_slice(r.tokens);
        }
        // Both forms of a step that guesses have one result; the engine takes the second where it can.
        let all = step.out.len() == step.tokens.len();
        let plan = if plan == self.guesses && all { self.chain } else { plan };
        let ticket = self.backend.submit(plan, &step).unwrap_or_else(|e| panic!("{e}"));
        let mut out = StepOut::default();
        self.backend.wait(ticket, &mut out).expect("wait");
        out
    }
}
