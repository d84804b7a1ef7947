//! Where the weights of an overlay go, and that they get there unchanged.

use super::fake::Fake;
use super::writer::{Matrix, Overlay};
use super::{DENSE, EXPERTS, logits, model, open, values};
use forerun_models::{Gemma4Shape, ModelSpec, Source, WeightMix};
use forerun_quant::{Affine, TensorType};

const FOUR: (usize, usize, &str) = (4, 32, "BF16");

fn affine(bits: usize, group: usize, float: &str) -> TensorType {
    let scale = TensorType::from_name(float).expect("a type");
    TensorType::Affine(Affine::new(bits, group, scale).expect("an affine type"))
}

fn four() -> TensorType {
    affine(4, 32, "BF16")
}

/// The same file with F32 weights of these values.
fn with(base: &Fake, name: &str, dims: &[usize], values: &[f32]) -> Fake {
    let mut same = base.clone();
    same.put(name, dims, TensorType::F32);
    same.floats(name, values);
    same
}

#[test]
fn every_type_keeps_its_values() {
    let bits = [(2, "2"), (3, "3"), (4, "4"), (5, "5"), (6, "6"), (8, "8")];
    let groups = [(32, "32"), (64, "64"), (128, "128")];
    for (i, (bits, bits_name)) in bits.into_iter().enumerate() {
        for (group, group_name) in groups {
            for float in ["F32", "F16", "BF16"] {
                let m = Matrix::random(64, 128, (bits, group, float), i as u64);
                let mut overlay = Overlay::new(bits_name, group_name);
                overlay.add("blk.1.ffn_down", &m);
                let source = open(model(&DENSE), &overlay);
                let (dims, ty, got) = values(&source, "blk.1.ffn_down.weight");
                assert_eq!((dims, ty), (vec![128, 64], affine(bits, group, float)));
                assert_eq!(got, m.values(0..64), "{ty}");
            }
        }
    }
}

#[test]
fn dense_weights_take_their_places_and_no_others() {
    let base = model(&DENSE);
    let mut overlay = Overlay::default();
    let mut same = base.clone();
    for (i, (stem, rows, cols)) in [
        ("blk.3.attn_q", 256, 64),
        ("blk.3.attn_k", 64, 64),
        ("blk.3.attn_v", 64, 64),
        ("blk.3.attn_output", 64, 128),
        ("blk.0.ffn_gate", 128, 64),
        ("blk.0.ffn_up", 128, 64),
        ("blk.0.ffn_down", 64, 128),
        ("output", 96, 64),
        // The MTP block.
        ("blk.4.attn_q", 256, 64),
        ("blk.4.ffn_up", 128, 64),
    ]
    .into_iter()
    .enumerate()
    {
        // Without metadata: 4 bits in groups of 32.
        let m = Matrix::random(rows, cols, FOUR, i as u64);
        overlay.add(stem, &m);
        same = with(&same, &format!("{stem}.weight"), &[cols, rows], &m.values(0..rows));
    }
    let source = open(base.clone(), &overlay);
    let report = source.overlay().expect("a report");
    assert_eq!((report.replaced, report.decoded, &report.types[..]), (10, 0, &[four()][..]));
    let elements: u64 = 2 * 256 * 64 + 2 * 64 * 64 + 64 * 128 + 4 * 128 * 64 + 96 * 64;
    assert_eq!((report.bytes, report.replaced_bytes), (elements / 32 * 20, elements * 4));
    let names = |source: &dyn Source| source.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&source), names(&base));
    for header in base.tensors() {
        assert_eq!(values(&source, &header.name).2, values(&same, &header.name).2, "{}", header.name);
    }
    let spec = ModelSpec::read(&source).expect("a model");
    assert_eq!(spec.mtp.expect("a block").attn_q.ty, four());
    let got = logits(&source);
    assert_eq!(got, logits(&same));
    assert_ne!(got, logits(&base));
}

/// A tied model gets a head of its own, which is what makes its logits.
#[test]
fn a_tied_model_gets_a_head() {
    let mut base = model(&DENSE);
    base.remove("output.weight");
    let m = Matrix::random(96, 64, FOUR, 3);
    let mut overlay = Overlay::default();
    overlay.add("output", &m);
    let source = open(base.clone(), &overlay);
    let same = with(&base, "output.weight", &[64, 96], &m.values(0..96));
    assert_eq!(logits(&source), logits(&same));
    assert_ne!(logits(&source), logits(&base));
    let report = source.overlay().expect("a report");
    assert_eq!((report.replaced, report.bytes, report.replaced_bytes), (1, 96 * 64 / 32 * 20, 0));
}

/// Experts' matrices by stem, for every expert.
fn add_experts(overlay: &mut Overlay, role: &str, rows: usize, cols: usize, block: usize) -> Vec<Matrix> {
    let of = |e: usize| Matrix::random(rows, cols, FOUR, (100 * rows + e) as u64);
    let all: Vec<Matrix> = (0..3).map(of).collect();
    // Their order in the file does not matter.
    for e in [2, 0, 1] {
        overlay.add(&format!("blk.{block}.{role}.{e}"), &all[e]);
    }
    all
}

