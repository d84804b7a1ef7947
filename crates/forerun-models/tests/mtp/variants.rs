//! Every variant of the block against the oracle, in the model's own file and in one that holds the block alone.

use std::sync::Arc;

use forerun_cpu::{CpuBackend, CpuConfig};
use forerun_models::ffn::FfnShape;
use forerun_models::{Shape, WeightMix};
use forerun_quant::TensorType;
use forerun_tensor::Backend;
use forerun_tensor::reference::ReferenceBackend;

use crate::fake::Fake;
use crate::oracle::Block;
use crate::runner::{Rows, Runner};

const DENSE: Shape = Shape {
    name: "tiny.gguf",
    hidden: 64,
    layers: 4,
    heads: 6,
    kv_heads: 2,
    head_dim: 24,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 8,
    ffn: FfnShape::Dense { ffn: 96 },
    vocabulary: 97,
};

const MOE: Shape = Shape { ffn: FfnShape::Experts { experts: 7, top_k: 3, ffn: 40, shared: 48 }, ..DENSE };

const H: usize = DENSE.hidden;
const Q: usize = DENSE.heads * DENSE.head_dim;
const V: usize = DENSE.vocabulary;

fn name(stem: &str) -> String {
    format!("blk.4.{stem}.weight")
}

fn put(f: &mut Fake, stem: &str, dims: &[usize]) {
    f.put(&name(stem), dims, TensorType::F32);
}

fn ungated(f: &mut Fake) {
    put(f, "attn_q", &[H, Q]);
}

fn separate_gate(f: &mut Fake) {
    ungated(f);
    put(f, "attn_gate", &[H, Q]);
}

fn fuse(f: &mut Fake) {
    f.fuse(&name("attn_qkv"), &["attn_q", "attn_k", "attn_v"].map(name));
}

fn no_norms(f: &mut Fake) {
    ["attn_q_norm", "attn_k_norm"].iter().for_each(|n| f.remove(&name(n)));
}

fn dense_ffn(f: &mut Fake) {
    f.headers.retain(|t| !t.name.starts_with("blk.4.ffn_"));
    put(f, "ffn_gate", &[H, 52]);
    put(f, "ffn_up", &[H, 52]);
    put(f, "ffn_down", &[52, H]);
}

/// A form of the block: its name, the model, what makes the form of the gated one with everything shared.
type Variant = (&'static str, &'static Shape, fn(&mut Fake));

/// Variants whose weights are float.
const FLOAT: &[Variant] = &[
    ("gates in attn_q", &DENSE, |_| {}),
    ("experts", &MOE, |_| {}),
    ("no gate", &DENSE, ungated),
    ("attn_gate", &DENSE, separate_gate),
    ("attn_qkv with gates", &DENSE, fuse),
    ("attn_qkv without gates", &DENSE, |f| {
        ungated(f);
        fuse(f);
    }),
    ("attn_qkv beside attn_gate", &MOE, |f| {
        separate_gate(f);
        fuse(f);
    }),
    ("no norms of q and k", &DENSE, no_norms),
    ("no norms and no gate", &DENSE, |f| {
        no_norms(f);
        ungated(f);
    }),
    ("embed_tokens", &DENSE, |f| put(f, "nextn.embed_tokens", &[H, V])),
    ("shared_head_head", &DENSE, |f| put(f, "nextn.shared_head_head", &[H, V])),
    ("embed_tokens and shared_head_head", &MOE, |f| {
        put(f, "nextn.embed_tokens", &[H, V]);
        put(f, "nextn.shared_head_head", &[H, V]);
    }),
    ("no shared_head_norm", &DENSE, |f| f.remove(&name("nextn.shared_head_norm"))),
    ("dense feed-forward layer among experts", &MOE, dense_ffn),
    ("dense feed-forward layer of its own length", &DENSE, dense_ffn),
];

/// Variants with quantised weights.
const QUANTISED: &[Variant] = &[("quantised feed-forward layer", &DENSE, |f| {
    f.put(&name("ffn_gate"), &[H, 96], TensorType::Q8_0);
    f.put(&name("ffn_up"), &[H, 96], TensorType::Q5_1);
    f.put(&name("ffn_down"), &[96, H], TensorType::Q4_0);
})];

fn nmse(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths");
    let error: f64 = got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).powi(2)).sum();
    let nmse = error / want.iter().map(|w| w * w).sum::<f64>();
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

fn prompt() -> Vec<u32> {
    (0..11_u32).map(|i| (i * i * 7 + 3) % V as u32).collect()
}

/// Where the block stands and which rows of the head it has.
struct Setting<'a> {
    what: String,
    model: &'a Fake,
    /// A file of its own.
    file: Option<&'a Fake>,
    shape: &'a Shape,
    head_ids: Option<Arc<[u32]>>,
}

