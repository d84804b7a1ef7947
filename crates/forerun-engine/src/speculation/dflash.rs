//! Drafting with a DFlash drafter: keys and values of the context first, then whole blocks of guesses in one step.

use forerun_models::DFlashStep;
use forerun_tensor::{OutRow, SeqRows, StepOut, StepRows};

use crate::error::Result;
use crate::runner::{FULL_OUT_ROWS, Runner};
use crate::speculation::guess::{self, Guess};
use crate::speculation::late::Late;
use crate::speculation::{Ask, Drafter, DrafterKind, View};

/// What a drafter's file and the options say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DFlashSettings {
    /// The mask token.
    pub(crate) mask: u32,
    /// Rows of a block.
    pub(crate) block: usize,
    /// Times that a block is run.
    pub(crate) passes: usize,
}

/// Blocks of guesses for many requests at once.
///
/// The context (keys and values of verified tokens) is made late: after a round only the outputs of the model's layers lie
/// in the ring, and the next draft makes what is missing, every token once.
///
/// A block is run with all the rows that it was trained on, since its rows see each other; those that are not wanted cost
/// little. With more than one pass the guesses are made in order: pass n knows the first n − 1 of them.
#[derive(Debug)]
pub(crate) struct DFlashDrafter {
    settings: DFlashSettings,
    /// Verified tokens that have keys and values.
    context: Late,
    rows: StepRows,
    out: StepOut,
    guess: Guess,
}

impl DFlashDrafter {
    pub(crate) fn new(settings: DFlashSettings) -> Self {
        Self {
            settings,
            context: Late::default(),
            rows: StepRows::default(),
            out: StepOut::default(),
            guess: Guess::default(),
        }
    }

    /// Makes the context of the tokens before `end`, in steps of no more rows than the device takes.
    fn catch_up(&mut self, device: &mut Runner, request: View<'_>, end: usize) -> Result<()> {
        loop {
            let first = self.context.end(request.slot);
            let rows = end.saturating_sub(first).min(device.chunk());
            if rows == 0 {
                return Ok(());
            }
            self.rows.clear();
            self.add(request.slot, first, &request.tokens[first..first + rows]);
            device.dflash_step(DFlashStep::Context, &self.rows, &mut self.out)?;
            self.context.reach(request.slot, first + rows);
        }
    }

    fn add(&mut self, slot: u32, first: usize, tokens: &[u32]) {
        let (pos, rows) = (first as u32, tokens.len() as u32);
        self.rows.seqs.push(SeqRows { slot, pos, rows, replay: 0, commit: true });
        self.rows.tokens.extend_from_slice(tokens);
    }

