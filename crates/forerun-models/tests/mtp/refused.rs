//! Blocks that contradict themselves or their model: each gives one error that names the file and the culprit.

use std::sync::Arc;

use forerun_cpu::{CpuBackend, CpuConfig};
use forerun_files::Value;
use forerun_models::ffn::FfnShape;
use forerun_models::{ModelError, ModelSpec, Shape, WeightMix};
use forerun_quant::TensorType;
use forerun_tensor::reference::ReferenceBackend;

use crate::fake::Fake;
use crate::runner::Runner;

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

/// How to spoil a file.
type Spoil = fn(&mut Fake);

/// And what the error must say beside the file's name.
type Case = (Spoil, &'static [&'static str]);

fn says(what: &str, found: Result<(), ModelError>, wanted: &[&str]) {
    let Err(error) = found else { panic!("{what}, {wanted:?}: no error") };
    let message = error.to_string();
    for part in wanted {
        assert!(message.contains(part), "{what}: {message:?} does not say {part:?}");
    }
}

/// Every case as part of a whole model, and in a file that holds the block alone.
fn check(shape: &Shape, cases: &[Case]) {
    let model = ModelSpec::read(&Fake::headers(shape)).expect("a good file");
    for (i, (spoil, wanted)) in cases.iter().enumerate() {
        let wanted: Vec<&str> = wanted.iter().copied().chain(["tiny.gguf"]).collect();
        let mut file = Fake::headers(shape);
        spoil(&mut file);
        says(&format!("case {i}"), ModelSpec::read(&file).map(drop), &wanted);
        file.keep_block(4);
        says(&format!("case {i}, alone"), model.read_mtp(&file).map(drop), &wanted);
    }
}

#[test]
fn blocks_that_contradict_themselves() {
    let cases: &[Case] = &[
        (
            |f| f.add("blk.4.attn_gate.weight", &[64, 128]),
            &["tensor `blk.4.attn_gate.weight`", "256 rows of `blk.4.attn_q.weight`", "one of the two"],
        ),
        (
            |f| {
                f.dims("blk.4.attn_q.weight", &[64, 128]);
                f.add("blk.4.attn_gate.weight", &[64, 256]);
            },
            &["tensor `blk.4.attn_gate.weight`: dims [64, 256], expected [64, 128]"],
        ),
        (
            |f| f.dims("blk.4.attn_q.weight", &[64, 384]),
            &["tensor `blk.4.attn_q.weight`: 384 rows, expected 128 rows, or 256 with gates"],
        ),
        (|f| f.remove("blk.4.attn_q.weight"), &["tensor `blk.4.attn_q.weight`: missing"]),
        (
            |f| f.dims("blk.4.attn_q.weight", &[32, 256]),
            &["tensor `blk.4.attn_q.weight`: dims [32, 256], expected [64, 256]"],
        ),
        (
            |f| {
                ["q", "k", "v"].iter().for_each(|n| f.remove(&format!("blk.4.attn_{n}.weight")));
                f.add("blk.4.attn_qkv.weight", &[64, 300]);
            },
            &["tensor `blk.4.attn_qkv.weight`: 300 rows, expected 256 rows, or 384 with gates"],
        ),
        (|f| f.add("blk.4.attn_output.bias", &[64]), &["tensor `blk.4.attn_output.bias`: not known"]),
        (|f| f.remove("blk.4.attn_v.weight"), &["tensor `blk.4.attn_v.weight`: missing"]),
        (
            |f| f.remove("blk.4.attn_q_norm.weight"),
            &["tensor `blk.4.attn_q_norm.weight`: missing", "both queries and keys"],
        ),
        (
            |f| f.remove("blk.4.attn_k_norm.weight"),
            &["tensor `blk.4.attn_k_norm.weight`: missing", "both queries and keys"],
        ),
        (
            |f| f.dims("blk.4.attn_k_norm.weight", &[16]),
            &["tensor `blk.4.attn_k_norm.weight`: dims [16], expected [32]"],
        ),
        (
            |f| f.dims("blk.4.nextn.eh_proj.weight", &[64, 64]),
            &["tensor `blk.4.nextn.eh_proj.weight`: dims [64, 64], expected [128, 64]"],
        ),
        (
            |f| f.add("blk.4.nextn.embed_tokens.weight", &[64, 127]),
            &["tensor `blk.4.nextn.embed_tokens.weight`: 127 rows", "128 rows of the model's vocabulary"],
        ),
        (
            |f| f.add("blk.4.nextn.embed_tokens.weight", &[32, 128]),
            &["tensor `blk.4.nextn.embed_tokens.weight`: dims [32, 128], expected [64, 128]"],
        ),
        (
            |f| f.add("blk.4.nextn.shared_head_head.weight", &[64, 129]),
            &["tensor `blk.4.nextn.shared_head_head.weight`: dims [64, 129], expected [64, 128]"],
        ),
        (
            |f| f.dims("blk.4.nextn.shared_head_norm.weight", &[63]),
            &["tensor `blk.4.nextn.shared_head_norm.weight`: dims [63], expected [64]"],
        ),
    ];
    check(&DENSE, cases);
}

