//! A request in progress: which rows it brings to the next step, and what it makes of the results.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forerun_tensor::{OutRow, Pick, Picked, SeqRows, StepRows};
use forerun_text::{Decoded, StopStrings, StreamDecoder, Tokenizer};

use crate::error::{EngineError, Result};
use crate::request::{CancelToken, Event, Fingerprint, FinishReason, Request, Summary, Token};
use crate::sampler::Sampler;
use crate::sampling::SamplingParams;
use crate::speculation::{Ask, DrafterKind, Drafting, SpecStats, StepCosts, View, accept};

/// What a request needs to know of the model it runs on.
#[derive(Clone)]
pub(crate) struct Limits {
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    /// The most drafts that a step and the tape have room for.
    pub(crate) most_drafts: usize,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) path: PathBuf,
}

/// The text of a generation as it becomes certain.
struct Text {
    decoder: StreamDecoder,
    stop: StopStrings,
}

impl Text {
    fn new(tokenizer: &Tokenizer, stop: &[String]) -> Self {
        Self { decoder: StreamDecoder::new(tokenizer, Decoded::WithoutControl), stop: StopStrings::new(stop) }
    }

    /// What was held back: half characters and possible starts of stop strings.
    fn finish(mut self) -> String {
        let mut found = self.stop.push(&self.decoder.finish());
        if found.matched.is_none() {
            found.text.push_str(&self.stop.finish());
        }
        found.text
    }
}

/// What a session's caches hold of a prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reused {
    /// Tokens that need not be run again.
    pub(crate) tokens: usize,
    /// How many of them lie on the tape.
    pub(crate) replay: usize,
    /// Positions below this were written to the caches since the sequence began.
    pub(crate) written: usize,
}

/// A step's results for one request: rows with output, in order.
pub(crate) struct Rows<'a> {
    /// Rows of the request in the step.
    pub(crate) count: usize,
    /// What the device found for the last rows.
    pub(crate) picked: &'a [Picked],
    /// Their logits, when the request asked for them.
    pub(crate) logits: &'a [f32],
    /// The request's share of the step's time.
    pub(crate) time: Duration,
}

pub(crate) struct Active {
    pub(crate) slot: u32,
    /// Every token known: the prompt, then what was generated.
    pub(crate) tokens: Vec<u32>,
    /// How many of them have been run: their K/V and state are in the caches.
    pub(crate) cached: usize,
    /// How many of those lie on the tape: the newest rows, which the next step replays into the recurrent state.
    pub(crate) replay: usize,
    /// Positions below this were written to the caches since the sequence began, rejected drafts included.
    pub(crate) written: usize,
    /// The step that it last had rows in.
    pub(crate) last_step: u64,
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
    /// Its own stop, beside the token that others may share.
    stopped: bool,
    text: Option<Text>,
    stop: Vec<String>,
    fingerprint: Fingerprint,
    drafting: Drafting,
    started: Instant,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    first_tokens: usize,
    events: VecDeque<Result<Event>>,
    /// No step brings it further: it ended for a reason, or failed.
    finished: bool,
    reason: Option<FinishReason>,
}

impl Active {
    pub(crate) fn new(
        slot: u32,
        tokens: Vec<u32>,
        reused: Reused,
        request: &Request,
        limits: Limits,
    ) -> Self {
        Self {
            slot,
            prompt_len: tokens.len(),
            tokens,
            cached: reused.tokens,
            replay: reused.replay,
            written: reused.written,
            last_step: 0,
            snapshot_at: None,
            snapshot_taken: None,
            reused: reused.tokens,
            params: request.sampling.clone(),
            sampler: Sampler::default(),
            max_tokens: request.max_tokens.unwrap_or(usize::MAX),
            top_logprobs: request.top_logprobs,
            ignore_eos: request.ignore_eos,
            cancel: request.cancel.clone(),
            stopped: false,
            text: Some(Text::new(&limits.tokenizer, &request.stop)),
            stop: request.stop.clone(),
            fingerprint: Fingerprint::default(),
            drafting: Drafting::new(request.speculation.clone()),
            started: Instant::now(),
            first_token: None,
            last_token: None,
            first_tokens: 0,
            events: VecDeque::new(),
            finished: false,
            reason: None,
            limits,
        }
    }

