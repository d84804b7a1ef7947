//! Gemma 4 files that contradict themselves: each gives one error that names the file and the culprit.

#[path = "common/fake.rs"]
mod fake;

use fake::{Case, Fake, flags};
use forerun_files::{Array, TensorKind, Value};
use forerun_models::{
    Architecture, CacheConfig, Gemma4Shape, Model, ModelSpec, StepShape, Taps, WeightMix, gemma4::KeysValues,
};
use forerun_quant::TensorType;
use forerun_tensor::KvType;
use forerun_tensor::reference::ReferenceBackend;

const DENSE: Gemma4Shape = Gemma4Shape {
    name: "tiny.gguf",
    hidden: 64,
    layers: 6,
    full_every: 3,
    heads: 4,
    kv_heads: [1, 2],
    head_dim: [32, 16],
    full_values: false,
    window: 12,
    ffn: 96,
    experts: None,
    per_layer: 0,
    shared_kv_layers: 0,
    vocabulary: 128,
};

const MOE: Gemma4Shape = Gemma4Shape { experts: Some([8, 3, 32]), ..DENSE };

/// Rows of 32 elements, as Q8_0 has them.
const PLE: Gemma4Shape = Gemma4Shape { per_layer: 32, shared_kv_layers: 3, kv_heads: [2, 2], ..DENSE };

fn numbers(numbers: &[u32]) -> Value {
    Value::Array(Array::U32(numbers.to_vec()))
}

fn check(shape: &Gemma4Shape, cases: &[Case]) {
    fake::check_broken(|| Fake::gemma(shape), cases);
}

#[test]
fn keys_out_of_range_or_contradictory() {
    let cases: &[Case] = &[
        (|f| f.unset("a.block_count"), &["gemma4.block_count"]),
        (|f| f.count("a.block_count", 0), &["gemma4.block_count", "found 0"]),
        (
            |f| f.count("a.block_count", 5),
            &["gemma4.attention.sliding_window_pattern", "6 flags", "5 of them"],
        ),
        (|f| f.count("a.embedding_length", 1 << 40), &["gemma4.embedding_length", "1099511627776"]),
        (|f| f.unset("a.context_length"), &["gemma4.context_length"]),
        (|f| f.unset("a.attention.sliding_window_pattern"), &["gemma4.attention.sliding_window_pattern"]),
        (
            |f| f.set("a.attention.sliding_window_pattern", Value::U32(6)),
            &["gemma4.attention.sliding_window_pattern", "bools"],
        ),
        (|f| f.unset("a.attention.sliding_window"), &["gemma4.attention.sliding_window"]),
        (|f| f.count("a.attention.sliding_window", 0), &["gemma4.attention.sliding_window", "found 0"]),
        (|f| f.count("a.attention.head_count", 0), &["gemma4.attention.head_count", "found 0"]),
        (
            |f| f.count("a.attention.head_count_kv", 3),
            &["head_count_kv", "found 3 in block 0", "divisor of the 4"],
        ),
        (
            |f| f.set("a.attention.head_count_kv", numbers(&[2, 2, 1, 2, 2])),
            &["gemma4.attention.head_count_kv", "5 numbers", "6 layers"],
        ),
        (
            |f| f.set("a.attention.head_count_kv", numbers(&[2, 2, 1, 2, 0, 1])),
            &["gemma4.attention.head_count_kv", "0 for layer 4"],
        ),
        (|f| f.count("a.attention.key_length", 0), &["gemma4.attention.key_length", "found 0"]),
        (
            |f| f.count("a.attention.value_length", 16),
            &["gemma4.attention.value_length", "found 16", "the 32"],
        ),
        (
            |f| f.count("a.attention.value_length_swa", 32),
            &["gemma4.attention.value_length_swa", "found 32", "the 16", "key_length_swa"],
        ),
        (|f| f.count("a.attention.shared_kv_layers", 6), &["shared_kv_layers", "found 6", "0 to 5"]),
        (
            |f| f.count("a.attention.shared_kv_layers", 4),
            &["gemma4.attention.shared_kv_layers", "found 4, which leaves block 2"],
        ),
        (
            |f| {
                f.set("a.attention.head_count_kv", numbers(&[2, 2, 1, 2, 4, 1]));
                f.count("a.attention.shared_kv_layers", 2);
            },
            &["gemma4.attention.head_count_kv", "4 in block 4", "the 2 of block 3"],
        ),
        (|f| f.unset("a.feed_forward_length"), &["gemma4.feed_forward_length"]),
        (|f| f.set("a.feed_forward_length", numbers(&[96; 7])), &["gemma4.feed_forward_length", "7 numbers"]),
        (|f| f.unset("a.rope.freq_base"), &["gemma4.rope.freq_base"]),
        (|f| f.set("a.rope.freq_base_swa", Value::F32(f32::NAN)), &["gemma4.rope.freq_base_swa", "NaN"]),
        (|f| f.count("a.rope.dimension_count", 64), &["gemma4.rope.dimension_count", "found 64", "2 to 32"]),
        (
            |f| f.count("a.rope.dimension_count_swa", 7),
            &["gemma4.rope.dimension_count_swa", "found 7", "even"],
        ),
        (
            |f| f.set("a.rope.scaling.type", Value::String("yarn".into())),
            &["gemma4.rope.scaling.type", "`yarn`"],
        ),
        (
            |f| f.set("a.final_logit_softcapping", Value::F32(-30.0)),
            &["gemma4.final_logit_softcapping", "-30"],
        ),
        (
            |f| f.set("a.attention.layer_norm_rms_epsilon", Value::F32(2.0)),
            &["layer_norm_rms_epsilon", "found 2"],
        ),
        (|f| f.count("a.vocab_size", 127), &["gemma4.vocab_size", "found 127", "128 rows"]),
    ];
    check(&DENSE, cases);
}

