//! Lines about a finished generation.

use forerun_engine::{Engine, FinishReason, Profile, SamplingParams, SpecStats, Summary};

use crate::chart;

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

/// Prints speed, seed and fingerprint to standard error, and what drafting did where there was any.
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
    speculation_lines(&s.speculation).iter().for_each(|line| say!("{line}"));
}

/// What speculation did; nothing when nothing was drafted.
fn speculation_lines(s: &SpecStats) -> Vec<String> {
    let (Some(acceptance), Some(per_round)) = (s.acceptance(), s.tokens_per_round()) else {
        return Vec::new();
    };
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let mut lines = vec![
        format!(
            "{} rounds, {} tokens drafted, {} accepted ({:.1} %), {per_round:.2} tokens a round",
            s.rounds,
            s.drafted,
            s.accepted,
            100.0 * acceptance
        ),
        format!(
            "time: draft {:.1} ms, verify {:.1} ms, commit {:.1} ms",
            ms(s.draft_time),
            ms(s.verify_time),
            ms(s.commit_time)
        ),
    ];
    for (kind, drafter) in s.used_drafters() {
        let mut line = format!(
            "{}: {} rounds, {} drafted, {} accepted",
            kind.name(),
            drafter.rounds,
            drafter.drafted,
            drafter.accepted
        );
        if drafter.context > 0 {
            line += &format!("; keys and values of {} verified tokens made, once each", drafter.context);
        }
        lines.push(line);
    }
    lines.extend(chart::lines(s));
    lines
}

/// Prints where the time went: the model's steps by operator, drafting by part.
pub(crate) fn print_profile(profile: &Profile) {
    let d = &profile.draft;
    let draft = [("projection", d.projection), ("attention", d.attention), ("ffn", d.ffn), ("head", d.head)];
    let mut steps: Vec<_> = profile.steps.iter().map(|(name, time)| (*name, *time)).collect();
    steps.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    for (what, parts) in [("steps", &steps[..]), ("draft", &draft[..])] {
        let total: f64 = parts.iter().map(|(_, time)| time.as_secs_f64()).sum();
        if total > 0.0 {
            say!("{what} {:.1} ms:", total * 1e3);
            for (name, time) in parts {
                say!(
                    "  {name:<14} {:>8.1} ms {:>5.1} %",
                    time.as_secs_f64() * 1e3,
                    100.0 * time.as_secs_f64() / total
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn speculation_in_words() {
        assert!(speculation_lines(&SpecStats::default()).is_empty());
        let mut stats = chart::tests::stats();
        stats.record_times(Duration::from_micros(1500), Duration::from_millis(20), Duration::ZERO);
        let lines = speculation_lines(&stats);
        assert_eq!(lines[0], "3 rounds, 7 tokens drafted, 4 accepted (57.1 %), 2.33 tokens a round");
        assert_eq!(lines[1], "time: draft 1.5 ms, verify 20.0 ms, commit 0.0 ms");
        assert_eq!(lines[2], "mtp: 2 rounds, 4 drafted, 1 accepted");
        assert_eq!(lines[3], "prediction: 1 rounds, 3 drafted, 3 accepted");
        assert_eq!(lines[4], "acceptance by position");
    }
}
