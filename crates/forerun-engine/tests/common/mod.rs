//! Models, and rows that are compared to the bit.

#![allow(dead_code, reason = "every test file takes what it needs")]

pub(crate) mod requests;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use forerun_cpu::CpuBackend;
use forerun_engine::{CpuConfig, Isa, Runner};
use forerun_models::ffn::FfnShape;
use forerun_models::{CacheConfig, CheckpointSource, Model, ModelSpec, Shape, Source, Synthetic, WeightMix};
use forerun_quant::TensorType;
use forerun_tensor::{OutRow, Pick, SeqRows, StepOut, StepRows};

/// The demo model.
pub(crate) const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-Q4_K_M.gguf");

/// The demo's DFlash drafter.
pub(crate) const DEMO_DRAFTER: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-dflash-Q8_0.gguf");

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name).join("model.gguf")
}

/// Models with an MTP block: the demo and two fixtures, dense and mixture of experts.
pub(crate) fn models() -> [(&'static str, PathBuf); 3] {
    [("demo", DEMO.into()), ("dense", fixture("qwen35-dense")), ("moe", fixture("qwen35-moe"))]
}

/// Models with sliding attention: dense, mixture of experts, per-layer embeddings with shared keys and values.
pub(crate) fn gemmas() -> [(&'static str, PathBuf); 3] {
    ["gemma4-dense", "gemma4-moe", "gemma4-ple"].map(|name| (name, fixture(name)))
}

/// All of them.
pub(crate) fn every_model() -> impl Iterator<Item = (&'static str, PathBuf)> {
    models().into_iter().chain(gemmas())
}

/// Opens a model file.
pub(crate) fn open(path: &Path) -> CheckpointSource {
    CheckpointSource::open(path).unwrap_or_else(|e| panic!("{e}"))
}

/// A small model of random weights of one type; with experts or without.
pub(crate) fn tiny(ty: TensorType, experts: bool) -> Synthetic {
    let ffn = if experts {
        FfnShape::Experts { experts: 6, top_k: 3, ffn: 256, shared: 256 }
    } else {
        FfnShape::Dense { ffn: 512 }
    };
    let shape = Shape {
        name: "tiny",
        hidden: 256,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        key_heads: 2,
        value_heads: 4,
        delta_dim: 64,
        ffn,
        vocabulary: 211,
    };
    Synthetic::new(&shape, WeightMix::All(ty), 7).unwrap_or_else(|e| panic!("{e}"))
}

/// Every weight type of GGUF files, and affine ones: every number of bits, size of groups and type of scales.
pub(crate) fn weight_types() -> impl Iterator<Item = TensorType> {
    let affine = [
        "affine2g32/bf16",
        "affine3g64/f16",
        "affine4g32/f32",
        "affine4g64/bf16",
        "affine5g128/bf16",
        "affine6g64/f32",
        "affine8g128/f16",
    ];
    let affine = affine.map(|name| TensorType::from_name(name).expect("an affine type"));
    TensorType::GGML.iter().copied().filter(|t| t.is_weight()).chain(affine)
}

/// Every instruction set of this machine.
pub(crate) fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// A configuration of the CPU backend.
pub(crate) fn cpu(isa: Isa, threads: usize) -> CpuConfig {
    CpuConfig { isa: Some(isa), threads: NonZeroUsize::new(threads), profile: false }
}

/// A model with its caches, ready to run.
pub(crate) fn load(source: &dyn Source, config: &CpuConfig, caches: &CacheConfig) -> Runner {
    let mut backend = Box::new(CpuBackend::new(config).unwrap_or_else(|e| panic!("{e}")));
    let spec = ModelSpec::read(source).unwrap_or_else(|e| panic!("{e}"));
    let model = Model::load(source, spec, &mut *backend, caches, &mut |_| true);
    Runner::new(backend, model.unwrap_or_else(|e| panic!("{e}")), caches.chunk)
}

/// What a row gave, to the bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) token: u32,
    pub(crate) logit: u32,
    pub(crate) log_sum: u32,
    /// Hash of all logits.
    pub(crate) logits: u64,
}

impl Row {
    /// Bits of the chosen token's logprob.
    pub(crate) fn logprob(&self) -> f32 {
        f32::from_bits(self.logit) - f32::from_bits(self.log_sum)
    }
}

/// Rows of one sequence in a step.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) slot: u32,
    pub(crate) pos: usize,
    pub(crate) tokens: Vec<u32>,
    pub(crate) replay: usize,
    pub(crate) commit: bool,
}