#[test]
fn tensors_missing_superfluous_or_misshapen() {
    let cases: &[Case] = &[
        (|f| f.remove("token_embd.weight"), &["tensor `token_embd.weight`", "missing"]),
        (|f| f.remove("rope_freqs.weight"), &["tensor `rope_freqs.weight`", "missing"]),
        (|f| f.dims("rope_freqs.weight", &[8]), &["tensor `rope_freqs.weight`: dims [8], expected [16]"]),
        (|f| f.remove("output_norm.weight"), &["tensor `output_norm.weight`", "missing"]),
        (|f| f.remove("blk.4.attn_norm.weight"), &["tensor `blk.4.attn_norm.weight`", "missing"]),
        (
            |f| f.dims("blk.2.attn_q.weight", &[64, 64]),
            &["tensor `blk.2.attn_q.weight`: dims [64, 64], expected [64, 128]"],
        ),
        (|f| f.remove("blk.2.attn_k.weight"), &["tensor `blk.2.attn_k.weight`", "missing"]),
        (|f| f.remove("blk.1.attn_v.weight"), &["tensor `blk.1.attn_v.weight`", "missing"]),
        (|f| f.dims("blk.2.attn_k_norm.weight", &[16]), &["tensor `blk.2.attn_k_norm.weight`: dims [16]"]),
        (
            |f| f.dims("blk.0.attn_output.weight", &[64, 32]),
            &["tensor `blk.0.attn_output.weight`: dims [64, 32]"],
        ),
        (|f| f.remove("blk.5.post_ffw_norm.weight"), &["tensor `blk.5.post_ffw_norm.weight`", "missing"]),
        (
            |f| f.dims("blk.5.layer_output_scale.weight", &[64]),
            &["tensor `blk.5.layer_output_scale.weight`: dims [64], expected [1]"],
        ),
        (
            |f| f.kind("blk.0.ffn_norm.weight", TensorKind::Known(TensorType::Q8_0)),
            &["tensor `blk.0.ffn_norm.weight`: type Q8_0", "F32"],
        ),
        (|f| f.add("blk.0.inp_gate.weight", &[64, 32]), &["tensor `blk.0.inp_gate.weight`", "not known"]),
        (
            |f| f.add("blk.0.ffn_gate_inp.weight", &[64, 8]),
            &["tensor `blk.0.ffn_gate_inp.weight`", "not known"],
        ),
        (|f| f.add("blk.6.attn_norm.weight", &[64]), &["tensor `blk.6.attn_norm.weight`", "not known"]),
        (|f| f.add("blk.2.attn_q.bias", &[128]), &["tensor `blk.2.attn_q.bias`", "not known"]),
    ];
    check(&DENSE, cases);
}

