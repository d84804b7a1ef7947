//! Speed of prompts and of steps, each as a share of what the memory allows.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forerun_engine::{CancelToken, LoadOptions, MAX_DRAFT, Runner, TensorType};
use forerun_models::{
    CheckpointSource, DFlash, DFlashShape, DFlashStep, Model, ModelSpec, Mtp, MtpSource, Source, Synthetic,
    TensorSpec, WeightMix,
};
use forerun_tensor::{KvType, OutRow, Pick, SeqRows, StepOut, StepRows};
use serde::Serialize;

use super::median;
use crate::args::BenchArgs;
use crate::bandwidth::Bandwidth;
use crate::demo::{self, model_or_demo};
use crate::error::{CliError, Result};
use crate::hub;
use crate::progress::{cancel_on_interrupt, with_load_bar};

/// One line of the result.
#[derive(Serialize)]
struct Line {
    /// `prompt`, `step`, `draft` (tokens one after the other), `round` (drafts and the step that verifies them) or `block` (a
    /// DFlash draft, with the context of the round before).
    kind: &'static str,
    rows: usize,
    ms: f64,
    tokens_per_second: f64,
    /// Bytes that any engine must move for it.
    bytes: u64,
    /// Those bytes over the measured bandwidth, as a share of the time.
    floor_share: f64,
    operators: usize,
    /// Its time in steps of one row, where those were timed.
    plain_steps: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    model: String,
    parameters: u64,
    weight_bytes: u64,
    backend: String,
    arithmetic_id: String,
    load_seconds: f64,
    bandwidth_gb_s: f64,
    repeat: usize,
    depth: usize,
    lines: Vec<Line>,
}

/// What is timed.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Prompt(usize),
    Step(usize),
    /// Drafts of the MTP block, after a round that was accepted whole.
    Draft(usize),
    /// The same, and the step that verifies them.
    Round(usize),
    /// Drafts of a DFlash block, after such a round.
    Block(usize),
}

pub(super) fn bench(args: &BenchArgs) -> Result<()> {
    check(args)?;
    let cancel = cancel_on_interrupt();
    let mut cases: Vec<Case> = args.rows.iter().map(|r| Case::Step(*r)).collect();
    if args.prompt > 0 {
        cases.insert(0, Case::Prompt(args.prompt));
    }
    let options = LoadOptions {
        backend: args.device.choice(),
        context: Some(args.prompt.max(args.depth + 3 * most_rows(args))),
        kv: args.kv.into(),
        ..LoadOptions::default()
    };
    let (name, source) = source(args)?;
    let spec = ModelSpec::read(&*source)?;
    let mut caches = options.caches(&spec);
    caches.tape = most_rows(args);
    let drafts = args.draft.unwrap_or(if spec.mtp.is_some() { 3 } else { 0 });
    if drafts > 0 {
        cases.extend([Case::Draft(drafts), Case::Round(drafts)]);
    }
    let dflash = dflash(args, &spec)?;
    if dflash.is_some() {
        cases.push(Case::Block(MAX_DRAFT));
    }
    let block = mtp_block(&spec, drafts)?;
    let head_rows = args.draft_vocab.filter(|n| *n < spec.vocabulary());
    let head_ids = head_rows.map(|n| (0..n as u32).collect::<Arc<[u32]>>());
    let mut backend = options.make_backend()?;
    let started = Instant::now();
    let model = with_load_bar(&cancel, |progress| {
        let mut model = Model::load(&*source, spec.clone(), &mut *backend, &caches, progress)?;
        if let Some(block) = &block {
            let from = MtpSource { source: &*source, block, model: &*source, head_ids: head_ids.as_ref() };
            model.load_mtp(from, &mut *backend, progress)?;
        }
        if let Some((source, drafter)) = &dflash {
            model.load_dflash(&**source, drafter, &mut *backend, progress)?;
        }
        Ok(model)
    })?;
    let load_seconds = started.elapsed().as_secs_f64();
    let mut runner = Runner::new(backend, model, options.chunk);
    let threads = args.device.threads().or(std::thread::available_parallelism().ok()).map_or(1, |n| n.get());
    let (mut times, bandwidth) = measure(&mut runner, &cases, args, threads, &cancel)?;
    let mut lines = Vec::new();
    for (case, times) in cases.iter().zip(&mut times) {
        let mut line = line(&runner, &spec, *case, args, median(times), bandwidth)?;
        if let (Case::Block(_), Some((_, drafter))) = (case, &dflash) {
            line.bytes = drafter.block_bytes(&spec);
            line.floor_share = line.bytes as f64 / bandwidth / (line.ms / 1e3);
        }
        lines.push(line);
    }
    let plain = lines.iter().find(|l| l.kind == "step" && l.rows == 1).map(|l| l.ms);
    for line in lines.iter_mut().filter(|l| l.kind != "prompt") {
        line.plain_steps = plain.map(|plain| line.ms / plain);
    }
    let report = Report {
        model: name,
        parameters: spec.parameters(),
        weight_bytes: spec.file_bytes(),
        backend: runner.backend().info().detail.clone(),
        arithmetic_id: runner.backend().info().arithmetic_id.clone(),
        load_seconds,
        bandwidth_gb_s: bandwidth / 1e9,
        repeat: args.repeat,
        depth: args.depth,
        lines,
    };
    print(&report, args.json)
}

