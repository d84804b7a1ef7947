//! Operators on inputs small enough to compute by hand, and the rules of caches, tapes and steps.

mod attention;
mod checks;
mod delta_net;
mod operators;
mod rings;
mod sample;
mod sharing;

use super::ReferenceBackend;
use crate::backend::{Backend, KvSpec, KvType, PlanId, SharedBytes, WeightData, WeightUse};
use crate::builder::{Kv, PlanBuilder, Scale, Weight};
use crate::error::Result;
use crate::step::{OutRow, Pick, SeqRows, StepOut, StepRows};
use forerun_quant::TensorType;

/// A float32 weight of `experts` stacked matrices.
fn stack(b: &mut ReferenceBackend, experts: usize, rows: usize, cols: usize, values: &[f32]) -> Weight {
    assert_eq!(values.len(), experts * rows * cols);
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let data = WeightData {
        name: "w".into(),
        ty: TensorType::F32,
        rows,
        cols,
        experts,
        expert_stride: 4 * rows * cols,
        bytes: SharedBytes::from(bytes),
        usage: WeightUse::Matrix,
    };
    Weight { id: b.load(&data).unwrap().id, rows, cols, experts }
}

fn matrix(b: &mut ReferenceBackend, rows: usize, cols: usize, values: &[f32]) -> Weight {
    stack(b, 1, rows, cols, values)
}

fn vector(b: &mut ReferenceBackend, values: &[f32]) -> Weight {
    matrix(b, 1, values.len(), values)
}

/// Values in ±1 that look random and never change.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    (0..n as u32).map(|i| crate::noise::word(seed, 0, i) as f32 / 2_147_483_648.0 - 1.0).collect()
}

fn kv(b: &mut ReferenceBackend, spec: KvSpec) -> Kv {
    Kv { id: b.new_kv(&spec).unwrap(), spec }
}

fn kv_spec(capacity: usize, ring: bool, heads: usize, dim: usize, ty: KvType) -> KvSpec {
    KvSpec { slots: 2, capacity, ring, heads, key_dim: dim, value_dim: dim, ty, block: 8 }
}

/// A plan whose embedding brings `table` rows in as the activations that `f` continues from.
fn plan(
    b: &mut ReferenceBackend,
    table: &Weight,
    f: impl FnOnce(&mut PlanBuilder, crate::plan::Act) -> Result<()>,
) -> PlanId {
    let mut builder = PlanBuilder::new(64, 64);
    let x = builder.embed(table, crate::plan::Ids::Step, 1.0).unwrap();
    f(&mut builder, x).unwrap();
    b.prepare(builder.finish()).unwrap()
}

fn seq(slot: u32, pos: u32, rows: u32, replay: u32, commit: bool) -> SeqRows {
    SeqRows { slot, pos, rows, replay, commit }
}

/// Committed rows of slot 0.
fn rows(pos: u32, tokens: &[u32]) -> StepRows {
    StepRows { seqs: vec![seq(0, pos, tokens.len() as u32, 0, true)], tokens: tokens.to_vec(), out: vec![] }
}

fn with_out(mut step: StepRows, row: u32, pick: Pick) -> StepRows {
    step.out.push(OutRow { row, pick, logits: true });
    step
}

fn run(b: &mut ReferenceBackend, plan: PlanId, step: &StepRows) -> StepOut {
    try_run(b, plan, step).unwrap()
}

fn try_run(b: &mut ReferenceBackend, plan: PlanId, step: &StepRows) -> Result<StepOut> {
    let ticket = b.submit(plan, step)?;
    let mut out = StepOut::default();
    b.wait(ticket, &mut out)?;
    Ok(out)
}

#[track_caller]
fn close(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert!((f64::from(*g) - w).abs() < 1e-6 * w.abs().max(1.0), "{got:?}, expected {want:?}");
    }
}
