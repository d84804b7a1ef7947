//! Drafting with the model's own MTP block: pairs of verified tokens first, then a chain of guesses.

use forerun_tensor::{OutRow, SeqRows, StepOut, StepRows};

use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::guess::{self, Guess};
use crate::speculation::late::Late;
use crate::speculation::{Ask, Drafter, DrafterKind, View};

/// Rows of the ring that guesses may take beyond the model's own.
const AHEAD: usize = 16;

/// Chains of guesses for many requests at once.
///
/// Pair i (the hidden state of token i, and token i + 1) stands at position i. Pairs are made late: after a round only the
/// model's hidden states lie in the ring, and the next draft makes all that are missing in its first step.
#[derive(Debug, Default)]
pub(crate) struct MtpDrafter {
    /// Pairs of verified tokens that have keys and values.
    pairs: Late,
    rows: StepRows,
    out: StepOut,
    guess: Guess,
}

/// Where a chain stands.
#[derive(Clone, Copy)]
struct Link {
    /// Index of its ask.
    ask: usize,
    /// Guesses it has made.
    guesses: usize,
}

impl MtpDrafter {
    /// Makes the pairs before `end` that are missing, in steps of no more rows than the device takes.
    fn catch_up(&mut self, device: &mut Runner, request: View<'_>, end: usize) -> Result<()> {
        loop {
            let first = self.pairs.end(request.slot);
            let rows = end.saturating_sub(first).min(device.chunk());
            if rows == 0 {
                return Ok(());
            }
            self.rows.clear();
            self.add(request, first, rows);
            device.mtp_step(&self.rows, &mut self.out)?;
            self.pairs.reach(request.slot, first + rows);
        }
    }

    /// Adds verified pairs to the step.
    fn add(&mut self, request: View<'_>, first: usize, rows: usize) {
        self.add_sequence(request.slot, first, rows);
        self.rows.tokens.extend_from_slice(&request.tokens[first + 1..first + 1 + rows]);
    }

    fn add_sequence(&mut self, slot: u32, first: usize, rows: usize) {
        let (pos, rows) = (first as u32, rows as u32);
        self.rows.seqs.push(SeqRows { slot, pos, rows, replay: 0, commit: true });
    }

    /// Marks the newest row of the step as one to guess from.
    fn guess(&mut self, ask: &Ask<'_>, position: usize) {
        let sampling = ask.request.sampling;
        let pick = guess::pick(sampling, position);
        self.rows.out.push(OutRow {
            row: self.rows.tokens.len() as u32 - 1,
            pick,
            logits: !sampling.is_plain(),
        });
    }

    /// Takes the guesses of a step; chains that go on are returned.
    fn take(&mut self, device: &Runner, asks: &mut [Ask<'_>], links: &[Link]) -> Vec<Link> {
        let mut next = Vec::with_capacity(links.len());
        let width = self.out.logits.len() / self.rows.out.iter().filter(|o| o.logits).count().max(1);
        let out = std::mem::take(&mut self.out);
        let mut logits = out.logits.chunks_exact(width.max(1));
        for (link, picked) in links.iter().zip(&out.picked) {
            let ask = &mut asks[link.ask];
            let plain = ask.request.sampling.is_plain();
            let row = if plain { None } else { logits.next() };
            let ids = device.model().mtp_head_ids().map(|ids| &**ids);
            let Some(token) = self.guess.token(device, ask, picked, row, ids) else { continue };
            ask.drafts.push(token);
            if ask.drafts.len() < ask.depth {
                next.push(Link { guesses: link.guesses + 1, ..*link });
            }
        }
        self.out = out;
        next
    }

    /// The first link of every chain, with the pairs that are missing before it.
    fn first_links(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<Vec<Link>> {
        self.rows.clear();
        let mut links = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            let request = ask.request;
            // The hidden state of the last token is not there yet: the last pair is that of the token before it.
            let last = request.tokens.len() - 2;
            let first = self.pairs.end(request.slot).min(last);
            let rows = last + 1 - first;
            if self.rows.tokens.len() + rows > device.chunk() || self.rows.out.len() == device.max_out() {
                break;
            }
            self.add(request, first, rows);
            self.guess(ask, request.tokens.len());
            links.push(Link { ask: i, guesses: 0 });
        }
        device.mtp_step(&self.rows, &mut self.out)?;
        for link in &links {
            let request = asks[link.ask].request;
            self.pairs.reach(request.slot, request.tokens.len() - 1);
        }
        Ok(links)
    }

    /// Chains of guesses for the first asks, as many as one step has room for; returns how many.
    fn chains(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<usize> {
        let mut links = self.first_links(device, asks)?;
        let drafted = links.len().max(1);
        loop {
            links = self.take(device, asks, &links);
            if links.is_empty() {
                return Ok(drafted);
            }
            self.rows.clear();
            for link in &links {
                let ask = &asks[link.ask];
                let Some(token) = ask.drafts.last() else { continue };
                let position = ask.request.tokens.len() + link.guesses;
                self.add_sequence(ask.request.slot, position - 2, 1);
                self.rows.tokens.push(*token);
                self.guess(ask, position);
            }
            device.mtp_step(&self.rows, &mut self.out)?;
        }
    }
}

impl Drafter for MtpDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Mtp
    }

    fn begin(&mut self, request: View<'_>, kept: usize) {
        // The pair of the last kept token has a token that may not follow any more.
        self.pairs.begin(request.slot, kept.saturating_sub(1));
    }

    fn before_step(&mut self, device: &mut Runner, request: View<'_>, rows: usize) -> Result<()> {
        let made = self.pairs.end(request.slot);
        if request.run + rows + AHEAD > made + device.model().hidden_capacity() {
            self.catch_up(device, request, request.run.min(request.tokens.len() - 1))?;
        }
        Ok(())
    }

    fn before_snapshot(&mut self, device: &mut Runner, request: View<'_>) -> Result<()> {
        self.catch_up(device, request, request.run.saturating_sub(1))
    }

    fn context(&self, slot: u32) -> u64 {
        self.pairs.rows(slot)
    }

    fn draft(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks.iter() {
            // Most of what is missing after a long time without drafts is made alone, so that every chain fits the step.
            let end = ask.request.tokens.len().saturating_sub(1 + AHEAD.min(device.chunk()));
            self.catch_up(device, ask.request, end)?;
        }
        let mut rest = asks;
        while !rest.is_empty() {
            let drafted = self.chains(device, rest)?;
            rest = rest.split_at_mut(drafted).1;
        }
        Ok(())
    }
}
