//! The requests of a benchmark, plain and drafted.

use std::ops::ControlFlow;
use std::time::Instant;

use forerun_engine::{
    CancelToken, Completion, Depth, DrafterKind, Event, FinishReason, Request, SamplingParams, Session,
    Speculation, Token,
};

use super::prompts::BenchPrompt;
use crate::drafter_list::Asked;
use crate::error::{CliError, Result};

/// How fast a request decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Decoding {
    pub(super) tokens: usize,
    pub(super) seconds: f64,
}

/// A request that ended.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) completion: Completion,
    pub(super) decoding: Decoding,
}

/// Runs requests of one prompt at one temperature, all of them with the same noise.
pub(super) struct Runs<'a> {
    pub(super) session: &'a mut Session,
    pub(super) prompt: &'a BenchPrompt,
    pub(super) temperature: f32,
    pub(super) max_tokens: usize,
    pub(super) cancel: &'a CancelToken,
}

impl Runs<'_> {
    /// Plain decoding.
    ///
    /// # Errors
    /// When the request fails or is interrupted.
    pub(super) fn plain(&mut self) -> Result<Run> {
        self.run(Speculation::off())
    }

    /// The same request, drafted. `plain` is what plain decoding gave: the prediction is made of it.
    ///
    /// # Errors
    /// When the request fails or is interrupted.
    pub(super) fn drafted(
        &mut self,
        drafters: &Asked,
        depth: Depth,
        confidence: f32,
        plain: &Completion,
    ) -> Result<Run> {
        let Asked { kinds: drafters, choice } = drafters.clone();
        let prediction = drafters.contains(&DrafterKind::Prediction).then(|| spoil(&plain.text));
        self.run(Speculation { depth, drafters, choice, prediction, confidence })
    }

    /// The clock starts when the prompt's last part but one has run. From there on plain and drafted requests do the same
    /// work; from the first token on they would not, because a round may bring others together with it.
    fn run(&mut self, speculation: Speculation) -> Result<Run> {
        let sampling = SamplingParams::plain(self.temperature, self.prompt.seed);
        let request = Request {
            ignore_eos: true,
            cancel: self.cancel.clone(),
            max_tokens: Some(self.max_tokens),
            speculation,
            ..Request::new(self.prompt.prompt.as_str(), sampling)
        };
        let mut started = Instant::now();
        let completion = self.session.generate_with(&request, |event| {
            if matches!(event, Event::Prompt { .. }) {
                started = Instant::now();
            }
            ControlFlow::Continue(())
        })?;
        let decoding = Decoding { tokens: completion.tokens.len(), seconds: started.elapsed().as_secs_f64() };
        match completion.summary.reason {
            FinishReason::Cancelled => Err(CliError::Interrupted),
            _ => Ok(Run { completion, decoding }),
        }
    }
}

/// Characters between two edits of a prediction.
const EDIT_EVERY: usize = 60;

/// A text with a few edits: in turn a character changed, a character left out, a word put in.
pub(super) fn spoil(text: &str) -> String {
    let mut spoilt = String::with_capacity(text.len() + text.len() / 8);
    for (i, c) in text.chars().enumerate() {
        match (i % EDIT_EVERY == EDIT_EVERY / 2).then_some(i / EDIT_EVERY % 3) {
            Some(0) => spoilt.push(if c == 'x' { 'y' } else { 'x' }),
            Some(1) => {}
            Some(_) => {
                spoilt.push_str(" other ");
                spoilt.push(c);
            }
            None => spoilt.push(c),
        }
    }
    spoilt
}

/// The index of the first token that differs in its id or in a bit of its logprob.
pub(super) fn first_difference(plain: &[Token], other: &[Token]) -> Option<usize> {
    let same = |a: &Token, b: &Token| a.id == b.id && a.logprob.to_bits() == b.logprob.to_bits();
    let common = plain.iter().zip(other).take_while(|(a, b)| same(a, b)).count();
    (common < plain.len().max(other.len())).then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, logprob: f32) -> Token {
        Token { id, logprob, top: Vec::new(), text: String::new(), drafted_by: None }
    }

    #[test]
    fn differences_are_found_to_the_bit() {
        let plain = [token(1, -0.5), token(2, -0.0)];
        assert_eq!(first_difference(&plain, &plain), None);
        assert_eq!(first_difference(&plain, &plain[..1]), Some(1));
        assert_eq!(first_difference(&plain[..1], &plain), Some(1));
        assert_eq!(first_difference(&plain, &[token(1, -0.5), token(2, 0.0)]), Some(1));
        assert_eq!(first_difference(&plain, &[token(3, -0.5), token(2, -0.0)]), Some(0));
    }

    #[test]
    fn predictions_are_spoilt_but_recognisable() {
        assert_eq!(spoil("short"), "short");
        let text = "0123456789".repeat(18);
        let (a, b, c, d) = (&text[..30], &text[31..90], &text[91..150], &text[150..]);
        assert_eq!(spoil(&text), format!("{a}x{b}{c} other {d}"));
        assert_eq!(spoil("é".repeat(40).as_str()).chars().filter(|c| *c == 'x').count(), 1);
    }
}
