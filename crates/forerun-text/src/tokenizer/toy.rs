//! A small byte-level tokenizer for tests.

use super::Tokenizer;
use super::byte_level::alphabet;
use crate::{TokenKind, TokenizerSpec};

/// `<|endoftext|>`, `<|im_start|>`, `<|im_end|>`, the user-defined `<think>`, then the 256 bytes and a few merges.
pub(crate) fn toy_spec() -> TokenizerSpec {
    let mut tokens: Vec<String> =
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"].map(String::from).into();
    tokens.extend(alphabet().map(String::from));
    tokens.extend(["aa", "aaaa", "Ġa"].map(String::from));
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    kinds[..3].fill(TokenKind::Control);
    kinds[3] = TokenKind::UserDefined;
    TokenizerSpec {
        origin: "toy.gguf".into(),
        model: "gpt2".into(),
        pre: "qwen35".into(),
        tokens,
        kinds,
        merges: ["a a", "aa aa", "Ġ a"].map(String::from).into(),
        eos: Some(2),
        pad: Some(0),
        ..TokenizerSpec::default()
    }
}

pub(crate) fn toy(change: impl FnOnce(&mut TokenizerSpec)) -> Tokenizer {
    let mut spec = toy_spec();
    change(&mut spec);
    Tokenizer::new(spec).expect("a tokenizer")
}
