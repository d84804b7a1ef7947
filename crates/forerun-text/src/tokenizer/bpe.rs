//! The BPE merge loop, from the `tokenizers` library.

use std::collections::HashSet;

use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use crate::{TextError, TokenizerSpec};

const MERGES: &str = "tokenizer.ggml.merges";

pub(super) struct Bpe {
    inner: BPE,
    origin: String,
}

impl Bpe {
    /// Every part and product of a merge must be a token: the library indexes by their lengths unchecked.
    pub(super) fn new(spec: &TokenizerSpec, byte_fallback: bool) -> Result<Self, TextError> {
        let texts: HashSet<&str> = spec.tokens.iter().map(String::as_str).collect();
        let mut merges = Vec::with_capacity(spec.merges.len());
        for (rank, merge) in spec.merges.iter().enumerate() {
            let known = split_merge(merge).filter(|&(left, right)| {
                texts.contains(left)
                    && texts.contains(right)
                    && texts.contains([left, right].concat().as_str())
            });
            let Some((left, right)) = known else {
                let expected = "two tokens with a space between, which together are a token";
                return Err(spec.error(MERGES, format!("{merge:?} at rank {rank}"), expected));
            };
            merges.push((left.to_owned(), right.to_owned()));
        }
        // Of equal texts the lowest id counts: later entries overwrite earlier ones.
        let ids = (0..spec.tokens.len() as u32).rev();
        let vocab: Vocab = spec.tokens.iter().rev().cloned().zip(ids).collect();
        let built = BPE::builder().vocab_and_merges(vocab, merges).byte_fallback(byte_fallback).build();
        let origin = spec.origin.clone();
        match built {
            Ok(inner) => Ok(Self { inner, origin }),
            Err(error) => Err(TextError::Bpe { origin, message: error.to_string() }),
        }
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub(super) fn encode(&self, word: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let failed =
            |e: tokenizers::Error| TextError::Bpe { origin: self.origin.clone(), message: e.to_string() };
        ids.extend(self.inner.tokenize(word).map_err(failed)?.into_iter().map(|token| token.id));
        Ok(())
    }
}

/// The space between the two tokens is never the first byte, for a token may start with a space itself.
fn split_merge(merge: &str) -> Option<(&str, &str)> {
    let first = merge.chars().next()?.len_utf8();
    let at = first + merge[first..].find(' ')?;
    Some((&merge[..at], &merge[at + 1..]))
}
