//! Gemma 4: BPE over characters; a space is `▁`, and a character that is no token becomes its bytes.

use super::Scheme;
use super::bpe::Bpe;
use crate::{TextError, TokenKind, TokenizerSpec};

const SPACE: char = '\u{2581}';

pub(super) struct Gemma4 {
    bpe: Bpe,
}

impl Gemma4 {
    pub(super) fn new(spec: &TokenizerSpec) -> Result<Self, TextError> {
        let bpe = Bpe::new(spec, true)?;
        if let Some(byte) = (0..=255u8).find(|byte| bpe.id(&byte_token(*byte)).is_none()) {
            let found = format!("no token {:?}", byte_token(byte));
            return Err(spec.error("tokenizer.ggml.tokens", found, "a token for every byte"));
        }
        Ok(Self { bpe })
    }
}

impl Scheme for Gemma4 {
    fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TextError> {
        let text = text.replace(' ', "\u{2581}");
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let breaks = first == '\n';
            let end = rest.find(|c| (c == '\n') != breaks).unwrap_or(rest.len());
            let (piece, behind) = rest.split_at(end);
            match self.bpe.id(piece).filter(|_| breaks) {
                Some(id) => ids.push(id),
                None => self.bpe.encode(piece, ids)?,
            }
            rest = behind;
        }
        Ok(())
    }

    fn bytes(&self, token: &str, kind: TokenKind) -> Vec<u8> {
        match kind {
            TokenKind::Byte => byte_of(token).map_or_else(|| token.as_bytes().to_vec(), |byte| vec![byte]),
            TokenKind::Normal => token.replace(SPACE, " ").into_bytes(),
            _ => token.as_bytes().to_vec(),
        }
    }
}

fn byte_token(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

fn byte_of(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}
