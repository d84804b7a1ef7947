//! A drafter that knows the text already: for tests, and to measure what a step costs at a given acceptance.

use std::collections::HashMap;

use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::{Ask, Drafter, DrafterKind, View};

/// How many drafts the next rounds of a slot get and how many of them are right, `(drafts, right ones)`; repeated in a cycle.
pub type Rounds = Vec<(usize, usize)>;

/// Drafts from given text and spoils chosen tokens: the drafts after the right ones are wrong on purpose.
#[derive(Debug, Default)]
pub struct Scripted {
    slots: HashMap<u32, Script>,
}

#[derive(Debug)]
struct Script {
    text: Vec<u32>,
    rounds: Rounds,
    next: usize,
    vocabulary: u32,
}

impl Scripted {
    /// `text` is every token of the coming request of `slot`, prompt included, as plain decoding gives it.
    pub fn script(&mut self, slot: u32, text: Vec<u32>, rounds: Rounds, vocabulary: u32) {
        self.slots.insert(slot, Script { text, rounds, next: 0, vocabulary });
    }
}

impl Drafter for Scripted {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Scripted
    }

    fn begin(&mut self, request: View<'_>, _: usize) {
        if let Some(script) = self.slots.get_mut(&request.slot) {
            script.next = 0;
        }
    }

    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let Some(script) = self.slots.get_mut(&ask.request.slot) else { continue };
            let Some(&(drafts, right)) = script.rounds.get(script.next % script.rounds.len().max(1)) else {
                continue;
            };
            script.next += 1;
            let known = script.text.iter().skip(ask.request.tokens.len());
            let spoilt = |(i, token): (usize, &u32)| {
                if i < right { *token } else { (*token + 1 + i as u32 % 3) % script.vocabulary.max(1) }
            };
            ask.drafts.extend(known.take(drafts.min(ask.depth)).enumerate().map(spoilt));
        }
        Ok(())
    }
}