    /// The next event. Tokens count as given out here: whoever stops a generation stops it at the last one it saw, however
    /// many more a round has brought.
    pub(crate) fn pop_event(&mut self) -> Option<Result<Event>> {
        if self.is_cancelled() {
            self.take_back_unread();
        }
        let event = self.events.pop_front();
        if let Some(Ok(Event::Token(token))) = &event {
            self.fingerprint.push(token.id, token.logprob);
        }
        event.or_else(|| self.reason.take().map(|reason| Ok(Event::Finished(Box::new(self.summary(reason))))))
    }

    /// Whether a step would bring it forward. Ends it first when that is due without one.
    pub(crate) fn wants_step(&mut self) -> bool {
        if self.finished || !self.events.is_empty() {
            return false;
        }
        if self.is_cancelled() {
            self.finish(FinishReason::Cancelled);
        } else if self.generated() >= self.max_tokens {
            self.finish(FinishReason::MaxTokens);
        }
        !self.finished
    }

    /// Stops it after the token that was given out last.
    pub(crate) fn stop(&mut self) {
        self.stopped = true;
    }

    fn is_cancelled(&self) -> bool {
        self.stopped || self.cancel.is_cancelled()
    }

    /// Whether no event will come any more.
    pub(crate) fn is_over(&self) -> bool {
        self.finished && self.events.is_empty() && self.reason.is_none()
    }

    fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether its next step is a round of decoding: only the newest token has not been run.
    pub(crate) fn decodes(&self) -> bool {
        self.tokens.len() - self.cached == 1
    }

