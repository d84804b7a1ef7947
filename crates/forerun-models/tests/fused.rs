//! Fused tensors give the results of separate ones.

use forerun_files::{Metadata, TensorKind};
use forerun_models::ffn::FfnShape;
use forerun_models::{
    CacheConfig, Model, ModelSpec, Shape, Source, SourceTensor, StepShape, Synthetic, Taps, TensorHeader,
    WeightMix,
};
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

/// Names of the parts of a fused tensor of a main layer.
fn parts(name: &str) -> Option<Vec<String>> {
    if let Some(block) = name.strip_suffix("ffn_gate_up_exps.weight") {
        return Some(["ffn_gate_exps", "ffn_up_exps"].map(|p| format!("{block}{p}.weight")).to_vec());
    }
    (name == "blk.3.attn_qkv.weight")
        .then(|| ["attn_q", "attn_k", "attn_v"].map(|p| format!("blk.3.{p}.weight")).to_vec())
}

/// The same weights with the gates and ups of experts, and the q, k and v of attention, in one tensor each.
struct Fused {
    separate: Synthetic,
    headers: Vec<TensorHeader>,
}

impl Fused {
    fn new(separate: Synthetic) -> Self {
        let mut fused = Self { separate, headers: Vec::new() };
        let names = (0..4).map(|i| format!("blk.{i}.ffn_gate_up_exps.weight"));
        let names: Vec<String> = names.chain(["blk.3.attn_qkv.weight".to_owned()]).collect();
        let gone: Vec<String> = names.iter().filter_map(|n| parts(n)).flatten().collect();
        let kept = fused.separate.tensors().iter().filter(|t| !gone.contains(&t.name));
        fused.headers = kept.cloned().collect();
        for name in names {
            let t = fused.tensor(&name).expect("a fused tensor");
            fused.headers.push(TensorHeader { name, dims: t.dims, kind: TensorKind::Known(t.ty) });
        }
        fused
    }
}

impl Source for Fused {
    fn metadata(&self) -> &Metadata {
        self.separate.metadata()
    }
    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }
    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let Some(parts) = parts(name) else { return self.separate.tensor(name) };
        let parts: Vec<SourceTensor> =
            parts.iter().map(|p| self.separate.tensor(p)).collect::<Option<_>>()?;
        let mut dims = parts[0].dims.clone();
        dims[1] = parts.iter().map(|p| p.dims[1]).sum();
        let experts = dims.get(2).copied().unwrap_or(1);
        let rows_of = |p: &SourceTensor, e: usize| {
            let len = p.bytes.len() / experts;
            p.bytes[e * len..(e + 1) * len].to_vec()
        };
        let bytes: Vec<u8> =
            (0..experts).flat_map(|e| parts.iter().flat_map(move |p| rows_of(p, e))).collect();
        Some(SourceTensor { dims, ty: parts[0].ty, bytes: bytes.into() })
    }
    fn release(&self, _: &str) {}
}

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

#[test]
fn fused_tensors_equal_separate_ones() {
    let make = || Synthetic::new(&SHAPE, WeightMix::All(TensorType::Q8_0), 5).expect("shape");
    let separate = logits(&make());
    assert_eq!(separate.len(), 9 * 100);
    assert_eq!(logits(&Fused::new(make())), separate);
}
