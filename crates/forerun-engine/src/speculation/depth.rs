//! How many tokens to draft: as many as pay, on this machine, in this text, now.
//!
//! A round of k drafts gives 1 + a₁ + a₁a₂ + … + a₁…aₖ tokens, where aᵢ is the chance that the i-th draft is accepted after
//! those before it were. It takes the time of drafting k tokens and of a step of k + 1 rows. The depth that gives the most
//! tokens a second is chosen, and 0 is one of the depths.
//!
//! Estimates can be wrong, so they do not have the last word. Each request keeps a **credit** in units of plain steps: it
//! starts with a small loan, every token adds a little more, a round adds or takes what it gained or lost against plain
//! decoding, and no round may be able to lose more than the credit. Trying out depths and drafting again after a stretch
//! where it did not pay are paid from it too, which bounds everything that drafting in vain can cost.

use super::costs::StepCosts;
use super::stats::{DrafterKind, MAX_DRAFT};

mod acceptance;
#[cfg(test)]
mod simulation;

use acceptance::Acceptance;

/// Plain steps that a request may lose before it has gained anything.
const LOAN: f64 = 2.25;
/// Further plain steps that it may lose for each token: with the loans, under 3 % from 200 tokens on.
const ALLOWANCE: f64 = 0.015;
/// The most credit that is kept, so that a good stretch does not pay for a long bad one.
const MOST_CREDIT: f64 = 24.0;
/// A depth other than 0 is taken up only if it is this much faster: estimates are noisy, and every number of rows has its
/// own plan. Plain decoding is taken up as soon as it is no slower.
const HYSTERESIS: f64 = 1.02;
/// Untried depths are tried if they could be this much faster.
const WORTH_TRYING: f64 = 1.1;
/// Depths that are tried out; what lies between is interpolated.
const LADDER: [usize; 4] = [1, 3, 7, MAX_DRAFT];
/// Rounds between trials that hope for better acceptance at positions not yet seen.
const TRIAL_INTERVAL: u32 = 8;
/// Steps beyond the credit that a trial of unknown cost may take: the cautious estimate usually proves too high.
const TRIAL_LOAN: f64 = 0.5;
/// Rounds between probes while drafting does not pay; doubles with every probe that fails, until probes that fail cost no
/// more than `PROBE_SHARE` of the time.
const FIRST_INTERVAL: u32 = 16;
const LAST_INTERVAL: u32 = 256;
const PROBE_SHARE: f64 = 0.005;
/// Rounds from which the acceptance of a drafter is its own more than a guess.
const EVIDENCE: u32 = 4;
/// Rounds between probes after one that succeeded.
const QUICK_INTERVAL: u32 = 2;
/// The deepest probe, and what a probe of more than one token may cost in plain steps.
const PROBE_DEPTH: usize = 4;
const PROBE_COST: f64 = 0.35;
/// Assumed cost of drafting a token in plain steps before any draft was measured; a draft block is one of many layers.
const UNKNOWN_DRAFT: f64 = 0.25;

/// Depth control of one request and drafter.
///
/// Call [`choose`](Self::choose) before a round and [`record`](Self::record) after it. On text that cannot be guessed the
/// loss against plain decoding stays below 3 plain steps and 1.5 % of the tokens, as far as the measured costs are right.
#[derive(Debug, Clone)]
pub struct AutoDepth {
    acceptance: Acceptance,
    /// The depth of the last round that was neither a probe nor held back by the credit or the caller.
    depth: usize,
    credit: f64,
    /// Cost of a round by depth in plain steps, when it was last chosen.
    relative: [f64; MAX_DRAFT + 1],
    probing: bool,
    since_trial: u32,
    since_probe: u32,
    interval: u32,
}

impl Default for AutoDepth {
    fn default() -> Self {
        Self::new()
    }
}

impl AutoDepth {
    /// Control of a request of which nothing is known.
    pub fn new() -> Self {
        Self::among(1)
    }

    /// Control of one of several drafters of a request, which share what it may lose.
    pub(super) fn among(drafters: usize) -> Self {
        Self {
            acceptance: Acceptance::new(),
            depth: 0,
            credit: LOAN / drafters.max(1) as f64,
            relative: std::array::from_fn(|k| if k == 0 { 1.0 } else { f64::INFINITY }),
            probing: false,
            since_trial: 0,
            since_probe: 0,
            interval: FIRST_INTERVAL,
        }
    }