fn stacked(all: &[Matrix], rows: std::ops::Range<usize>) -> Vec<f32> {
    all.iter().flat_map(|m| m.values(rows.clone())).collect()
}

fn fused_base(block: usize) -> Fake {
    let mut base = model(&EXPERTS);
    let parts = ["ffn_gate_exps", "ffn_up_exps"].map(|p| format!("blk.{block}.{p}.weight"));
    base.fuse(&format!("blk.{block}.ffn_gate_up_exps.weight"), &parts);
    base
}

/// Gates and ups in one matrix or in two, over models that have them in one tensor or in two.
#[test]
fn experts_are_stacked_split_and_joined() {
    const F: usize = 32;
    let [gate_name, up_name, down_name, fused_name] =
        ["gate", "up", "down", "gate_up"].map(|r| format!("blk.1.ffn_{r}_exps.weight"));
    for fused in [true, false] {
        for base in [model(&EXPERTS), fused_base(1)] {
            let base_fused = base.headers.iter().any(|t| t.name == fused_name);
            let mut overlay = Overlay::default();
            let (gates, ups) = if fused {
                let all = add_experts(&mut overlay, "ffn_gate_up", 2 * F, 64, 1);
                (stacked(&all, 0..F), stacked(&all, F..2 * F))
            } else {
                let gates = stacked(&add_experts(&mut overlay, "ffn_gate", F, 64, 1), 0..F);
                (gates, stacked(&add_experts(&mut overlay, "ffn_up", F, 64, 1), 0..F))
            };
            let downs = stacked(&add_experts(&mut overlay, "ffn_down", 64, F, 1), 0..64);
            let source = open(base, &overlay);
            assert_eq!(values(&source, &down_name), (vec![F, 64, 3], four(), downs.clone()));
            let replaced = source.overlay().expect("a report").replaced;
            if fused && base_fused {
                assert_eq!(replaced, 2);
                let (dims, ty, got) = values(&source, &fused_name);
                assert_eq!((dims, ty), (vec![64, 2 * F, 3], four()));
                let pairs = gates.chunks(F * 64).zip(ups.chunks(F * 64));
                assert_eq!(got, pairs.flat_map(|(g, u)| [g, u].concat()).collect::<Vec<_>>());
            } else {
                assert_eq!(replaced, 3);
                assert_eq!(values(&source, &gate_name), (vec![64, F, 3], four(), gates.clone()));
                assert_eq!(values(&source, &up_name), (vec![64, F, 3], four(), ups.clone()));
                assert!(source.tensor(&fused_name).is_none());
            }
            let mut same = model(&EXPERTS);
            for (name, dims, values) in [
                (&gate_name, [64, F, 3], &gates),
                (&up_name, [64, F, 3], &ups),
                (&down_name, [F, 64, 3], &downs),
            ] {
                same = with(&same, name, &dims, values);
            }
            assert_eq!(logits(&source), logits(&same), "fused {fused} over {base_fused}");
        }
    }
}

/// Of gates and ups in one tensor, either can be replaced alone; the other stays the model's own.
#[test]
fn half_of_a_fused_tensor() {
    for role in ["ffn_gate", "ffn_up"] {
        let mut overlay = Overlay::default();
        let mine = stacked(&add_experts(&mut overlay, role, 32, 64, 1), 0..32);
        let source = open(fused_base(1), &overlay);
        assert_eq!(source.overlay().expect("a report").replaced, 1);
        let name = format!("blk.1.{role}_exps.weight");
        let same = with(&model(&EXPERTS), &name, &[64, 32, 3], &mine);
        for part in ["gate", "up"].map(|r| format!("blk.1.ffn_{r}_exps.weight")) {
            assert_eq!(values(&source, &part).2, values(&same, &part).2, "{role}: {part}");
        }
        assert_eq!(logits(&source), logits(&same), "{role}");
    }
}

/// Experts may come in one matrix here and in two there.
#[test]
fn experts_of_both_layouts() {
    let mut overlay = Overlay::default();
    let pairs = add_experts(&mut overlay, "ffn_gate_up", 64, 64, 2);
    for part in ["weight", "scales", "biases"] {
        overlay.remove(&format!("blk.2.ffn_gate_up.1.{part}"));
    }
    let [gate, up] = [7, 8].map(|seed| Matrix::random(32, 64, FOUR, seed));
    overlay.add("blk.2.ffn_gate.1", &gate);
    overlay.add("blk.2.ffn_up.1", &up);
    let source = open(fused_base(2), &overlay);
    for (role, first, alone) in [("gate", 0, &gate), ("up", 32, &up)] {
        let of = |m: &Matrix| m.values(first..first + 32);
        let wanted = [of(&pairs[0]), alone.values(0..32), of(&pairs[2])].concat();
        assert_eq!(values(&source, &format!("blk.2.ffn_{role}_exps.weight")).2, wanted, "{role}");
    }
}

