//! Whole models against reference outputs computed by transformers in float32 (see `fixtures/README.md`).
//!
//! `FORERUN_FIXTURES=DIR` runs the same tests on every folder of that form in DIR.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use forerun_cpu::{CpuBackend, CpuConfig, Isa};
use forerun_models::{CacheConfig, CheckpointSource, Model, ModelSpec, StepShape, Taps};
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Backend, KvType, OutRow, Pick, PlanId, SeqRows, StepOut, StepRows};
use safetensors::SafeTensors;

/// Reference inputs and outputs of a folder.
struct Io {
    input_ids: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>,
    /// `[layers + 1][rows · width]`: embeddings, then layer outputs, the last after the output norm.
    hidden: Vec<Vec<f32>>,
}

fn read_io(folder: &Path) -> Io {
    let bytes = std::fs::read(folder.join("io.safetensors")).expect("io.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let floats = |name: &str| -> Vec<f32> {
        let t = file.tensor(name).expect(name);
        t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    let ids = |name: &str| -> Vec<u32> {
        let t = file.tensor(name).expect(name);
        t.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    };
    let hidden = floats("hidden");
    let layers = file.tensor("hidden").expect("hidden").shape()[0];
    Io {
        input_ids: ids("input_ids"),
        greedy: ids("greedy"),
        logits: floats("logits"),
        hidden: hidden.chunks_exact(hidden.len() / layers).map(<[f32]>::to_vec).collect(),
    }
}

fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let square = |v: f64| v * v;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    error / want.iter().map(|w| square(f64::from(*w))).sum::<f64>()
}

/// Folders to test, and those whose architecture is not there yet.
fn folders() -> Vec<PathBuf> {
    let root = std::env::var_os("FORERUN_FIXTURES")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models").into(), PathBuf::from);
    let mut all: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{}: {e}", root.display()))
        .map(|e| e.expect("entry").path())
        .filter(|p| p.join("model.gguf").is_file() && p.join("io.safetensors").is_file())
        .collect();
    all.sort();
    all
}

struct Loaded {
    backend: Box<dyn Backend>,
    plan: PlanId,
}

fn load(folder: &Path, mut backend: Box<dyn Backend>, io: &Io) -> Option<Loaded> {
    let path = folder.join("model.gguf");
    let source = CheckpointSource::open(&path).expect("model.gguf");
    let spec = match ModelSpec::read(&source) {
        Ok(spec) => spec,
        Err(forerun_models::ModelError::Unsupported { what, .. }) => {
            println!("{}: left out, {what} is not supported", folder.display());
            return None;
        }
        Err(e) => panic!("{e}"),
    };
    let caches = CacheConfig { context: io.greedy.len(), kv: KvType::F32, ..CacheConfig::default() };
    let layers = (0..io.hidden.len() - 2).collect();
    let model = Model::load(&source, spec, &mut *backend, &caches, &mut |_| true).expect("load");
    let rows = io.input_ids.len();
    let taps = Taps { embeddings: true, layers, hidden: true };
    let plan = model.record(&StepShape { max_rows: rows, max_out: rows, taps }).expect("plan");
    let plan = backend.prepare(plan).expect("prepare");
    Some(Loaded { backend, plan })
}

impl Loaded {
    fn step(&mut self, pos: usize, tokens: &[u32], all_out: bool) -> StepOut {
        let first = if all_out { 0 } else { tokens.len() - 1 };
        let rows = StepRows {
            seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: tokens.len() as u32, replay: 0, commit: true }],
            tokens: tokens.to_vec(),
            out: (first..tokens.len())
                .map(|row| OutRow { row: row as u32, pick: Pick::Greedy, logits: true })
                .collect(),
        };
        let mut out = StepOut::default();
        let ticket = self.backend.submit(self.plan, &rows).expect("submit");
        self.backend.wait(ticket, &mut out).expect("wait");
        out
    }
}

fn compare(make: &dyn Fn() -> Box<dyn Backend>, bound: f64) {
    let mut tested = 0;
    for folder in folders() {
        let io = read_io(&folder);
        let Some(mut model) = load(&folder, make(), &io) else { continue };
        let what = format!("{} on {}", folder.display(), model.backend.info().detail);
        let out = model.step(0, &io.input_ids, true);
        for (i, (got, want)) in out.taps.iter().zip(&io.hidden).enumerate() {
            let e = nmse(got, want);
            assert!(e <= bound, "{what}: hidden {i}: NMSE {e:.2e}");
        }
        assert_eq!(out.taps.len(), io.hidden.len());
        let e = nmse(&out.logits, &io.logits);
        assert!(e <= bound, "{what}: logits: NMSE {e:.2e}");
        let mut tokens = io.input_ids.clone();
        let mut next = out.picked.last().expect("a row").token;
        while tokens.len() < io.greedy.len() {
            tokens.push(next);
            if tokens.len() < io.greedy.len() {
                next = model.step(tokens.len() - 1, &[next], false).picked[0].token;
            }
        }
        assert_eq!(tokens, io.greedy, "{what}: greedy tokens");
        println!("{what}: logits NMSE {e:.2e}, {} greedy tokens equal", io.greedy.len() - io.input_ids.len());
        tested += 1;
    }
    assert!(tested > 0, "no supported model in the fixtures");
}

#[test]
fn reference_backend() {
    compare(&|| Box::new(ReferenceBackend::new()), 1e-9);
}

/// Every instruction set of this machine, float weights, float32 caches.
#[test]
fn cpu_backend() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for threads in [1, 2] {
            let config = CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa) };
            compare(&|| Box::new(CpuBackend::new(&config).expect("backend")), 1e-7);
        }
    }
}
