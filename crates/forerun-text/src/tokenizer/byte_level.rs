//! Byte-level BPE (`gpt2`): text is split by a pattern, and each byte of a piece becomes one printable character.

use std::collections::HashMap;
use std::ops::Range;

use regex::Regex;

use super::Scheme;
use super::bpe::Bpe;
use crate::{TextError, TokenKind, TokenizerSpec};

/// The patterns by name, without their alternative `\s+(?!\S)`: the `regex` library has no look-ahead, and therefore
/// no backtracking; [`Splitter::pieces`] does its work. Where it stood, before the last `\s+`, is the same in both.
const PATTERNS: [(&str, &str); 2] = [
    (
        "qwen35",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    ),
    (
        "qwen2",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    ),
];

pub(super) struct ByteLevel {
    splitter: Splitter,
    bpe: Bpe,
    to_char: [char; 256],
    to_byte: HashMap<char, u8>,
}

impl ByteLevel {
    pub(super) fn new(spec: &TokenizerSpec) -> Result<Self, TextError> {
        let splitter = Splitter::new(spec)?;
        let bpe = Bpe::new(spec, false)?;
        let to_char = alphabet();
        // The library drops a character that is no token without a word.
        if let Some(byte) = (0..256).find(|&byte| bpe.id(&to_char[byte].to_string()).is_none()) {
            let found = format!("no token {:?} for byte {byte:#04x}", to_char[byte]);
            return Err(spec.error("tokenizer.ggml.tokens", found, "a token for every byte"));
        }
        let to_byte = (0u8..=255).map(|byte| (to_char[usize::from(byte)], byte)).collect();
        Ok(Self { splitter, bpe, to_char, to_byte })
    }
}

impl Scheme for ByteLevel {
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let mut word = String::new();
        for range in self.splitter.pieces(text) {
            word.clear();
            word.extend(text.as_bytes()[range].iter().map(|&byte| self.to_char[usize::from(byte)]));
            self.bpe.encode(&word, ids)?;
        }
        Ok(())
    }

    fn bytes(&self, token: &str, kind: TokenKind) -> Vec<u8> {
        let mapped = || token.chars().map(|c| self.to_byte.get(&c).copied()).collect::<Option<Vec<u8>>>();
        match kind {
            TokenKind::Normal | TokenKind::Byte => mapped().unwrap_or_else(|| token.as_bytes().to_vec()),
            _ => token.as_bytes().to_vec(),
        }
    }
}

/// GPT-2's alphabet: printable Latin-1 bytes are themselves, the other 68 are the characters from U+0100 on.
pub(super) fn alphabet() -> [char; 256] {
    let mut next = 0x100u32;
    std::array::from_fn(|byte| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte as u8),
        _ => {
            let c = char::from_u32(next).unwrap_or(char::REPLACEMENT_CHARACTER);
            next += 1;
            c
        }
    })
}

/// Splits text by a `pre` pattern.
pub(super) struct Splitter(Regex);

impl Splitter {
    pub(super) fn new(spec: &TokenizerSpec) -> Result<Self, TextError> {
        let Some((_, pattern)) = PATTERNS.iter().find(|(name, _)| *name == spec.pre) else {
            let names: Vec<_> = PATTERNS.iter().map(|(name, _)| format!("`{name}`")).collect();
            return Err(spec.error("tokenizer.ggml.pre", format!("`{}`", spec.pre), names.join(" or ")));
        };
        let failed = |e: regex::Error| TextError::Bpe { origin: spec.origin.clone(), message: e.to_string() };
        Ok(Self(Regex::new(pattern).map_err(failed)?))
    }

    /// The pieces in order; together they are the whole text.
    pub(super) fn pieces<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Range<usize>> + 't {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at == text.len() {
                return None;
            }
            let end = self.0.find_at(text, at).map_or(text.len(), |found| found.end());
            let piece = at..give_back(text, at, end);
            at = piece.end;
            Some(piece)
        })
    }
}

/// `\s+(?!\S)`: a run of two or more blanks leaves its last one to the word behind it. A run with a line break in it
/// is another alternative's and keeps all it has.
fn give_back(text: &str, start: usize, end: usize) -> usize {
    let run = &text[start..end];
    let Some(last) = run.chars().next_back() else { return end };
    let blank = run.chars().all(|c| c.is_whitespace() && c != '\n' && c != '\r');
    let keeps = end - last.len_utf8();
    let word_follows = text[end..].chars().next().is_some();
    if blank && word_follows && keeps > start { keeps } else { end }
}
