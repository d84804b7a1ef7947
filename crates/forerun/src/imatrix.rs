//! `forerun imatrix`: an importance matrix from a text.

use std::io::Write;
use std::path::Path;

use forerun_engine::{CancelToken, DraftOptions, Engine, EngineError, LoadOptions, MtpChoice};
use forerun_weights::{Imatrix, WeightsError};
use serde::Serialize;

use crate::calibrate_args::ImatrixArgs;
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};
use crate::input;
use crate::progress::{TokenBar, cancel_on_interrupt, load};

#[derive(Serialize)]
struct Report {
    output: String,
    /// Weights that the file knows.
    weights: usize,
    /// Experts that no row was routed to, of all weights.
    experts_without_rows: usize,
    /// Chunks of the file, earlier ones included.
    chunks: u32,
    chunk_size: u32,
    /// Chunks read now.
    chunks_read: usize,
    arithmetic_id: String,
}

pub(crate) fn imatrix(args: &ImatrixArgs) -> Result<()> {
    let text = input::file(&args.file)?;
    let path = model_or_demo(args.model.as_deref())?;
    check_options(args, &text, &path)?;
    let earlier = args.from.as_deref().map(Imatrix::read).transpose()?;
    check_output(&args.output)?;
    let mut base = Imatrix::new(args.from.as_deref().unwrap_or(&args.output), args.context as u32);
    base.datasets.push(args.file.display().to_string());
    if let Some(earlier) = &earlier {
        base.datasets.clear();
        base.merge(earlier)?;
        base.datasets.push(args.file.display().to_string());
        base.datasets.dedup();
    }
    let cancel = cancel_on_interrupt();
    let options = LoadOptions {
        backend: args.device.choice(),
        context: Some(args.context),
        kv: args.kv.into(),
        draft: DraftOptions { mtp: MtpChoice::Own, ..DraftOptions::default() },
        overlay: args.overlay.overlay.clone(),
        ..LoadOptions::default()
    };
    let engine = load(&path, &options, &cancel)?;
    let chunks = chunks(args, &engine, &text)?;
    let (read, known) = read(args, &engine, &chunks, &base, &cancel)?;
    if read < chunks.len() {
        let next = args.chunk + read;
        if read > 0 {
            let output = args.output.display();
            say!("note: {read} chunks are in {output}; --from {output} --chunk {next} goes on from there");
        }
        return Err(CliError::Interrupted);
    }
    report(args, &engine, &known, read)
}

fn wrong(option: &'static str, found: String, expected: impl Into<String>) -> CliError {
    CliError::Option { option, found, expected: expected.into() }
}

/// Refuses what cannot be read or written before anything is loaded.
fn check_options(args: &ImatrixArgs, text: &str, model: &Path) -> Result<()> {
    if !(4..=1 << 20).contains(&args.context) {
        return Err(wrong("--context", args.context.to_string(), "4 to 1048576"));
    }
    if args.chunks == Some(0) {
        return Err(wrong("--chunks", "0".into(), "at least 1"));
    }
    // A token is a byte at least: nothing need be loaded to refuse such a text.
    if args.context > text.len() {
        return Err(too_short(args, format!("{} bytes", text.len())));
    }
    for (input, what) in [(model, "the model"), (args.file.as_path(), "the text")] {
        let same =
            input.canonicalize().ok().zip(args.output.canonicalize().ok()).is_some_and(|(a, b)| a == b);
        if same {
            return Err(wrong("--output", format!("{what} itself"), "another file"));
        }
    }
    Ok(())
}

/// Refuses a place that cannot be written, and a file that is no importance matrix, before hours of work are done for it.
fn check_output(output: &Path) -> Result<()> {
    let found = output.display();
    if output.exists() && Imatrix::read(output).is_err() {
        let expected = "a new file, or an importance matrix to replace";
        return Err(wrong("--output", format!("{found}, which is something else"), expected));
    }
    let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if folder.is_dir() {
        return Ok(());
    }
    Err(wrong("--output", found.to_string(), "a file in a folder that exists"))
}

fn too_short(args: &ImatrixArgs, found: String) -> CliError {
    let expected = format!("at least the {} tokens of a chunk (--context)", args.context);
    CliError::Text { path: args.file.clone(), found, expected }
}