#[test]
fn mixtures_that_contradict_themselves() {
    let cases: &[Case] = &[
        (|f| f.count("a.expert_count", 1 << 50), &["gemma4.expert_count", "4096"]),
        (|f| f.count("a.expert_used_count", 9), &["gemma4.expert_used_count", "found 9", "1 to 8"]),
        (|f| f.unset("a.expert_feed_forward_length"), &["gemma4.expert_feed_forward_length"]),
        (|f| f.count("a.expert_count", 0), &["tensor `blk.0.", "not known"]),
        (|f| f.remove("blk.3.ffn_gate_inp.scale"), &["tensor `blk.3.ffn_gate_inp.scale`", "missing"]),
        (
            |f| f.dims("blk.3.ffn_down_exps.scale", &[7]),
            &["tensor `blk.3.ffn_down_exps.scale`: dims [7], expected [8]"],
        ),
        (|f| f.remove("blk.1.post_ffw_norm_1.weight"), &["tensor `blk.1.post_ffw_norm_1.weight`", "missing"]),
        (
            |f| f.dims("blk.1.ffn_gate_up_exps.weight", &[64, 32, 8]),
            &["tensor `blk.1.ffn_gate_up_exps.weight`: dims [64, 32, 8], expected [64, 64, 8]"],
        ),
        (
            |f| f.add("blk.0.ffn_gate_exps.weight", &[64, 32, 8]),
            &["`blk.0.ffn_gate_exps.weight`", "not known"],
        ),
    ];
    check(&MOE, cases);
}

#[test]
fn per_layer_embeddings_that_contradict_themselves() {
    let cases: &[Case] = &[
        (|f| f.remove("per_layer_token_embd.weight"), &["tensor `per_layer_token_embd.weight`", "missing"]),
        (
            |f| f.dims("per_layer_token_embd.weight", &[192, 127]),
            &["tensor `per_layer_token_embd.weight`: 127 rows, expected the 128 rows"],
        ),
        (
            |f| f.dims("per_layer_token_embd.weight", &[160, 128]),
            &["tensor `per_layer_token_embd.weight`: dims [160, 128], expected [192, 128]"],
        ),
        (|f| f.dims("per_layer_model_proj.weight", &[64, 32]), &["tensor `per_layer_model_proj.weight`"]),
        (|f| f.dims("per_layer_proj_norm.weight", &[192]), &["`per_layer_proj_norm.weight`: dims [192]"]),
        (|f| f.remove("blk.5.post_norm.weight"), &["tensor `blk.5.post_norm.weight`", "missing"]),
        (|f| f.dims("blk.5.proj.weight", &[64, 32]), &["tensor `blk.5.proj.weight`: dims [64, 32]"]),
        (|f| f.count("a.embedding_length_per_layer_input", 0), &["not known"]),
        (|f| f.count("a.attention.shared_kv_layers", 2), &["tensor `blk.3.attn_k.weight`", "missing"]),
    ];
    check(&PLE, cases);
}

/// Every variant that files do have.
#[test]
fn variants_are_accepted() {
    let read = |shape: &Gemma4Shape, edit: &dyn Fn(&mut Fake)| {
        let mut fake = Fake::gemma(shape);
        edit(&mut fake);
        ModelSpec::read(&fake).unwrap_or_else(|e| panic!("{e}"))
    };
    let spec = read(&DENSE, &|_| {});
    assert_eq!((spec.layers(), spec.attention_layers(), spec.sliding_layers()), (6, 2, 4));
    assert_eq!((spec.window(), spec.vocabulary(), spec.experts_per_row()), (Some(12), 128, 0));
    assert!(spec.mtp.is_none());
    // A head of its own; no factor after layers; no cap; one number for all layers, or an array.
    let own_head = read(&DENSE, &|f| f.add("output.weight", &[64, 128]));
    assert_eq!(own_head.parameters(), spec.parameters() + 64 * 128);
    read(&DENSE, &|f| (0..6).for_each(|i| f.remove(&format!("blk.{i}.layer_output_scale.weight"))));
    read(&DENSE, &|f| f.unset("a.final_logit_softcapping"));
    read(&DENSE, &|f| f.set("a.feed_forward_length", numbers(&[96; 6])));
    // Layers of one kind alone need no keys of the other.
    let sliding = read(&DENSE, &|f| {
        f.set("a.attention.sliding_window_pattern", flags(&[true; 6]));
        f.count("a.attention.head_count_kv", 2);
        f.unset("a.rope.freq_base");
        f.remove("rope_freqs.weight");
        for i in [2, 5] {
            f.dims(&format!("blk.{i}.attn_q.weight"), &[64, 64]);
            f.dims(&format!("blk.{i}.attn_output.weight"), &[64, 64]);
            f.dims(&format!("blk.{i}.attn_q_norm.weight"), &[16]);
            f.dims(&format!("blk.{i}.attn_k_norm.weight"), &[16]);
            f.add(&format!("blk.{i}.attn_v.weight"), &[64, 32]);
        }
    });
    assert_eq!((sliding.attention_layers(), sliding.sliding_layers()), (0, 6));
    // Separate gates and ups are those of a fused tensor.
    let separate = read(&MOE, &|f| {
        for i in 0..6 {
            f.remove(&format!("blk.{i}.ffn_gate_up_exps.weight"));
            f.add(&format!("blk.{i}.ffn_gate_exps.weight"), &[64, 32, 8]);
            f.add(&format!("blk.{i}.ffn_up_exps.weight"), &[64, 32, 8]);
        }
    });
    assert_eq!(separate.parameters(), read(&MOE, &|_| {}).parameters());
    // Layers that share keys and values may bring unused ones.
    let small = read(&PLE, &|_| {});
    let unused = read(&PLE, &|f| {
        f.add("blk.4.attn_k.weight", &[64, 32]);
        f.add("blk.4.attn_v.weight", &[64, 32]);
        f.add("blk.4.attn_k_norm.weight", &[16]);
    });
    assert_eq!(unused.parameters(), small.parameters());
    let Architecture::Gemma4(model) = small.architecture() else { panic!("a gemma4") };
    let shared = |i: usize| matches!(model.blocks[i].keys_values, KeysValues::Of(_));
    assert_eq!([0, 1, 2, 3, 4, 5].map(shared), [false, false, false, true, true, true]);
    assert_eq!(model.blocks[4].keys_values, KeysValues::Of(1));
    assert_eq!(model.blocks[5].keys_values, KeysValues::Of(2));
}

