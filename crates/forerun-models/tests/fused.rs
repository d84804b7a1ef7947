//! Fused tensors give the results of separate ones.

#[path = "common/fake.rs"]
mod fake;

use fake::Fake;
use forerun_models::ffn::FfnShape;
use forerun_models::{CacheConfig, Model, ModelSpec, Shape, Source, StepShape, Taps, WeightMix};
use forerun_quant::TensorType;
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Backend, OutRow, Pick, SeqRows, StepOut, StepRows};

const SHAPE: Shape = Shape {
    name: "fused",
    hidden: 64,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 16,
    ffn: FfnShape::Experts { experts: 4, top_k: 2, ffn: 32, shared: 64 },
    vocabulary: 100,
};

fn logits(source: &dyn Source) -> Vec<f32> {
    let spec = ModelSpec::read(source).unwrap_or_else(|e| panic!("{e}"));
    let mut backend = ReferenceBackend::new();
    let caches = CacheConfig { context: 16, ..CacheConfig::default() };
    let model = Model::load(source, spec, &mut backend, &caches, &mut |_| true);
    let model = model.unwrap_or_else(|e| panic!("{e}"));
    let shape = StepShape { max_rows: 9, max_out: 9, taps: Taps::default() };
    let plan = backend.prepare(model.record(&shape).expect("record")).expect("prepare");
    let rows = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: 0, rows: 9, replay: 0, commit: true }],
        tokens: (0..9).map(|i| i * 11).collect(),
        out: (0..9).map(|row| OutRow { row, pick: Pick::None, logits: true }).collect(),
    };
    let mut out = StepOut::default();
    let ticket = backend.submit(plan, &rows).expect("submit");
    backend.wait(ticket, &mut out).expect("wait");
    out.logits
}

/// The gates and ups of experts, and the q, k and v of attention, in one tensor each.
#[test]
fn fused_tensors_equal_separate_ones() {
    let mut file = Fake::filled(&SHAPE, WeightMix::All(TensorType::Q8_0), 5);
    let separate = logits(&file);
    assert_eq!(separate.len(), 9 * 100);
    for i in 0..4 {
        let parts = ["ffn_gate_exps", "ffn_up_exps"].map(|p| format!("blk.{i}.{p}.weight"));
        file.fuse(&format!("blk.{i}.ffn_gate_up_exps.weight"), &parts);
    }
    file.fuse("blk.3.attn_qkv.weight", &["attn_q", "attn_k", "attn_v"].map(|p| format!("blk.3.{p}.weight")));
    assert_eq!(logits(&file), separate);
}
