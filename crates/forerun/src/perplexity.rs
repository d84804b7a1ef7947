//! `forerun perplexity`: how well a model predicts a text.

use std::io::Write;

use forerun_engine::{EngineError, FULL_OUT_ROWS, Runner};
use forerun_tensor::{OutRow, Pick, SeqRows, StepOut, StepRows};
use serde::Serialize;

use crate::args::PerplexityArgs;
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};
use crate::input;
use crate::progress::{TokenBar, cancel_on_interrupt, load};

#[derive(Serialize)]
struct Score {
    perplexity: f64,
    /// Mean negative logprob, nats per token.
    loss: f64,
    scored_tokens: usize,
    windows: usize,
    window: usize,
    arithmetic_id: String,
}

pub(crate) fn perplexity(args: &PerplexityArgs) -> Result<()> {
    let text = input::file(&args.file)?;
    if args.window < 4 {
        let (found, expected) = (args.window.to_string(), "at least 4".into());
        return Err(CliError::Option { option: "--window", found, expected });
    }
    let too_short = |length: usize, unit: &str| CliError::Text {
        path: args.file.clone(),
        found: format!("{length} {unit}"),
        expected: format!("at least the {} tokens of a window (--window)", args.window),
    };
    // A token is a byte at least: nothing need be loaded to refuse such a text.
    if args.window > text.len() {
        return Err(too_short(text.len(), "bytes"));
    }
    let path = model_or_demo(args.model.model.as_deref())?;
    let cancel = cancel_on_interrupt();
    let mut options = args.model.options();
    options.context = Some(args.window.max(options.context.unwrap_or(0)).max(1));
    let engine = load(&path, &options, &cancel)?;
    // A text to score is text throughout: names of control tokens in it are no control tokens.
    let tokens = engine.tokenizer().encode_prompt(&text, false).map_err(EngineError::from)?;
    if tokens.len() < args.window {
        return Err(too_short(tokens.len(), "tokens"));
    }
    let windows: Vec<&[u32]> = tokens.chunks_exact(args.window).collect();
    let mut bar = TokenBar::new("scoring");
    let mut sum = 0.0;
    let mut scored = 0;
    for (i, window) in windows.iter().enumerate() {
        bar.set(i * args.window, tokens.len());
        if cancel.is_cancelled() {
            return Err(CliError::Interrupted);
        }
        let logprobs = engine.with_runner(|runner| score_window(runner, window))?;
        scored += logprobs.len();
        sum -= logprobs.iter().map(|&l| f64::from(l)).sum::<f64>();
    }
    bar.clear();
    let loss = sum / scored as f64;
    let score = Score {
        perplexity: loss.exp(),
        loss,
        scored_tokens: scored,
        windows: windows.len(),
        window: args.window,
        arithmetic_id: engine.backend().arithmetic_id.clone(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &score)?;
        writeln!(out)?;
    } else {
        writeln!(
            out,
            "perplexity {:.4} ({:.5} nats a token) over {} tokens: the second halves of {} windows of {}",
            score.perplexity, score.loss, score.scored_tokens, score.windows, score.window
        )?;
    }
    Ok(())
}

/// Logprobs of the tokens in a window's second half, the window alone as context.
fn score_window(runner: &mut Runner, window: &[u32]) -> Result<Vec<f32>, EngineError> {
    let first = window.len() / 2;
    let mut out = StepOut::default();
    let mut logprobs = Vec::new();
    let mut at = 0;
    while at + 1 < window.len() {
        let end = (at + FULL_OUT_ROWS.min(runner.chunk())).min(window.len());
        let rows = StepRows {
            seqs: vec![SeqRows { slot: 0, pos: at as u32, rows: (end - at) as u32, replay: 0, commit: true }],
            tokens: window[at..end].to_vec(),
            out: (at.max(first)..end.min(window.len() - 1))
                .map(|i| OutRow { row: (i - at) as u32, pick: Pick::Given(window[i + 1]), logits: false })
                .collect(),
        };
        runner.step(&rows, &mut out)?;
        for (picked, row) in out.picked.iter().zip(&rows.out) {
            if picked.nan {
                return Err(runner.not_a_number(at as u32 + row.row));
            }
            logprobs.push(picked.logprob());
        }
        at = end;
    }
    Ok(logprobs)
}
