//! The reference backend: every operator in plain loops over float64, as its maths is written.
//!
//! It is an oracle, so it shares no kernel code with other backends: weights are decoded and multiplied in float64,
//! activations are never quantised, and `exp`, `ln`, `sin` and `tanh` are the platform's own. Those may differ in the
//! last bit from machine to machine, which is allowed here and nowhere else: results of this backend are compared
//! within tolerances, and no promised token depends on them. One thing is shared on purpose: the noise of
//! [`crate::noise`] is part of what a sampled token means.
//!
//! A step is checked completely before it runs, down to every cache position that a row will read.

mod attention;
mod cache;
mod check;
mod delta_net;
mod moe;
mod sample;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::HashMap;
use std::ops::Range;

use forerun_quant::TensorType;

use crate::backend::{
    Backend, BackendInfo, KvId, KvSpec, Loaded, PlanId, RingId, RingSpec, StateId, StateSpec, Ticket,
    WeightData, WeightId, WeightUse,
};
use crate::error::{Result, TensorError};
use crate::plan::{Act, Activation, AttentionOp, Factor, Ids, Op, Plan, RowSet};
use crate::step::{Picked, StepOut, StepRows};
use crate::sums::{Sums, SumsId, SumsSpec};

use cache::{KvCache, RingCache, StateCache};
use weights::Weight;

/// A row of a step.
#[derive(Clone, Copy)]
struct Row {
    slot: usize,
    pos: usize,
    /// Last position that its sequence has in this step.
    last: usize,
}

impl Row {
    /// Positions whose keys the row sees.
    fn visible(&self, op: &AttentionOp) -> Range<usize> {
        let advance = op.advance as usize;
        let pos = self.pos + advance;
        let first = op.window.map_or(0, |w| (pos + 1).saturating_sub(w as usize));
        let last = if op.causal { pos } else { self.last + advance };
        first..last + 1
    }
}

/// The rows that a buffer of the set has.
fn step_rows(set: RowSet, step: &StepRows) -> Vec<Row> {
    let mut all = Vec::new();
    step.for_each_row(|_, seq, pos| {
        let last = (seq.pos + seq.rows - 1) as usize;
        all.push(Row { slot: seq.slot as usize, pos: pos as usize, last });
    });
    match set {
        RowSet::Step => all,
        RowSet::Out => step.out.iter().map(|o| all[o.row as usize]).collect(),
    }
}

/// An activation buffer: one vector per row.
type Buffer = Vec<Vec<f64>>;

/// Buffers of a step.
struct Frame<'a> {
    plan: &'a Plan,
    step: &'a StepRows,
    acts: Vec<Buffer>,
    /// Per row, experts and their weights in rank order.
    routes: Vec<Vec<Vec<(usize, f64)>>>,
    picks: Vec<Vec<Picked>>,
}