/// Queries, keys and values that the model has in one tensor.
#[test]
fn a_part_of_fused_attention() {
    let parts = ["attn_q", "attn_k", "attn_v"].map(|p| format!("blk.3.{p}.weight"));
    for (part, rows) in [("attn_q", 256), ("attn_k", 64), ("attn_v", 64)] {
        let mut base = model(&DENSE);
        let m = Matrix::random(rows, 64, FOUR, 4);
        let same = with(&base, &format!("blk.3.{part}.weight"), &[64, rows], &m.values(0..rows));
        base.fuse("blk.3.attn_qkv.weight", &parts);
        let mut overlay = Overlay::default();
        overlay.add(&format!("blk.3.{part}"), &m);
        let source = open(base, &overlay);
        for name in &parts {
            assert_eq!(values(&source, name).2, values(&same, name).2, "{part}: {name}");
        }
        let report = source.overlay().expect("a report");
        assert_eq!((report.replaced, report.replaced_bytes), (1, 4 * 64 * rows as u64));
        assert_eq!(logits(&source), logits(&same), "{part}");
    }
}

/// Dense feed-forward weights with inputs as rows have their groups along the outputs: they become floats.
#[test]
fn transposed_weights_are_decoded() {
    for said in [None, Some("true")] {
        let base = model(&DENSE);
        let (up, down) = (Matrix::random(64, 128, FOUR, 1), Matrix::random(128, 64, FOUR, 2));
        let mut overlay = Overlay::default();
        overlay.strings.extend(said.map(|said| ("transposed", said)));
        overlay.add("blk.2.ffn_up", &up);
        overlay.add("blk.2.ffn_down", &down);
        let source = open(base.clone(), &overlay);
        let mut same = base;
        for (name, dims, m) in
            [("blk.2.ffn_up.weight", [64, 128], up), ("blk.2.ffn_down.weight", [128, 64], down)]
        {
            assert_eq!(values(&source, name), (dims.to_vec(), TensorType::F32, m.columns()), "{name}");
            same = with(&same, name, &dims, &m.columns());
        }
        assert_eq!(logits(&source), logits(&same));
        let report = source.overlay().expect("a report");
        assert_eq!((report.replaced, report.decoded, report.types.len()), (0, 2, 0));
    }
}

/// What fits either way goes by the metadata.
#[test]
fn square_weights() {
    let square = forerun_models::Shape { ffn: forerun_models::ffn::FfnShape::Dense { ffn: 64 }, ..DENSE };
    let m = Matrix::random(64, 64, FOUR, 9);
    for (said, ty, wanted) in [("false", four(), m.values(0..64)), ("true", TensorType::F32, m.columns())] {
        let mut overlay = Overlay::default();
        overlay.strings.push(("transposed", said));
        overlay.add("blk.0.ffn_gate", &m);
        let source = open(model(&square), &overlay);
        assert_eq!(values(&source, "blk.0.ffn_gate.weight"), (vec![64, 64], ty, wanted));
    }
    let mut overlay = Overlay::default();
    overlay.add("blk.0.ffn_gate", &m);
    let error = super::overlaid(model(&square), &overlay).err().expect("an error");
    for part in ["over.safetensors", "blk.0.ffn_gate.weight", "64 rows of 64", "either way", "`transposed`"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Gemma 4 has gates and ups of its experts in one tensor, and a dense layer beside them.
#[test]
fn gemma_experts() {
    let shape = Gemma4Shape {
        name: "tiny.gguf",
        hidden: 64,
        layers: 3,
        full_every: 3,
        heads: 4,
        kv_heads: [1, 2],
        head_dim: [32, 16],
        full_values: false,
        window: 12,
        ffn: 96,
        experts: Some([3, 2, 32]),
        per_layer: 0,
        shared_kv_layers: 0,
        vocabulary: 96,
    };
    let mut base = Fake::filled_gemma(&shape, WeightMix::All(TensorType::F32), 5);
    let (fused, parts) =
        ("blk.1.ffn_gate_up_exps.weight", ["gate", "up"].map(|r| format!("blk.1.ffn_{r}_exps.weight")));
    if base.headers.iter().all(|t| t.name != fused) {
        base.fuse(fused, &parts);
    }
    let mut overlay = Overlay::default();
    let all = stacked(&add_experts(&mut overlay, "ffn_gate_up", 64, 64, 1), 0..64);
    let gate = Matrix::random(96, 64, FOUR, 1);
    overlay.add("blk.1.ffn_gate", &gate);
    let source = open(base.clone(), &overlay);
    assert_eq!(values(&source, fused), (vec![64, 64, 3], four(), all.clone()));
    let same = with(&base, fused, &[64, 64, 3], &all);
    let same = with(&same, "blk.1.ffn_gate.weight", &[64, 96], &gate.values(0..96));
    assert_eq!(logits(&source), logits(&same));
    assert_ne!(logits(&source), logits(&base));
}