impl Setting<'_> {
    fn of_ids(&self, logits: &[f64]) -> Vec<f64> {
        match &self.head_ids {
            Some(ids) => ids.iter().map(|id| logits[*id as usize]).collect(),
            None => logits.to_vec(),
        }
    }

    /// The token of the largest logit.
    fn best(&self, logits: &[f32]) -> u32 {
        let at = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).expect("logits");
        self.head_ids.as_ref().map_or(at as u32, |ids| ids[at])
    }

    /// Every pair of a prompt, then chains of three guesses from some of them.
    fn compare(&self, backend: Box<dyn Backend>, bound: f64) {
        let what = format!("{}, {}", self.what, backend.info().name);
        let runner = Runner::load(backend, self.model, self.file, self.head_ids.as_ref());
        let mut runner = runner.unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut block = Block::new(self.model, self.file.unwrap_or(self.model), self.shape);
        let ids = prompt();
        let whole = Rows { out: vec![], ..Rows::all(0, &ids) };
        let taps = runner.run(runner.model, &[whole]).taps.remove(0);
        let hidden: Vec<Vec<f64>> =
            taps.chunks(H).map(|h| h.iter().map(|v| f64::from(*v)).collect()).collect();
        let last = ids.len() - 1;
        let out = runner.run(runner.guesses, &[Rows::all(0, &ids[1..])]);
        let width = out.logits.len() / last;
        for (i, logits) in out.logits.chunks(width).enumerate() {
            let want = self.of_ids(&block.pair(&hidden[i], ids[i + 1]).1);
            let e = nmse(logits, &want);
            assert!(e <= bound, "{what}: pair {i}: NMSE {e:.1e}, bound {bound:.0e}");
            assert_eq!(out.picked[i].token, self.best(logits), "{what}: pair {i}");
        }
        for start in [0, 4, last - 1] {
            block.clear();
            (0..start).for_each(|i| drop(block.pair(&hidden[i], ids[i + 1])));
            runner.run(runner.model, &[Rows { out: vec![], ..Rows::all(0, &ids) }]);
            if start > 0 {
                runner.run(runner.pairs, &[Rows { out: vec![], ..Rows::all(0, &ids[1..=start]) }]);
            }
            let (mut h, mut token) = (hidden[start].clone(), ids[start + 1]);
            for link in 0..3 {
                let out = runner.run(runner.guesses, &[Rows::all(start + link, &[token])]);
                let (n, logits) = block.pair(&h, token);
                let want = self.of_ids(&logits);
                let e = nmse(&out.logits, &want);
                assert!(e <= bound, "{what}: guess {link} from {start}: NMSE {e:.1e}, bound {bound:.0e}");
                (h, token) = (n, out.picked[0].token);
            }
        }
    }
}

/// Compares a variant in the model's file, and in a file of its own whose other tensors are not the model's.
fn check(variants: &[Variant], head_ids: Option<&[u32]>, bounds: [f64; 2]) {
    for (variant, shape, edit) in variants {
        let whole = |seed| {
            let mut file = Fake::filled(shape, WeightMix::All(TensorType::F32), seed);
            edit(&mut file);
            file
        };
        let (mut model, mut file) = (whole(1), whole(2));
        let compare = |model: &Fake, file: Option<&Fake>, place: &str| {
            let what = format!("{variant}, in {place}, head {head_ids:?}");
            let head_ids = head_ids.map(Arc::from);
            let setting = Setting { what, model, file, shape, head_ids };
            setting.compare(Box::new(ReferenceBackend::new()), bounds[0]);
            setting.compare(Box::new(CpuBackend::new(&CpuConfig::default()).expect("backend")), bounds[1]);
        };
        compare(&model, None, "the model's file");
        model.drop_mtp(shape.layers);
        compare(&model, Some(&file), "another model's file");
        file.keep_block(shape.layers);
        compare(&model, Some(&file), "a file of its own");
    }
}

#[test]
fn float_variants_equal_the_definition() {
    check(FLOAT, None, [1e-9, 1e-7]);
}

/// The CPU rounds activations of integer products to 8 bits.
#[test]
fn quantised_variants_equal_the_definition() {
    check(QUANTISED, None, [1e-9, 1e-3]);
}

/// A tied model: the block's head is the embedding.
#[test]
fn a_tied_head_is_shared() {
    check(&[("tied", &DENSE, |f| f.remove("output.weight"))], None, [1e-9, 1e-7]);
}

#[test]
fn reduced_heads_are_rows_of_the_whole_one() {
    let own = |f: &mut Fake| put(f, "nextn.shared_head_head", &[H, V]);
    let tied = |f: &mut Fake| f.remove("output.weight");
    let variants: &[Variant] =
        &[("shared head", &DENSE, |_| {}), ("own head", &DENSE, own), ("tied", &MOE, tied)];
    for ids in [&[0, 5, 6, 40, 41, 96][..], &[96], &[3, 50]] {
        check(variants, Some(ids), [1e-9, 1e-7]);
    }
}
