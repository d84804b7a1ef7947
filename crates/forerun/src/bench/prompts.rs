//! The prompts of a benchmark.

use std::path::Path;

use serde::Deserialize;

use crate::error::{CliError, Result};
use crate::input;

/// 12 starts of Python files (`code`), 12 requests in the demo's chat form (`chat`), 16 shorter texts (`short`).
const OWN: &str = include_str!("../../prompts/demo.jsonl");

/// A prompt and the group in which it is reported.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct BenchPrompt {
    pub(super) kind: String,
    pub(super) prompt: String,
    /// Fixes the noise of its requests: its place in the file.
    #[serde(skip)]
    pub(super) seed: u64,
}

/// The prompts of a file, or those that ship with Forerun.
///
/// # Errors
/// When the file cannot be read, or a line is no prompt.
pub(super) fn read(path: Option<&Path>) -> Result<Vec<BenchPrompt>> {
    match path {
        None => parse(OWN, "the prompts of forerun".as_ref()),
        Some(path) => parse(&input::file(path)?, path),
    }
}

/// Keeps the prompts of some kinds.
///
/// # Errors
/// When a kind has no prompt.
pub(super) fn of_kinds(prompts: Vec<BenchPrompt>, kinds: &[String]) -> Result<Vec<BenchPrompt>> {
    let there = self::kinds(&prompts);
    if let Some(kind) = kinds.iter().find(|kind| !there.contains(kind)) {
        return Err(CliError::Option {
            option: "--kind",
            found: kind.clone(),
            expected: format!("kinds of these prompts: {}", there.join(", ")),
        });
    }
    Ok(prompts.into_iter().filter(|p| kinds.is_empty() || kinds.contains(&p.kind)).collect())
}

/// The kinds, in the order in which they appear.
pub(super) fn kinds(prompts: &[BenchPrompt]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for prompt in prompts {
        if !kinds.contains(&prompt.kind) {
            kinds.push(prompt.kind.clone());
        }
    }
    kinds
}

fn parse(text: &str, path: &Path) -> Result<Vec<BenchPrompt>> {
    let wrong = |found: String| CliError::Text {
        path: path.into(),
        found,
        expected: "lines of {\"kind\": \"...\", \"prompt\": \"...\"}, with text in both".into(),
    };
    let mut prompts: Vec<BenchPrompt> = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let prompt: BenchPrompt =
            serde_json::from_str(line).map_err(|e| wrong(format!("on line {}: {e}", index + 1)))?;
        if prompt.prompt.is_empty() || prompt.kind.is_empty() {
            return Err(wrong(format!("on line {}: an empty text", index + 1)));
        }
        prompts.push(BenchPrompt { seed: prompts.len() as u64, ..prompt });
    }
    if prompts.is_empty() { Err(wrong("no line".into())) } else { Ok(prompts) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_prompts_are_complete() {
        let prompts = read(None).expect("prompts");
        let count = |kind: &str| prompts.iter().filter(|p| p.kind == kind).count();
        assert_eq!((count("code"), count("chat"), count("short"), prompts.len()), (12, 12, 16, 40));
        assert!(prompts.iter().enumerate().all(|(i, p)| p.seed == i as u64));
        let chat = of_kinds(prompts.clone(), &["chat".into()]).expect("a kind");
        assert!(chat.len() == 12 && chat[0].seed == 12, "a seed stays that of the whole file");
        assert!(of_kinds(prompts, &["poem".into()]).is_err());
    }

    #[test]
    fn lines_that_are_no_prompts_are_named() {
        let good = r#"{"kind": "a", "prompt": "x", "more": 1}"#;
        for (text, what) in [
            (format!("{good}\n{{\n"), "line 2"),
            (format!("{good}\n\n{{\"kind\": \"a\"}}"), "line 3"),
            ("{\"kind\": \"a\", \"prompt\": \"\"}".into(), "an empty text"),
            ("\n \n".into(), "no line"),
        ] {
            let error = parse(&text, "prompts.jsonl".as_ref()).expect_err(&text).to_string();
            assert!(error.contains(what) && error.contains("prompts.jsonl"), "{error}");
        }
        assert_eq!(parse(&format!("\n{good}\n\n"), "p".as_ref()).expect("one").len(), 1);
    }
}
