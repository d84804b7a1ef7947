//! Models of random weights: their sizes, their sanity, and what loading does with them and with bad options.

use forerun_cpu::{CpuBackend, CpuConfig};
use forerun_models::ffn::FfnShape;
use forerun_models::{
    CacheConfig, GEMMA4_SHAPES, Gemma4Shape, Model, ModelError, ModelSpec, SHAPES, Shape, Source, StepShape,
    Synthetic, Taps, WeightMix,
};
use forerun_quant::TensorType;
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Backend, KvType, OutRow, Pick, SeqRows, StepOut, StepRows};

const TINY: Shape = Shape {
    name: "tiny",
    hidden: 256,
    layers: 8,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 64,
    ffn: FfnShape::Dense { ffn: 512 },
    vocabulary: 300,
};

const TINY_GEMMA: Gemma4Shape = Gemma4Shape {
    name: "tiny-gemma",
    hidden: 256,
    layers: 6,
    full_every: 3,
    heads: 4,
    kv_heads: [1, 2],
    head_dim: [128, 64],
    full_values: false,
    window: 40,
    ffn: 320,
    experts: Some([8, 2, 96]),
    per_layer: 0,
    shared_kv_layers: 0,
    vocabulary: 300,
};

fn spec(source: &dyn Source) -> ModelSpec {
    ModelSpec::read(source).unwrap_or_else(|e| panic!("{e}"))
}

fn near(found: u64, expected: f64, tolerance: f64, what: &str) {
    assert!(
        (found as f64 / expected - 1.0).abs() < tolerance,
        "{what}: {found}, expected about {expected:.3e}"
    );
}

#[test]
fn shapes_have_their_known_sizes() {
    // Parameters as the names say; file sizes and bytes of a step as measured on files of these shapes.
    let parameters = [("qwen35-9b", 9e9), ("qwen35-27b", 27e9), ("qwen35-35b-a3b", 35e9)];
    for (name, expected) in parameters {
        let source = Synthetic::named(name, WeightMix::Q4KM, 1).expect(name);
        near(spec(&source).parameters(), expected, 0.05, name);
    }
    let step = |name| {
        let source = Synthetic::named(name, WeightMix::Q4KM, 1).expect(name);
        spec(&source).step_bytes(1, 1, 0, KvType::F16).weights
    };
    near(step("qwen35-2b"), 0.95e9, 0.05, "bytes of a step of the 2B");
    let big = Synthetic::named("qwen35-27b", WeightMix::Q4KM, 1).expect("27B");
    near(spec(&big).file_bytes(), 17.3e9, 0.05, "file of the 27B");
    assert_eq!(spec(&big).main_type(), TensorType::Q4_K);
    let caches = CacheConfig { chunk: 512, ..CacheConfig::default() };
    let backend = CpuBackend::new(&CpuConfig::default()).expect("backend");
    let need = spec(&big).memory(&backend, &caches).expect("memory");
    assert!(need.activations < 1 << 30, "27B, 512 rows: {need}");
    for shape in &GEMMA4_SHAPES {
        let source = Synthetic::named(shape.name, WeightMix::Q4KM, 1).expect(shape.name);
        let spec = spec(&source);
        assert_eq!((spec.layers(), spec.attention_layers()), (shape.layers, shape.layers / 6));
        // Parameters as the names and model cards say; bytes of a step summed by hand over the mix.
        let (parameters, step) = if shape.experts.is_some() { (25.2e9, 2.744e9) } else { (30.7e9, 19.7e9) };
        near(spec.parameters(), parameters, 0.02, shape.name);
        near(spec.step_bytes(1, 1, 0, KvType::F16).weights, step, 0.02, shape.name);
        let need = spec.memory(&backend, &caches).expect("memory");
        assert!(need.activations < 1 << 30, "{}, 512 rows: {need}", shape.name);
    }
    for shape in &SHAPES {
        for mix in ["q4_k_m", "q8_0", "bf16", "IQ2_XXS"] {
            let source = Synthetic::new(shape, WeightMix::from_name(mix).expect(mix), 1).expect(shape.name);
            let spec = spec(&source);
            assert_eq!(
                (spec.layers(), spec.attention_layers()),
                (shape.layers, shape.layers / 4),
                "{}",
                shape.name
            );
            assert_eq!(spec.vocabulary(), shape.vocabulary);
        }
    }
}

