//! The reference backend: every operator in plain loops over float64, as its maths is written.
//!
//! It is an oracle, so it shares no kernel code with other backends: weights are decoded and multiplied in float64,
//! activations are never quantised, and the platform's own float64 functions are used. Its results are compared within
//! tolerances; no promised token depends on it.

mod attention;
mod cache;
mod delta_net;
mod moe;
mod rows;
mod sample;

use std::collections::HashMap;

use forerun_quant::{TensorType, decode_row};

use crate::backend::{
    Backend, BackendInfo, KvId, KvSpec, Loaded, PlanId, StateId, StateSpec, Ticket, WeightData, WeightId, WeightUse,
};
use crate::error::{Result, TensorError};
use crate::plan::{Act, Activation, Ids, Op, Plan, RowSet};
use crate::step::{Picked, StepOut, StepRows};

use cache::{KvCache, StateCache};
use rows::Rows;

/// A weight decoded on demand.
struct Weight {
    data: WeightData,
}

impl Weight {
    fn row(&self, expert: usize, row: usize) -> Vec<f32> {
        let d = &self.data;
        let bytes = d.ty.row_bytes(d.cols).unwrap_or(0);
        let start = expert * d.expert_stride + row * bytes;
        let mut out = vec![0.0; d.cols];
        // The sizes were checked when the weight was loaded.
        let decoded = decode_row(d.ty, &d.bytes[start..start + bytes], &mut out);
        debug_assert!(decoded.is_ok());
        out
    }

    fn vector(&self) -> Vec<f64> {
        (0..self.data.rows).flat_map(|r| self.row(0, r)).map(f64::from).collect()
    }

    /// `W[expert] · x`.
    fn product(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        (0..self.data.rows)
            .map(|r| self.row(expert, r).iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum())
            .collect()
    }
}

/// An activation buffer: one vector per row.
type Buffer = Vec<Vec<f64>>;

/// Buffers of a step.
struct Frame<'a> {
    plan: &'a Plan,
    rows: Rows<'a>,
    acts: Vec<Buffer>,
    routes: Vec<Vec<Vec<(usize, f64)>>>,
    picks: Vec<Vec<Picked>>,
}

impl Frame<'_> {
    fn count(&self, act: Act) -> usize {
        match self.plan.act(act).rows {
            RowSet::Step => self.rows.list.len(),
            RowSet::Out => self.rows.step.out.len(),
        }
    }
    fn get(&self, act: Act) -> &Buffer {
        &self.acts[act.index()]
    }
    fn set(&mut self, act: Act, value: Buffer) {
        self.acts[act.index()] = value;
    }
    fn map(&mut self, x: Act, out: Act, f: impl Fn(&[f64]) -> Vec<f64>) {
        let value = self.get(x).iter().map(|row| f(row)).collect();
        self.set(out, value);
    }
}

/// The reference backend.
pub struct ReferenceBackend {
    info: BackendInfo,
    weights: Vec<Weight>,
    kvs: Vec<KvCache>,
    states: Vec<StateCache>,
    plans: Vec<Plan>,
    done: HashMap<u32, StepOut>,
    tickets: u32,
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

fn activate(kind: Activation, x: f64) -> f64 {
    match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rms(x: &[f64], gain: Option<&[f64]>, eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let r = 1.0 / (mean + eps).sqrt();
    x.iter().enumerate().map(|(i, v)| v * r * gain.map_or(1.0, |g| g[i])).collect()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
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
            plans: Vec::new(),
            done: HashMap::new(),
            tickets: 0,
        }
    }

    fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    fn gain(&self, id: Option<WeightId>) -> Option<Vec<f64>> {
        id.map(|id| self.weight(id).vector())
    }

    fn run(&mut self, plan: &Plan, step: &StepRows) -> Result<StepOut> {
        let rows = Rows::new(step);
        for kv in &self.kvs {
            rows.check_kv(&kv.spec)?;
        }
        for state in &self.states {
            state.check(step)?;
        }
        let mut out = StepOut { taps: vec![Vec::new(); plan.taps()], ..StepOut::default() };
        let mut frame = Frame {
            plan,
            rows,
            acts: vec![Vec::new(); plan.acts().len()],
            routes: vec![Vec::new(); plan.routes().len()],
            picks: vec![Vec::new(); plan.picks()],
        };
        for op in plan.ops() {
            self.op(op, &mut frame, &mut out)?;
        }
        Ok(out)
    }

