//! What a caller asks for and what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forerun_text::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::sampling::SamplingParams;
use crate::speculation::{DrafterKind, SpecStats, Speculation};

/// The text to go on from.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Token ids, used as they are.
    Tokens(Vec<u32>),
    /// Plain text. Names of control tokens in it are control tokens, as in other engines' raw completion.
    Text(String),
    /// A conversation, rendered by the model's chat template. Text of the messages cannot form control tokens.
    Chat {
        /// The messages so far.
        messages: Vec<Message>,
        /// Whether a thinking model should think; `None` leaves it to the template.
        thinking: Option<bool>,
        /// Tool definitions for the template.
        tools: Option<serde_json::Value>,
    },
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Prompt::Tokens(ids)
    }
}

/// A conversation without tools; whether to think is left to the template.
impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Self {
        Prompt::Chat { messages, thinking: None, tools: None }
    }
}

/// Stops a generation from another thread or a signal handler.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks every generation that holds this token to stop after its current step.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
    /// Whether a stop was asked for.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
    /// Makes the token usable again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A request for text.
#[derive(Clone, Debug)]
pub struct Request {
    /// What to go on from.
    pub prompt: Prompt,
    /// How to choose tokens.
    pub sampling: SamplingParams,
    /// Stop after so many tokens; `None` goes on until the text or the context ends.
    pub max_tokens: Option<usize>,
    /// Stop before the first of these strings. The string itself is not part of the text.
    pub stop: Vec<String>,
    /// How many of the most likely tokens to report with each token.
    pub top_logprobs: usize,
    /// Go on after an end-of-text token.
    pub ignore_eos: bool,
    /// Stops the generation from elsewhere.
    pub cancel: CancelToken,
    /// How it may be sped up.
    pub speculation: Speculation,
}

impl Request {
    /// A request with the given prompt and sampling, no limits but the context.
    #[must_use]
    pub fn new(prompt: impl Into<Prompt>, sampling: SamplingParams) -> Self {
        Self {
            prompt: prompt.into(),
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            top_logprobs: 0,
            ignore_eos: false,
            cancel: CancelToken::default(),
            speculation: Speculation::default(),
        }
    }

    /// Sets how the request may be sped up.
    #[must_use]
    pub fn speculation(mut self, speculation: Speculation) -> Self {
        self.speculation = speculation;
        self
    }

    /// Sets the limit of tokens.
    #[must_use]
    pub fn max_tokens(mut self, n: usize) -> Self {
        self.max_tokens = Some(n);
        self
    }
}

/// Why a generation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its text.
    EndOfText,
    /// A stop string appeared.
    StopString(String),
    /// The request's token limit.
    MaxTokens,
    /// No position is left in the context.
    ContextFull,
    /// The cancel token was used.
    Cancelled,
}

/// One generated token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Natural logarithm of its probability under the raw logits.
    pub logprob: f32,
    /// The most likely tokens of that row with their logprobs, most likely first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<(u32, f32)>,
    /// Text that became certain with this token: whole characters, nothing that may be part of a stop string.
    pub text: String,
    /// Who guessed it before the model chose it; `None` for the model itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafted_by: Option<DrafterKind>,
}

/// What happened in a generation.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A part of the prompt has been processed, and more is to come.
    Prompt {
        /// Tokens processed, reused ones included.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token.
    Token(Token),
    /// The end. No event follows.
    Finished(Box<Summary>),
}

/// The end of a generation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Why it ended.
    pub reason: FinishReason,
    /// Text that was held back and is now certain.
    pub rest: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them were still in the session's caches.
    pub reused_tokens: usize,
    /// Tokens generated, an end-of-text token included.
    pub tokens: usize,
    /// Hash of token ids and logprob bits: equal requests have equal fingerprints.
    pub fingerprint: String,
    /// From the request to its first token.
    pub time_to_first_token: Duration,
    /// Tokens that came with the first: those of its round.
    pub first_tokens: usize,
    /// From the first token to the last.
    pub decode_time: Duration,
    /// What speculation did.
    pub speculation: SpecStats,
}

impl Summary {
    /// Tokens after those of the first round per second of decoding; `None` when there are none.
    #[must_use]
    pub fn tokens_per_second(&self) -> Option<f64> {
        let (seconds, tokens) =
            (self.decode_time.as_secs_f64(), self.tokens.saturating_sub(self.first_tokens));
        (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
    }
}

/// A generation collected whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The text, up to a stop string if one ended it.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// The end.
    pub summary: Summary,
}

/// Running hash of token ids and logprob bits.
#[derive(Clone, Debug, Default)]
pub struct Fingerprint(Sha256);

impl Fingerprint {
    /// Adds a token.
    pub fn push(&mut self, id: u32, logprob: f32) {
        self.0.update(id.to_le_bytes());
        self.0.update(logprob.to_bits().to_le_bytes());
    }
    /// The first 16 bytes of SHA-256 in hexadecimal.
    #[must_use]
    pub fn hex(&self) -> String {
        let digest = self.0.clone().finalize();
        digest.iter().take(16).map(|b| format!("{b:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_made_from_what_callers_have() {
        let messages = vec![Message::new("user", "hi")];
        let chat = Prompt::Chat { messages: messages.clone(), thinking: None, tools: None };
        for (made, expected) in [
            (Prompt::from("a"), Prompt::Text("a".into())),
            (Prompt::from(String::from("a")), Prompt::Text("a".into())),
            (Prompt::from(vec![1, 2]), Prompt::Tokens(vec![1, 2])),
            (Prompt::from(messages), chat),
        ] {
            assert_eq!(made, expected);
        }
    }
}
