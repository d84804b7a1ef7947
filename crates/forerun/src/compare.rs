//! `forerun compare`: how far the predictions of two models lie apart.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use forerun_engine::{CancelToken, Engine, EngineError, FULL_OUT_ROWS, LoadOptions, ModelSpec, Runner};
use forerun_engine::{DraftOptions, MtpChoice, Taps};
use forerun_models::open_with;
use forerun_tensor::{OutRow, Pick, StepOut, StepRows};
use forerun_weights::compare::{RowComparison, Spread, Tally, cosine};
use serde::Serialize;

use crate::calibrate_args::CompareArgs;
use crate::chart::positions::{self, Bin};
use crate::error::{CliError, Result};
use crate::hub;
use crate::input;
use crate::progress::{TokenBar, cancel_on_interrupt, load};

#[derive(Serialize)]
struct Side {
    file: PathBuf,
    perplexity: f64,
    /// Mean negative logprob, nats per token.
    loss: f64,
    /// What the model was said to need.
    memory_bytes: u64,
    arithmetic_id: String,
}

#[derive(Serialize)]
struct Divergence {
    mean: f64,
    median: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    p99_9: f64,
    max: f64,
}

#[derive(Serialize)]
struct Layer {
    layer: usize,
    mean_cosine: f64,
    min_cosine: f64,
}

#[derive(Serialize)]
struct Report {
    first: Side,
    second: Side,
    /// Perplexity of the second over that of the first.
    perplexity_ratio: f64,
    /// Of the second model's distribution from the first's, nats.
    kl_divergence: Divergence,
    /// Share of rows in which both hold the same token most likely.
    top1_agreement: f64,
    /// Hidden states after each layer; `null` where the models have other shapes.
    layers: Option<Vec<Layer>>,
    kl_by_position: Vec<Bin>,
    compared_tokens: usize,
    windows: usize,
    window: usize,
}

/// What the rows so far have shown.
#[derive(Default)]
struct Rows {
    divergences: Vec<f64>,
    losses: [f64; 2],
    same_top: usize,
    by_position: Vec<Tally>,
    layers: Vec<Tally>,
}

/// A loaded model and what it was said to need.
struct Loaded {
    engine: Engine,
    need: u64,
}

pub(crate) fn compare(args: &CompareArgs) -> Result<()> {
    let text = input::file(&args.file)?;
    for (option, value, least) in [("--window", Some(args.window), 4), ("--windows", args.windows, 1)] {
        if let Some(found) = value.filter(|v| *v < least) {
            let expected = format!("at least {least}");
            return Err(CliError::Option { option, found: found.to_string(), expected });
        }
    }
    if args.window > text.len() {
        return Err(too_short(args, format!("{} bytes", text.len())));
    }
    if let Some(path) = &args.svg {
        // A picture that cannot be written is better known before the work than after.
        fs::write(path, "").map_err(|error| CliError::Input { path: path.clone(), error })?;
    }
    let options = LoadOptions {
        backend: args.device.choice(),
        context: Some(args.window),
        kv: args.kv.into(),
        draft: DraftOptions { mtp: MtpChoice::Off, ..DraftOptions::default() },
        ..LoadOptions::default()
    };
    // Both files are looked at before either is loaded.
    let [a_path, b_path] = [hub::locate(&args.first)?, hub::locate(&args.second)?];
    let overlaid = LoadOptions { overlay: args.overlay.clone(), ..options.clone() };
    let (first, second) = (need(&a_path, &options)?, need(&b_path, &overlaid)?);
    let cancel = cancel_on_interrupt();
    let a = Loaded { engine: load(&a_path, &options, &cancel)?, need: first };
    let b = Loaded { engine: load(&b_path, &overlaid, &cancel)?, need: second };
    same_vocabulary(&a.engine, &b.engine)?;
    let rows = run(args, [&a.engine, &b.engine], &text, &cancel)?;
    print(args, report(args, [a, b], &rows))
}

/// Memory that a model needs, by its file.
fn need(path: &Path, options: &LoadOptions) -> Result<u64> {
    let spec = ModelSpec::read(&*open_with(path, options.overlay.as_deref())?)?;
    Ok(spec.memory(&*options.make_backend()?, &options.caches(&spec))?.total())
}

