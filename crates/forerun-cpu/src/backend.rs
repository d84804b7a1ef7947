//! The backend: weights, caches, plans, steps.

use std::num::NonZeroUsize;
use std::time::Duration;

use forerun_quant::TensorType;
use forerun_tensor::{
    Act, AttentionOp, Backend, BackendInfo, Ids, KvId, KvSpec, Loaded, Op, OutRow, Pick, Plan, PlanId,
    Result, RingId, RingSpec, RopeKvOp, RowSet, SeqRows, StateId, StateSpec, StepOut, StepRows, Sums, SumsId,
    SumsSpec, TensorError, Ticket, WeightData, WeightId, WeightUse,
};

use crate::act::ActBuf;
use crate::caches::{KvCache, RingCache, StateCache};
use crate::exec::{self, Ctx, Prepared, Weight};
use crate::isa::Isa;
use crate::matmul::Matrix;
use crate::ops::Scratch;
use crate::pool::Pool;
use crate::sums::SumsStore;
use crate::view::View;

/// How to compute. Nothing of it changes a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads; `None` for the cores this process may use.
    pub threads: Option<NonZeroUsize>,
    /// Instruction set; `None` for the best of this machine.
    pub isa: Option<Isa>,
    /// Whether the time of each operator is taken ([`Backend::profile`]).
    pub profile: bool,
}

/// The CPU backend.
pub struct CpuBackend {
    info: BackendInfo,
    isa: Isa,
    profile: bool,
    pool: Pool,
    weights: Vec<Weight>,
    experts: Vec<usize>,
    kvs: Vec<KvCache>,
    states: Vec<StateCache>,
    rings: Vec<RingCache>,
    sums: Vec<SumsStore>,
    plans: Vec<Prepared>,
    /// Results of the step that was submitted last.
    done: Option<(Ticket, StepOut)>,
    tickets: u32,
}

fn unsupported(message: String) -> TensorError {
    TensorError::Unsupported { backend: "cpu", message }
}

impl CpuBackend {
    /// Starts the threads.
    ///
    /// # Errors
    /// When the machine lacks the instruction set that was asked for, or threads cannot be started.
    pub fn new(config: &CpuConfig) -> Result<Self> {
        let isa = config.isa.unwrap_or_else(Isa::detect);
        if !isa.is_available() {
            let best = Isa::detect();
            return Err(unsupported(format!(
                "{isa} needs {}; this machine's best is {best}",
                isa.requirements()
            )));
        }
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = config.threads.map_or(cores, NonZeroUsize::get);
        if threads > 1024 {
            return Err(unsupported(format!("{threads} threads, at most 1024")));
        }
        let pool = Pool::new(threads)
            .map_err(|e| unsupported(format!("{threads} threads cannot be started: {e}")))?;
        let info = BackendInfo {
            name: "cpu",
            arithmetic_id: "cpu-1".into(),
            detail: format!("{isa}, {threads} {}", if threads == 1 { "thread" } else { "threads" }),
        };
        Ok(Self {
            info,
            isa,
            profile: config.profile,
            pool,
            weights: Vec::new(),
            experts: Vec::new(),
            kvs: Vec::new(),
            states: Vec::new(),
            rings: Vec::new(),
            sums: Vec::new(),
            plans: Vec::new(),
            done: None,
            tickets: 0,
        })
    }

    fn matrix(&self, id: WeightId) -> Result<&Matrix> {
        match self.weights.get(id.0 as usize) {
            Some(Weight::Matrix(m)) => Ok(m),
            Some(Weight::Vector(_)) => {
                Err(unsupported("a product with a weight that was loaded as a vector".into()))
            }
            None => Err(unsupported(format!("unknown weight {}", id.0))),
        }
    }