impl<'a> Frame<'a> {
    fn new(plan: &'a Plan, step: &'a StepRows) -> Self {
        Self {
            plan,
            step,
            acts: vec![Vec::new(); plan.acts().len()],
            routes: vec![Vec::new(); plan.routes().len()],
            picks: vec![Vec::new(); plan.picks()],
        }
    }
    fn rows(&self, act: Act) -> Vec<Row> {
        step_rows(self.plan.act(act).rows, self.step)
    }
    fn get(&self, act: Act) -> &Buffer {
        &self.acts[act.index()]
    }
    fn set(&mut self, act: Act, value: Buffer) {
        self.acts[act.index()] = value;
    }
    /// `value`, or `residual + value`.
    fn with_residual(&self, residual: Option<Act>, mut value: Buffer) -> Buffer {
        if let Some(r) = residual {
            let pairs = value.iter_mut().flatten().zip(self.get(r).iter().flatten());
            pairs.for_each(|(v, r)| *v += r);
        }
        value
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

fn activate(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => silu(x),
        Activation::GeluTanh => gelu_tanh(x),
    }
}

fn rms(x: &[f64], gain: Option<&[f64]>, eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let r = 1.0 / (mean + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * r * gain.map_or(1.0, |g| g[i])).collect()
}

/// The reference backend; see the [module's documentation](self).
pub struct ReferenceBackend {
    info: BackendInfo,
    weights: Vec<Weight>,
    kvs: Vec<KvCache>,
    states: Vec<StateCache>,
    rings: Vec<RingCache>,
    sums: Vec<Sums>,
    plans: Vec<Plan>,
    done: HashMap<Ticket, StepOut>,
    tickets: u32,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl ReferenceBackend {
    /// An empty backend.
    #[must_use]
    pub fn new() -> Self {
        Self {
            info: BackendInfo {
                name: "reference",
                arithmetic_id: "reference".into(),
                detail: "plain float64 loops, one thread".into(),
            },
            weights: Vec::new(),
            kvs: Vec::new(),
            states: Vec::new(),
            rings: Vec::new(),
            sums: Vec::new(),
            plans: Vec::new(),
            done: HashMap::new(),
            tickets: 0,
        }
    }

    fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    fn vector(&self, id: Option<WeightId>) -> Option<Vec<f64>> {
        id.map(|id| self.weight(id).vector())
    }

    fn run(&mut self, plan: &Plan, step: &StepRows) -> StepOut {
        let mut out = StepOut { taps: vec![Vec::new(); plan.taps()], ..StepOut::default() };
        let mut frame = Frame::new(plan, step);
        for op in plan.ops() {
            self.op(op, &mut frame, &mut out);
        }
        out
    }

    fn op(&mut self, op: &Op, f: &mut Frame<'_>, out: &mut StepOut) {
        match op {
            Op::Embed { table, ids, scale, out } => self.embed(f, *table, *ids, f64::from(*scale), *out),
            Op::RmsNorm { x, weight, group, eps, residual, scale, out } => {
                let (gain, eps) = (self.vector(*weight), f64::from(*eps));
                let normed = |row: &Vec<f64>| {
                    row.chunks(*group).flat_map(|run| rms(run, gain.as_deref(), eps)).collect::<Vec<f64>>()
                };
                let mut y = f.with_residual(*residual, f.get(*x).iter().map(normed).collect());
                let scale = scale.map_or(1.0, |s| match s {
                    Factor::Weight(w) => self.weight(w).vector()[0],
                    Factor::Constant(c) => f64::from(c),
                });
                y.iter_mut().flatten().for_each(|v| *v *= scale);
                f.set(*out, y);
            }
            Op::MatMul { x, products } => {
                for p in products {
                    let y = self.weight(p.weight).products(0, f.get(*x));
                    f.set(p.out, f.with_residual(p.residual, y));
                }
            }
            Op::GatedMatMul { x, gate, up, activation, out } => {
                let mut y = self.weight(*gate).products(0, f.get(*x));
                let up = self.weight(*up).products(0, f.get(*x));
                let pairs = y.iter_mut().flatten().zip(up.iter().flatten());
                pairs.for_each(|(g, u)| *g = activate(*activation, *g) * u);
                f.set(*out, y);
            }
            Op::RopeKv(op) => self.rope_kv(op, f),
            Op::Attention(op) => self.attention(op, f),
            Op::DeltaNet(op) => self.delta_net(op, f),
            Op::Route(op) => self.route(op, f),
            Op::Experts(op) => self.experts(op, f),
            Op::Collect { x, sums } => f.get(*x).iter().for_each(|row| self.add_squares(*sums, 0, row)),
            Op::Select { x, out } => {
                let y = f.step.out.iter().map(|o| f.get(*x)[o.row as usize].clone()).collect();
                f.set(*out, y);
            }
            Op::Softcap { x, cap } => {
                let cap = f64::from(*cap);
                f.acts[x.index()].iter_mut().flatten().for_each(|v| *v = cap * (*v / cap).tanh());
            }
            Op::Multiply { x, activation, by, first } => {
                let factors = f.get(*by).clone();
                for (row, factors) in f.acts[x.index()].iter_mut().zip(factors) {
                    let pairs = row.iter_mut().zip(&factors[*first..]);
                    pairs.for_each(|(v, by)| *v = activate(*activation, *v) * by);
                }
            }
            Op::Sample { logits, map, picks, result } => {
                let map = map.map(|m| &f.plan.token_map(m)[..]);
                let picked = sample::sample(f.get(*logits), map, &f.step.out, *result, out);
                f.picks[picks.index()] = picked;
            }
            Op::Concat { parts, out } => {
                let rows = f.rows(*out).len();
                let row = |i: usize| parts.iter().flat_map(|p| f.get(*p)[i].iter().copied()).collect();
                f.set(*out, (0..rows).map(row).collect());
            }
            Op::Keep { x, ring, first, ahead } => {
                let ring = &mut self.rings[ring.0 as usize];
                for (row, values) in f.rows(*x).into_iter().zip(f.get(*x)) {
                    let (slot, pos) = (&mut ring.slots[row.slot], row.pos + *ahead as usize);
                    if *first == 0 {
                        slot.put(pos, vec![0.0; ring.cols]);
                    }
                    if let Some(kept) = slot.get_mut(pos) {
                        kept[*first..*first + values.len()].copy_from_slice(values);
                    }
                }
            }
            Op::Recall { ring, out } => {
                let slots = &self.rings[ring.0 as usize].slots;
                let rows = f.rows(*out).into_iter();
                f.set(*out, rows.map(|r| slots[r.slot].get(r.pos).cloned().unwrap_or_default()).collect());
            }
            Op::Output { x, slot } => {
                out.taps[*slot] = f.get(*x).iter().flatten().map(|v| *v as f32).collect();
            }
        }
    }

    /// Adds the squares of a row that one of the matrices reads.
    fn add_squares(&mut self, sums: SumsId, matrix: usize, row: &[f64]) {
        let sums = &mut self.sums[sums.0 as usize];
        let own = &mut sums.squares[matrix * row.len()..][..row.len()];
        own.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
        sums.rows[matrix] += 1;
    }

    fn embed(&self, f: &mut Frame<'_>, table: WeightId, ids: Ids, scale: f64, out: Act) {
        let ids: Vec<u32> = match ids {
            Ids::Step => f.step.tokens.clone(),
            Ids::Picked(p) => f.picks[p.index()].iter().map(|p| p.token).collect(),
        };
        let row = |id: &u32| self.weight(table).row(0, *id as usize).iter().map(|v| v * scale).collect();
        f.set(out, ids.iter().map(row).collect());
    }
}

impl Backend for ReferenceBackend {
    fn info(&self) -> &BackendInfo {
        &self.info
    }