    /// The missing context of the first asks, as many as one step has room for; returns how many.
    fn contexts(&mut self, device: &mut Runner, asks: &[Ask<'_>]) -> Result<usize> {
        self.rows.clear();
        let mut taken = 0;
        for ask in asks {
            let request = ask.request;
            let (first, end) = (self.context.end(request.slot), request.run);
            if self.rows.tokens.len() + end.saturating_sub(first) > device.chunk() {
                break;
            }
            taken += 1;
            if first < end {
                self.add(request.slot, first, &request.tokens[first..end]);
            }
        }
        if taken == 0 {
            // More than a step has room for.
            let request = asks[0].request;
            self.catch_up(device, request, request.run)?;
            return Ok(1);
        }
        device.dflash_step(DFlashStep::Context, &self.rows, &mut self.out)?;
        for ask in &asks[..taken] {
            self.context.reach(ask.request.slot, ask.request.run);
        }
        Ok(taken)
    }

    /// Blocks of the first asks, as many as one step has room for; returns how many.
    fn blocks(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<usize> {
        let taken = self.add_blocks(device, asks);
        device.dflash_step(DFlashStep::Block, &self.rows, &mut self.out)?;
        self.take(device, asks, taken, 0);
        for pass in 1..self.settings.passes {
            let open = asks[..taken].iter().filter(|ask| ask.drafts.len() > pass).count();
            if open == 0 {
                break;
            }
            self.fill_in(asks, taken, pass);
            device.dflash_step(DFlashStep::Block, &self.rows, &mut self.out)?;
            self.take(device, asks, taken, pass);
        }
        Ok(taken)
    }

    /// A step of blocks: the last known token and masks, as many rows as the drafter was trained on, of which those that are
    /// wanted have output.
    fn add_blocks(&mut self, device: &Runner, asks: &[Ask<'_>]) -> usize {
        self.rows.clear();
        let room = FULL_OUT_ROWS.min(device.chunk());
        let mut taken = 0;
        for ask in asks {
            let request = ask.request;
            let known = request.tokens.len();
            // Rows beyond the context have no place in the caches.
            let places = device.model().caches().context.saturating_sub(known - 1);
            let rows = self.settings.block.max(1 + ask.depth).min(room).min(places.max(1 + ask.depth));
            if taken > 0 && self.rows.tokens.len() + rows > room {
                break;
            }
            let first_row = self.rows.tokens.len();
            let (pos, replay) = (known as u32 - 1, 0);
            self.rows.seqs.push(SeqRows { slot: request.slot, pos, rows: rows as u32, replay, commit: true });
            self.rows.tokens.push(request.tokens[known - 1]);
            self.rows.tokens.resize(first_row + rows, self.settings.mask);
            for i in 1..rows.min(1 + ask.depth) {
                let (row, pick) = ((first_row + i) as u32, guess::pick(request.sampling, known + i - 1));
                self.rows.out.push(OutRow { row, pick, logits: !request.sampling.is_plain() });
            }
            taken += 1;
        }
        taken
    }

    /// Puts the first `pass` guesses of every block into its rows: what follows is then guessed knowing them.
    fn fill_in(&mut self, asks: &[Ask<'_>], taken: usize, pass: usize) {
        let mut first_row = 0;
        for (ask, seq) in asks[..taken].iter().zip(&self.rows.seqs) {
            for (i, token) in ask.drafts.iter().take(pass).enumerate() {
                self.rows.tokens[first_row + 1 + i] = *token;
            }
            first_row += seq.rows as usize;
        }
    }

    /// Takes the guesses of a step, all but the first `kept` of every ask, which an earlier pass made.
    fn take(&mut self, device: &Runner, asks: &mut [Ask<'_>], taken: usize, kept: usize) {
        let out = std::mem::take(&mut self.out);
        let mut picked = out.picked.iter();
        let wanted = self.rows.out.iter().filter(|o| o.logits).count();
        let mut logits = out.logits.chunks_exact((out.logits.len() / wanted.max(1)).max(1));
        for (ask, seq) in asks[..taken].iter_mut().zip(&self.rows.seqs) {
            let mut open = ask.drafts.len() >= kept;
            ask.drafts.truncate(kept);
            for (i, picked) in picked.by_ref().take(ask.depth.min(seq.rows as usize - 1)).enumerate() {
                let row = if ask.request.sampling.is_plain() { None } else { logits.next() };
                // Rows of a chain that has ended are passed over.
                if open && i >= kept {
                    let token = self.guess.token(device, ask, picked, row, None);
                    open = token.is_some();
                    ask.drafts.extend(token);
                }
            }
        }
        self.out = out;
    }
}

impl Drafter for DFlashDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Dflash
    }

    fn begin(&mut self, request: View<'_>, kept: usize) {
        self.context.begin(request.slot, kept);
    }

    fn before_step(&mut self, device: &mut Runner, request: View<'_>, rows: usize) -> Result<()> {
        let made = self.context.end(request.slot);
        if request.run + rows > made + device.model().features_capacity() {
            self.catch_up(device, request, request.run)?;
        }
        Ok(())
    }

    fn before_snapshot(&mut self, device: &mut Runner, request: View<'_>) -> Result<()> {
        self.catch_up(device, request, request.run)
    }

    fn context(&self, slot: u32) -> u64 {
        self.context.rows(slot)
    }

    fn draft(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        let mut made = 0;
        while made < asks.len() {
            made += self.contexts(device, &asks[made..])?;
        }
        let mut rest = asks;
        while !rest.is_empty() {
            let drafted = self.blocks(device, rest)?;
            rest = rest.split_at_mut(drafted).1;
        }
        Ok(())
    }
}