    /// The number of tokens that `drafter` should draft in the next round, at most `most` and at most 15.
    ///
    /// 0 until steps of one row have been measured a few times: there is nothing to compare with.
    pub fn choose(&mut self, costs: &StepCosts, drafter: DrafterKind, most: usize) -> usize {
        self.probing = false;
        let Some(plain) = costs.plain().filter(|&seconds| seconds > 0.0) else { return 0 };
        self.compare(costs, drafter, plain);
        let most = most.min(MAX_DRAFT);
        let tokens = self.acceptance.tokens();
        let speed = |k: usize| tokens[k] / self.relative[k];
        let fastest = (0..=most).fold(0, |best, k| if speed(k) > speed(best) { k } else { best });
        let settled = self.depth.min(most);
        let better = fastest == 0 || speed(fastest) > speed(settled) * HYSTERESIS;
        let wanted = if better { fastest } else { settled };
        if let Some(k) = self.untried(costs, drafter, plain, speed(wanted), most) {
            self.since_trial = 0;
            return k;
        }
        if most >= self.depth {
            self.depth = wanted;
        }
        if wanted == 0 { self.probe(most) } else { self.affordable(wanted) }
    }

    /// Expected tokens per plain step when this drafter is asked: at `fixed` drafts, or as many as are best.
    pub(super) fn forecast(&mut self, costs: &StepCosts, drafter: DrafterKind, fixed: Option<usize>) -> f64 {
        let Some(plain) = costs.plain().filter(|&seconds| seconds > 0.0) else { return 1.0 };
        self.compare(costs, drafter, plain);
        let tokens = self.acceptance.tokens();
        let speed = |k: usize| tokens[k] / self.relative[k];
        match fixed {
            Some(k) => speed(k.min(MAX_DRAFT)),
            None => (0..=MAX_DRAFT).map(speed).fold(0.0, f64::max),
        }
    }

    /// Whether drafts of this drafter have been judged a few times.
    pub(super) fn has_evidence(&self) -> bool {
        self.acceptance.trials() >= EVIDENCE
    }

    /// Takes in a round in which `accepted` of `drafted` tokens were accepted. `drafted` counts the tokens that were
    /// judged: a round cut short by the end of the text judged only those up to it.
    pub fn record(&mut self, drafted: usize, accepted: usize) {
        let drafted = drafted.min(MAX_DRAFT);
        let accepted = accepted.min(drafted);
        self.since_probe = self.since_probe.saturating_add(1);
        self.since_trial = self.since_trial.saturating_add(1);
        let tokens = (accepted + 1) as f64;
        self.credit += tokens * ALLOWANCE;
        if drafted > 0 {
            self.acceptance.record(drafted, accepted);
            if self.relative[drafted].is_finite() {
                self.credit += tokens - self.relative[drafted];
            }
        }
        self.credit = self.credit.min(MOST_CREDIT);
        if self.probing && drafted > 0 {
            self.since_probe = 0;
            self.interval = if accepted > 0 { QUICK_INTERVAL } else { self.longer_interval(drafted) };
        } else if accepted > 0 {
            self.interval = FIRST_INTERVAL;
        }
        self.probing = false;
    }

    /// Chance that the draft at `position` (from 1) is accepted after those before it were, as now estimated.
    pub fn acceptance(&self, position: usize) -> f64 {
        self.acceptance.at(position)
    }

    /// Brings the costs of a round up to date.
    fn compare(&mut self, costs: &StepCosts, drafter: DrafterKind, plain: f64) {
        for k in 1..=MAX_DRAFT {
            let draft = costs.draft(drafter, k).unwrap_or(UNKNOWN_DRAFT * k as f64 * plain);
            self.relative[k] = (costs.step(k + 1).unwrap_or((k + 1) as f64 * plain) + draft) / plain;
        }
    }

    /// A depth of which something is not known well, its cost or the acceptance at its positions, and that may be much
    /// faster than `best`, if the credit allows it.
    fn untried(
        &self,
        costs: &StepCosts,
        drafter: DrafterKind,
        plain: f64,
        best: f64,
        most: usize,
    ) -> Option<usize> {
        let hoping = self.since_trial >= TRIAL_INTERVAL;
        let tokens = if hoping { self.acceptance.hoped_tokens() } else { self.acceptance.tokens() };
        LADDER.into_iter().filter(|&k| k <= most).find(|&k| {
            let priced = costs.trusts(k + 1, drafter);
            let step = costs.step_at_least(k + 1).unwrap_or(plain);
            let cost = (step + costs.draft(drafter, k).unwrap_or(0.0)) / plain;
            (!priced || hoping && !self.acceptance.has_seen(k))
                && tokens[k] / cost > best * WORTH_TRYING
                && self.relative[k] - 1.0 <= self.credit + if priced { 0.0 } else { TRIAL_LOAN }
        })
    }

