//! Drafters that read text: the request's own, and what its caller predicts.

use std::collections::HashMap;

use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::{Ask, Drafter, DrafterKind, Lookup, Prediction, View};

/// Longest and shortest run of tokens that lookup matches.
const MATCH: (usize, usize) = (16, 3);

/// Looks for the newest tokens earlier in the request's text.
#[derive(Debug, Default)]
pub(crate) struct LookupDrafter {
    slots: HashMap<u32, Lookup>,
}

impl Drafter for LookupDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Lookup
    }

    fn begin(&mut self, request: View<'_>, kept: usize) {
        let lookup = self.slots.entry(request.slot).or_insert_with(|| Lookup::new(MATCH.0, MATCH.1));
        lookup.truncate(kept);
    }

    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let Some(lookup) = self.slots.get_mut(&ask.request.slot) else { continue };
            for token in ask.request.tokens.iter().skip(lookup.len()) {
                lookup.push(*token);
            }
            lookup.draft(ask.depth, ask.drafts);
        }
        Ok(())
    }
}

/// Follows a text that the caller predicts.
#[derive(Debug, Default)]
pub(crate) struct PredictionDrafter {
    slots: HashMap<u32, (Prediction, usize)>,
}

impl PredictionDrafter {
    /// The text that the coming request of `slot` is expected to give.
    pub(crate) fn predict(&mut self, slot: u32, tokens: Vec<u32>) {
        self.slots.insert(slot, (Prediction::new(tokens), 0));
    }
}

impl Drafter for PredictionDrafter {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Prediction
    }

    fn begin(&mut self, request: View<'_>, _: usize) {
        if let Some((prediction, seen)) = self.slots.get_mut(&request.slot) {
            prediction.start();
            *seen = request.tokens.len();
        }
    }

    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        for ask in asks {
            let Some((prediction, seen)) = self.slots.get_mut(&ask.request.slot) else { continue };
            for token in ask.request.tokens.iter().skip(*seen) {
                prediction.push(*token);
            }
            *seen = ask.request.tokens.len();
            prediction.draft(ask.depth, ask.drafts);
        }
        Ok(())
    }
}
