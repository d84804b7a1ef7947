//! Sums of squares of what products read, against sums over inputs that were copied out of the same plans.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{DEMO, cpu, every_model, isas, open, text};
use forerun_cpu::CpuBackend;
use forerun_engine::{Collected, CpuConfig, Isa, KvType, Runner};
use forerun_models::ffn::Ffn;
use forerun_models::{CacheConfig, Model, ModelSpec, MtpSource, MtpStep, Source, StepShape, Taps};
use forerun_quant::decode_row;
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Act, Activation, Backend, Op, Plan, StepOut, StepRows, WeightId};
use forerun_text::{Tokenizer, TokenizerSpec};

const WINDOW: usize = 80;

/// Caches round nothing: where two backends round differently, a row may be routed to another expert.
fn caches(chunk: usize) -> CacheConfig {
    CacheConfig { context: 512, chunk, kv: KvType::F32, ..CacheConfig::default() }
}

/// A model with its MTP block on a backend.
fn place(source: &dyn Source, backend: &mut dyn Backend, chunk: usize) -> Model {
    let spec = ModelSpec::read(source).unwrap_or_else(|e| panic!("{e}"));
    let block = spec.mtp.clone();
    let mut model = Model::load(source, spec, backend, &caches(chunk), &mut |_| true).expect("a model");
    if let Some(block) = &block {
        let from = MtpSource { source, block, model: source, head_ids: None };
        model.load_mtp(from, backend, &mut |_| true).expect("an MTP block");
    }
    model
}

/// Two texts for a file's model, in which no router's choice is so close that rounding decides it.
fn windows(path: &Path) -> Vec<Vec<u32>> {
    let vocabulary = ModelSpec::read(&open(path)).unwrap_or_else(|e| panic!("{e}")).vocabulary();
    vec![text(vocabulary, WINDOW, 5), text(vocabulary, WINDOW - 9, 6)]
}

/// What a runner collects from texts.
fn collect(
    path: &Path,
    mut backend: Box<dyn Backend>,
    chunk: usize,
    heads: bool,
    windows: &[Vec<u32>],
) -> Vec<Collected> {
    let model = place(&open(path), &mut *backend, chunk);
    let mut runner = Runner::new(backend, model, chunk);
    runner.collect(heads).expect("collect");
    windows.iter().for_each(|window| runner.read_through(window, heads).expect("a window"));
    runner.collected().expect("sums")
}

fn on_cpu(path: &Path, config: &CpuConfig, chunk: usize, heads: bool) -> Vec<Collected> {
    let backend = CpuBackend::new(config).unwrap_or_else(|e| panic!("{e}"));
    collect(path, Box::new(backend), chunk, heads, &windows(path))
}

/// By tensor: sums by expert and column, rows by expert.
type Sums = BTreeMap<String, Vec<(Vec<f64>, u64)>>;

fn add(sums: &mut Sums, name: &str, matrices: usize, matrix: usize, row: &[f64]) {
    let own = sums.entry(name.to_owned()).or_insert_with(|| vec![(vec![0.0; row.len()], 0); matrices]);
    own[matrix].0.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.powi(2));
    own[matrix].1 += 1;
}

/// The inputs of an operator's products; of experts also the router's logits.
fn inputs(plan: &Plan, op: &Op) -> Vec<Act> {
    match op {
        Op::MatMul { x, .. } | Op::GatedMatMul { x, .. } => vec![*x],
        Op::Experts(e) => {
            let logits = plan.ops().iter().rev().find_map(|o| match o {
                Op::Route(r) if r.out == e.routes => Some(r.logits),
                _ => None,
            });
            vec![e.x, logits.expect("a router")]
        }
        _ => Vec::new(),
    }
}

/// Weights by their tensors' names.
struct Oracle<'a> {
    source: &'a dyn Source,
    model: Model,
    names: BTreeMap<WeightId, String>,
}