    /// A probe if one is due, can be afforded and could lead to anything; otherwise 0.
    fn probe(&mut self, most: usize) -> usize {
        let hopeless = (1..=MAX_DRAFT).all(|k| (k + 1) as f64 <= self.relative[k] * HYSTERESIS);
        if hopeless || self.since_probe < self.interval {
            return 0;
        }
        let cheap = (2..=PROBE_DEPTH.min(most)).rev().find(|&k| self.relative[k] - 1.0 <= PROBE_COST);
        let depth = self.affordable(cheap.unwrap_or(most.min(1)));
        self.probing = depth > 0;
        depth
    }

    /// The interval after a probe of `drafted` tokens that failed.
    fn longer_interval(&self, drafted: usize) -> u32 {
        let share = (self.relative[drafted] - 1.0) / PROBE_SHARE;
        let longest = share.clamp(f64::from(FIRST_INTERVAL), f64::from(LAST_INTERVAL)) as u32;
        (self.interval * 2).clamp(FIRST_INTERVAL, longest)
    }

    /// The deepest depth up to `wanted` that loses no more than the credit if nothing is accepted.
    fn affordable(&self, wanted: usize) -> usize {
        (1..=wanted).rev().find(|&k| self.relative[k] - 1.0 <= self.credit).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(step: impl Fn(usize) -> f64, draft: f64) -> StepCosts {
        let mut costs = StepCosts::new();
        for _ in 0..3 {
            (1..=16).for_each(|rows| costs.record_step(rows, step(rows)));
            (1..=15).for_each(|k| costs.record_draft(DrafterKind::Mtp, k, draft * k as f64));
        }
        costs
    }

    #[test]
    fn chooses_nothing_before_a_plain_step_is_measured() {
        let mut auto = AutoDepth::new();
        assert_eq!(auto.choose(&StepCosts::new(), DrafterKind::Mtp, 15), 0);
        let mut costs = StepCosts::new();
        costs.record_step(4, 1.0);
        (0..2).for_each(|_| costs.record_step(1, 1.0));
        assert_eq!(auto.choose(&costs, DrafterKind::Mtp, 15), 0, "two may both be disturbed");
        costs.record_step(1, 1.0);
        assert!(auto.choose(&costs, DrafterKind::Mtp, 15) > 0);
    }

    #[test]
    fn keeps_to_what_the_caller_allows() {
        let costs = measured(|rows| 1.0 + 0.02 * rows as f64, 0.0);
        let mut auto = AutoDepth::new();
        for most in [0, 1, 5, 15, 40, usize::MAX, 2, 0] {
            let depth = auto.choose(&costs, DrafterKind::Mtp, most);
            assert!(depth <= most.min(15), "{depth} of {most}");
            auto.record(depth, depth);
        }
        auto.record(usize::MAX, usize::MAX);
        auto.record(0, 3);
    }

    #[test]
    fn never_drafts_where_it_cannot_pay() {
        let costs = measured(|rows| rows as f64, 0.05);
        let mut auto = AutoDepth::new();
        for _ in 0..2000 {
            assert_eq!(auto.choose(&costs, DrafterKind::Mtp, 15), 0);
            auto.record(0, 0);
        }
    }

    #[test]
    fn probes_grow_rare_and_come_back() {
        let costs = measured(|rows| 1.0 + 0.02 * rows as f64, 0.05);
        let mut auto = AutoDepth::new();
        let round = |auto: &mut AutoDepth, guessable: bool| {
            let depth = auto.choose(&costs, DrafterKind::Mtp, 15);
            auto.record(depth, if guessable { depth } else { 0 });
            depth
        };
        (0..1000).for_each(|_| {
            round(&mut auto, false);
        });
        // A round of k drafts costs 0.07 k steps more than a plain one.
        let lost: f64 = (0..1024).map(|_| 0.07 * round(&mut auto, false) as f64).sum();
        assert!((2.0..8.0).contains(&lost), "{lost} steps lost in 1,024 rounds");
        let waited = (0..1000).take_while(|_| round(&mut auto, true) == 0).count();
        assert!(waited <= 64, "noticed after {waited} rounds");
        (0..30).for_each(|_| {
            round(&mut auto, true);
        });
        assert!((0..20).all(|_| round(&mut auto, true) >= 8), "back to drafting deep");
    }

    #[test]
    fn holds_its_depth_between_near_equals() {
        let costs = measured(|rows| 1.0 + 0.2 * rows as f64, 0.05);
        let mut auto = AutoDepth::new();
        let mut changes = 0;
        let mut last = 0;
        for round in 0..600 {
            let depth = auto.choose(&costs, DrafterKind::Mtp, 15);
            // Accepts in a fixed pattern of about three in four.
            auto.record(depth, depth.min([3, 1, 5, 2, 0, 4, 2, 9][round % 8]));
            changes += usize::from(round >= 100 && depth != last);
            last = depth;
        }
        assert!(changes <= 25, "{changes} changes of depth in 500 rounds");
    }
}