/// The chunks to read. Each begins as a text of the model does.
fn chunks(args: &ImatrixArgs, engine: &Engine, text: &str) -> Result<Vec<Vec<u32>>> {
    let tokenizer = engine.tokenizer();
    let tokens = tokenizer.encode_prompt(text, args.parse_special).map_err(EngineError::from)?;
    let all = tokens.len() / args.context;
    if all == 0 {
        return Err(too_short(args, format!("{} tokens", tokens.len())));
    }
    if args.chunk >= all {
        let expected = format!("below the {all} chunks of {}", args.file.display());
        return Err(wrong("--chunk", args.chunk.to_string(), expected));
    }
    let spec = tokenizer.spec();
    let bos = spec.bos.filter(|_| spec.add_bos);
    let chunks = tokens.chunks_exact(args.context).skip(args.chunk).take(args.chunks.unwrap_or(usize::MAX));
    Ok(chunks
        .map(|chunk| {
            let mut chunk = chunk.to_vec();
            if let Some(bos) = bos {
                chunk[0] = bos;
            }
            chunk
        })
        .collect())
}

/// Reads chunks until they or the user's patience end, and writes what was collected. Returns how many were read, and what is
/// known then.
fn read(
    args: &ImatrixArgs,
    engine: &Engine,
    chunks: &[Vec<u32>],
    base: &Imatrix,
    cancel: &CancelToken,
) -> Result<(usize, Imatrix)> {
    engine.with_runner(|runner| runner.collect(args.process_output))?;
    let mut fits = base.clone();
    for collected in engine.with_runner(|runner| runner.collected())? {
        fits.entry(&collected.name, collected.cols, collected.sums.rows.len())?;
    }
    let mut bar = TokenBar::new("reading");
    let mut read = 0;
    for chunk in chunks {
        bar.set(read * args.context, chunks.len() * args.context);
        if cancel.is_cancelled() {
            break;
        }
        engine.with_runner(|runner| runner.read_through(chunk, args.process_output))?;
        read += 1;
        let due = args.output_frequency > 0 && read.is_multiple_of(args.output_frequency);
        if due && read < chunks.len() {
            snapshot(engine, base, read)?.write(&args.output)?;
        }
    }
    bar.clear();
    let known = snapshot(engine, base, read)?;
    if read > 0 {
        known.write(&args.output)?;
    }
    Ok((read, known))
}

/// What is known after so many chunks.
fn snapshot(engine: &Engine, base: &Imatrix, read: usize) -> Result<Imatrix> {
    let mut known = base.clone();
    known.chunks = known.chunks.saturating_add(read as u32);
    for collected in engine.with_runner(|runner| runner.collected())? {
        let sums = &collected.sums;
        if let Some(sum) = sums.squares.iter().find(|s| !s.is_finite()) {
            return Err(CliError::Weights(WeightsError::Tensor {
                path: engine.path().to_path_buf(),
                tensor: collected.name,
                found: format!("inputs whose squares add up to {sum}"),
                expected: "finite activations: a weight is broken or an activation overflowed".into(),
            }));
        }
        if sums.rows.iter().all(|rows| *rows == 0) {
            continue;
        }
        let entry = known.entry(&collected.name, collected.cols, sums.rows.len())?;
        for (matrix, (squares, rows)) in sums.squares.chunks_exact(collected.cols).zip(&sums.rows).enumerate()
        {
            entry.add_sums(matrix, squares, *rows as f64);
        }
    }
    Ok(known)
}

fn report(args: &ImatrixArgs, engine: &Engine, known: &Imatrix, read: usize) -> Result<()> {
    let without_rows = |stats: &forerun_weights::InputStats| {
        (0..stats.matrices()).filter(|matrix| stats.count(*matrix) == 0.0).count()
    };
    let report = Report {
        output: args.output.display().to_string(),
        weights: known.len(),
        experts_without_rows: known.iter().map(|(_, stats)| without_rows(stats)).sum(),
        chunks: known.chunks,
        chunk_size: known.chunk_size,
        chunks_read: read,
        arithmetic_id: engine.backend().arithmetic_id.clone(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    let (chunks, size) = (report.chunks, report.chunk_size);
    writeln!(out, "{}: {} weights, from {chunks} chunks of {size} tokens", report.output, report.weights)?;
    if report.experts_without_rows > 0 {
        writeln!(
            out,
            "{} stacked matrices had no rows: a longer text reaches more experts",
            report.experts_without_rows
        )?;
    }
    if args.process_output && known.get("output.weight").is_none() {
        say!("note: the model's head is its embedding, which has no entry of its own");
    }
    Ok(())
}