    fn weight_bytes(&self, _: TensorType, _: usize, _: usize, _: usize, _: WeightUse) -> u64 {
        0
    }

    fn load(&mut self, weight: &WeightData) -> Result<Loaded> {
        self.weights.push(Weight::new(weight)?);
        Ok(Loaded { id: WeightId(self.weights.len() as u32 - 1), keeps_source: true, held: 0 })
    }

    fn new_kv(&mut self, spec: &KvSpec) -> Result<KvId> {
        spec.check()?;
        self.kvs.push(KvCache::new(spec));
        Ok(KvId(self.kvs.len() as u32 - 1))
    }

    fn new_state(&mut self, spec: &StateSpec) -> Result<StateId> {
        spec.check()?;
        self.states.push(StateCache::new(spec));
        Ok(StateId(self.states.len() as u32 - 1))
    }

    fn new_ring(&mut self, spec: &RingSpec) -> Result<RingId> {
        spec.check()?;
        self.rings.push(RingCache::new(spec));
        Ok(RingId(self.rings.len() as u32 - 1))
    }

    fn new_sums(&mut self, spec: &SumsSpec) -> Result<SumsId> {
        self.sums.push(Sums { squares: vec![0.0; spec.count()?], rows: vec![0; spec.matrices] });
        Ok(SumsId(self.sums.len() as u32 - 1))
    }