impl<'a> Oracle<'a> {
    fn new(source: &'a dyn Source, backend: &mut dyn Backend) -> Self {
        let model = place(source, backend, 512);
        // Tensors are loaded in the order of the list; the frequencies of a rotary embedding go into plans instead.
        let loaded = model.spec().tensors().iter().filter(|t| t.name != "rope_freqs.weight");
        let mut names: BTreeMap<_, _> = loaded.zip(0..).map(|(t, i)| (WeightId(i), t.name.clone())).collect();
        if let Some(mtp) = model.mtp() {
            let mut name = |w: &forerun_tensor::Weight, name: &str| {
                names.insert(w.id, format!("blk.{}.{name}.weight", mtp.params.block));
            };
            name(&mtp.eh_proj, "nextn.eh_proj");
            name(&mtp.attn_q, "attn_q");
            name(&mtp.attn_k, "attn_k");
            name(&mtp.attn_v, "attn_v");
            name(&mtp.attn_output, "attn_output");
            match &mtp.ffn {
                Ffn::Dense(d) => {
                    name(&d.ffn_gate, "ffn_gate");
                    name(&d.ffn_up, "ffn_up");
                    name(&d.ffn_down, "ffn_down");
                }
                Ffn::Experts(e) => {
                    name(&e.ffn_gate_inp, "ffn_gate_inp");
                    name(&e.ffn_gate_inp_shexp, "ffn_gate_inp_shexp");
                    name(&e.ffn_gate_exps, "ffn_gate_exps");
                    name(&e.ffn_up_exps, "ffn_up_exps");
                    name(&e.ffn_down_exps, "ffn_down_exps");
                    name(&e.ffn_gate_shexp, "ffn_gate_shexp");
                    name(&e.ffn_up_shexp, "ffn_up_shexp");
                    name(&e.ffn_down_shexp, "ffn_down_shexp");
                }
            }
        }
        Self { source, model, names }
    }

    /// `W[expert] · x` of a float tensor; `second` for the second half of a fused one.
    fn product(&self, name: &str, [rows, expert]: [usize; 2], second: bool, x: &[f64]) -> Vec<f64> {
        let tensor = self.source.tensor(name).expect("a tensor");
        let row_bytes = tensor.ty.row_bytes(x.len()).expect("whole blocks");
        let stored = if name.contains("gate_up") { 2 * rows } else { rows };
        let first = expert * stored + if second { rows } else { 0 };
        let dot = |r: usize| {
            let mut w = vec![0.0_f32; x.len()];
            decode_row(tensor.ty, &tensor.bytes[(first + r) * row_bytes..][..row_bytes], &mut w)
                .expect("a row");
            w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
        };
        (0..rows).map(dot).collect()
    }

    /// Adds what the operators of a plan read in a step.
    fn add(&self, sums: &mut Sums, plan: &Plan, taps: &[Vec<f32>]) {
        let mut taps = taps.iter();
        for op in plan.ops() {
            let read = inputs(plan, op);
            let mut rows = read.iter().map(|act| {
                let tap = taps.next().expect("a tap");
                let row = |r: &[f32]| r.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
                tap.chunks_exact(plan.act(*act).cols).map(row).collect::<Vec<_>>()
            });
            match op {
                Op::Experts(_) => {
                    let (x, logits) = (rows.next().expect("x"), rows.next().expect("logits"));
                    x.iter().zip(&logits).for_each(|(x, logits)| self.experts(sums, plan, op, x, logits));
                }
                _ => {
                    let Some(x) = rows.next() else { continue };
                    for id in op.weights() {
                        let name = &self.names[&id];
                        x.iter().for_each(|row| add(sums, name, 1, 0, row));
                    }
                }
            }
        }
    }

