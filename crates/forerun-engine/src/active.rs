//! A request in progress: which rows it brings to the next step, and what it makes of the results.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forerun_tensor::{OutRow, Pick, Picked, SeqRows, StepRows};
use forerun_text::{Decoded, StopStrings, StreamDecoder, Tokenizer};

use crate::error::{EngineError, Result};
use crate::request::{CancelToken, Event, Fingerprint, FinishReason, Request, Summary, Token};
use crate::sampler::Sampler;
use crate::sampling::SamplingParams;

/// What a request needs to know of the model it runs on.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) path: PathBuf,
}

/// The text of a generation as it becomes certain.
struct Text {
    decoder: StreamDecoder,
    stop: StopStrings,
}

impl Text {
    /// What was held back: half characters and possible starts of stop strings.
    fn finish(mut self) -> String {
        let mut found = self.stop.push(&self.decoder.finish());
        if found.matched.is_none() {
            found.text.push_str(&self.stop.finish());
        }
        found.text
    }
}

pub(crate) struct Active {
    pub(crate) slot: u32,
    /// Every token known: the prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    /// How many of them have been run: their K/V and state are in the caches.
    pub(crate) cached: usize,
    /// Where a snapshot of the recurrent state is to be taken, while that lies ahead.
    pub(crate) snapshot_at: Option<usize>,
    /// Where one was taken.
    pub(crate) snapshot_taken: Option<usize>,
    prompt_len: usize,
    reused: usize,
    limits: Limits,
    params: SamplingParams,
    sampler: Sampler,
    max_tokens: usize,
    top_logprobs: usize,
    ignore_eos: bool,
    cancel: CancelToken,
    text: Option<Text>,
    stop: Vec<String>,
    fingerprint: Fingerprint,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    events: VecDeque<Result<Event>>,
    finished: bool,
}

impl Active {
    pub(crate) fn new(slot: u32, tokens: Vec<u32>, reused: usize, request: &Request, limits: Limits) -> Self {
        Self {
            slot,
            prompt_len: tokens.len(),
            tokens,
            cached: reused,
            snapshot_at: None,
            snapshot_taken: None,
            reused,
            params: request.sampling.clone(),
            sampler: Sampler::default(),
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            top_logprobs: request.top_logprobs,
            ignore_eos: request.ignore_eos,
            cancel: request.cancel.clone(),
            text: Some(Text {
                decoder: StreamDecoder::new(&limits.tokenizer, Decoded::WithoutControl),
                stop: StopStrings::new(&request.stop),
            }),
            stop: request.stop.clone(),
            fingerprint: Fingerprint::default(),
            started: Instant::now(),
            first_token: None,
            last_token: None,
            events: VecDeque::new(),
            finished: false,
            limits,
        }
    }

    pub(crate) fn pop_event(&mut self) -> Option<Result<Event>> {
        self.events.pop_front()
    }

