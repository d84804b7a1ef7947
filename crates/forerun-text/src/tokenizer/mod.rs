//! Text to token ids and back.

mod bpe;
mod byte_level;
mod gemma4;
mod specials;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::{TextError, TokenKind, TokenizerSpec};
use byte_level::ByteLevel;
use gemma4::Gemma4;
use specials::Specials;
#[cfg(test)]
pub(crate) use toy::toy;

/// Token texts that end a generation in every model that has them.
const END_TEXTS: [&str; 5] = ["<|im_end|>", "<|endoftext|>", "<turn|>", "<eos>", "<|tool_response>"];

/// What a family of tokenizers does with text that holds no special token.
trait Scheme: Send + Sync {
    /// Appends the ids of a text.
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError>;
    /// The bytes that a token of this text and kind stands for.
    fn bytes(&self, token: &str, kind: TokenKind) -> Vec<u8>;
}

/// Which tokens show in decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// All of them.
    WithControl,
    /// All but control tokens, as a reader wants it.
    WithoutControl,
}

/// A tokenizer. Clones are cheap and share everything.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    spec: TokenizerSpec,
    scheme: Box<dyn Scheme>,
    specials: Specials,
    /// Every token's bytes, one after the other; token `i` is `ends[i - 1]..ends[i]`.
    bytes: Vec<u8>,
    ends: Vec<usize>,
    eog: BTreeSet<u32>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.0.spec;
        write!(f, "Tokenizer({} {}, {} tokens)", spec.model, spec.pre, spec.tokens.len())
    }
}

impl Tokenizer {
    /// Builds the tokenizer.
    ///
    /// # Errors
    /// When the model or its pre-tokenizer is not supported, an id is out of range, a merge makes no token, or the
    /// vocabulary lacks a token for some byte.
    pub fn new(spec: TokenizerSpec) -> Result<Self, TextError> {
        let mut spec = spec.normalized()?;
        let scheme: Box<dyn Scheme> = match spec.model.as_str() {
            "gpt2" => Box::new(ByteLevel::new(&spec)?),
            "gemma4" => Box::new(Gemma4::new(&spec)?),
            other => {
                let expected = "`gpt2` or `gemma4`";
                return Err(spec.error("tokenizer.ggml.model", format!("`{other}`"), expected));
            }
        };
        spec.merges = Vec::new();
        let specials = Specials::new(&spec)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(spec.tokens.len()));
        for (token, &kind) in spec.tokens.iter().zip(&spec.kinds) {
            bytes.extend(scheme.bytes(token, kind));
            ends.push(bytes.len());
        }
        let eog = eog(&spec);
        Ok(Self(Arc::new(Inner { spec, scheme, specials, bytes, ends, eog })))
    }

    /// Number of tokens.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.0.ends.len()
    }

    /// Token ids of a text, without BOS. User-defined tokens always match before BPE; control tokens do only with
    /// `parse_special`: without it their text is text like any other, so that no user can inject them. The time is
    /// linear in the text but for a logarithm, whatever the text.
    ///
    /// # Errors
    /// When the BPE library refuses, which no text is known to provoke.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        self.encode_guarded(text, parse_special, None)
    }

    /// [`Tokenizer::encode`] for the start of a sequence: BOS comes first where the model wants it and the text does
    /// not already start with it.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_prompt(&self, text: &str, parse_special: bool) -> Result<Vec<u32>, TextError> {
        Ok(self.with_bos(self.encode(text, parse_special)?))
    }

    pub(crate) fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let Some(bos) = self.0.spec.bos.filter(|_| self.0.spec.add_bos)
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    /// [`Tokenizer::encode`] where a control token right behind the `guard` character is plain text, and the guard
    /// itself is no text at all.
    pub(crate) fn encode_guarded(
        &self,
        text: &str,
        parse_special: bool,
        guard: Option<char>,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::with_capacity(text.len() / 4);
        let plain = |part: &str, ids: &mut Vec<u32>| match guard {
            _ if part.is_empty() => Ok(()),
            Some(guard) if part.contains(guard) => self.0.scheme.encode(&part.replace(guard, ""), ids),
            _ => self.0.scheme.encode(part, ids),
        };
        let mut done = 0;
        for (range, id) in self.0.specials.find(text, parse_special) {
            if guard.is_some_and(|guard| text[done..range.start].ends_with(guard)) {
                continue;
            }
            plain(&text[done..range.start], &mut ids)?;
            ids.push(id);
            done = range.end;
        }
        plain(&text[done..], &mut ids)?;
        Ok(ids)
    }

    /// The text of a sequence of ids; bytes that are no UTF-8 show as U+FFFD, as does an id the vocabulary lacks.
    #[must_use]
    pub fn decode(&self, ids: &[u32], decoded: Decoded) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.shown(id, decoded)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that decoding adds for an id.
    pub(crate) fn shown(&self, id: u32, decoded: Decoded) -> &[u8] {
        if decoded == Decoded::WithoutControl && self.kind(id) == Some(TokenKind::Control) {
            return &[];
        }
        self.token_bytes(id).unwrap_or("\u{FFFD}".as_bytes())
    }

    /// The bytes that a token stands for, which need not be whole characters; `None` for an id that is none.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.0.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.0.ends[before]);
        Some(&self.0.bytes[start..end])
    }

    /// A token's text as the file has it, in the model's own alphabet.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<&str> {
        self.0.spec.tokens.get(id as usize).map(String::as_str)
    }

    /// A token's kind.
    #[must_use]
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.0.spec.kinds.get(id as usize).copied()
    }

    /// The id of a control or user-defined token by its text.
    #[must_use]
    pub fn special(&self, text: &str) -> Option<u32> {
        self.0.specials.id(text)
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.0.specials
    }

    /// The ids that end a generation, ascending.
    #[must_use]
    pub fn eog(&self) -> &BTreeSet<u32> {
        &self.0.eog
    }

    /// Whether a token ends a generation.
    #[must_use]
    pub fn is_eog(&self, id: u32) -> bool {
        self.0.eog.contains(&id)
    }

    /// What the file says of the tokenizer, less the merges.
    #[must_use]
    pub fn spec(&self) -> &TokenizerSpec {
        &self.0.spec
    }
}

fn eog(spec: &TokenizerSpec) -> BTreeSet<u32> {
    let named = [spec.eos, spec.eot, spec.eom].into_iter().flatten();
    let by_text = (0u32..).zip(&spec.tokens).filter(|(_, text)| END_TEXTS.contains(&text.as_str()));
    named.chain(spec.end_ids.iter().copied()).chain(by_text.map(|(id, _)| id)).collect()
}