/// Seconds of every case, run by run, interleaved; and the memory bandwidth of the same time in bytes per second.
fn measure(
    runner: &mut Runner,
    cases: &[Case],
    args: &BenchArgs,
    threads: usize,
    cancel: &CancelToken,
) -> Result<(Vec<Vec<f64>>, f64)> {
    let bandwidth = Bandwidth::new(threads);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    let mut speeds: Vec<f64> = Vec::new();
    for run in 0..=args.repeat {
        for (case, times) in cases.iter().zip(&mut times) {
            if cancel.is_cancelled() {
                return Err(CliError::Interrupted);
            }
            let seconds = time(runner, *case, args.depth)?;
            // The first run prepares plans and touches memory for the first time.
            if run > 0 {
                times.push(seconds);
            }
        }
        speeds.push(bandwidth.measure());
    }
    // Whatever slows a reading down is not the memory: the fastest is its bandwidth.
    Ok((times, speeds.iter().copied().fold(0.0, f64::max)))
}

fn check(args: &BenchArgs) -> Result<()> {
    let bad = |option, found: usize, expected: &str| {
        Err(CliError::Option { option, found: found.to_string(), expected: expected.into() })
    };
    if let Some(rows) = args.rows.iter().find(|r| **r == 0 || **r > 512) {
        return bad("--rows", *rows, "1 to 512");
    }
    if args.repeat == 0 || args.repeat > 1000 {
        return bad("--repeat", args.repeat, "1 to 1000");
    }
    if args.depth == 0 || args.depth > 1 << 20 {
        return bad("--depth", args.depth, "1 to 1048576");
    }
    if args.draft.is_some_and(|d| d > MAX_DRAFT) {
        return bad("--draft", args.draft.unwrap_or(0), "0 to 15");
    }
    if args.draft_vocab == Some(0) {
        return bad("--draft-vocab", 0, "at least 1");
    }
    if args.prompt > 1 << 20 {
        return bad("--prompt", args.prompt, "at most 1048576");
    }
    Ok(())
}

/// The most rows of a timed step.
fn most_rows(args: &BenchArgs) -> usize {
    args.rows.iter().copied().max().unwrap_or(1).max(MAX_DRAFT + 1)
}

/// The MTP block to load when a round of drafts is to be timed.
fn mtp_block(spec: &ModelSpec, drafts: usize) -> Result<Option<Mtp<TensorSpec, ()>>> {
    match &spec.mtp {
        _ if drafts == 0 => Ok(None),
        Some(block) => Ok(Some(block.clone())),
        None => {
            let (found, expected) = (drafts.to_string(), "0: the model has no MTP block".into());
            Err(CliError::Option { option: "--draft", found, expected })
        }
    }
}

/// A DFlash drafter and where its weights come from.
type Drafter = (Box<dyn Source>, DFlash<TensorSpec, ()>);

/// The DFlash drafter to load: made up, or of a file.
fn dflash(args: &BenchArgs, spec: &ModelSpec) -> Result<Option<Drafter>> {
    let Some(drafter) = &args.drafter else { return Ok(None) };
    let source: Box<dyn Source> = match drafter.to_str() {
        Some("random") => {
            let ty = args.drafter_type.unwrap_or(TensorType::Q8_0);
            Box::new(Synthetic::dflash(&DFlashShape::default(), spec, ty, 0)?)
        }
        Some("demo") => Box::new(CheckpointSource::open_any(&demo::drafter()?)?),
        _ => Box::new(CheckpointSource::open_any(&hub::locate(drafter)?)?),
    };
    let read = spec.read_dflash(&*source)?;
    Ok(Some((source, read)))
}

