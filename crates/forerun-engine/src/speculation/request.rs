//! The drafting side of one request: what it wants, what the coming round carries, what became of it.

use std::time::Duration;

use crate::speculation::choice::Order;
use crate::speculation::{AutoDepth, Choice, Depth, DrafterKind, SpecStats, Speculation, StepCosts};

/// Drafts and depths of a request.
#[derive(Debug)]
pub(crate) struct Drafting {
    options: Speculation,
    order: Order,
    depths: [AutoDepth; DrafterKind::ALL.len()],
    left_out: [bool; DrafterKind::ALL.len()],
    /// Drafters that the coming round asked, in order.
    asked: Vec<DrafterKind>,
    /// What the round asked for last.
    depth: usize,
    /// Drafts of the coming round, and who wrote them.
    drafts: Vec<u32>,
    drafter: Option<DrafterKind>,
    buffer: Vec<u32>,
    draft_time: Duration,
    pub(crate) stats: SpecStats,
}

impl Drafting {
    pub(crate) fn new(options: Speculation) -> Self {
        let shares = if options.choice == Choice::Best { options.drafters.len() } else { 1 };
        Self {
            order: Order::new(&options),
            options,
            depths: std::array::from_fn(|_| AutoDepth::among(shares)),
            left_out: [false; DrafterKind::ALL.len()],
            asked: Vec::new(),
            depth: 0,
            drafts: Vec::new(),
            drafter: None,
            buffer: Vec::new(),
            draft_time: Duration::ZERO,
            stats: SpecStats::default(),
        }
    }

    /// Drafters in the order in which they are asked; none for plain decoding.
    pub(crate) fn drafters(&self) -> &[DrafterKind] {
        if self.options.depth == Depth::Fixed(0) { &[] } else { self.order.drafters() }
    }

    /// Decides in which order the drafters are asked in the coming round.
    pub(crate) fn arrange(&mut self, costs: &StepCosts) {
        self.order.arrange(&mut self.depths, costs, self.options.depth);
    }

    pub(crate) fn confidence(&self) -> f32 {
        self.options.confidence
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Drafts of the coming round.
    pub(crate) fn drafts(&self) -> &[u32] {
        &self.drafts
    }

    /// Who wrote them.
    pub(crate) fn drafter(&self) -> Option<DrafterKind> {
        self.drafter
    }

    /// Decides how many drafts, up to `most`, a drafter is to be asked for; whether any.
    pub(crate) fn prepare(&mut self, kind: DrafterKind, costs: &StepCosts, most: usize) -> bool {
        let passed_over = self.left_out[kind.index()] || self.order.is_passed_over(kind);
        if passed_over || !self.drafts.is_empty() || most == 0 {
            return false;
        }
        self.depth = match self.options.depth {
            Depth::Fixed(depth) => {
                self.asked.push(kind);
                depth.min(most)
            }
            Depth::Auto => {
                self.asked.push(kind);
                self.depths[kind.index()].choose(costs, kind, most)
            }
        };
        self.depth > 0
    }

    pub(crate) fn take_buffer(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.buffer)
    }

    /// Takes what a drafter wrote. Ids that no vocabulary has end it.
    pub(crate) fn take(
        &mut self,
        kind: DrafterKind,
        mut drafts: Vec<u32>,
        vocabulary: usize,
        time: Duration,
    ) {
        self.draft_time += time;
        drafts.truncate(self.depth);
        if let Some(unknown) = drafts.iter().position(|t| *t as usize >= vocabulary) {
            drafts.truncate(unknown);
        }
        self.drafter = (!drafts.is_empty()).then_some(kind);
        self.buffer = std::mem::replace(&mut self.drafts, drafts);
        self.buffer.clear();
    }

    /// Keeps the first `most` drafts: a shared step has no room for more.
    pub(crate) fn truncate(&mut self, most: usize) {
        self.drafts.truncate(most);
    }

    pub(crate) fn leave_out(&mut self, kind: DrafterKind) {
        self.left_out[kind.index()] = true;
    }

    /// Takes the drafts of a round that is being judged.
    pub(crate) fn start_verdict(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.drafts)
    }

    /// Notes what became of the round's drafts: of the `judged` first ones `accepted` were accepted, and the request got
    /// `tokens` tokens.
    pub(crate) fn finish(
        &mut self,
        drafts: Vec<u32>,
        judged: usize,
        accepted: usize,
        tokens: usize,
        times: [Duration; 2],
    ) {
        let runs = self.drafter.map(|kind| (kind, drafts.len()));
        self.stats.record(runs.as_slice(), accepted, tokens);
        self.stats.record_times(self.draft_time, times[0], times[1]);
        for kind in self.asked.drain(..) {
            let own = self.drafter == Some(kind);
            self.depths[kind.index()].record(if own { judged } else { 0 }, if own { accepted } else { 0 });
        }
        self.draft_time = Duration::ZERO;
        self.drafter = None;
        self.buffer = drafts;
        self.buffer.clear();
    }
}