    fn op(&mut self, op: &Op, f: &mut Frame<'_>, out: &mut StepOut) -> Result<()> {
        match op {
            Op::Embed { table, ids, scale, out } => self.embed(f, *table, *ids, *scale, *out)?,
            Op::RmsNorm { x, weight, eps, residual, scale, out } => {
                let (gain, scale) = (self.gain(*weight), self.gain(*scale));
                let mut y: Buffer =
                    f.get(*x).iter().map(|row| rms(row, gain.as_deref(), f64::from(*eps))).collect();
                if let Some(r) = residual {
                    y = y.iter().zip(f.get(*r)).map(|(y, r)| add(r, y)).collect();
                }
                if let Some(s) = scale {
                    y.iter_mut().flatten().for_each(|v| *v *= s[0]);
                }
                f.set(*out, y);
            }
            Op::MatMul { x, products } => {
                for p in products {
                    let w = self.weight(p.weight);
                    let mut y: Buffer = f.get(*x).iter().map(|row| w.product(0, row)).collect();
                    if let Some(r) = p.residual {
                        y = y.iter().zip(f.get(r)).map(|(y, r)| add(r, y)).collect();
                    }
                    f.set(p.out, y);
                }
            }
            Op::GatedMatMul { x, gate, up, activation, out } => {
                let (gate, up) = (self.weight(*gate), self.weight(*up));
                f.map(*x, *out, |row| {
                    let g = gate.product(0, row);
                    g.iter().zip(up.product(0, row)).map(|(g, u)| activate(*activation, *g) * u).collect()
                });
            }
            Op::RopeKv(op) => self.rope_kv(op, f),
            Op::Attention(op) => self.attention(op, f),
            Op::DeltaNet(op) => self.delta_net(op, f),
            Op::Route(op) => self.route(op, f),
            Op::Experts(op) => self.experts(op, f),
            Op::Select { x, out } => {
                let y = f.rows.step.out.iter().map(|o| f.get(*x)[o.row as usize].clone()).collect();
                f.set(*out, y);
            }
            Op::Softcap { x, cap } => {
                let cap = f64::from(*cap);
                f.map(*x, *x, |row| row.iter().map(|v| cap * (v / cap).tanh()).collect());
            }
            Op::Sample { logits, picks, result } => {
                let picked = sample::sample(f.get(*logits), &f.rows.step.out, *result, out);
                f.picks[picks.index()] = picked;
            }
            Op::Output { x, slot } => {
                out.taps[*slot] = f.get(*x).iter().flatten().map(|v| *v as f32).collect();
            }
        }
        Ok(())
    }

    fn embed(&self, f: &mut Frame<'_>, table: WeightId, ids: Ids, scale: f32, out: Act) -> Result<()> {
        let w = self.weight(table);
        let ids: Vec<u32> = match ids {
            Ids::Step => f.rows.step.tokens.clone(),
            Ids::Picked(p) => f.picks[p.index()].iter().map(|p| p.token).collect(),
        };
        debug_assert_eq!(ids.len(), f.count(out));
        if let Some(id) = ids.iter().find(|id| **id as usize >= w.data.rows) {
            return Err(TensorError::Step(format!("token {id}: the vocabulary has {} tokens", w.data.rows)));
        }
        let scale = f64::from(scale);
        let y = ids.iter().map(|id| w.row(0, *id as usize).iter().map(|v| f64::from(*v) * scale).collect());
        let y = y.collect();
        f.set(out, y);
        Ok(())
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
        weight.check()?;
        self.weights.push(Weight { data: weight.clone() });
        Ok(Loaded { id: WeightId(self.weights.len() as u32 - 1), keeps_source: true, held: 0 })
    }

    fn new_kv(&mut self, spec: &KvSpec) -> Result<KvId> {
        self.kvs.push(KvCache::new(spec));
        Ok(KvId(self.kvs.len() as u32 - 1))
    }

    fn new_state(&mut self, spec: &StateSpec) -> Result<StateId> {
        self.states.push(StateCache::new(spec));
        Ok(StateId(self.states.len() as u32 - 1))
    }

    fn plan_bytes(&self, plan: &Plan) -> u64 {
        plan.acts().iter().map(|a| 8 * (a.cols * plan.max_rows()) as u64).sum()
    }

    fn prepare(&mut self, plan: Plan) -> Result<PlanId> {
        self.plans.push(plan);
        Ok(PlanId(self.plans.len() as u32 - 1))
    }

    fn submit(&mut self, plan: PlanId, rows: &StepRows) -> Result<Ticket> {
        let plan = self.plans.get(plan.0 as usize).cloned();
        let plan = plan.ok_or_else(|| TensorError::Step("unknown plan".into()))?;
        rows.check(&plan)?;
        let out = self.run(&plan, rows)?;
        self.tickets += 1;
        self.done.insert(self.tickets, out);
        Ok(Ticket(self.tickets))
    }

    fn wait(&mut self, ticket: Ticket, out: &mut StepOut) -> Result<()> {
        *out = self.done.remove(&ticket.0).ok_or_else(|| TensorError::Step("unknown ticket".into()))?;
        Ok(())
    }

    fn copy_state(&mut self, from: u32, to: u32) -> Result<()> {
        self.states.iter_mut().try_for_each(|s| s.copy(from, to))
    }

    fn copy_kv(&mut self, from: u32, to: u32, positions: u32) -> Result<()> {
        self.kvs.iter_mut().try_for_each(|kv| kv.copy(from, to, positions))
    }
}