    /// Whether a step would bring it forward. Ends it first when that is due without one.
    pub(crate) fn wants_step(&mut self) -> bool {
        if self.finished || !self.events.is_empty() {
            return false;
        }
        if self.cancel.is_cancelled() {
            self.finish(FinishReason::Cancelled);
        } else if self.generated() >= self.max_tokens {
            self.finish(FinishReason::MaxTokens);
        }
        !self.finished
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Adds its next rows to a step, at most `room` of them; returns how many.
    pub(crate) fn add_rows(&self, room: usize, step: &mut StepRows) -> usize {
        let pending = self.tokens.len() - self.cached;
        let until_snapshot = self.snapshot_at.map_or(pending, |at| at - self.cached);
        let rows = pending.min(until_snapshot).min(room);
        if rows == 0 {
            return 0;
        }
        step.seqs.push(SeqRows {
            slot: self.slot,
            pos: self.cached as u32,
            rows: rows as u32,
            replay: 0,
            commit: true,
        });
        step.tokens.extend_from_slice(&self.tokens[self.cached..self.cached + rows]);
        if self.cached + rows == self.tokens.len() {
            step.out.push(OutRow {
                row: step.tokens.len() as u32 - 1,
                pick: self.pick(),
                logits: self.needs_logits(),
            });
        }
        rows
    }

    fn needs_logits(&self) -> bool {
        !self.params.is_plain() || self.top_logprobs > 0
    }

    fn pick(&self) -> Pick {
        if !self.params.is_plain() {
            Pick::None
        } else if self.params.temperature == 0.0 {
            Pick::Greedy
        } else {
            Pick::Noise {
                temperature: self.params.temperature,
                seed: self.params.seed,
                position: self.tokens.len() as u32,
            }
        }
    }

    /// Takes the results of `rows` rows; `out` is there when the last of them was an output row.
    pub(crate) fn take_results(&mut self, rows: usize, out: Option<(Picked, &[f32])>) {
        self.cached += rows;
        match out {
            None => self.events.push_back(Ok(Event::Prompt { done: self.cached, total: self.prompt_len })),
            Some((picked, logits)) => match self.choose(picked, logits) {
                Ok(token) => self.accept(token),
                Err(error) => {
                    self.finished = true;
                    self.events.push_back(Err(error));
                }
            },
        }
    }

    fn choose(&mut self, picked: Picked, logits: &[f32]) -> Result<Token> {
        let position = self.tokens.len() as u32;
        if picked.nan {
            return Err(EngineError::NotANumber { path: self.limits.path.clone(), position: position - 1 });
        }
        let (id, logit) = if self.params.is_plain() {
            (picked.token, picked.logit)
        } else {
            let id = self
                .sampler
                .pick(logits, &self.params, &self.tokens, position)
                .ok_or(EngineError::NothingAllowed(position))?;
            (id, logits[id as usize])
        };
        let top = top_logprobs(logits, self.top_logprobs, picked.log_sum);
        Ok(Token { id, logprob: logit - picked.log_sum, top, text: String::new() })
    }

    /// Appends a chosen token and ends the generation where a rule says so.
    fn accept(&mut self, mut token: Token) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(token.id);
        self.fingerprint.push(token.id, token.logprob);
        let ends = !self.ignore_eos && self.limits.tokenizer.is_eog(token.id);
        let mut stopped = None;
        if let Some(text) = self.text.as_mut().filter(|_| !ends) {
            let piece = text.decoder.push(token.id);
            let found = text.stop.push(&piece);
            token.text = found.text;
            stopped = found.matched.map(|i| self.stop[i].clone());
        }
        self.events.push_back(Ok(Event::Token(token)));
        if ends {
            self.finish(FinishReason::EndOfText);
        } else if let Some(s) = stopped {
            self.finish(FinishReason::StopString(s));
        } else if self.generated() >= self.max_tokens {
            self.finish(FinishReason::MaxTokens);
        } else if self.tokens.len() > self.limits.context {
            self.finish(FinishReason::ContextFull);
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.finished = true;
        let rest = match self.text.take() {
            Some(text) if !matches!(reason, FinishReason::StopString(_)) => text.finish(),
            _ => String::new(),
        };
        let since = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => b.duration_since(a),
            _ => Duration::ZERO,
        };
        self.events.push_back(Ok(Event::Finished(Summary {
            reason,
            rest,
            prompt_tokens: self.prompt_len,
            reused_tokens: self.reused,
            tokens: self.generated(),
            fingerprint: self.fingerprint.hex(),
            time_to_first_token: since(Some(self.started), self.first_token),
            decode_time: since(self.first_token, self.last_token),
        })));
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.limits.vocabulary
    }
}

/// The `n` largest logits as logprobs, ties to the lower id.
fn top_logprobs(logits: &[f32], n: usize, log_sum: f32) -> Vec<(u32, f32)> {
    if n == 0 {
        return Vec::new();
    }
    let mut order: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    let rank = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if n < order.len() {
        order.select_nth_unstable_by(n, rank);
        order.truncate(n);
    }
    order.sort_unstable_by(rank);
    order.into_iter().map(|(id, l)| (id, l - log_sum)).collect()
}