    /// Checks that every weight has the form its operators take, and finds the buffers that integer products read.
    fn quantised_acts(&self, plan: &Plan) -> Result<Vec<bool>> {
        let mut quantised = vec![false; plan.acts().len()];
        let mut reads = |x: Act, ids: &[WeightId]| -> Result<()> {
            for id in ids {
                quantised[x.index()] |= self.matrix(*id)?.is_packed();
            }
            Ok(())
        };
        let vector = |id: WeightId| match self.weights.get(id.0 as usize) {
            Some(Weight::Vector(_)) => Ok(()),
            _ => Err(unsupported(format!("weight {} was not loaded as a vector", id.0))),
        };
        for op in plan.ops() {
            match op {
                Op::MatMul { x, products } => products.iter().try_for_each(|p| reads(*x, &[p.weight]))?,
                Op::GatedMatMul { x, gate, up, .. } => reads(*x, &[*gate, *up])?,
                Op::Experts(e) => {
                    reads(e.x, &[e.gate, e.up])?;
                    self.matrix(e.down)?;
                }
                Op::RmsNorm { .. } | Op::Route(_) => op.weights().into_iter().try_for_each(vector)?,
                Op::RopeKv(r) => {
                    r.q_norm.iter().chain(&r.k_norm).try_for_each(|id| vector(*id))?;
                }
                Op::DeltaNet(d) => [d.conv, d.dt_bias, d.a, d.norm].into_iter().try_for_each(vector)?,
                _ => {}
            }
        }
        Ok(quantised)
    }

    fn check_caches(&self, plan: &Plan) -> Result<()> {
        for op in plan.ops() {
            if let Some(sums) = op.sums().into_iter().find(|s| s.0 as usize >= self.sums.len()) {
                return Err(TensorError::Plan { op: op.name(), message: format!("unknown {sums:?}") });
            }
            let (known, what) = match op {
                Op::RopeKv(RopeKvOp { kv, .. }) | Op::Attention(AttentionOp { kv, .. }) => {
                    ((kv.0 as usize) < self.kvs.len(), format!("unknown {kv:?}"))
                }
                Op::DeltaNet(d) => {
                    ((d.state.0 as usize) < self.states.len(), format!("unknown {:?}", d.state))
                }
                Op::Keep { ring, .. } | Op::Recall { ring, .. } => {
                    ((ring.0 as usize) < self.rings.len(), format!("unknown {ring:?}"))
                }
                _ => continue,
            };
            if !known {
                return Err(TensorError::Plan { op: op.name(), message: what });
            }
        }
        Ok(())
    }

    fn scratch(&self, plan: &Plan) -> Result<Scratch> {
        let experts = plan.ops().iter().filter_map(|op| if let Op::Experts(e) = op { Some(e) } else { None });
        let (mut most, mut hidden, mut quantised, mut pairs) = (0, 0, false, 0);
        for e in experts {
            let (gate, down) = (self.matrix(e.gate)?, self.matrix(e.down)?);
            most = most.max(self.experts[e.gate.0 as usize]);
            if hidden != 0 && hidden != gate.rows {
                return Err(unsupported(format!(
                    "experts of {hidden} and {} hidden columns in one plan",
                    gate.rows
                )));
            }
            hidden = gate.rows;
            quantised |= down.is_packed();
            pairs = pairs.max(plan.max_rows() * plan.routes()[e.routes.index()]);
        }
        let mut scratch = Scratch::new(plan, &self.kvs, &self.states, most)?;
        scratch.moe = scratch.moe.with_hidden(pairs, hidden, quantised)?;
        Ok(scratch)
    }