fn too_short(args: &CompareArgs, found: String) -> CliError {
    let expected = format!("at least the {} tokens of a window (--window)", args.window);
    CliError::Text { path: args.file.clone(), found, expected }
}

/// Refuses models whose token ids do not mean the same.
fn same_vocabulary(a: &Engine, b: &Engine) -> Result<()> {
    let refuse = |found: String, expected: String| {
        let expected = format!("{expected}, as in {}: two models of one vocabulary", a.path().display());
        Err(CliError::Text { path: b.path().to_path_buf(), found, expected })
    };
    let [own, other] = [a, b].map(|engine| engine.spec().vocabulary());
    if own != other {
        return refuse(format!("{other} tokens"), format!("{own}"));
    }
    let differs = |id: &u32| a.tokenizer().token(*id) != b.tokenizer().token(*id);
    match (0..own as u32).find(differs) {
        None => Ok(()),
        Some(id) => {
            let [own, other] =
                [a, b].map(|engine| format!("{:?}", engine.tokenizer().token(id).unwrap_or("none")));
            refuse(format!("token {id} {other}"), own)
        }
    }
}

fn run(args: &CompareArgs, engines: [&Engine; 2], text: &str, cancel: &CancelToken) -> Result<Rows> {
    let tokens = engines[0].tokenizer().encode_prompt(text, false).map_err(EngineError::from)?;
    if tokens.len() < args.window {
        return Err(too_short(args, format!("{} tokens", tokens.len())));
    }
    let [a, b] = engines.map(|e| (e.spec().layers(), e.spec().hidden()));
    let layers = if a == b { a.0 } else { 0 };
    let mut rows = Rows {
        by_position: vec![Tally::default(); args.window - 1 - args.window / 2],
        layers: vec![Tally::default(); layers],
        ..Rows::default()
    };
    let windows: Vec<&[u32]> =
        tokens.chunks_exact(args.window).take(args.windows.unwrap_or(usize::MAX)).collect();
    let mut bar = TokenBar::new("comparing");
    for (i, window) in windows.iter().enumerate() {
        bar.set(i * args.window, windows.len() * args.window);
        for engine in engines {
            engine.with_runner(|runner| first_half(runner, window))?;
        }
        let mut at = window.len() / 2;
        while at + 1 < window.len() {
            if cancel.is_cancelled() {
                return Err(CliError::Interrupted);
            }
            let end =
                engines[0].with_runner(|r| Ok((at + FULL_OUT_ROWS.min(r.chunk())).min(window.len() - 1)))?;
            let [a, b] = engines.map(|e| e.with_runner(|runner| predict(runner, window, at..end, layers)));
            rows.add(&window[at + 1..=end], at - window.len() / 2, [&a?, &b?]);
            at = end;
        }
    }
    bar.clear();
    Ok(rows)
}

/// Runs the half of a window that is context only.
fn first_half(runner: &mut Runner, window: &[u32]) -> Result<(), EngineError> {
    let half = &window[..window.len() / 2];
    let mut out = StepOut::default();
    for (i, part) in half.chunks(runner.chunk()).enumerate() {
        runner.step(&StepRows::of_text(part, i * runner.chunk(), false), &mut out)?;
    }
    Ok(())
}

/// Logits and the outputs of `layers` layers at some positions of a window.
fn predict(
    runner: &mut Runner,
    window: &[u32],
    at: std::ops::Range<usize>,
    layers: usize,
) -> Result<StepOut, EngineError> {
    let mut rows = StepRows::of_text(&window[at.clone()], at.start, false);
    let given = |i: usize| Pick::Given(window[i + 1]);
    rows.out =
        at.clone().map(|i| OutRow { row: (i - at.start) as u32, pick: given(i), logits: true }).collect();
    let taps = Taps { layers: (0..layers).collect(), ..Taps::default() };
    let mut out = StepOut::default();
    runner.step_with(&rows, &taps, &mut out)?;
    match out.picked.iter().position(|p| p.nan) {
        Some(row) => Err(runner.not_a_number((at.start + row) as u32)),
        None => Ok(out),
    }
}

