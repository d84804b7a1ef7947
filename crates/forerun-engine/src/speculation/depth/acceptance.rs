//! How likely drafts are to be accepted, by position, as recent rounds have it.

use crate::speculation::stats::MAX_DRAFT;

/// Share of older evidence that stays with each new trial.
const SLOW: f64 = 0.98;
const FAST: f64 = 0.9;
/// What is expected before there is evidence, and how many trials that expectation is worth.
const PRIOR: f64 = 0.7;
const PRIOR_TRIALS: f64 = 2.0;
/// Drafts at a position after which it has been seen, and what is hoped of one that has not.
const SEEN: u32 = 6;
const HOPE: f64 = 0.95;
/// Standard deviations between fast and slow evidence that mean the text has changed.
const SURPRISE: f64 = 3.0;
/// Trials that the fast evidence is worth: a sum with weights qⁱ has the variance of (1 + q) / (1 − q) trials.
const FAST_TRIALS: f64 = (1.0 + FAST) / (1.0 - FAST);

/// Chances by position, each given that the positions before it were accepted.
///
/// Deep positions are seldom reached, so a position leans on the one before it and on all positions together until it has
/// evidence of its own. A steady text deserves a long memory and a changing one a short one: when the two differ by more
/// than chance explains, the long memory is dropped.
#[derive(Debug, Clone)]
pub(super) struct Acceptance {
    slow: [Rate; MAX_DRAFT],
    fast: [Rate; MAX_DRAFT],
    all: Rate,
    /// Rounds that drafted at a position, reached or not.
    drafted: [u32; MAX_DRAFT],
    chances: [f64; MAX_DRAFT],
}

impl Acceptance {
    pub(super) fn new() -> Self {
        Self {
            slow: Default::default(),
            fast: Default::default(),
            all: Rate::default(),
            drafted: [0; MAX_DRAFT],
            chances: [PRIOR; MAX_DRAFT],
        }
    }

    /// The chance at `position`, from 1; positions beyond the deepest are as the deepest.
    pub(super) fn at(&self, position: usize) -> f64 {
        self.chances[position.clamp(1, MAX_DRAFT) - 1]
    }

    /// Whether drafts at `position`, from 1, have been tried a few times.
    pub(super) fn has_seen(&self, position: usize) -> bool {
        self.drafted[position.clamp(1, MAX_DRAFT) - 1] >= SEEN
    }

    /// Rounds that drafted anything.
    pub(super) fn trials(&self) -> u32 {
        self.drafted[0]
    }

    /// Expected tokens of a round by depth.
    pub(super) fn tokens(&self) -> [f64; MAX_DRAFT + 1] {
        tokens(|position| self.at(position))
    }

    /// The same, if positions that have not been seen were good ones.
    pub(super) fn hoped_tokens(&self) -> [f64; MAX_DRAFT + 1] {
        tokens(
            |position| {
                if self.has_seen(position) { self.at(position) } else { self.at(position).max(HOPE) }
            },
        )
    }

    /// Takes in a round; `accepted` ≤ `drafted` ≤ 15.
    pub(super) fn record(&mut self, drafted: usize, accepted: usize) {
        for position in 0..drafted.min(accepted + 1) {
            let hit = position < accepted;
            self.all.record(hit, SLOW);
            self.slow[position].record(hit, SLOW);
            self.fast[position].record(hit, FAST);
            self.notice_change(position);
        }
        self.drafted[..drafted].iter_mut().for_each(|rounds| *rounds = rounds.saturating_add(1));
        let all = self.all.chance(PRIOR);
        let mut expected = all;
        for (chance, slow) in self.chances.iter_mut().zip(&self.slow) {
            *chance = slow.chance(expected);
            expected = all.max(*chance);
        }
    }

    fn notice_change(&mut self, position: usize) {
        let (slow, fast) = (self.slow[position], self.fast[position]);
        if slow.trials < 2.0 * fast.trials {
            return;
        }
        // Near 0 and 1 the deviation that the estimate itself implies is too small to be believed.
        let chance = slow.chance(PRIOR).clamp(0.1, 0.9);
        let deviation = (chance * (1.0 - chance) / FAST_TRIALS).sqrt();
        if (fast.hits / fast.trials - slow.hits / slow.trials).abs() > SURPRISE * deviation {
            self.slow[position] = fast;
        }
    }
}

fn tokens(chance: impl Fn(usize) -> f64) -> [f64; MAX_DRAFT + 1] {
    let mut reached = 1.0;
    let mut sum = 1.0;
    std::array::from_fn(|k| {
        if k > 0 {
            reached *= chance(k);
            sum += reached;
        }
        sum
    })
}

/// Decayed counts.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    hits: f64,
    trials: f64,
}

impl Rate {
    fn record(&mut self, hit: bool, kept: f64) {
        self.hits = self.hits * kept + f64::from(u8::from(hit));
        self.trials = self.trials * kept + 1.0;
    }

    fn chance(&self, expected: f64) -> f64 {
        (self.hits + expected * PRIOR_TRIALS) / (self.trials + PRIOR_TRIALS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learns_by_position() {
        let mut acceptance = Acceptance::new();
        // Two thirds at the first position, half at the second, all at the third.
        (0..100).for_each(|_| [0, 1, 3].into_iter().for_each(|accepted| acceptance.record(3, accepted)));
        for (position, chance) in [(1, 0.667), (2, 0.5), (3, 1.0)] {
            let found = acceptance.at(position);
            assert!((found - chance).abs() < 0.06, "position {position}: {found}");
        }
        let tokens = acceptance.tokens();
        assert_eq!(tokens[0], 1.0);
        assert!((tokens[3] - (1.0 + 0.667 + 0.333 + 0.333)).abs() < 0.12, "{tokens:?}");
        assert!(acceptance.at(4) > 0.7, "untried positions lean on what is known");
    }

    #[test]
    fn forgets_at_once_what_no_longer_holds() {
        let mut acceptance = Acceptance::new();
        (0..200).for_each(|_| acceptance.record(4, 4));
        assert!(acceptance.at(1) > 0.97);
        (0..12).for_each(|_| acceptance.record(4, 0));
        assert!(acceptance.at(1) < 0.45, "{}", acceptance.at(1));
        (0..12).for_each(|_| acceptance.record(4, 4));
        assert!(acceptance.at(1) > 0.65, "{}", acceptance.at(1));
    }
}