    /// As drafters see it.
    pub(crate) fn view(&self) -> View<'_> {
        View { slot: self.slot, tokens: &self.tokens, run: self.cached, sampling: &self.params }
    }

    pub(crate) fn arrange_drafters(&mut self, costs: &StepCosts) {
        self.drafting.arrange(costs);
    }

    pub(crate) fn drafters(&self) -> &[DrafterKind] {
        self.drafting.drafters()
    }

    /// Whether to ask a drafter, which stands at `rank` of the request's list, for the coming round.
    pub(crate) fn prepare_ask(&mut self, kind: DrafterKind, rank: usize, costs: &StepCosts) -> bool {
        if self.drafters().get(rank) != Some(&kind) || self.cached == 0 {
            return false;
        }
        let left = self.max_tokens.saturating_sub(self.generated() + 1);
        let room = self.limits.context.saturating_sub(self.tokens.len());
        self.drafting.prepare(kind, costs, left.min(room).min(self.limits.most_drafts))
    }

    pub(crate) fn take_draft_buffer(&mut self) -> Vec<u32> {
        self.drafting.take_buffer()
    }

    pub(crate) fn ask<'a>(&'a self, drafts: &'a mut Vec<u32>) -> Ask<'a> {
        let (depth, confidence) = (self.drafting.depth(), self.drafting.confidence());
        Ask { request: self.view(), depth, confidence, drafts }
    }

    pub(crate) fn take_drafts(&mut self, kind: DrafterKind, drafts: Vec<u32>, time: Duration) {
        self.drafting.take(kind, drafts, self.limits.vocabulary, time);
    }

    /// Notes how many of its tokens a drafter has made keys and values of so far.
    pub(crate) fn note_context(&mut self, kind: DrafterKind, tokens: u64) {
        self.drafting.stats.drafters[kind.index()].context = tokens;
    }

    pub(crate) fn leave_out(&mut self, kind: DrafterKind) {
        self.drafting.leave_out(kind);
    }

    /// Adds its next rows to a step, at most `room` of them; returns how many. A round of decoding brings the newest token
    /// and its drafts, whose rows stay on the tape until it is known how many count.
    pub(crate) fn add_rows(&mut self, room: usize, step: &mut StepRows) -> usize {
        let pending = self.tokens.len() - self.cached;
        let until_snapshot = self.snapshot_at.map_or(pending, |at| at - self.cached);
        let known = pending.min(until_snapshot).min(room);
        if known == 0 {
            return 0;
        }
        self.drafting.truncate(room - known);
        let drafts = self.drafting.drafts();
        let rows = known + drafts.len();
        self.written = self.written.max(self.cached + rows);
        step.seqs.push(SeqRows {
            slot: self.slot,
            pos: self.cached as u32,
            rows: rows as u32,
            replay: self.replay as u32,
            commit: drafts.is_empty(),
        });
        step.tokens.extend_from_slice(&self.tokens[self.cached..self.cached + known]);
        step.tokens.extend_from_slice(drafts);
        if self.cached + known == self.tokens.len() {
            let first = step.tokens.len() - 1 - drafts.len();
            for i in 0..=drafts.len() {
                let position = (self.tokens.len() + i) as u32;
                let (row, pick) = ((first + i) as u32, self.pick(position));
                step.out.push(OutRow { row, pick, logits: self.needs_logits() });
            }
        }
        rows
    }

    fn needs_logits(&self) -> bool {
        !self.params.is_plain() || self.top_logprobs > 0
    }

    fn pick(&self, position: u32) -> Pick {
        if !self.params.is_plain() {
            Pick::None
        } else if self.params.is_greedy() {
            Pick::Greedy
        } else {
            Pick::Noise { temperature: self.params.temperature, seed: self.params.seed, position }
        }
    }

    /// Takes the results of a step.
    pub(crate) fn take_results(&mut self, rows: Rows<'_>) {
        let started = Instant::now();
        if rows.picked.is_empty() {
            self.cached += rows.count;
            self.replay = 0;
            self.events.push_back(Ok(Event::Prompt { done: self.cached, total: self.prompt_len }));
            return;
        }
        let decoding = self.decodes();
        self.cached += rows.count - rows.picked.len();
        let (drafts, drafter) = (self.drafting.start_verdict(), self.drafting.drafter());
        let width = rows.logits.len() / rows.picked.len();
        let before = self.tokens.len();
        let verdict = accept(&drafts, |row| {
            let (logits, picked) = (&rows.logits[row * width..(row + 1) * width], rows.picked[row]);
            let chosen = self.choose(picked, logits)?;
            let (id, expected) = (chosen.id, drafts.get(row) == Some(&chosen.id));
            self.accept(Token { drafted_by: drafter.filter(|_| expected), ..chosen });
            Ok(if self.finished { ControlFlow::Break(id) } else { ControlFlow::Continue(id) })
        });
        let tokens = self.tokens.len() - before;
        if before == self.prompt_len {
            self.first_tokens = tokens;
        }
        // Only rows that follow the text count; the first always does, and without drafts it is committed already.
        self.cached += if drafts.is_empty() { 1 } else { tokens };
        self.replay = if drafts.is_empty() { 0 } else { tokens };
        let accepted = match verdict {
            Ok(accepted) => accepted.drafts,
            Err(error) => {
                self.finished = true;
                self.events.push_back(Err(error));
                tokens
            }
        };
        if decoding {
            let judged = if self.finished { accepted } else { drafts.len() };
            self.drafting.finish(drafts, judged, accepted, tokens, [rows.time, started.elapsed()]);
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
        Ok(Token { id, logprob: logit - picked.log_sum, top, text: String::new(), drafted_by: None })
    }

    /// Appends a chosen token and ends the generation where a rule says so.
    fn accept(&mut self, mut token: Token) {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.tokens.push(token.id);
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
        self.reason = Some(reason);
    }

    fn summary(&mut self, reason: FinishReason) -> Summary {
        let rest = match self.text.take() {
            Some(text) if !matches!(reason, FinishReason::StopString(_)) => text.finish(),
            _ => String::new(),
        };
        let since = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => b.duration_since(a),
            _ => Duration::ZERO,
        };
        Summary {
            reason,
            rest,
            prompt_tokens: self.prompt_len,
            reused_tokens: self.reused,
            tokens: self.generated(),
            fingerprint: self.fingerprint.hex(),
            time_to_first_token: since(Some(self.started), self.first_token),
            first_tokens: self.first_tokens,
            decode_time: since(self.first_token, self.last_token),
            speculation: self.drafting.stats.clone(),
        }
    }

    /// What speculation did so far.
    pub(crate) fn stats(&self) -> &SpecStats {
        &self.drafting.stats
    }

    /// Takes back what was not given out, tokens and the failure of a later row, as if decoding had been stopped at the
    /// last token that was.
    pub(crate) fn take_back_unread(&mut self) {
        let unread = self.events.iter().filter(|e| matches!(e, Ok(Event::Token(_)))).count();
        if unread == 0 && !self.events.iter().any(Result::is_err) {
            return;
        }
        self.events.clear();
        self.finish(FinishReason::Cancelled);
        self.tokens.truncate(self.tokens.len() - unread);
        let run = self.cached.min(self.tokens.len());
        self.replay = self.replay.saturating_sub(self.cached - run);
        self.cached = run;
        let mut text = Text::new(&self.limits.tokenizer, &self.stop);
        for token in &self.tokens[self.prompt_len..] {
            let piece = text.decoder.push(*token);
            text.stop.push(&piece);
        }
        self.text = Some(text);
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