    fn experts(&self, sums: &mut Sums, plan: &Plan, op: &Op, x: &[f64], logits: &[f64]) {
        let Op::Experts(e) = op else { return };
        let [gate, up, down] = [e.gate, e.up, e.down].map(|id| self.names[&id].as_str());
        let all = logits.len();
        let mut ranked: Vec<usize> = (0..all).collect();
        ranked.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let hidden = self.model.spec().tensors().iter().find(|t| t.name == down).map(|t| t.cols);
        let hidden = hidden.unwrap_or_else(|| {
            let dims = self.source.tensors().iter().find(|t| t.name == down).map(|t| t.dims[0]);
            dims.expect("a down projection")
        });
        for &expert in &ranked[..plan.routes()[e.routes.index()]] {
            let g = self.product(gate, [hidden, expert], false, x);
            let u = self.product(up, [hidden, expert], gate == up, x);
            let act = |x: f64| match e.activation {
                Activation::Silu => x / (1.0 + (-x).exp()),
                Activation::GeluTanh => {
                    0.5 * x
                        * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
                }
            };
            let h: Vec<f64> = g.iter().zip(u).map(|(g, u)| act(*g) * u).collect();
            add(sums, gate, all, expert, x);
            if up != gate {
                add(sums, up, all, expert, x);
            }
            add(sums, down, all, expert, &h);
        }
    }
}

/// The sums of texts from inputs that were copied out.
fn direct(path: &Path, mut backend: Box<dyn Backend>, windows: &[Vec<u32>]) -> Sums {
    let most = windows.iter().map(Vec::len).max().unwrap_or(1);
    let source = open(path);
    let oracle = Oracle::new(&source, &mut *backend);
    let mut sums = Sums::new();
    let model = &oracle.model;
    let shape = StepShape { max_rows: most, max_out: 1, taps: Taps::default() };
    let mut plans = vec![(model.record(&shape).expect("a plan"), 0)];
    if model.mtp().is_some() {
        plans.push((model.record_mtp(most, 0, MtpStep::Through).expect("a plan"), 1));
    }
    let mut prepared = Vec::new();
    for (plan, late) in plans {
        let tapped = plan.clone().tapped(|op| inputs(&plan, op));
        prepared.push((backend.prepare(tapped).expect("prepare"), plan, late));
    }
    for window in windows {
        for (id, plan, late) in &prepared {
            let ticket = backend.submit(*id, &StepRows::of_text(&window[*late..], 0, false)).expect("submit");
            let mut out = StepOut::default();
            backend.wait(ticket, &mut out).expect("wait");
            oracle.add(&mut sums, plan, &out.taps);
        }
    }
    sums.retain(|name, _| name.starts_with("blk."));
    sums
}