fn source(args: &BenchArgs) -> Result<(String, Box<dyn Source>)> {
    let Some(shape) = &args.shape else {
        let path = model_or_demo(args.model.as_deref().map(Path::new))?;
        return Ok((path.display().to_string(), args.overlay.open(&path)?));
    };
    let mix = WeightMix::from_name(&args.weight_type)?;
    let name = format!("{shape}, random {} weights", args.weight_type);
    Ok((name, Box::new(Synthetic::named(shape, mix, 0)?)))
}

/// Token ids that differ from each other.
fn tokens(from: usize, count: usize, vocabulary: usize) -> Vec<u32> {
    (from..from + count).map(|i| ((i * 7919 + 13) % vocabulary) as u32).collect()
}

fn step(
    runner: &mut Runner,
    pos: usize,
    count: usize,
    replay: usize,
    commit: bool,
    out: &[usize],
) -> Result<()> {
    let vocabulary = runner.model().spec().vocabulary();
    let pick = |row: &usize| OutRow { row: *row as u32, pick: Pick::Greedy, logits: false };
    let rows = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: count as u32, replay: replay as u32, commit }],
        tokens: tokens(pos, count, vocabulary),
        out: out.iter().map(pick).collect(),
    };
    Ok(runner.step(&rows, &mut StepOut::default())?)
}

/// Seconds of one case. A step of several rows is a verification: its rows stay undecided, and it first settles as many of
/// the step before, all accepted.
fn time(runner: &mut Runner, case: Case, depth: usize) -> Result<f64> {
    match case {
        Case::Prompt(len) => {
            let start = Instant::now();
            prompt(runner, len)?;
            Ok(start.elapsed().as_secs_f64())
        }
        Case::Step(rows) => {
            prompt(runner, depth)?;
            let all: Vec<usize> = (0..rows).collect();
            let undecided = rows > 1;
            step(runner, depth, rows, 0, !undecided, &all)?;
            let start = Instant::now();
            step(runner, depth + rows, rows, if undecided { rows } else { 0 }, !undecided, &all)?;
            Ok(start.elapsed().as_secs_f64())
        }
        Case::Draft(drafts) => round(runner, depth, drafts, false),
        Case::Round(drafts) => round(runner, depth, drafts, true),
        Case::Block(drafts) => block(runner, depth, drafts),
    }
}

/// Seconds of a round after one that was accepted whole: the pairs of its rows, a chain of guesses, and, when it is asked
/// for, the step that verifies them.
fn round(runner: &mut Runner, depth: usize, drafts: usize, verify: bool) -> Result<f64> {
    let rows = drafts + 1;
    let all: Vec<usize> = (0..rows).collect();
    prompt(runner, depth)?;
    let chunk = runner.chunk();
    for first in (0..depth).step_by(chunk) {
        pairs(runner, first, chunk.min(depth - first), false)?;
    }
    step(runner, depth, rows, 0, false, &all)?;
    let start = Instant::now();
    pairs(runner, depth, rows, true)?;
    for link in 1..drafts {
        pairs(runner, depth + rows - 1 + link, 1, true)?;
    }
    if verify {
        step(runner, depth + rows, rows, rows, false, &all)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// Seconds of a DFlash draft after a step of as many rows that was accepted whole: their context, and a block.
fn block(runner: &mut Runner, depth: usize, drafts: usize) -> Result<f64> {
    let rows = drafts + 1;
    let all: Vec<usize> = (0..rows).collect();
    prompt(runner, depth)?;
    let chunk = runner.chunk();
    for first in (0..depth).step_by(chunk) {
        dflash_step(runner, DFlashStep::Context, first, chunk.min(depth - first))?;
    }
    step(runner, depth, rows, 0, false, &all)?;
    let start = Instant::now();
    dflash_step(runner, DFlashStep::Context, depth, rows)?;
    dflash_step(runner, DFlashStep::Block, depth + rows, rows)?;
    Ok(start.elapsed().as_secs_f64())
}

/// A step of the DFlash drafter; a block guesses from all its rows but the first.
fn dflash_step(runner: &mut Runner, kind: DFlashStep, pos: usize, count: usize) -> Result<()> {
    let vocabulary = runner.model().spec().vocabulary();
    let first = if kind == DFlashStep::Block { 1 } else { count };
    let out = |row: usize| OutRow { row: row as u32, pick: Pick::Greedy, logits: false };
    let rows = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: count as u32, replay: 0, commit: true }],
        tokens: tokens(pos, count, vocabulary),
        out: (first..count).map(out).collect(),
    };
    Ok(runner.dflash_step(kind, &rows, &mut StepOut::default())?)
}

