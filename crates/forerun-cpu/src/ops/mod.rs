//! The operators, a file each. Each is a sequence of phases in which threads claim units of work; a phase begins when the
//! units of the one before are finished. What is read outside units must be the same at any time of a step.

mod attention;
mod collect;
mod delta_net;
mod experts;
mod products;
mod rope_kv;
mod rows;
mod sample;

use forerun_tensor::{Op, Plan, Result};

use crate::caches::{KvCache, StateCache};
use crate::exec::{Ctx, Worker};

pub(crate) use attention::AttentionScratch;
pub(crate) use delta_net::DeltaScratch;
pub(crate) use experts::MoeScratch;
pub(crate) use rope_kv::Rotations;
pub(crate) use sample::SampleScratch;

/// Memory that operators of a plan share from phase to phase; operators run one after the other, so they reuse it.
pub(crate) struct Scratch {
    pub(crate) attention: AttentionScratch,
    pub(crate) attention_rounds: usize,
    pub(crate) delta: DeltaScratch,
    pub(crate) moe: MoeScratch,
    pub(crate) rotations: Vec<Rotations>,
    pub(crate) sample: SampleScratch,
}

impl Scratch {
    pub(crate) fn new(plan: &Plan, kvs: &[KvCache], states: &[StateCache], experts: usize) -> Result<Self> {
        let ropes = plan.ropes().iter();
        Ok(Self {
            attention: AttentionScratch::new(plan)?,
            attention_rounds: attention::rounds(plan, kvs),
            delta: DeltaScratch::new(plan, states)?,
            moe: MoeScratch::new(plan, experts)?,
            rotations: ropes.map(|r| Rotations::new(r, plan.max_rows())).collect::<Result<_>>()?,
            sample: SampleScratch::new(plan)?,
        })
    }
}

/// Runs one operator on one of the threads.
pub(crate) fn run(op: &Op, ctx: &Ctx<'_>, w: &Worker<'_>) {
    match op {
        Op::Embed { table, ids, scale, out } => rows::embed(ctx, w, *table, *ids, *scale, *out),
        Op::RmsNorm { x, weight, group, eps, residual, scale, out } => {
            rows::rms_norm(
                ctx,
                w,
                &rows::Norm {
                    x: *x,
                    weight: *weight,
                    group: *group,
                    eps: *eps,
                    residual: *residual,
                    scale: *scale,
                    out: *out,
                },
            );
        }
        Op::MatMul { x, products } => products::mat_mul(ctx, w, *x, products),
        Op::GatedMatMul { x, gate, up, activation, out } => {
            products::gated_mat_mul(
                ctx,
                w,
                &products::Gated { x: *x, gate: *gate, up: *up, activation: *activation, out: *out },
            );
        }
        Op::RopeKv(op) => rope_kv::rope_kv(ctx, w, op),
        Op::Attention(op) => attention::attention(ctx, w, op),
        Op::DeltaNet(op) => delta_net::delta_net(ctx, w, op),
        Op::Collect { x, sums } => collect::collect(ctx, w, *x, *sums),
        Op::Route(op) => experts::route(ctx, w, op),
        Op::Experts(op) => experts::experts(ctx, w, op),
        Op::Select { x, out } => rows::select(ctx, w, *x, *out),
        Op::Softcap { x, cap } => rows::softcap(ctx, w, *x, *cap),
        Op::Multiply { x, activation, by, first } => rows::multiply(ctx, w, *x, *activation, (*by, *first)),
        Op::Sample { logits, map, picks, .. } => sample::sample(ctx, w, *logits, *map, *picks),
        Op::Concat { parts, out } => rows::concat(ctx, w, parts, *out),
        Op::Keep { x, ring, first, ahead } => rows::keep(ctx, w, *x, (*ring, *first), *ahead),
        Op::Recall { ring, out } => rows::recall(ctx, w, *ring, *out),
        Op::Output { x, slot } => rows::output(ctx, w, *x, *slot),
    }
}