#[test]
fn feed_forward_layers_that_contradict_the_model() {
    let cases: &[Case] = &[
        (
            |f| f.add("blk.4.ffn_gate_inp.weight", &[64, 8]),
            &["tensor `blk.4.ffn_gate_inp.weight`: a router beside a dense feed-forward layer"],
        ),
        (
            |f| {
                f.remove("blk.4.ffn_gate.weight");
                f.add("blk.4.ffn_gate_inp.weight", &[64, 8]);
            },
            &["tensor `blk.4.ffn_gate_inp.weight`: a router", "`blk.4.ffn_gate.weight`, as in the model"],
        ),
        (|f| f.remove("blk.4.ffn_gate.weight"), &["tensor `blk.4.ffn_gate.weight`: missing"]),
        (|f| f.dims("blk.4.ffn_gate.weight", &[64, 0]), &["tensor `blk.4.ffn_gate.weight`: 0 rows"]),
        (
            |f| f.dims("blk.4.ffn_gate.weight", &[64, 95]),
            &["tensor `blk.4.ffn_up.weight`: dims [64, 96], expected [64, 95]"],
        ),
    ];
    check(&DENSE, cases);
    let cases: &[Case] = &[
        (
            |f| f.add("blk.4.ffn_gate.weight", &[64, 96]),
            &["tensor `blk.4.ffn_gate_inp.weight`: a router beside a dense feed-forward layer"],
        ),
        (|f| f.remove("blk.4.ffn_gate_inp.weight"), &["tensor `blk.4.ffn_gate_inp.weight`: missing"]),
        (
            |f| f.dims("blk.4.ffn_down_exps.weight", &[32, 64, 7]),
            &["tensor `blk.4.ffn_down_exps.weight`: dims [32, 64, 7], expected [32, 64, 8]"],
        ),
    ];
    check(&MOE, cases);
}