impl Part {
    /// Certain rows.
    pub(crate) fn sure(slot: u32, pos: usize, tokens: &[u32]) -> Self {
        Self { slot, pos, tokens: tokens.to_vec(), replay: 0, commit: true }
    }
    /// Rows that the next step decides on.
    pub(crate) fn drafted(slot: u32, pos: usize, tokens: &[u32], replay: usize) -> Self {
        Self { slot, pos, tokens: tokens.to_vec(), replay, commit: false }
    }
}

/// Runs a step; of each part the results of its rows (of the last one only when the step has more than 64).
pub(crate) fn step(runner: &mut Runner, parts: &[Part]) -> Vec<Vec<Row>> {
    let mut rows = StepRows::default();
    let total: usize = parts.iter().map(|p| p.tokens.len()).sum();
    let mut counts = Vec::new();
    for p in parts {
        let n = p.tokens.len();
        let wanted = if total <= 64 { 0..n } else { n - 1..n };
        counts.push(wanted.len());
        for i in wanted {
            let position = (p.pos + i + 1) as u32;
            // Both ways of choosing take turns.
            let pick = if position.is_multiple_of(2) {
                Pick::Greedy
            } else {
                Pick::Noise { temperature: 0.8, seed: 5, position }
            };
            rows.out.push(OutRow { row: (rows.tokens.len() + i) as u32, pick, logits: true });
        }
        let (slot, pos, replay) = (p.slot, p.pos as u32, p.replay as u32);
        rows.seqs.push(SeqRows { slot, pos, rows: n as u32, replay, commit: p.commit });
        rows.tokens.extend_from_slice(&p.tokens);
    }
    let mut out = StepOut::default();
    runner.step(&rows, &mut out).unwrap_or_else(|e| panic!("{e}"));
    let vocabulary = out.logits.len() / out.picked.len();
    let all: Vec<Row> = out
        .picked
        .iter()
        .zip(out.logits.chunks_exact(vocabulary))
        .map(|(p, logits)| {
            assert!(!p.nan, "a logit is NaN");
            let hash = |h: u64, l: &f32| (h ^ u64::from(l.to_bits())).wrapping_mul(0x0000_0100_0000_01b3);
            let logits = logits.iter().fold(0xcbf2_9ce4_8422_2325, hash);
            Row { token: p.token, logit: p.logit.to_bits(), log_sum: p.log_sum.to_bits(), logits }
        })
        .collect();
    let mut rest = all.as_slice();
    counts
        .into_iter()
        .map(|n| {
            let (mine, others) = rest.split_at(n);
            rest = others;
            mine.to_vec()
        })
        .collect()
}

/// Runs certain rows of one sequence.
pub(crate) fn run(runner: &mut Runner, slot: u32, pos: usize, tokens: &[u32]) -> Vec<Row> {
    step(runner, &[Part::sure(slot, pos, tokens)]).remove(0)
}

/// Plain decoding: one row at a time.
pub(crate) fn plain(runner: &mut Runner, slot: u32, tokens: &[u32]) -> Vec<Row> {
    tokens.iter().enumerate().map(|(pos, t)| run(runner, slot, pos, &[*t])[0]).collect()
}

/// Token ids that look random, of any model of this vocabulary.
pub(crate) fn text(vocabulary: usize, n: usize, seed: u64) -> Vec<u32> {
    (0..n).map(|i| forerun_tensor::noise::word(seed, 1, i as u32) % vocabulary as u32).collect()
}

/// The vocabulary of a runner's model.
pub(crate) fn vocabulary(runner: &Runner) -> usize {
    runner.model().spec().vocabulary()
}
