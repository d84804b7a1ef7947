//! DFlash drafters against reference outputs, from GGUF files and from Hugging Face folders. `FORERUN_FIXTURES=DIR` runs
//! every drafter in DIR (`MODEL-dflash*` beside `MODEL`) instead of the checked-in ones.

mod common;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use common::{Make, nmse};
use forerun_cpu::{CpuBackend, CpuConfig, Isa};
use forerun_models::{CacheConfig, CheckpointSource, DFlashStep, Model, ModelSpec, StepShape, Taps};
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Backend, KvType, OutRow, Pick, PlanId, SeqRows, StepOut, StepRows};
use safetensors::SafeTensors;

/// The mask of all drafters here, for GGUF files that do not say (they were converted without a tokenizer).
const MASK: u32 = 4;

/// A model's folder and one of its drafter.
struct Pair {
    model: PathBuf,
    drafter: PathBuf,
}

fn pairs() -> Vec<Pair> {
    let of = |drafter: PathBuf| {
        let name = drafter.file_name()?.to_str()?;
        let (model, _) = name.split_once("-dflash")?;
        Some(Pair { model: drafter.with_file_name(model), drafter })
    };
    common::folders().into_iter().filter_map(of).collect()
}

/// Anchors and logits `[anchors, block − 1, vocabulary]`.
fn reference_drafts(folder: &Path) -> (Vec<usize>, Vec<f32>) {
    let bytes = std::fs::read(folder.join("io.safetensors")).expect("io.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let data = |name| file.tensor(name).expect("a tensor of the drafter").data();
    let anchors = data("anchors").as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as usize);
    let logits = data("draft_logits").as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
    (anchors.collect(), logits.collect())
}

fn input_ids(folder: &Path) -> Vec<u32> {
    let bytes = std::fs::read(folder.join("io.safetensors")).expect("io.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let ids = file.tensor("input_ids").expect("input_ids").data();
    ids.as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
}

struct Runner {
    backend: Box<dyn Backend>,
    model: PlanId,
    context: PlanId,
    block: PlanId,
    mask: u32,
}

impl Runner {
    fn load(pair: &Pair, drafter: &Path, positions: usize, make: Make<'_>) -> Self {
        let mut backend = make();
        let source = CheckpointSource::open(&pair.model.join("model.gguf")).unwrap_or_else(|e| panic!("{e}"));
        let spec = ModelSpec::read(&source).unwrap_or_else(|e| panic!("{e}"));
        let from = CheckpointSource::open_any(drafter).unwrap_or_else(|e| panic!("{e}"));
        let read = spec.read_dflash(&from).unwrap_or_else(|e| panic!("{e}"));
        let caches = CacheConfig {
            context: positions + 16,
            chunk: positions,
            kv: KvType::F32,
            ..CacheConfig::default()
        };
        let mut model = Model::load(&source, spec, &mut *backend, &caches, &mut |_| true).expect("load");
        model.load_dflash(&from, &read, &mut *backend, &mut |_| true).expect("load the drafter");
        let shape = StepShape { max_rows: positions, max_out: 0, taps: Taps::default() };
        let mut plan = |plan| backend.prepare(plan).expect("prepare");
        let of_model = plan(model.record(&shape).expect("record"));
        let context = plan(model.record_dflash(positions, 0, DFlashStep::Context).expect("record"));
        let block = plan(model.record_dflash(16, 16, DFlashStep::Block).expect("record"));
        Self { backend, model: of_model, context, block, mask: read.params.mask.unwrap_or(MASK) }
    }

    /// Runs tokens at a position; rows from `out` on have output.
    fn run(&mut self, plan: PlanId, pos: usize, tokens: &[u32], out: usize) -> StepOut {
        let rows = tokens.len();
        let row = |row: usize| OutRow { row: row as u32, pick: Pick::Greedy, logits: true };
        let step = StepRows {
            seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: rows as u32, replay: 0, commit: true }],
            tokens: tokens.to_vec(),
            out: (out..rows).map(row).collect(),
        };
        let mut result = StepOut::default();
        let ticket = self.backend.submit(plan, &step).expect("submit");
        self.backend.wait(ticket, &mut result).expect("wait");
        result
    }

    /// Makes keys and values of tokens `from..to`, in uneven steps.
    fn context(&mut self, ids: &[u32], from: usize, to: usize) {
        let mut pos = from;
        for rows in [3, 1, 7, 30].into_iter().cycle() {
            let rows = usize::min(rows, to - pos);
            if rows == 0 {
                return;
            }
            self.run(self.context, pos, &ids[pos..pos + rows], rows);
            pos += rows;
        }
    }
}

fn compare(make: Make<'_>, bound: f64) {
    let mut tested = 0;
    for pair in pairs() {
        let ids = input_ids(&pair.model);
        let (anchors, logits) = reference_drafts(&pair.drafter);
        for file in ["model.gguf", "", "model.safetensors"] {
            let drafter = if file.is_empty() { pair.drafter.clone() } else { pair.drafter.join(file) };
            let mut runner = Runner::load(&pair, &drafter, ids.len(), make);
            runner.run(runner.model, 0, &ids, ids.len());
            let mut got = Vec::new();
            let mut made = 0;
            for &anchor in &anchors {
                runner.context(&ids, made, anchor);
                made = anchor;
                let rows = 1 + logits.len() / anchors.len() / vocabulary(&pair.model);
                let mut block = vec![runner.mask; rows];
                block[0] = ids[anchor];
                // Twice: what the first left in the caches must not count.
                runner.run(runner.block, anchor, &block, 1);
                got.extend(runner.run(runner.block, anchor, &block, 1).logits);
            }
            let e = nmse(&got, &logits);
            assert!(e <= bound, "{}: draft_logits: NMSE {e:.2e}, bound {bound:.0e}", drafter.display());
            println!("{} on {}: NMSE {e:.1e}", drafter.display(), runner.backend.info().name);
        }
        tested += 1;
    }
    assert!(tested > 0, "no folder with a drafter");
}

fn vocabulary(model: &Path) -> usize {
    let source = CheckpointSource::open(&model.join("model.gguf")).unwrap_or_else(|e| panic!("{e}"));
    ModelSpec::read(&source).unwrap_or_else(|e| panic!("{e}")).vocabulary()
}

#[test]
fn reference_backend_equals_the_published_maths() {
    compare(&|| Box::new(ReferenceBackend::new()), 1e-9);
}

/// Every instruction set of this machine, float weights, float32 caches.
#[test]
fn cpu_backend_equals_the_published_maths() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for threads in [1, 2] {
            let config =
                CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa), ..CpuConfig::default() };
            compare(&|| Box::new(CpuBackend::new(&config).expect("backend")), 1e-7);
        }
    }
}