/// A step of the MTP block; a guess from its last row when that is asked for.
fn pairs(runner: &mut Runner, pos: usize, count: usize, guess: bool) -> Result<()> {
    let vocabulary = runner.model().spec().vocabulary();
    let out = OutRow { row: count as u32 - 1, pick: Pick::Greedy, logits: false };
    let rows = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: pos as u32, rows: count as u32, replay: 0, commit: true }],
        tokens: tokens(pos + 1, count, vocabulary),
        out: if guess { vec![out] } else { Vec::new() },
    };
    Ok(runner.mtp_step(&rows, &mut StepOut::default())?)
}

fn prompt(runner: &mut Runner, len: usize) -> Result<()> {
    let mut at = 0;
    while at < len {
        let count = runner.chunk().min(len - at);
        let last = [count - 1];
        step(runner, at, count, 0, true, if at + count == len { &last } else { &[] })?;
        at += count;
    }
    Ok(())
}

fn line(
    runner: &Runner,
    spec: &ModelSpec,
    case: Case,
    args: &BenchArgs,
    seconds: f64,
    bandwidth: f64,
) -> Result<Line> {
    let (kind, rows, steps, links) = match case {
        Case::Prompt(n) => ("prompt", n, n.div_ceil(runner.chunk()), 0),
        Case::Step(n) => ("step", n, 1, 0),
        Case::Draft(n) => ("draft", n, 0, n),
        Case::Round(n) => ("round", n + 1, 1, n),
        Case::Block(n) => ("block", n, 0, 0),
    };
    let positions = if kind == "prompt" { rows } else { args.depth + rows };
    let kv: KvType = args.kv.into();
    let step = spec.step_bytes(rows.min(runner.chunk()), 1, positions, kv).total();
    let bytes = (steps as u64 * step).saturating_add(spec.draft_bytes(links, args.draft_vocab));
    Ok(Line {
        kind,
        rows,
        ms: seconds * 1e3,
        tokens_per_second: rows as f64 / seconds,
        bytes,
        floor_share: bytes as f64 / bandwidth / seconds,
        operators: match case {
            Case::Block(_) => runner.block_operators()?,
            _ => {
                steps.min(1) * runner.operators(rows.min(runner.chunk()))? + runner.draft_operators(links)?
            }
        },
        plain_steps: None,
    })
}

/// A share of the memory's speed; what is faster than the memory reads its weights from the cache.
fn of_floor(share: f64) -> String {
    if share > 1.0 { "in cache".into() } else { format!("{:.1}%", 100.0 * share) }
}

fn print(report: &Report, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
        return Ok(());
    }
    writeln!(
        out,
        "{}: {} parameters, {:.3} GB of weights, loaded in {:.2} s\n{} [{}], memory reads at {:.1} GB/s; medians of {} interleaved runs",
        report.model,
        crate::info::count(report.parameters),
        report.weight_bytes as f64 / 1e9,
        report.load_seconds,
        report.backend,
        report.arithmetic_id,
        report.bandwidth_gb_s,
        report.repeat
    )?;
    writeln!(
        out,
        "\n{:<8} {:>6} {:>10} {:>10} {:>9} {:>9} {:>10} {:>12}",
        "", "rows", "ms", "tokens/s", "GB", "of floor", "operators", "plain steps"
    )?;
    for l in &report.lines {
        writeln!(
            out,
            "{:<8} {:>6} {:>10.2} {:>10.1} {:>9.3} {:>9} {:>10} {:>12}",
            l.kind,
            l.rows,
            l.ms,
            l.tokens_per_second,
            l.bytes as f64 / 1e9,
            of_floor(l.floor_share),
            l.operators,
            l.plain_steps.map_or(String::new(), |n| format!("{n:.2}"))
        )?;
    }
    Ok(())
}