/// The largest difference from the oracle's mean squares, relative to the mean of the expert's.
fn compare(what: &str, found: &[Collected], wanted: &Sums) -> f64 {
    let names: Vec<&str> = {
        let mut names: Vec<&str> = found.iter().map(|c| c.name.as_str()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names, wanted.keys().map(String::as_str).collect::<Vec<_>>(), "{what}");
    let mut worst = 0.0_f64;
    for c in found {
        let wanted = &wanted[&c.name];
        let rows: Vec<u64> = wanted.iter().map(|(_, rows)| *rows).collect();
        assert_eq!(c.sums.rows, rows, "{what}: {}", c.name);
        for (own, (sums, rows)) in c.sums.squares.chunks_exact(c.cols).zip(wanted) {
            let scale = sums.iter().sum::<f64>() / sums.len() as f64;
            if *rows == 0 {
                assert!(own.iter().all(|x| *x == 0.0), "{what}: {}", c.name);
                continue;
            }
            for (x, y) in own.iter().zip(sums) {
                worst = worst.max((x - y).abs() / y.max(scale));
            }
        }
    }
    worst
}

#[test]
fn sums_are_those_of_the_inputs() {
    for (name, path) in every_model() {
        let config = cpu(Isa::detect(), 2);
        let found = on_cpu(&path, &config, 64, false);
        let wanted = direct(&path, Box::new(CpuBackend::new(&config).expect("a backend")), &windows(&path));
        let worst = compare(name, &found, &wanted);
        assert!(worst <= 1e-5, "{name}: {worst:.1e}");
        // What a dense product reads is copied out to the bit.
        for c in found.iter().filter(|c| c.sums.rows.len() == 1) {
            assert!(c.sums.squares == wanted[&c.name][0].0, "{name}: {}", c.name);
        }
    }
}

/// The whole calibration text in the demo, to 1e-5 of what float64 gives.
#[test]
fn the_demo_reads_the_calibration_text() {
    let text = include_str!("../../../fixtures/quantize/calibration.txt");
    let source = open(Path::new(DEMO));
    let spec = TokenizerSpec::from_metadata(source.metadata()).expect("a tokenizer");
    let tokens = Tokenizer::new(spec).expect("a tokenizer").encode_prompt(text, true).expect("tokens");
    let windows: Vec<Vec<u32>> = tokens.chunks_exact(512).map(<[u32]>::to_vec).collect();
    assert!(windows.len() > 20, "{} tokens", tokens.len());
    let config = cpu(Isa::detect(), 2);
    let backend = || Box::new(CpuBackend::new(&config).expect("a backend"));
    let found = collect(Path::new(DEMO), backend(), 512, false, &windows);
    let worst = compare("demo", &found, &direct(Path::new(DEMO), backend(), &windows));
    assert!(worst <= 1e-5, "{worst:.1e}");
}

/// The reference backend collects for itself, on files of float weights.
#[test]
fn backends_agree() {
    for (name, path) in every_model().filter(|(name, _)| *name != "demo") {
        let mut wanted = Sums::new();
        for c in collect(&path, Box::new(ReferenceBackend::new()), 64, false, &windows(&path)) {
            let own = c.sums.squares.chunks_exact(c.cols).map(<[f64]>::to_vec).zip(c.sums.rows).collect();
            wanted.insert(c.name, own);
        }
        let worst = compare(name, &on_cpu(&path, &cpu(Isa::detect(), 2), 64, false), &wanted);
        // The rows themselves differ by what float32 rounds in all layers before.
        assert!(worst <= 1e-4, "{name}: {worst:.1e}");
    }
}

#[test]
fn sums_depend_on_nothing_but_the_rows() {
    for (name, path) in every_model() {
        let first = on_cpu(&path, &cpu(Isa::detect(), 1), 64, false);
        for isa in isas().filter(|isa| *isa != Isa::Scalar || name != "demo") {
            for (threads, chunk) in [(1, 16), (2, 33), (3, 64), (2, 80)] {
                let other = on_cpu(&path, &cpu(isa, threads), chunk, false);
                assert!(other == first, "{name}: {isa}, {threads} threads, steps of {chunk}");
            }
        }
    }
}

#[test]
fn heads_count_only_when_asked_for() {
    for (name, path) in every_model() {
        let config = cpu(Isa::detect(), 2);
        let (without, with) = (on_cpu(&path, &config, 64, false), on_cpu(&path, &config, 64, true));
        let own_head = open(&path).tensors().iter().any(|t| t.name == "output.weight");
        let more: Vec<&Collected> = with.iter().filter(|c| !without.contains(c)).collect();
        assert_eq!(more.len(), usize::from(own_head), "{name}: {:?}", more.iter().map(|c| &c.name));
        for c in more {
            assert_eq!(c.name, "output.weight");
            assert_eq!(c.sums.rows, [windows(&path).iter().map(|w| w.len() as u64).sum::<u64>()], "{name}");
        }
        assert!(without.iter().all(|c| with.contains(c)), "{name}");
    }
}

/// A model that collects writes the same plans with sums in between, and the other plans have none.
#[test]
fn nothing_is_collected_that_was_not_asked_for() {
    let mut backend = CpuBackend::new(&cpu(Isa::detect(), 1)).expect("a backend");
    let mut model = place(&open(Path::new(DEMO)), &mut backend, 64);
    let shape = StepShape { max_rows: 4, max_out: 4, taps: Taps::default() };
    let plain = model.record(&shape).expect("a plan");
    assert!(plain.ops().iter().all(|op| op.sums().is_empty()));
    model.collect(&mut backend, false).expect("collect");
    let collecting = model.record(&shape).expect("a plan");
    let rest: Vec<&Op> = collecting.ops().iter().filter(|op| op.sums().is_empty()).collect();
    assert_eq!(rest, plain.ops().iter().collect::<Vec<_>>());
    let collected = model.collected(&mut backend).expect("sums");
    assert!(collected.iter().all(|c| c.sums.rows == [0]));
}
