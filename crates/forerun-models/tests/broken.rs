//! Files that contradict themselves: each gives one error that names the file and the culprit.

#[path = "common/fake.rs"]
mod fake;

use fake::{Case, Fake, flags};
use forerun_files::{Array, TensorKind, Value};
use forerun_models::ffn::FfnShape;
use forerun_models::{ModelSpec, Shape};
use forerun_quant::TensorType;

const DENSE: Shape = Shape {
    name: "tiny.gguf",
    hidden: 64,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 16,
    ffn: FfnShape::Dense { ffn: 96 },
    vocabulary: 128,
};

const MOE: Shape = Shape { ffn: FfnShape::Experts { experts: 8, top_k: 3, ffn: 32, shared: 64 }, ..DENSE };

fn text(s: &str) -> Value {
    Value::String(s.into())
}

fn check(shape: &Shape, cases: &[Case]) {
    fake::check_broken(|| Fake::headers(shape), cases);
}

#[test]
fn keys_out_of_range_or_contradictory() {
    let cases: &[Case] = &[
        (|f| f.unset("general.architecture"), &["general.architecture"]),
        (|f| f.set("general.architecture", text("llama")), &["architecture `llama`", "qwen35", "gemma4"]),
        (|f| f.set("general.architecture", Value::U32(7)), &["general.architecture", "string"]),
        (|f| f.unset("a.block_count"), &["qwen35.block_count"]),
        (|f| f.count("a.block_count", 0), &["qwen35.block_count", "found 0"]),
        (|f| f.count("a.block_count", u64::MAX), &["qwen35.block_count", "1024"]),
        (|f| f.set("a.block_count", Value::I32(-1)), &["qwen35.block_count", "-1"]),
        (|f| f.set("a.block_count", text("four")), &["qwen35.block_count", "four"]),
        (|f| f.unset("a.context_length"), &["qwen35.context_length"]),
        (|f| f.count("a.context_length", 0), &["qwen35.context_length", "found 0"]),
        (|f| f.count("a.embedding_length", 0), &["qwen35.embedding_length", "found 0"]),
        (|f| f.count("a.embedding_length", 1 << 40), &["qwen35.embedding_length", "1099511627776"]),
        (|f| f.unset("a.feed_forward_length"), &["qwen35.feed_forward_length"]),
        (|f| f.count("a.feed_forward_length", 1 << 62), &["qwen35.feed_forward_length"]),
        (|f| f.count("a.expert_count", 8), &["qwen35.expert_count", "found 8", "dense"]),
        (|f| f.count("a.attention.head_count", 0), &["qwen35.attention.head_count", "found 0"]),
        (|f| f.count("a.attention.head_count_kv", 0), &["qwen35.attention.head_count_kv", "found 0"]),
        (
            |f| f.count("a.attention.head_count_kv", 3),
            &["qwen35.attention.head_count_kv", "found 3", "divisor of the 4"],
        ),
        (
            |f| f.count("a.attention.head_count_kv", 8),
            &["qwen35.attention.head_count_kv", "found 8", "1 to 4"],
        ),
        (|f| f.count("a.attention.key_length", 0), &["qwen35.attention.key_length", "found 0"]),
        (
            |f| f.count("a.attention.value_length", 16),
            &["qwen35.attention.value_length", "found 16", "the 32"],
        ),
        (
            |f| f.set("a.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
            &["layer_norm_rms_epsilon", "NaN"],
        ),
        (
            |f| f.set("a.attention.layer_norm_rms_epsilon", Value::F32(0.0)),
            &["layer_norm_rms_epsilon", "found 0"],
        ),
        (
            |f| f.set("a.attention.layer_norm_rms_epsilon", Value::F32(2.0)),
            &["layer_norm_rms_epsilon", "found 2"],
        ),
        (|f| f.set("a.rope.freq_base", Value::F32(-1.0)), &["qwen35.rope.freq_base", "-1"]),
        (|f| f.count("a.rope.dimension_count", 64), &["qwen35.rope.dimension_count", "found 64", "2 to 32"]),
        (|f| f.count("a.rope.dimension_count", 7), &["qwen35.rope.dimension_count", "found 7", "even"]),
        (
            |f| f.set("a.rope.dimension_sections", Value::Array(Array::I32(vec![2, 2, 1, 0]))),
            &["qwen35.rope.dimension_sections", "[2, 2, 1, 0]", "4 pairs"],
        ),
        (
            |f| f.set("a.rope.dimension_sections", Value::Array(Array::I32(vec![-1]))),
            &["qwen35.rope.dimension_sections", "-1"],
        ),
        (|f| f.set("a.rope.scaling.type", text("yarn")), &["qwen35.rope.scaling.type", "`yarn`", "`none`"]),
        (|f| f.count("a.full_attention_interval", 0), &["qwen35.full_attention_interval", "found 0"]),
        (|f| f.count("a.ssm.conv_kernel", 3), &["qwen35.ssm.conv_kernel", "found 3", "4"]),
        (|f| f.count("a.ssm.state_size", 0), &["qwen35.ssm.state_size", "found 0"]),
        (|f| f.count("a.ssm.group_count", 0), &["qwen35.ssm.group_count", "found 0"]),
        (|f| f.count("a.ssm.group_count", 3), &["qwen35.ssm.time_step_rank", "found 4", "multiple of the 3"]),
        (|f| f.count("a.ssm.inner_size", 65), &["qwen35.ssm.inner_size", "found 65", "64"]),
        (|f| f.count("a.vocab_size", 127), &["qwen35.vocab_size", "found 127", "128 rows"]),
        (
            |f| f.set("tokenizer.ggml.tokens", Value::Array(Array::String(vec![String::new(); 129]))),
            &["tokenizer.ggml.tokens", "129", "128 rows"],
        ),
        (
            |f| f.set("a.attention.recurrent_layers", flags(&[true, true, true, false])),
            &["qwen35.attention.recurrent_layers", "4 flags", "5 of them"],
        ),
        (
            |f| f.set("a.attention.recurrent_layers", flags(&[true, true, true, false, true])),
            &["qwen35.attention.recurrent_layers", "block 4", "never recurrent"],
        ),
        (
            |f| f.set("a.attention.recurrent_layers", Value::U32(1)),
            &["qwen35.attention.recurrent_layers", "bools"],
        ),
    ];
    check(&DENSE, cases);
}

#[test]
fn tensors_missing_superfluous_or_misshapen() {
    let cases: &[Case] = &[
        (|f| f.remove("token_embd.weight"), &["tensor `token_embd.weight`", "missing"]),
        (|f| f.dims("token_embd.weight", &[64]), &["tensor `token_embd.weight`", "dims [64]"]),
        (|f| f.dims("token_embd.weight", &[64, usize::MAX]), &["tensor `token_embd.weight`"]),
        (
            |f| f.dims("token_embd.weight", &[32, 128]),
            &["tensor `token_embd.weight`: dims [32, 128], expected [64, 128]"],
        ),
        (|f| f.remove("output_norm.weight"), &["tensor `output_norm.weight`", "missing"]),
        (
            |f| f.dims("output.weight", &[64, 127]),
            &["tensor `output.weight`: dims [64, 127], expected [64, 128]"],
        ),
        (|f| f.remove("blk.2.attn_norm.weight"), &["tensor `blk.2.attn_norm.weight`", "missing"]),
        (|f| f.remove("blk.0.ssm_a"), &["tensor `blk.0.ssm_a`", "missing"]),
        (|f| f.remove("blk.3.attn_q.weight"), &["tensor `blk.3.attn_q.weight`", "missing", "[64, 256]"]),
        (
            |f| f.dims("blk.3.attn_q.weight", &[64, 128]),
            &["tensor `blk.3.attn_q.weight`: dims [64, 128], expected [64, 256]"],
        ),
        (
            |f| f.dims("blk.1.ssm_conv1d.weight", &[3, 128]),
            &["tensor `blk.1.ssm_conv1d.weight`: dims [3, 128]"],
        ),
        (|f| f.dims("blk.1.ssm_dt.bias", &[8]), &["tensor `blk.1.ssm_dt.bias`: dims [8], expected [4]"]),
        (|f| f.dims("blk.0.ffn_down.weight", &[64, 96]), &["tensor `blk.0.ffn_down.weight`: dims [64, 96]"]),
        (
            |f| f.kind("blk.0.attn_norm.weight", TensorKind::Known(TensorType::Q8_0)),
            &["tensor `blk.0.attn_norm.weight`: type Q8_0", "F32"],
        ),
        (
            |f| f.kind("blk.0.attn_qkv.weight", TensorKind::Known(TensorType::I32)),
            &["tensor `blk.0.attn_qkv.weight`: type I32", "weight type"],
        ),
        (|f| f.kind("blk.0.attn_qkv.weight", TensorKind::Unknown(40)), &["`blk.0.attn_qkv.weight`", "NVFP4"]),
        (|f| f.kind("blk.0.ffn_up.weight", TensorKind::Unknown(999)), &["`blk.0.ffn_up.weight`", "999"]),
        (
            |f| f.kind("blk.0.attn_gate.weight", TensorKind::Known(TensorType::Q4_K)),
            &["tensor `blk.0.attn_gate.weight`: rows of 64 elements of type Q4_K", "256"],
        ),
        (|f| f.add("blk.3.attn_sinks.weight", &[4]), &["tensor `blk.3.attn_sinks.weight`", "not known"]),
        (|f| f.add("blk.3.attn_q.bias", &[256]), &["tensor `blk.3.attn_q.bias`", "not known"]),
        (|f| f.add("rope_freqs.weight", &[4]), &["tensor `rope_freqs.weight`", "not known"]),
        // Fused beside separate.
        (|f| f.add("blk.3.attn_qkv.weight", &[64, 384]), &["tensor `blk.3.attn_k.weight`", "not known"]),
        // More blocks than are counted; fewer.
        (
            |f| f.add("blk.7.attn_norm.weight", &[64]),
            &["tensor `blk.7.attn_norm.weight`", "in block 7", "0 to 4"],
        ),
        (|f| f.count("a.block_count", 9), &["`blk.4.nextn.", "after the 8 main layers"]),
    ];
    check(&DENSE, cases);
}

#[test]
fn mtp_blocks_that_are_not_where_the_keys_say() {
    let cases: &[Case] = &[
        (|f| f.count("a.nextn_predict_layers", 2), &["qwen35.nextn_predict_layers", "found 2", "0 to 1"]),
        (|f| f.count("a.nextn_predict_layers", 0), &["`blk.4.nextn.", "qwen35.nextn_predict_layers` is 0"]),
        (|f| f.count("a.block_count", 4), &["`blk.4.nextn.", "after the 3 main layers"]),
        (|f| f.remove("blk.4.nextn.eh_proj.weight"), &["tensor `blk.4.nextn.eh_proj.weight`", "missing"]),
        (|f| f.remove("blk.4.nextn.hnorm.weight"), &["tensor `blk.4.nextn.hnorm.weight`", "missing"]),
        (|f| f.add("blk.1.nextn.enorm.weight", &[64]), &["tensor `blk.1.nextn.enorm.weight`", "in block 1"]),
        (
            |f| {
                f.headers.retain(|t| !t.name.contains("nextn"));
                f.count("a.nextn_predict_layers", 0);
            },
            // Without MTP tensors block 4 counts as a main layer, which by the interval would be a delta net.
            &["tensor `blk.4.attn_qkv.weight`", "missing"],
        ),
        (|f| f.keep_block(4), &["tensor `blk.0.attn_norm.weight`", "missing"]),
    ];
    check(&DENSE, cases);
}

#[test]
fn experts_that_contradict_themselves() {
    let cases: &[Case] = &[
        (|f| f.unset("a.expert_count"), &["qwen35moe.expert_count"]),
        (|f| f.count("a.expert_count", 0), &["qwen35moe.expert_count", "found 0"]),
        (|f| f.count("a.expert_count", 1 << 50), &["qwen35moe.expert_count", "4096"]),
        (|f| f.count("a.expert_used_count", 0), &["qwen35moe.expert_used_count", "found 0"]),
        (|f| f.count("a.expert_used_count", 9), &["qwen35moe.expert_used_count", "found 9", "1 to 8"]),
        (|f| f.unset("a.expert_feed_forward_length"), &["qwen35moe.expert_feed_forward_length"]),
        (
            |f| f.count("a.expert_shared_feed_forward_length", 0),
            &["expert_shared_feed_forward_length", "found 0"],
        ),
        (|f| f.remove("blk.0.ffn_gate_inp.weight"), &["tensor `blk.0.ffn_gate_inp.weight`", "missing"]),
        (
            |f| f.dims("blk.1.ffn_up_exps.weight", &[64, 32, 7]),
            &["tensor `blk.1.ffn_up_exps.weight`: dims [64, 32, 7], expected [64, 32, 8]"],
        ),
        (|f| f.dims("blk.1.ffn_down_exps.weight", &[64, 32, 8]), &["tensor `blk.1.ffn_down_exps.weight`"]),
        (
            |f| f.add("blk.0.ffn_gate_up_exps.weight", &[64, 64, 8]),
            &["`blk.0.ffn_gate_exps.weight`", "not known"],
        ),
        (|f| f.remove("blk.3.ffn_gate_inp_shexp.weight"), &["`blk.3.ffn_gate_inp_shexp.weight`", "missing"]),
    ];
    check(&MOE, cases);
}

/// Every variant that files do have.
#[test]
fn variants_are_accepted() {
    let read = |shape: &Shape, edit: &dyn Fn(&mut Fake)| {
        let mut fake = Fake::headers(shape);
        edit(&mut fake);
        ModelSpec::read(&fake).unwrap_or_else(|e| panic!("{e}"))
    };
    let spec = read(&DENSE, &|_| {});
    assert_eq!((spec.layers(), spec.attention_layers(), spec.vocabulary()), (4, 1, 128));
    assert_eq!(spec.mtp.as_ref().map(|m| m.params.block), Some(4));
    // The MTP block without its key, counted and not counted.
    for blocks in [5, 4] {
        let spec = read(&DENSE, &|f| {
            f.unset("a.nextn_predict_layers");
            f.count("a.block_count", blocks);
        });
        assert_eq!(
            (spec.layers(), spec.mtp.as_ref().map(|m| m.params.block)),
            (4, Some(4)),
            "{blocks} blocks"
        );
    }
    // No MTP block.
    let spec = read(&DENSE, &|f| f.drop_mtp(4));
    assert_eq!((spec.layers(), spec.mtp), (4, None));
    // Explicit layer kinds win over the interval.
    let kinds = [true, true, true, false, false];
    let spec = read(&DENSE, &|f| {
        f.set("a.attention.recurrent_layers", flags(&kinds));
        f.count("a.full_attention_interval", 2);
    });
    assert_eq!(spec.attention_layers(), 1);
    // Tied head: the table is read whole, and counted once.
    let tied = read(&DENSE, &|f| f.remove("output.weight"));
    assert_eq!(tied.parameters() + 64 * 128, read(&DENSE, &|_| {}).parameters());
    // Fused tensors have the same weights as separate ones.
    let fused = read(&MOE, &|f| {
        for i in 0..4 {
            f.remove(&format!("blk.{i}.ffn_gate_exps.weight"));
            f.remove(&format!("blk.{i}.ffn_up_exps.weight"));
            f.add(&format!("blk.{i}.ffn_gate_up_exps.weight"), &[64, 64, 8]);
        }
        ["attn_q", "attn_k", "attn_v"].iter().for_each(|n| f.remove(&format!("blk.3.{n}.weight")));
        f.add("blk.3.attn_qkv.weight", &[64, 384]);
    });
    assert_eq!(fused.parameters(), read(&MOE, &|_| {}).parameters());
}