#[test]
fn bytes_of_a_step_follow_rows_sequences_and_depth() {
    let ffn = FfnShape::Experts { experts: 8, top_k: 2, ffn: 256, shared: 256 };
    let source = Synthetic::new(&Shape { ffn, ..TINY }, WeightMix::All(TensorType::F16), 1).expect("tiny");
    let spec = spec(&source);
    let one = spec.step_bytes(1, 1, 100, KvType::F16);
    // Two attention layers of two heads of 64 for K and V; six delta nets of 4 · 64² and 3 · 512 floats, read and written.
    assert_eq!(one.kv, 100 * 2 * 2 * 2 * 64 * 2);
    assert_eq!(one.states, 2 * 6 * 4 * (4 * 64 * 64 + 3 * 512));
    // One more row: an embedding row, and in each layer 8 · (1 − 0.75²) − 2 more experts.
    let two = spec.step_bytes(2, 1, 100, KvType::F16);
    assert_eq!(two.weights - one.weights, 2 * 256 + 8 * 3 * (256 * 256 * 2 * 3 / 2));
    let seqs = spec.step_bytes(2, 2, 100, KvType::F32);
    assert_eq!((seqs.kv, seqs.states), (4 * one.kv, 2 * one.states));
}

#[test]
fn weights_are_a_function_of_seed_and_name() {
    let make = |seed| Synthetic::new(&TINY, WeightMix::Q4KM, seed).expect("tiny");
    let bytes = |s: &Synthetic, name: &str| s.tensor(name).expect(name).bytes.to_vec();
    let (a, b) = (make(1), make(2));
    assert_eq!(bytes(&a, "blk.0.ffn_up.weight"), bytes(&make(1), "blk.0.ffn_up.weight"));
    assert_ne!(bytes(&a, "blk.0.ffn_up.weight"), bytes(&b, "blk.0.ffn_up.weight"));
    assert_ne!(bytes(&a, "blk.0.ffn_up.weight"), bytes(&a, "blk.0.ffn_gate.weight"));
    for (name, low, high) in [("blk.0.ssm_a", -1.6, -0.05), ("blk.0.attn_norm.weight", 0.6, 1.4)] {
        let values = bytes(&a, name);
        let mut values = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        assert!(values.all(|v| (low..high).contains(&v)), "{name}");
    }
}

/// The same of Gemma 4, dense, with a mixture, and with per-layer embeddings.
#[test]
fn logits_of_gemma_stay_sane() {
    let dense = Gemma4Shape { experts: None, ..TINY_GEMMA };
    let small = Gemma4Shape { per_layer: 256, shared_kv_layers: 3, kv_heads: [2, 2], ..dense };
    for shape in [dense, TINY_GEMMA, small] {
        let source = Synthetic::gemma4(&shape, WeightMix::Q4KM, 3).expect("tiny");
        sane(&source, &format!("{shape:?}"));
    }
}

/// Logits of every step of a long greedy run stay near the deviation of 1 that random heads give.
#[test]
fn logits_stay_sane() {
    let experts = FfnShape::Experts { experts: 8, top_k: 2, ffn: 256, shared: 256 };
    for (ffn, mix) in [
        (TINY.ffn, WeightMix::Q4KM),
        (experts, WeightMix::Q4KM),
        (TINY.ffn, WeightMix::All(TensorType::BF16)),
    ] {
        sane(&Synthetic::new(&Shape { ffn, ..TINY }, mix, 3).expect("tiny"), &format!("{mix:?}"));
    }
}