impl Rows {
    /// Adds rows whose next tokens are known; `first` is the place of the first among those that are compared.
    fn add(&mut self, next: &[u32], first: usize, [a, b]: [&StepOut; 2]) {
        let width = a.logits.len() / next.len();
        let logits = a.logits.chunks_exact(width).zip(b.logits.chunks_exact(width));
        for (i, ((x, y), next)) in logits.zip(next).enumerate() {
            let row = RowComparison::of(x, y, *next as usize);
            self.divergences.push(row.divergence);
            self.by_position[first + i].add(row.divergence);
            self.same_top += usize::from(row.same_top);
            self.losses.iter_mut().zip(row.losses).for_each(|(sum, loss)| *sum += loss);
        }
        for (tally, (x, y)) in self.layers.iter_mut().zip(a.taps.iter().zip(&b.taps)) {
            let width = x.len() / next.len();
            x.chunks_exact(width).zip(y.chunks_exact(width)).for_each(|(x, y)| tally.add(cosine(x, y)));
        }
    }
}

fn report(args: &CompareArgs, [a, b]: [Loaded; 2], rows: &Rows) -> Report {
    let count = rows.divergences.len();
    let side = |loaded: &Loaded, loss: f64| Side {
        file: loaded.engine.path().to_path_buf(),
        perplexity: loss.exp(),
        loss,
        memory_bytes: loaded.need,
        arithmetic_id: loaded.engine.backend().arithmetic_id.clone(),
    };
    let [own, other] = rows.losses.map(|sum| sum / count as f64);
    let Spread { mean, median, p90, p95, p99, p99_9, max } = Spread::of(&rows.divergences);
    let layer =
        |(layer, tally): (usize, &Tally)| Layer { layer, mean_cosine: tally.mean(), min_cosine: tally.min() };
    Report {
        first: side(&a, own),
        second: side(&b, other),
        perplexity_ratio: (other - own).exp(),
        kl_divergence: Divergence { mean, median, p90, p95, p99, p99_9, max },
        top1_agreement: rows.same_top as f64 / count as f64,
        layers: (!rows.layers.is_empty()).then(|| rows.layers.iter().enumerate().map(layer).collect()),
        kl_by_position: positions::bins(args.window / 2, &rows.by_position),
        compared_tokens: count,
        windows: count / rows.by_position.len(),
        window: args.window,
    }
}

fn print(args: &CompareArgs, report: Report) -> Result<()> {
    if let Some(path) = &args.svg {
        let name = |side: &Side| side.file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let title = format!("KL divergence of {} from {}", name(&report.second), name(&report.first));
        fs::write(path, positions::picture(&title, &report.kl_by_position))
            .map_err(|error| CliError::Input { path: path.clone(), error })?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        return Ok(writeln!(out)?);
    }
    for (name, side) in [("A", &report.first), ("B", &report.second)] {
        let memory = side.memory_bytes as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "{name}  perplexity {:.4} ({:.5} nats a token)  {} ({memory:.0} MiB)",
            side.perplexity,
            side.loss,
            side.file.display()
        )?;
    }
    let (tokens, windows, window) = (report.compared_tokens, report.windows, report.window);
    writeln!(
        out,
        "B / A {:.6} over {tokens} tokens: the second halves of {windows} windows of {window}",
        report.perplexity_ratio
    )?;
    writeln!(out, "the same most likely token: {:.3} %", 100.0 * report.top1_agreement)?;
    let d = &report.kl_divergence;
    writeln!(
        out,
        "\nKL divergence of B from A, nats\n      mean    median      90 %      95 %      99 %    99.9 %       max"
    )?;
    let figures = [d.mean, d.median, d.p90, d.p95, d.p99, d.p99_9, d.max].map(|x| format!("{x:>10.6}"));
    writeln!(out, "{}", figures.concat())?;
    writeln!(out, "\nKL divergence by position in the window, means")?;
    for line in positions::lines(&report.kl_by_position) {
        writeln!(out, "{line}")?;
    }
    match &report.layers {
        None => writeln!(out, "\nhidden states are not compared: the models have other shapes")?,
        Some(layers) => {
            writeln!(out, "\nhidden states, cosine\n layer      mean       min")?;
            for l in layers {
                writeln!(out, "{:>6}{:>10.6}{:>10.6}", l.layer, l.mean_cosine, l.min_cosine)?;
            }
        }
    }
    Ok(())
}
