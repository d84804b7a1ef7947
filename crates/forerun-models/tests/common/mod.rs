//! Whole models against reference outputs. Generic over the backend: other crates include this file by path.

#![allow(dead_code, reason = "every test file takes what it needs")]

use std::path::{Path, PathBuf};

use forerun_models::{
    CacheConfig, Model, ModelError, ModelSpec, MtpSource, MtpStep, Source, StepShape, Taps,
};
use forerun_tensor::{Backend, KvType, OutRow, Pick, PlanId, SeqRows, StepOut, StepRows};
use safetensors::SafeTensors;

/// Makes a backend.
pub(crate) type Make<'a> = &'a dyn Fn() -> Box<dyn Backend>;

/// Reference inputs and outputs of a folder.
struct Io {
    input_ids: Vec<u32>,
    /// `input_ids` and 24 greedy tokens.
    greedy: Vec<u32>,
    /// `[rows · vocabulary]`.
    logits: Vec<f32>,
    /// Embeddings, the outputs of all layers but the last, the last's after the output norm: `[rows · H]` each.
    hidden: Vec<Vec<f32>>,
    mtp: Option<MtpIo>,
}

/// Reference outputs of the MTP block.
struct MtpIo {
    /// Of every pair of the prompt `[rows − 1, vocabulary]`.
    logits: Vec<f32>,
    /// First pairs of chains.
    starts: Vec<usize>,
    /// Three greedy guesses from each start.
    tokens: Vec<u32>,
    /// `[starts, 3, vocabulary]`.
    chains: Vec<f32>,
}

fn read_io(folder: &Path) -> Io {
    let bytes = std::fs::read(folder.join("io.safetensors")).expect("io.safetensors");
    let file = SafeTensors::deserialize(&bytes).expect("safetensors");
    let data =
        |name: &str| file.tensor(name).unwrap_or_else(|e| panic!("{}: {name}: {e}", folder.display())).data();
    let floats =
        |name| data(name).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<_>>();
    let ids = |name| {
        data(name).as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect::<Vec<_>>()
    };
    let mtp = file.tensor("mtp_logits").is_ok().then(|| MtpIo {
        logits: floats("mtp_logits"),
        starts: ids("mtp_chain_starts").into_iter().map(|s| s as usize).collect(),
        tokens: ids("mtp_chain_tokens"),
        chains: floats("mtp_chain_logits"),
    });
    let hidden = floats("hidden");
    let states = file.tensor("hidden").expect("hidden").shape()[0];
    Io {
        input_ids: ids("input_ids"),
        greedy: ids("greedy"),
        logits: floats("logits"),
        hidden: hidden.chunks_exact(hidden.len() / states).map(<[f32]>::to_vec).collect(),
        mtp,
    }
}

/// Squared error over the squared norm of what is wanted; infinite for NaN.
pub(crate) fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths");
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let nmse = error / want.iter().map(|w| square(f64::from(*w))).sum::<f64>();
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

/// Folders with a model and reference outputs: those of `FORERUN_FIXTURES`, else the checked-in ones.
pub(crate) fn folders() -> Vec<PathBuf> {
    let checked_in = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models");
    let root = std::env::var_os("FORERUN_FIXTURES").map_or_else(|| PathBuf::from(checked_in), PathBuf::from);
    let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut folders: Vec<PathBuf> = entries
        .map(|e| e.expect("entry").path())
        .filter(|p| ["model.gguf", "io.safetensors"].iter().all(|f| p.join(f).is_file()))
        .collect();
    folders.sort();
    folders
}

/// Rows of the largest step where caches are small.
const SMALL: usize = 16;

/// A loaded model with one plan for every step.
struct Runner {
    backend: Box<dyn Backend>,
    plan: PlanId,
    /// Where the file has an MTP block.
    mtp: Option<PlanId>,
}

impl Runner {
    fn load(source: &dyn Source, spec: ModelSpec, make: Make<'_>, io: &Io) -> Self {
        let rows = io.input_ids.len();
        Self::with_caches(source, spec, make, io, CacheConfig::default(), rows)
    }

    /// With caches for steps of 16 rows, so that those of sliding layers are rings that the text goes around.
    fn load_small(source: &dyn Source, spec: ModelSpec, make: Make<'_>, io: &Io) -> Self {
        let caches = CacheConfig { chunk: SMALL, kv_block: 8, ..CacheConfig::default() };
        Self::with_caches(source, spec, make, io, caches, SMALL)
    }

