//! Lines about a finished generation.

use forerun_engine::{Engine, FinishReason, SamplingParams, Summary};

/// A reason in words.
pub(crate) fn reason(reason: &FinishReason) -> String {
    match reason {
        FinishReason::EndOfText => "end of text".into(),
        FinishReason::StopString(s) => format!("stop string {s:?}"),
        FinishReason::MaxTokens => "token limit".into(),
        FinishReason::ContextFull => "context full".into(),
        FinishReason::Cancelled => "interrupted".into(),
        _ => "another reason".into(),
    }
}

/// Prints speed, seed and fingerprint to standard error.
pub(crate) fn print_stats(engine: &Engine, sampling: &SamplingParams, s: &Summary) {
    let speed = s.tokens_per_second().map_or_else(|| "-".into(), |v| format!("{v:.1}"));
    say!(
        "\nprompt {} tokens ({} reused), first token after {:.1} ms; {} tokens, {speed} tokens/s; ended by {}",
        s.prompt_tokens,
        s.reused_tokens,
        s.time_to_first_token.as_secs_f64() * 1e3,
        s.tokens,
        reason(&s.reason),
    );
    say!(
        "seed {}  arithmetic {} ({})  fingerprint {}",
        sampling.seed,
        engine.backend().arithmetic_id,
        engine.backend().detail,
        s.fingerprint
    );
}