/// Files of their own that were made for another model, or hold no block.
#[test]
fn files_of_other_models() {
    let model = ModelSpec::read(&Fake::headers(&DENSE)).expect("a good file");
    let alone = |shape: &Shape, spoil: Spoil| {
        let mut file = Fake::headers(shape);
        file.keep_block(4);
        spoil(&mut file);
        model.read_mtp(&file).map(drop)
    };
    alone(&DENSE, |_| {}).expect("a good block");
    model.read_mtp(&Fake::headers(&DENSE)).expect("another file of the whole model");
    let cases: &[(&Shape, Spoil, &[&str])] = &[
        (
            &DENSE,
            |f| {
                f.renumber(4, 5);
                f.count("a.block_count", 6);
            },
            &["qwen35.block_count", "found 6", "after the model's 4 layers"],
        ),
        (
            &DENSE,
            |f| {
                f.renumber(4, 3);
                f.count("a.block_count", 4);
            },
            &["qwen35.block_count", "found 4", "after the model's 4 layers"],
        ),
        (&DENSE, |f| f.count("a.block_count", 6), &["`blk.4.nextn.", "after the 5 main layers"]),
        (
            &DENSE,
            |f| {
                f.renumber(4, 0);
                f.count("a.block_count", 1);
            },
            &["qwen35.block_count", "found 1", "main layers beside the MTP block"],
        ),
        (
            &Shape { hidden: 128, ..DENSE },
            |_| {},
            &["qwen35.embedding_length", "found 128", "64, as in the model"],
        ),
        (&MOE, |_| {}, &["general.architecture", "qwen35moe", "`qwen35`, as in the model"]),
        (
            &DENSE,
            |f| f.set("general.architecture", Value::String("llama".into())),
            &["architecture `llama` is not supported"],
        ),
        (&DENSE, |f| f.drop_mtp(4), &["nextn.eh_proj.weight", "missing"]),
        (&DENSE, |f| f.unset("a.attention.head_count"), &["qwen35.attention.head_count"]),
    ];
    for (i, (shape, spoil, wanted)) in cases.iter().enumerate() {
        let wanted: Vec<&str> = wanted.iter().copied().chain(["tiny.gguf"]).collect();
        says(&format!("case {i}"), alone(shape, *spoil), &wanted);
    }
}

#[test]
fn a_block_is_no_model() {
    let mut file = Fake::headers(&DENSE);
    file.keep_block(4);
    let wanted = ["tiny.gguf", "tensor `blk.0.attn_norm.weight`", "an MTP block and not its model"];
    says("the block alone", ModelSpec::read(&file).map(drop), &wanted);
    file.renumber(4, 0);
    file.count("a.block_count", 1);
    let wanted = ["tiny.gguf", "qwen35.block_count", "found 1", "main layers beside the MTP block"];
    says("no main layer", ModelSpec::read(&file).map(drop), &wanted);
}

#[test]
fn reduced_heads_of_impossible_tokens() {
    let mut own = Fake::filled(&DENSE, WeightMix::All(TensorType::Q8_0), 1);
    own.put("blk.4.nextn.shared_head_head.weight", &[64, 128], TensorType::Q8_0);
    let shared = Fake::filled(&DENSE, WeightMix::All(TensorType::Q8_0), 1);
    for model in [&shared, &own] {
        let load = |ids: &[u32]| {
            Runner::load(Box::new(ReferenceBackend::new()), model, None, Some(&Arc::from(ids))).map(drop)
        };
        load(&[0, 127]).expect("good ids");
        let cases: &[(&[u32], &str)] = &[
            (&[], "draft head: found no token ids"),
            (&[128], "draft head: found 128, expected token ids below 128"),
            (&[0, 5, u32::MAX], "draft head: found 4294967295, expected token ids below 128"),
            (&[1, 7, 7], "draft head: found 7 before 7, expected token ids that ascend"),
            (&[1, 9, 7], "draft head: found 9 before 7, expected token ids that ascend"),
        ];
        for (ids, wanted) in cases {
            says(&format!("{ids:?}"), load(ids), &[wanted]);
        }
    }
}

/// The rows of a reduced head take the place of the block's own head, which nothing else reads.
#[test]
fn reduced_heads_leave_the_whole_one_out() {
    let mut own = Fake::filled(&DENSE, WeightMix::All(TensorType::Q8_0), 1);
    own.put("blk.4.nextn.shared_head_head.weight", &[64, 128], TensorType::Q8_0);
    let held = |ids: Option<&[u32]>| {
        let ids = ids.map(Arc::from);
        let loaded =
            Runner::load(Box::new(CpuBackend::new(&CpuConfig::default())?), &own, None, ids.as_ref())?;
        Ok::<_, ModelError>(loaded.held_bytes())
    };
    let (whole, reduced) = (held(None).expect("whole"), held(Some(&[0, 127])).expect("reduced"));
    assert!(reduced < whole, "{reduced} bytes with two rows of the head, {whole} with all");
}