    fn with_caches(
        source: &dyn Source,
        spec: ModelSpec,
        make: Make<'_>,
        io: &Io,
        caches: CacheConfig,
        rows: usize,
    ) -> Self {
        let mut backend = make();
        let caches = CacheConfig { context: io.greedy.len(), kv: KvType::F32, ..caches };
        let taps = Taps { embedding: true, layers: (0..spec.layers() - 1).collect(), normed: true };
        let block = spec.mtp.clone();
        let mut model = Model::load(source, spec, &mut *backend, &caches, &mut |_| true).expect("load");
        if let Some(block) = &block {
            let from = MtpSource { source, block, model: source, head_ids: None };
            model.load_mtp(from, &mut *backend, &mut |_| true).expect("load the MTP block");
        }
        let plan = model.record(&StepShape { max_rows: rows, max_out: rows, taps }).expect("record");
        let plan = backend.prepare(plan).expect("prepare");
        let mtp = block.map(|_| {
            let plan = model.record_mtp(rows, rows, MtpStep::Guess).expect("record the MTP block");
            backend.prepare(plan).expect("prepare")
        });
        Self { backend, plan, mtp }
    }

    /// Runs the tokens at `pos`, every row with output. `replay` rows of the step before count.
    fn step(&mut self, pos: usize, tokens: &[u32], replay: usize, commit: bool) -> StepOut {
        self.run(self.plan, pos, tokens, replay, commit)
    }

    /// Guesses from pairs: of the hidden states kept at `pos` and further, and the tokens after them.
    fn pairs(&mut self, pos: usize, tokens: &[u32]) -> StepOut {
        self.run(self.mtp.expect("an MTP block"), pos, tokens, 0, true)
    }

    fn run(&mut self, plan: PlanId, pos: usize, tokens: &[u32], replay: usize, commit: bool) -> StepOut {
        let rows = tokens.len() as u32;
        let step = StepRows {
            seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows, replay: replay as u32, commit }],
            tokens: tokens.to_vec(),
            out: (0..rows).map(|row| OutRow { row, pick: Pick::Greedy, logits: true }).collect(),
        };
        let mut out = StepOut::default();
        let ticket = self.backend.submit(plan, &step).expect("submit");
        self.backend.wait(ticket, &mut out).expect("wait");
        out
    }

    /// Goes on greedily, each row left on the tape and replayed by the next step.
    fn greedy(&mut self, prompt: &[u32], first: u32, len: usize) -> Vec<u32> {
        let mut tokens = prompt.to_vec();
        tokens.push(first);
        while tokens.len() < len {
            let pos = tokens.len() - 1;
            let out = self.step(pos, &tokens[pos..], usize::from(pos > prompt.len()), false);
            tokens.push(out.picked[0].token);
        }
        tokens
    }

    /// The logits of the prompt in uneven steps.
    fn uneven_logits(&mut self, prompt: &[u32]) -> Vec<f32> {
        let mut logits = Vec::new();
        let mut pos = 0;
        for rows in [5, SMALL, 1, 9, 2, SMALL].into_iter().cycle() {
            let rows = rows.min(prompt.len() - pos);
            if rows == 0 {
                break;
            }
            logits.extend(self.step(pos, &prompt[pos..pos + rows], 0, true).logits);
            pos += rows;
        }
        logits
    }

    /// The prompt again in uneven steps, some of whose rows are spoilt and rejected: `(rows, accepted)` in turn.
    fn spoilt_logits(&mut self, prompt: &[u32]) -> Vec<f32> {
        let mut logits = Vec::new();
        let (mut pos, mut replay) = (0, 0);
        for (rows, accepted) in [(1, 1), (4, 4), (8, 3), (2, 1), (16, 16), (5, 0)].into_iter().cycle() {
            if pos == prompt.len() {
                return logits;
            }
            let rows = usize::min(rows, prompt.len() - pos);
            // Position 0 starts afresh, so its step must keep a row; a step of no accepted rows is not its sequence's first.
            let accepted = usize::min(accepted, rows);
            let spoilt = |(i, t): (usize, &u32)| if i < accepted { *t } else { (*t + 1) % 256 };
            let tokens: Vec<u32> = prompt[pos..pos + rows].iter().enumerate().map(spoilt).collect();
            let out = self.step(pos, &tokens, replay, false);
            logits.extend_from_slice(&out.logits[..accepted * (out.logits.len() / rows)]);
            pos += accepted;
            replay = accepted;
        }
        logits
    }
}