    /// Checks a step against the caches that its plan uses and the vocabulary.
    fn check(&self, plan: &Plan, step: &StepRows) -> Result<()> {
        step.check(plan)?;
        let fail = |message: String| Err(TensorError::Step(message));
        for op in plan.ops() {
            match op {
                Op::RopeKv(r) => self.check_kv(&self.kvs[r.kv.0 as usize].spec, r.advance, step)?,
                Op::DeltaNet(d) => self.check_state(&self.states[d.state.0 as usize], step)?,
                Op::Embed { table, ids: Ids::Step, .. } => {
                    let rows = self.table_rows(*table);
                    if let Some(id) = step.tokens.iter().find(|t| **t as usize >= rows) {
                        return fail(format!("token {id}, expected one of the {rows} of the vocabulary"));
                    }
                }
                Op::Embed { ids: Ids::Picked(_), .. } if step.out.iter().any(|o| o.pick == Pick::None) => {
                    return fail(
                        "an output row without a pick, expected a token that later operators embed".into(),
                    );
                }
                Op::Embed { table, ids: Ids::Picked(_), .. } => {
                    check_given(self.table_rows(*table), step)?;
                }
                Op::Sample { logits, map: None, .. } => check_given(plan.act(*logits).cols, step)?,
                Op::Keep { ring, .. } | Op::Recall { ring, .. } => self.check_ring(*ring, step)?,
                Op::Attention(a) => self.check_attention(a, step)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn table_rows(&self, table: WeightId) -> usize {
        match &self.weights[table.0 as usize] {
            Weight::Matrix(m) => m.rows,
            Weight::Vector(_) => usize::MAX,
        }
    }

    fn check_kv(&self, spec: &KvSpec, advance: u32, step: &StepRows) -> Result<()> {
        for seq in &step.seqs {
            let end = seq.pos as usize + seq.rows as usize + advance as usize;
            if seq.slot as usize >= spec.slots || (!spec.ring && end > spec.capacity) {
                return Err(TensorError::Step(format!(
                    "slot {} up to position {end}: the KV cache has {} slots of {} positions",
                    seq.slot, spec.slots, spec.capacity
                )));
            }
        }
        Ok(())
    }

    /// Rows of one step must not overwrite keys that its first row sees.
    fn check_attention(&self, op: &AttentionOp, step: &StepRows) -> Result<()> {
        let spec = &self.kvs[op.kv.0 as usize].spec;
        self.check_kv(spec, op.advance, step)?;
        let window = op.window.map_or(0, |w| w as usize);
        let fits = |s: &SeqRows| !spec.ring || s.rows as usize + window <= spec.capacity + 1;
        step.seqs.iter().find(|s| !fits(s)).map_or(Ok(()), |s| {
            Err(TensorError::Step(format!(
                "slot {}: {} rows that see {window} positions each, in a ring of {}",
                s.slot, s.rows, spec.capacity
            )))
        })
    }

    fn check_ring(&self, ring: RingId, step: &StepRows) -> Result<()> {
        let spec = &self.rings[ring.0 as usize].spec;
        let fits = |s: &SeqRows| (s.slot as usize) < spec.slots && s.rows as usize <= spec.capacity;
        step.seqs.iter().find(|s| !fits(s)).map_or(Ok(()), |s| {
            Err(TensorError::Step(format!(
                "slot {}: {} rows, the ring has {} slots of {} rows",
                s.slot, s.rows, spec.slots, spec.capacity
            )))
        })
    }

    fn check_state(&self, state: &StateCache, step: &StepRows) -> Result<()> {
        for seq in &step.seqs {
            let slot = seq.slot as usize;
            if slot >= state.spec.slots {
                return Err(TensorError::Step(format!("slot {slot} of {}", state.spec.slots)));
            }
            if seq.pos > 0 && seq.replay as usize > state.taped(slot) {
                return Err(TensorError::Step(format!(
                    "slot {slot}: replay of {} rows, the tape has {}",
                    seq.replay,
                    state.taped(slot)
                )));
            }
            let stands = state.stands(slot);
            if seq.pos > 0 && stands + seq.replay as usize != seq.pos as usize {
                return Err(TensorError::Step(format!(
                    "slot {slot}: rows at position {} after a replay of {}, but the state stands at {stands}",
                    seq.pos, seq.replay
                )));
            }
            if !seq.commit && seq.rows as usize > state.spec.tape {
                return Err(TensorError::Step(format!(
                    "slot {slot}: {} undecided rows, the tape holds {}",
                    seq.rows, state.spec.tape
                )));
            }
        }
        Ok(())
    }
}

/// Whether tokens that the step gives are in a vocabulary.
fn check_given(vocabulary: usize, step: &StepRows) -> Result<()> {
    let unknown = |o: &&OutRow| matches!(o.pick, Pick::Given(id) if id as usize >= vocabulary);
    step.out.iter().find(unknown).map_or(Ok(()), |o| {
        Err(TensorError::Step(format!("row {}: {:?}, expected a token below {vocabulary}", o.row, o.pick)))
    })
}

/// Copies results out of a plan's buffers.
fn collect(prepared: &Prepared, step: &StepRows) -> StepOut {
    let mut out = StepOut { taps: vec![Vec::new(); prepared.plan.taps()], ..StepOut::default() };
    for op in prepared.plan.ops() {
        match op {
            Op::Sample { logits, picks, result: true, .. } => {
                out.picked =
                    (0..step.out.len()).map(|row| prepared.scratch.sample.picked(*picks, row)).collect();
                for (row, _) in step.out.iter().enumerate().filter(|(_, o)| o.logits) {
                    out.logits.extend_from_slice(prepared.acts[logits.index()].row(row));
                }
            }
            Op::Output { x, slot } => {
                let rows = match prepared.plan.act(*x).rows {
                    RowSet::Step => step.tokens.len(),
                    RowSet::Out => step.out.len(),
                };
                let buffer = &prepared.taps[*slot];
                let cols = prepared.plan.act(*x).cols;
                out.taps[*slot].extend_from_slice(&buffer[..rows * cols]);
            }
            _ => {}
        }
    }
    out
}

impl Backend for CpuBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn weight_bytes(
        &self,
        ty: TensorType,
        rows: usize,
        cols: usize,
        experts: usize,
        usage: WeightUse,
    ) -> u64 {
        match usage {
            WeightUse::Vector => 4 * (rows * cols) as u64,
            _ => Matrix::held_bytes(ty, rows, cols, experts, usage),
        }
    }

    fn load(&mut self, weight: &WeightData) -> Result<Loaded> {
        weight.check()?;
        let (stored, held, keeps_source) = if weight.usage == WeightUse::Vector {
            let bytes = weight.row_bytes()?;
            let mut v = vec![0.0; weight.rows * weight.cols];
            for (row, out) in weight.bytes.chunks_exact(bytes).zip(v.chunks_exact_mut(weight.cols)) {
                forerun_quant::decode_row(weight.ty, row, out).map_err(|e| TensorError::Weight {
                    name: weight.name.clone(),
                    found: e.to_string(),
                    expected: "rows of its type".into(),
                })?;
            }
            let held = 4 * v.len() as u64;
            (Weight::Vector(v), held, false)
        } else {
            let m = Matrix::load(weight, self.isa, &mut self.pool)?;
            let (held, packed) = (m.held(), m.is_packed());
            (Weight::Matrix(m), held, !packed)
        };
        self.weights.push(stored);
        self.experts.push(weight.experts);
        Ok(Loaded { id: WeightId(self.weights.len() as u32 - 1), keeps_source, held })
    }

    fn new_kv(&mut self, spec: &KvSpec) -> Result<KvId> {
        self.kvs.push(KvCache::new(spec)?);
        Ok(KvId(self.kvs.len() as u32 - 1))
    }

    fn new_state(&mut self, spec: &StateSpec) -> Result<StateId> {
        self.states.push(StateCache::new(spec)?);
        Ok(StateId(self.states.len() as u32 - 1))
    }

    fn new_ring(&mut self, spec: &RingSpec) -> Result<RingId> {
        self.rings.push(RingCache::new(spec)?);
        Ok(RingId(self.rings.len() as u32 - 1))
    }

    fn new_sums(&mut self, spec: &SumsSpec) -> Result<SumsId> {
        self.sums.push(SumsStore::new(spec)?);
        Ok(SumsId(self.sums.len() as u32 - 1))
    }

    fn sums(&mut self, sums: SumsId) -> Result<Sums> {
        let found = self.sums.get(sums.0 as usize).map(SumsStore::read);
        found.ok_or_else(|| TensorError::Step(format!("unknown {sums:?}, expected sums of this backend")))
    }

    fn plan_bytes(&self, plan: &Plan) -> u64 {
        let quantised = self.quantised_acts(plan).unwrap_or_else(|_| vec![true; plan.acts().len()]);
        plan.acts().iter().zip(quantised).map(|(a, q)| ActBuf::bytes(plan.rows_of(a.rows), a.cols, q)).sum()
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId> {
        self.check_caches(&plan)?;
        let quantised = self.quantised_acts(&plan)?;
        let acts = plan
            .acts()
            .iter()
            .zip(quantised)
            .map(|(a, q)| ActBuf::new(plan.rows_of(a.rows), a.cols, q))
            .collect::<Result<_>>()?;
        let scratch = self.scratch(&plan)?;
        self.plans.push(Prepared::new(plan, acts, scratch, self.pool.threads())?);
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn submit(&mut self, plan: PlanId, rows: &StepRows) -> Result<Ticket> {
        let Some(prepared) = self.plans.get(plan.0 as usize) else {
            return Err(TensorError::Step(format!("unknown plan {}", plan.0)));
        };
        self.check(&prepared.plan, rows)?;
        let view = View::new(rows);
        let prepared = &mut self.plans[plan.0 as usize];
        for (table, spec) in prepared.scratch.rotations.iter_mut().zip(prepared.plan.ropes()) {
            table.fill(spec, view.all.rows.iter().map(|r| r.pos));
        }
        prepared.begin();
        let prepared = &*prepared;
        let ctx = Ctx {
            isa: self.isa,
            profile: self.profile,
            plan: &prepared.plan,
            acts: &prepared.acts,
            scratch: &prepared.scratch,
            taps: &prepared.taps,
            view: &view,
            weights: &self.weights,
            kvs: &self.kvs,
            states: &self.states,
            rings: &self.rings,
            sums: &self.sums,
        };
        exec::run(&mut self.pool, prepared, &ctx);
        self.tickets = self.tickets.wrapping_add(1);
        self.done = Some((Ticket(self.tickets), collect(prepared, rows)));
        Ok(Ticket(self.tickets))
    }

    fn wait(&mut self, ticket: Ticket, out: &mut StepOut) -> Result<()> {
        match self.done.take() {
            Some((t, result)) if t == ticket => {
                *out = result;
                Ok(())
            }
            other => {
                self.done = other;
                Err(TensorError::Step(format!("unknown ticket {}", ticket.0)))
            }
        }
    }

    fn profile(&self, plan: PlanId) -> Option<(&Plan, Vec<Duration>)> {
        let prepared = self.plans.get(plan.0 as usize).filter(|_| self.profile)?;
        Some((&prepared.plan, prepared.times()))
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<()> {
        self.states.iter().try_for_each(|s| s.copy(from, to))
    }

    fn copy_ring(&mut self, ring: RingId, from: u32, to: u32, pos: u32) -> Result<()> {
        match self.rings.get(ring.0 as usize) {
            Some(found) => found.copy(from, to, pos),
            None => Err(TensorError::Step(format!("unknown {ring:?}, expected a ring of this backend"))),
        }
    }

    fn copy_kv(&mut self, from: u32, to: u32, positions: u32) -> Result<()> {
        self.kvs.iter().try_for_each(|kv| kv.copy(from, to, positions))
    }
}
