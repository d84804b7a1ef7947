//! Sessions and generations.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::active::{Active, Reused};
use crate::core::Core;
use crate::engine::Shared;
use crate::error::{EngineError, Result};
use crate::request::{Completion, Event, Prompt, Request, Summary, Token};

/// How long a step waits for other sessions' threads to join it.
const LINGER: Duration = Duration::from_micros(100);

/// One sequence of text with its caches. `Send`: sessions of one engine may live on different threads, and their rows
/// share steps; what a session generates does not depend on the others.
pub struct Session {
    shared: Arc<Shared>,
    slot: u32,
    /// Tokens whose text this session holds: prompts and what was generated.
    tokens: Vec<u32>,
    /// How many of them are in the caches.
    cached: usize,
    /// How many of those lie on the tape.
    replay: usize,
    /// Positions below this were written to the caches since the sequence began, rejected drafts included.
    written: usize,
    /// Tokens at the time of the recurrent state's snapshot.
    snapshot: Option<usize>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, slot: u32) -> Self {
        Self { shared, slot, tokens: Vec::new(), cached: 0, replay: 0, written: 0, snapshot: None }
    }

    /// Every token of the session so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.cached = 0;
        self.replay = 0;
        self.written = 0;
        self.snapshot = None;
    }

    /// Starts a generation. Whatever its prompt shares with the session's history is not computed again (a prefix of
    /// prompt or generated text gives the same bits whether it is reused or not).
    ///
    /// ```
    /// # use forerun_engine::{Engine, Event, LoadOptions, Request, SamplingParams};
    /// # let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-Q4_K_M.gguf");
    /// let engine = Engine::load(demo, &LoadOptions::default())?;
    /// let mut session = engine.session()?;
    /// let request = Request::new("def fib(n):", SamplingParams::greedy()).max_tokens(8);
    /// for event in session.generate(&request)? {
    ///     if let Event::Token(token) = event? {
    ///         print!("{}", token.text);
    ///     }
    /// }
    /// # Ok::<(), forerun_engine::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// When the prompt is empty, too long, or has unknown tokens, or a parameter is out of range.
    pub fn generate(&mut self, request: &Request) -> Result<Generation<'_>> {
        let engine = crate::Engine { shared: self.shared.clone() };
        let tokens = engine.encode(&request.prompt)?;
        let limits = self.shared.limits();
        request.sampling.validate(limits.vocabulary as u32)?;
        request.speculation.validate()?;
        let prediction = engine.encode_prediction(request)?;
        if tokens.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens.len() > limits.context {
            return Err(EngineError::PromptTooLong { found: tokens.len(), context: limits.context });
        }
        if let Some(index) = tokens.iter().position(|&t| t as usize >= limits.vocabulary) {
            return Err(EngineError::UnknownToken {
                id: tokens[index],
                index,
                vocabulary: limits.vocabulary,
            });
        }
        if let Some(empty) = request.stop.iter().position(String::is_empty) {
            return Err(EngineError::Option {
                option: "stop",
                found: format!("an empty string at index {empty}"),
                expected: "at least one character",
            });
        }
        let shared = self.shared.clone();
        let mut core = shared.core()?;
        self.settle(&mut core);
        let common = self.tokens.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let reused = self.reuse(common, tokens.len(), &mut core)?;
        let boundary = self.snapshot_boundary(&tokens);
        let mut active = Active::new(self.slot, tokens, reused, request, limits);
        active.snapshot_at = (boundary > reused.tokens).then_some(boundary);
        self.snapshot = self.snapshot.filter(|&s| s <= common);
        core.speculator.begin(active.view(), reused.tokens, prediction);
        core.active[self.slot as usize] = Some(active);
        drop(core);
        Ok(Generation { session: self, done: false })
    }

    /// Takes over where the slot's last generation came to: what it was dropped at, or leaked at.
    fn settle(&mut self, core: &mut Core) {
        let Some(mut active) = core.active[self.slot as usize].take() else { return };
        core.speculator.totals.merge(active.stats());
        active.take_back_unread();
        self.snapshot = active.snapshot_taken.or(self.snapshot);
        (self.cached, self.replay) = (active.cached, active.replay);
        self.written = active.written;
        self.tokens = active.tokens;
    }

    /// What the caches can serve of a prompt that shares `common` tokens with the history. Tokens on the tape can be
    /// taken back one by one, and any tokens where no layer carries a state and no ring has lost what is seen from there;
    /// otherwise the snapshot is restored.
    fn reuse(&self, common: usize, prompt: usize, core: &mut Core) -> Result<Reused> {
        let settled = self.cached - self.replay;
        let tokens = self.cached.min(common).min(prompt - 1);
        if tokens > 0 && tokens >= settled {
            return Ok(Reused { tokens, replay: tokens - settled, written: self.written });
        }
        let model = core.runner.model();
        let holds = |tokens: usize| tokens > 0 && model.still_holds(tokens, self.written);
        if !model.has_states() {
            let written = self.written;
            return Ok(if holds(tokens) { Reused { tokens, replay: 0, written } } else { Reused::default() });
        }
        match self.snapshot.filter(|&s| s <= common && s < prompt && holds(s)) {
            Some(at) => {
                core.restore_snapshot(self.slot, at)?;
                Ok(Reused { tokens: at, replay: 0, written: self.written })
            }
            None => Ok(Reused::default()),
        }
    }

    /// Where to keep the recurrent state for later prompts: before the last control token (a chat's next turn usually
    /// repeats the text up to there), else before the last token (the same prompt again).
    fn snapshot_boundary(&self, tokens: &[u32]) -> usize {
        let last = tokens.len() - 1;
        tokens.iter().rposition(|&t| self.shared.is_control(t)).map_or(last, |at| at.min(last))
    }

    /// Generates with a callback, which may stop the generation.
    ///
    /// # Errors
    /// As [`Session::generate`], and what a step may fail with.
    pub fn generate_with(
        &mut self,
        request: &Request,
        mut on_event: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<Completion> {
        let mut tokens: Vec<Token> = Vec::new();
        let mut text = String::new();
        let mut generation = self.generate(request)?;
        while let Some(event) = generation.next() {
            let event = event?;
            if on_event(&event).is_break() {
                generation.stop()?;
            }
            match event {
                Event::Prompt { .. } => {}
                Event::Token(token) => {
                    text.push_str(&token.text);
                    tokens.push(token);
                }
                Event::Finished(summary) => {
                    text.push_str(&summary.rest);
                    return Ok(Completion { text, tokens, summary: *summary });
                }
            }
        }
        Err(EngineError::Poisoned)
    }

    /// Generates to the end and returns it whole.
    ///
    /// # Errors
    /// As [`Session::generate_with`].
    pub fn complete(&mut self, request: &Request) -> Result<Completion> {
        self.generate_with(request, |_| ControlFlow::Continue(()))
    }

    /// Starts a generation from a prompt with the file's sampling defaults.
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn prompt(&mut self, prompt: impl Into<Prompt>) -> Result<Generation<'_>> {
        let defaults = crate::Engine { shared: self.shared.clone() }.sampling_defaults().clone();
        self.generate(&Request::new(prompt, defaults))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.release(self.slot);
    }
}