/// Logits of the prompt's pairs, whole and in uneven steps, and greedy chains from some of them.
fn compare_mtp(runner: &mut Runner, io: &Io, mtp: &MtpIo, name: &str, bound: f64) {
    let ids = &io.input_ids;
    runner.step(0, ids, 0, true);
    let whole = runner.pairs(0, &ids[1..]);
    let e = nmse(&whole.logits, &mtp.logits);
    assert!(e <= bound, "{name}: mtp_logits: NMSE {e:.2e}, bound {bound:.0e}");
    let vocabulary = whole.logits.len() / (ids.len() - 1);
    let mut parts = Vec::new();
    let mut pos = 0;
    for rows in [1, 7, 2, 16].into_iter().cycle() {
        let rows = rows.min(ids.len() - 1 - pos);
        if rows == 0 {
            break;
        }
        // A guess's own hidden state takes the place of the next one.
        runner.step(0, ids, 0, true);
        parts.extend(runner.pairs(pos, &ids[pos + 1..pos + 1 + rows]).logits);
        pos += rows;
    }
    let e = nmse(&parts, &mtp.logits);
    assert!(e <= bound, "{name}: mtp_logits in parts: NMSE {e:.2e}, bound {bound:.0e}");
    for (chain, &start) in mtp.starts.iter().enumerate() {
        runner.step(0, ids, 0, true);
        if start > 0 {
            runner.pairs(0, &ids[1..=start]);
            runner.step(0, ids, 0, true);
        }
        let mut token = ids[start + 1];
        for link in 0..3 {
            let out = runner.pairs(start + link, &[token]);
            token = out.picked[0].token;
            let at = 3 * chain + link;
            assert_eq!(token, mtp.tokens[at], "{name}: guess {link} from {start}");
            let e = nmse(&out.logits, &mtp.chains[at * vocabulary..][..vocabulary]);
            assert!(
                e <= bound,
                "{name}: mtp_chain_logits {link} from {start}: NMSE {e:.2e}, bound {bound:.0e}"
            );
        }
    }
}

/// Logits of uneven steps and of spoilt ones, and greedy tokens, over small caches.
fn compare_small(runner: &mut Runner, io: &Io, name: &str, bound: f64) {
    let spoilt = nmse(&runner.spoilt_logits(&io.input_ids), &io.logits);
    assert!(
        spoilt <= bound,
        "{name}: logits of spoilt steps over rings: NMSE {spoilt:.2e}, bound {bound:.0e}"
    );
    let uneven = nmse(&runner.uneven_logits(&io.input_ids), &io.logits);
    assert!(uneven <= bound, "{name}: logits of uneven steps: NMSE {uneven:.2e}, bound {bound:.0e}");
    let greedy = runner.greedy(&io.input_ids, io.greedy[io.input_ids.len()], io.greedy.len());
    assert_eq!(greedy, io.greedy, "{name}: greedy tokens over rings");
}

/// Runs every folder on a backend. NMSE of hidden states and logits must be within `bound`, greedy tokens equal. Folders of
/// an architecture that is not supported are named and skipped.
pub(crate) fn compare(make: Make<'_>, bound: f64) {
    let mut tested = 0;
    // As GGUF, and as the Hugging Face folder that it was made of.
    let files = folders().into_iter().flat_map(|folder| [folder.join("model.gguf"), folder]);
    for file in files {
        let folder = if file.is_dir() { &*file } else { file.parent().expect("a folder") };
        let name = file.display();
        let source = forerun_models::open(&file).unwrap_or_else(|e| panic!("{e}"));
        let source = &*source;
        let spec = match ModelSpec::read(source) {
            Ok(spec) => spec,
            Err(ModelError::Architecture { found, .. }) => {
                println!("skipped {name}: architecture `{found}`");
                continue;
            }
            Err(e) => panic!("{e}"),
        };
        let io = read_io(folder);
        let mut runner = Runner::load(source, spec.clone(), make, &io);
        let out = runner.step(0, &io.input_ids, 0, true);
        assert_eq!(out.taps.len(), io.hidden.len(), "{name}: taps");
        for (i, (got, want)) in out.taps.iter().zip(&io.hidden).enumerate() {
            let e = nmse(got, want);
            assert!(e <= bound, "{name}: hidden {i}: NMSE {e:.2e}, bound {bound:.0e}");
        }
        let whole = nmse(&out.logits, &io.logits);
        assert!(whole <= bound, "{name}: logits: NMSE {whole:.2e}, bound {bound:.0e}");
        let first = out.picked.last().expect("a row").token;
        let greedy = runner.greedy(&io.input_ids, first, io.greedy.len());
        assert_eq!(greedy, io.greedy, "{name}: greedy tokens");
        let spoilt = nmse(&runner.spoilt_logits(&io.input_ids), &io.logits);
        assert!(spoilt <= bound, "{name}: logits of spoilt steps: NMSE {spoilt:.2e}, bound {bound:.0e}");
        if let Some(mtp) = &io.mtp {
            compare_mtp(&mut runner, &io, mtp, &name.to_string(), bound);
        }
        compare_small(&mut Runner::load_small(source, spec, make, &io), &io, &name.to_string(), bound);
        println!("{name} on {}: NMSE {whole:.1e}, with rejections {spoilt:.1e}", runner.backend.info().name);
        tested += 1;
    }
    assert!(tested > 0, "no folder with a supported model");
}
