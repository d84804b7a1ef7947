//! The drafting half of a round: who drafts how much for which request.

use std::time::Instant;

use crate::active::Active;
use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::custom::Custom;
use crate::speculation::dflash::{DFlashDrafter, DFlashSettings};
use crate::speculation::mtp::MtpDrafter;
use crate::speculation::text::{LookupDrafter, PredictionDrafter};
use crate::speculation::{Ask, Drafter, DrafterKind, SpecStats, StepCosts, View};

/// The drafters of an engine, and what it has learnt about them.
#[derive(Default)]
pub(crate) struct Speculator {
    mtp: Option<MtpDrafter>,
    dflash: Option<DFlashDrafter>,
    lookup: LookupDrafter,
    prediction: PredictionDrafter,
    /// Drafters of the caller, at most one of a kind.
    custom: Vec<Custom>,
    /// Of this engine's steps and drafts.
    pub(crate) costs: StepCosts,
    /// Of every request that ended.
    pub(crate) totals: SpecStats,
}

impl Speculator {
    /// `dflash` are the settings of a DFlash drafter, where one is loaded.
    pub(crate) fn new(mtp: bool, dflash: Option<DFlashSettings>) -> Self {
        Self { mtp: mtp.then(MtpDrafter::default), dflash: dflash.map(DFlashDrafter::new), ..Self::default() }
    }

    pub(crate) fn set_custom(&mut self, drafter: Box<dyn Drafter>) {
        let custom = Custom::new(drafter);
        self.custom.retain(|c| c.kind() != custom.kind());
        self.custom.push(custom);
    }

    /// The drafter of a kind, where this engine has it.
    pub(crate) fn get(&mut self, kind: DrafterKind) -> Option<&mut dyn Drafter> {
        if let Some(custom) = self.custom.iter_mut().find(|c| c.kind() == kind) {
            return Some(custom);
        }
        match kind {
            DrafterKind::Mtp => self.mtp.as_mut().map(|d| d as &mut dyn Drafter),
            DrafterKind::Dflash => self.dflash.as_mut().map(|d| d as &mut dyn Drafter),
            DrafterKind::Lookup => Some(&mut self.lookup),
            DrafterKind::Prediction => Some(&mut self.prediction),
            _ => None,
        }
    }

    /// A request begins in a slot.
    pub(crate) fn begin(&mut self, request: View<'_>, kept: usize, prediction: Option<Vec<u32>>) {
        self.prediction.predict(request.slot, prediction.unwrap_or_default());
        for kind in DrafterKind::ALL {
            if let Some(drafter) = self.get(kind) {
                drafter.begin(request, kept);
            }
        }
    }

    pub(crate) fn before_step(&mut self, runner: &mut Runner, request: View<'_>, rows: usize) -> Result<()> {
        each(self, |d| d.before_step(runner, request, rows))
    }

    pub(crate) fn before_snapshot(&mut self, runner: &mut Runner, request: View<'_>) -> Result<()> {
        each(self, |d| d.before_snapshot(runner, request))
    }

    /// Fills the drafts of every request that decodes and may speculate.
    pub(crate) fn draft(&mut self, runner: &mut Runner, requests: &mut [&mut Active]) {
        requests.iter_mut().for_each(|r| r.arrange_drafters(&self.costs));
        let most = requests.iter().map(|r| r.drafters().len()).max().unwrap_or(0);
        for rank in 0..most {
            for kind in DrafterKind::ALL {
                self.draft_with(kind, rank, runner, requests);
            }
        }
    }

    /// Asks one drafter for the requests that have it at a rank of their list and have no drafts yet.
    fn draft_with(
        &mut self,
        kind: DrafterKind,
        rank: usize,
        runner: &mut Runner,
        requests: &mut [&mut Active],
    ) {
        let costs = &self.costs;
        let mut asking: Vec<&mut Active> = requests
            .iter_mut()
            .filter_map(|r| r.prepare_ask(kind, rank, costs).then_some(&mut **r))
            .collect();
        if asking.is_empty() {
            return;
        }
        let started = Instant::now();
        let mut drafts: Vec<Vec<u32>> = asking.iter_mut().map(|r| r.take_draft_buffer()).collect();
        let mut asks: Vec<Ask<'_>> =
            asking.iter().zip(&mut drafts).map(|(r, drafts)| r.ask(drafts)).collect();
        let result = match self.get(kind) {
            Some(drafter) => drafter.draft(runner, &mut asks),
            None => Ok(()),
        };
        drop(asks);
        let time = started.elapsed();
        let deepest = drafts.iter().map(Vec::len).max().unwrap_or(0);
        if asking.len() == 1 {
            self.costs.record_draft(kind, deepest, time.as_secs_f64());
        }
        let share = time / asking.len() as u32;
        for (request, drafts) in asking.into_iter().zip(drafts) {
            let context = self.get(kind).map_or(0, |drafter| drafter.context(request.slot));
            request.note_context(kind, context);
            match &result {
                Ok(()) => request.take_drafts(kind, drafts, share),
                // The request goes on as plain decoding would, which every round leaves it ready for.
                Err(_) => request.leave_out(kind),
            }
        }
    }
}

/// Calls every drafter.
fn each(s: &mut Speculator, mut f: impl FnMut(&mut dyn Drafter) -> Result<()>) -> Result<()> {
    for kind in DrafterKind::ALL {
        if let Some(drafter) = s.get(kind) {
            f(drafter)?;
        }
    }
    Ok(())
}

/// Token ids that a draft head of `count` rows chooses from, ascending. In a byte-pair vocabulary ids follow the order in
/// which merges were learnt, so lower ids are more frequent; tokens that end a text come often and have high ids.
pub(crate) fn frequent_ids(count: usize, vocabulary: usize, ends: impl Fn(u32) -> bool) -> Vec<u32> {
    let special: Vec<u32> = (0..vocabulary as u32).filter(|id| ends(*id)).collect();
    let plain = count.saturating_sub(special.len());
    let mut ids: Vec<u32> =
        (0..vocabulary as u32).filter(|id| !ends(*id)).take(plain).chain(special).collect();
    ids.sort_unstable();
    ids.truncate(count);
    ids
}