fn sane(source: &Synthetic, what: &str) {
    let mut backend = ReferenceBackend::new();
    let caches = CacheConfig { context: 256, chunk: 64, ..CacheConfig::default() };
    let mut seen = Vec::new();
    let model = Model::load(source, spec(source), &mut backend, &caches, &mut |p| {
        seen.push(p.done_bytes);
        true
    });
    let model = model.unwrap_or_else(|e| panic!("{e}"));
    assert!(seen.is_sorted() && seen[0] == 0 && seen.last() == Some(&model.spec().file_bytes()));
    let shape = StepShape { max_rows: 64, max_out: 1, taps: Taps::default() };
    let plan = backend.prepare(model.record(&shape).expect("record")).expect("prepare");
    let mut out = StepOut::default();
    for pos in (0..192).step_by(64) {
        let rows = StepRows {
            seqs: vec![SeqRows { slot: 0, pos, rows: 64, replay: 0, commit: true }],
            tokens: (pos..pos + 64).map(|p| p * 7 % 300).collect(),
            out: vec![OutRow { row: 63, pick: Pick::Greedy, logits: true }],
        };
        let ticket = backend.submit(plan, &rows).expect("submit");
        backend.wait(ticket, &mut out).expect("wait");
        let deviation = (out.logits.iter().map(|l| l * l).sum::<f32>() / 300.0).sqrt();
        assert!((0.3..3.0).contains(&deviation), "{what} at {pos}: deviation {deviation}");
    }
}

#[test]
fn loading_refuses_what_cannot_be() {
    let source = Synthetic::new(&TINY, WeightMix::Q4KM, 1).expect("tiny");
    let load = |caches: &CacheConfig, stop_after: usize| {
        let mut calls = 0;
        let mut progress = |_| {
            calls += 1;
            calls <= stop_after
        };
        Model::load(&source, spec(&source), &mut ReferenceBackend::new(), caches, &mut progress)
    };
    for stop_after in [0, 5] {
        assert!(matches!(load(&CacheConfig::default(), stop_after), Err(ModelError::Cancelled)));
    }
    let d = CacheConfig::default;
    for (caches, wanted) in [
        (CacheConfig { slots: 0, ..d() }, "slots: found 0"),
        (CacheConfig { slots: usize::MAX, ..d() }, "slots: found"),
        (CacheConfig { context: 0, ..d() }, "context: found 0"),
        (CacheConfig { context: usize::MAX, ..d() }, "context: found"),
        (CacheConfig { kv_block: 12, ..d() }, "kv_block: found 12"),
        (CacheConfig { tape: 0, ..d() }, "tape: found 0"),
        (CacheConfig { chunk: 0, ..d() }, "chunk: found 0"),
        (CacheConfig { memory: Some(1 << 20), ..d() }, "tiny: the model needs"),
        (CacheConfig { slots: 1 << 16, context: 1 << 30, ..d() }, "is available"),
    ] {
        let message = load(&caches, usize::MAX).map(|_| ()).expect_err(wanted).to_string();
        assert!(message.contains(wanted), "{message:?} does not say {wanted:?}");
    }
    let model = load(&CacheConfig { context: 64, ..d() }, usize::MAX).unwrap_or_else(|e| panic!("{e}"));
    for shape in [
        StepShape { max_rows: 0, max_out: 0, taps: Taps::default() },
        StepShape { max_rows: 1, max_out: 2, taps: Taps::default() },
        StepShape { max_rows: 1, max_out: 1, taps: Taps { layers: vec![8], ..Taps::default() } },
    ] {
        assert!(matches!(model.record(&shape), Err(ModelError::Option { .. })), "{shape:?}");
    }
}

#[test]
fn unknown_names_list_the_known_ones() {
    let shape =
        Synthetic::named("qwen35-1t", WeightMix::Q4KM, 1).map(|_| ()).expect_err("no such shape").to_string();
    assert!(
        shape.contains("`qwen35-1t`") && shape.contains("qwen35-2b") && shape.contains("gemma4-31b"),
        "{shape}"
    );
    for name in ["q9_9", "i32"] {
        let ty = WeightMix::from_name(name).expect_err("no such type").to_string();
        assert!(ty.contains(name) && ty.contains("q4_k_m"), "{ty}");
    }
}
