//! Text while tokens arrive.

use crate::{Decoded, Tokenizer};

/// Emits the text of a growing sequence of tokens, never half a character: bytes wait until they are a character or
/// can no longer become one. All that it emits, [`StreamDecoder::finish`] included, is [`Tokenizer::decode`] of the
/// whole sequence.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    decoded: Decoded,
    /// The start of a character: up to three bytes.
    waiting: Vec<u8>,
}

impl StreamDecoder {
    /// A decoder at the start of a sequence.
    #[must_use]
    pub fn new(tokenizer: &Tokenizer, decoded: Decoded) -> Self {
        Self { tokenizer: tokenizer.clone(), decoded, waiting: Vec::new() }
    }

    /// Adds a token; returns the text that is now certain, often none.
    pub fn push(&mut self, id: u32) -> String {
        self.waiting.extend_from_slice(self.tokenizer.shown(id, self.decoded));
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.waiting.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.waiting.len();
            if at_end && can_complete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.waiting.drain(..done);
        text
    }

    /// Ends the sequence: a character that never became whole shows as U+FFFD.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.waiting).into_owned()
    }
}

/// Whether further bytes can make a character of these.
fn can_complete(bytes: &[u8]) -> bool {
    !bytes.is_empty() && std::str::from_utf8(bytes).is_err_and(|e| e.error_len().is_none())
}