    fn sums(&mut self, sums: SumsId) -> Result<Sums> {
        let found = self.sums.get(sums.0 as usize).cloned();
        found.ok_or_else(|| TensorError::Step(format!("unknown {sums:?}, expected sums of this backend")))
    }

    fn plan_bytes(&self, plan: &Plan) -> u64 {
        let rows = |set| if set == RowSet::Step { plan.max_rows() } else { plan.max_out() };
        let bytes = |rows: usize, cols: usize| (rows as u64).saturating_mul(cols as u64).saturating_mul(8);
        plan.acts().iter().map(|a| bytes(rows(a.rows), a.cols)).fold(0, u64::saturating_add)
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId> {
        check::plan(self, &plan)?;
        self.plans.push(plan);
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn submit(&mut self, plan: PlanId, rows: &StepRows) -> Result<Ticket> {
        let Some(plan) = self.plans.get(plan.0 as usize).cloned() else {
            return Err(TensorError::Step(format!("unknown {plan:?}, expected one of {}", self.plans.len())));
        };
        check::step(self, &plan, rows)?;
        let out = self.run(&plan, rows);
        self.tickets = self.tickets.wrapping_add(1);
        self.done.insert(Ticket(self.tickets), out);
        Ok(Ticket(self.tickets))
    }

    fn wait(&mut self, ticket: Ticket, out: &mut StepOut) -> Result<()> {
        let done = self.done.remove(&ticket);
        *out = done.ok_or_else(|| TensorError::Step(format!("no step waits for {ticket:?}")))?;
        Ok(())
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<()> {
        let (from, to) = (from as usize, to as usize);
        for state in &self.states {
            let slots = state.slots.len();
            if from.max(to) >= slots {
                let message =
                    format!("copying the state of slot {from} to {to}, expected slots below {slots}");
                return Err(TensorError::Step(message));
            }
            let undecided = state.slots[from].as_ref().map_or(0, |s| s.tape.len());
            if undecided > 0 {
                let message = format!(
                    "copying the state of slot {from} with {undecided} undecided rows, expected none"
                );
                return Err(TensorError::Step(message));
            }
        }
        for state in &mut self.states {
            state.slots[to] = state.slots[from].clone();
        }
        Ok(())
    }

    fn copy_ring(&mut self, ring: RingId, from: u32, to: u32, pos: u32) -> Result<()> {
        let (from, to, pos) = (from as usize, to as usize, pos as usize);
        let Some(ring) = self.rings.get_mut(ring.0 as usize) else {
            return Err(TensorError::Step(format!("unknown {ring:?}, expected a ring of this backend")));
        };
        if from.max(to) >= ring.slots.len() {
            let slots = ring.slots.len();
            let message = format!("copying a row of slot {from} to {to}, expected slots below {slots}");
            return Err(TensorError::Step(message));
        }
        // A write would end the slot's own sequence.
        if let Some(row) = ring.slots[from].get(pos).cloned().filter(|_| from != to) {
            ring.slots[to].put(pos, row);
        }
        Ok(())
    }

    fn copy_kv(&mut self, from: u32, to: u32, positions: u32) -> Result<()> {
        let (from, to, positions) = (from as usize, to as usize, positions as usize);
        for KvCache { spec, slots } in &self.kvs {
            if from.max(to) >= slots.len() || (!spec.ring && positions > spec.capacity) {
                return Err(TensorError::Step(format!(
                    "copying {positions} positions of slot {from} to {to}, expected slots below {} of {} positions",
                    slots.len(),
                    spec.capacity
                )));
            }
        }
        self.kvs.iter_mut().for_each(|kv| kv.copy(from, to, positions));
        Ok(())
    }
}
