//! Which drafter to ask: that which gains most, and now and then another, since texts change.

use super::costs::StepCosts;
use super::depth::AutoDepth;
use super::options::{Choice, Depth, Speculation};
use super::stats::DrafterKind;

/// Rounds until the runner-up is asked instead; doubles every time.
const FIRST_INTERVAL: u32 = 24;
const LAST_INTERVAL: u32 = 384;
/// A runner-up that is expected to reach less than this share of the best is not asked.
const HOPELESS: f64 = 0.6;

/// The order in which the drafters of a request are asked.
#[derive(Debug)]
pub(super) struct Order {
    drafters: Vec<DrafterKind>,
    choice: Choice,
    rounds: u32,
    interval: u32,
}

/// Whether a drafter runs a model: of these one is asked in a round. Text costs nothing to look up.
fn is_model(kind: DrafterKind) -> bool {
    matches!(kind, DrafterKind::Mtp | DrafterKind::Dflash)
}

impl Order {
    pub(super) fn new(options: &Speculation) -> Self {
        let drafters = options.drafters.clone();
        Self { drafters, choice: options.choice, rounds: 0, interval: FIRST_INTERVAL }
    }

    /// Drafters in the order in which they are asked.
    pub(super) fn drafters(&self) -> &[DrafterKind] {
        &self.drafters
    }

    /// Puts them in order for the coming round: first those of which too little is known, then by what they are expected
    /// to gain.
    pub(super) fn arrange(&mut self, depths: &mut [AutoDepth], costs: &StepCosts, depth: Depth) {
        if self.choice == Choice::InOrder || self.drafters.len() < 2 {
            return;
        }
        let fixed = match depth {
            Depth::Fixed(k) => Some(k),
            Depth::Auto => None,
        };
        let mut scored: Vec<(f64, DrafterKind)> = Vec::with_capacity(self.drafters.len());
        for &kind in &self.drafters {
            let control = &mut depths[kind.index()];
            let known = control.has_evidence();
            scored.push((if known { control.forecast(costs, kind, fixed) } else { f64::INFINITY }, kind));
        }
        scored.sort_by(|a, b| b.0.total_cmp(&a.0));
        self.rounds += 1;
        if self.rounds >= self.interval {
            (self.rounds, self.interval) = (0, (2 * self.interval).min(LAST_INTERVAL));
            let models: Vec<usize> = (0..scored.len()).filter(|i| is_model(scored[*i].1)).collect();
            if let [best, second, ..] = models[..]
                && scored[second].0 >= HOPELESS * scored[best].0
            {
                scored.swap(best, second);
            }
        }
        self.drafters.clear();
        self.drafters.extend(scored.into_iter().map(|(_, kind)| kind));
    }

    /// Whether a drafter is to be left alone in this round, since one before it runs a model too.
    pub(super) fn is_passed_over(&self, kind: DrafterKind) -> bool {
        let first = self.drafters.iter().find(|k| is_model(**k));
        self.choice == Choice::Best && is_model(kind) && first != Some(&kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [DrafterKind; 2] = [DrafterKind::Mtp, DrafterKind::Dflash];

    /// Rounds of each drafter out of `rounds`, when all drafts of one are accepted and none of the other's.
    fn asked(good: DrafterKind, rounds: usize) -> [usize; 2] {
        let mut costs = StepCosts::new();
        for _ in 0..3 {
            (1..=16).for_each(|rows| costs.record_step(rows, 1.0 + 0.02 * rows as f64));
            for kind in BOTH {
                (1..=15).for_each(|k| costs.record_draft(kind, k, 0.05));
            }
        }
        let mut depths: Vec<AutoDepth> = DrafterKind::ALL.iter().map(|_| AutoDepth::among(2)).collect();
        let mut order = Order::new(&Speculation::default().best_of(&BOTH));
        let mut asked = [0; 2];
        for _ in 0..rounds {
            order.arrange(&mut depths, &costs, Depth::Auto);
            let kind = order.drafters()[0];
            assert!(order.is_passed_over(order.drafters()[1]));
            let drafted = depths[kind.index()].choose(&costs, kind, 15);
            depths[kind.index()].record(drafted, if kind == good { drafted } else { 0 });
            asked[usize::from(kind == BOTH[1])] += 1;
        }
        asked
    }

    #[test]
    fn the_better_drafter_gets_nearly_every_round() {
        for (i, good) in BOTH.into_iter().enumerate() {
            let rounds = asked(good, 400);
            assert!(rounds[i] > 360 && rounds[1 - i] >= 1, "{rounds:?} with {}", good.name());
        }
    }

    #[test]
    fn a_list_in_order_stays_as_it_is() {
        let options = Speculation::default().with(&[DrafterKind::Lookup, DrafterKind::Mtp]);
        let mut order = Order::new(&options);
        let mut depths: Vec<AutoDepth> = DrafterKind::ALL.iter().map(|_| AutoDepth::new()).collect();
        order.arrange(&mut depths, &StepCosts::new(), Depth::Auto);
        assert_eq!(order.drafters(), [DrafterKind::Lookup, DrafterKind::Mtp]);
        assert!(!order.is_passed_over(DrafterKind::Mtp));
    }
}