/// A generation in progress: an iterator over its events. Dropping it early leaves the session as plain decoding stopped
/// at the last token it gave out.
pub struct Generation<'s> {
    session: &'s mut Session,
    done: bool,
}

impl Generation<'_> {
    /// The next event, running steps until there is one.
    fn next_event(&mut self) -> Result<Option<Event>> {
        let shared = self.session.shared.clone();
        let slot = self.session.slot as usize;
        shared.waiting[slot].store(true, Ordering::Release);
        let asked = Instant::now();
        loop {
            let mut core = shared.core()?;
            let event = core.active[slot].as_mut().and_then(Active::pop_event);
            if event.is_some() || core.active[slot].as_ref().is_none_or(Active::is_over) {
                shared.waiting[slot].store(false, Ordering::Release);
                return event.transpose();
            }
            let is_waiting = |s: u32| shared.waiting[s as usize].load(Ordering::Acquire);
            let others = core.active.iter().flatten().any(|a| !is_waiting(a.slot));
            if others && asked.elapsed() < LINGER {
                drop(core);
                std::thread::yield_now();
                continue;
            }
            core.advance(is_waiting)?;
        }
    }

    /// Ends the generation with the token that it gave out last; its end is still to come.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn stop(&mut self) -> Result<()> {
        let slot = self.session.slot as usize;
        if let Some(active) = self.session.shared.core()?.active[slot].as_mut() {
            active.stop();
        }
        Ok(())
    }

    /// Whether no event will come any more.
    fn is_over(&self) -> Result<bool> {
        let slot = self.session.slot as usize;
        Ok(self.session.shared.core()?.active[slot].as_ref().is_none_or(Active::is_over))
    }

    fn poll(&mut self) -> Result<Option<Event>> {
        let slot = self.session.slot as usize;
        self.session.shared.core()?.active[slot].as_mut().and_then(Active::pop_event).transpose()
    }

    fn close(&mut self) {
        let slot = self.session.slot as usize;
        self.session.shared.waiting[slot].store(false, Ordering::Release);
        self.done = true;
        let shared = self.session.shared.clone();
        if let Ok(mut core) = shared.core() {
            self.session.settle(&mut core);
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let event = self.next_event();
        if !matches!(event, Ok(Some(Event::Prompt { .. } | Event::Token(_)))) {
            self.close();
        }
        event.transpose()
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.close();
        }
    }
}

/// Runs several generations of one engine on this thread, every step carrying the rows of all that go on. Events arrive
/// with the index of their generation; a `Break` ends the run early. Summaries are returned in order.
///
/// # Errors
/// The first failure of a step.
pub fn run_together(
    generations: &mut [Generation<'_>],
    mut on_event: impl FnMut(usize, &Event) -> ControlFlow<()>,
) -> Result<Vec<Option<Summary>>> {
    let mut summaries: Vec<Option<Summary>> = generations.iter().map(|_| None).collect();
    for g in generations.iter() {
        g.session.shared.waiting[g.session.slot as usize].store(!g.done, Ordering::Release);
    }
    while generations.iter().any(|g| !g.done) {
        for (i, g) in generations.iter_mut().enumerate() {
            while let Some(event) = if g.done { None } else { g.poll().inspect_err(|_| g.close())? } {
                let stop = on_event(i, &event).is_break();
                if let Event::Finished(summary) = event {
                    summaries[i] = Some(*summary);
                    g.close();
                }
                if stop {
                    return Ok(summaries);
                }
            }
            if !g.done && g.is_over()? {
                g.close();
            }
        }
        if let Some(g) = generations.iter().find(|g| !g.done) {
            let shared = g.session.shared.clone();
            shared.core()?.advance(|s| shared.waiting[s as usize].load(Ordering::Acquire))?;
        }
    }
    Ok(summaries)
}
