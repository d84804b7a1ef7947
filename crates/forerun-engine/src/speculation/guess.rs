//! How a model that drafts chooses a token: as its request would.

use forerun_tensor::{Pick, Picked};

use crate::runner::Runner;
use crate::sampler::Sampler;
use crate::sampling::SamplingParams;
use crate::speculation::Ask;

/// What the device chooses for a guess at `position`: with the noise of that position, so that the guess agrees with the
/// model as often as their distributions allow. Requests with penalties or filters need the logits instead.
pub(super) fn pick(sampling: &SamplingParams, position: usize) -> Pick {
    if !sampling.is_plain() || sampling.is_greedy() {
        return Pick::Greedy;
    }
    let (temperature, seed) = (sampling.temperature, sampling.seed);
    Pick::Noise { temperature, seed, position: position as u32 }
}

/// Chooses guesses from what the device found.
#[derive(Debug, Default)]
pub(super) struct Guess {
    sampler: Sampler,
    history: Vec<u32>,
    logits: Vec<f32>,
}

impl Guess {
    /// The next token of an ask; `None` where the chain ends: below the confidence asked for, or where nothing can be
    /// chosen. `logits` are those of requests that are not plain; `ids` the tokens that their columns stand for, where that
    /// is not every token.
    pub(super) fn token(
        &mut self,
        device: &Runner,
        ask: &Ask<'_>,
        picked: &Picked,
        logits: Option<&[f32]>,
        ids: Option<&[u32]>,
    ) -> Option<u32> {
        let likely = picked.logprob().exp();
        if picked.nan || (ask.confidence > 0.0 && likely < ask.confidence) {
            return None;
        }
        match logits {
            Some(row) => self.sample(device, ask, row, ids),
            None => Some(picked.token),
        }
    }

    /// The token that the request's own sampler would take from these logits: penalties see the guesses before.
    fn sample(&mut self, device: &Runner, ask: &Ask<'_>, row: &[f32], ids: Option<&[u32]>) -> Option<u32> {
        let request = ask.request;
        self.history.clear();
        let window = request.sampling.penalty_window as usize;
        let from = request.tokens.len().saturating_sub(window);
        self.history.extend_from_slice(&request.tokens[from..]);
        self.history.extend_from_slice(ask.drafts);
        let position = (request.tokens.len() + ask.drafts.len()) as u32;
        let logits = match ids {
            None => row,
            Some(ids) => {
                self.logits.clear();
                self.logits.resize(device.model().spec().vocabulary(), f32::NEG_INFINITY);
                ids.iter().zip(row).for_each(|(id, logit)| self.logits[*id as usize] = *logit);
                &self.logits
            }
        };
        self.sampler.pick(logits, request.sampling, &self.history, position)
    }
}