/// Sliding layers hold their ring, whatever the context; layers that share have no cache.
#[test]
fn memory_of_rings() {
    let spec = |shape: &Gemma4Shape| ModelSpec::read(&Fake::gemma(shape)).unwrap_or_else(|e| panic!("{e}"));
    let caches = CacheConfig { context: 4096, chunk: 32, kv_block: 8, slots: 2, ..CacheConfig::default() };
    let kv = |spec: &ModelSpec| spec.memory(&ReferenceBackend::new(), &caches).expect("memory").kv;
    // F16: full layers 1 head of 32, sliding ones 2 of 16; window 12 and 32 rows in blocks of 8 are 48 positions.
    assert_eq!(kv(&spec(&DENSE)), 2 * 2 * 2 * (2 * 32 * 4096 + 4 * 2 * 16 * 48));
    assert_eq!(kv(&spec(&PLE)), 2 * 2 * 2 * (2 * 32 * 4096 + 2 * 2 * 16 * 48));
    assert_eq!(spec(&DENSE).kv_bytes(100, KvType::F32), 4 * 2 * (2 * 32 * 100 + 4 * 2 * 16 * 12));
    // Per-layer embeddings are looked up by row.
    let bytes = |shape| spec(shape).step_bytes(1, 1, 0, KvType::F16).weights;
    let without = Gemma4Shape { per_layer: 0, ..PLE };
    let q8 = |n: u64| n / 32 * 34;
    let layer = q8(32 * 64) * 2 + 4 * 64;
    assert_eq!(bytes(&PLE) - bytes(&without), q8(192) + q8(64 * 192) + 4 * 32 + 6 * layer);
}

/// The divisors of the rotary frequencies are read when the model is loaded.
#[test]
fn divisors_of_frequencies_are_positive() {
    let mut file = Fake::filled_gemma(&DENSE, WeightMix::All(TensorType::F16), 3);
    let load = |file: &Fake| {
        let spec = ModelSpec::read(file).unwrap_or_else(|e| panic!("{e}"));
        let caches = CacheConfig { context: 64, ..CacheConfig::default() };
        let mut backend = ReferenceBackend::new();
        let model = Model::load(file, spec, &mut backend, &caches, &mut |_| true)?;
        let shape = StepShape { max_rows: 1, max_out: 1, taps: Taps::default() };
        Ok::<_, forerun_models::ModelError>(model.record(&shape)?.ropes()[0].frequencies.clone())
    };
    let frequencies = load(&file).unwrap_or_else(|e| panic!("{e}"));
    let turning = (0..16).map(|p| if p < 4 { 1e6_f64.powf(-f64::from(p) / 16.0) } else { 0.0 });
    assert!(frequencies.iter().zip(turning).all(|(f, want)| (f - want).abs() < 1e-12), "{frequencies:?}");
    for bad in [0.0_f32, -1.0, f32::NAN, f32::INFINITY] {
        file.floats("rope_freqs.weight", &[bad; 16]);
        let message = load(&file).expect_err("a bad divisor").to_string();
        assert!(message.contains("tiny.gguf: tensor `rope_freqs.weight`: element 0 is"), "{message}");
    }
}
