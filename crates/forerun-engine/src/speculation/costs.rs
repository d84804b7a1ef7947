//! What a step and a draft cost on this machine, as measured while requests run.
//!
//! Whether drafting pays depends on the weights, the kernels, the cores and what else runs on them; only a clock knows. A
//! clock is also interrupted: estimates are low quantiles of the newest measurements, since other work only ever adds time,
//! and the first step of a kind (which prepares its plan and touches cold memory) must not decide for good.

use super::stats::{DrafterKind, MAX_DRAFT};

/// Measurements kept of each kind.
const KEPT: usize = 16;
/// Measurements from which an estimate holds by itself.
const TRUSTED: usize = 3;
/// The least that a further row adds, as a share of the widest measured step. Noise can make a wider step look cheaper, but
/// no step computes more rows for nothing.
const LEAST_SLOPE: f64 = 1.0 / 64.0;

/// Seconds of target steps by rows and of drafts by drafter and number of tokens. One for an engine: all requests measure
/// for each other.
#[derive(Debug, Clone, Default)]
pub struct StepCosts {
    /// Index 0 is a step of one row.
    steps: Curve<{ MAX_DRAFT + 1 }>,
    /// Index 0 is a draft of one token.
    drafts: [Curve<MAX_DRAFT>; DrafterKind::ALL.len()],
}

impl StepCosts {
    /// Nothing measured.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the seconds of a target step of 1 to 16 rows. Other numbers of rows are passed over.
    pub fn record_step(&mut self, rows: usize, seconds: f64) {
        self.steps.record(rows, seconds);
    }

    /// Adds the seconds in which `drafter` drafted 1 to 15 tokens. Other numbers are passed over.
    pub fn record_draft(&mut self, drafter: DrafterKind, drafted: usize, seconds: f64) {
        self.drafts[drafter.index()].record(drafted, seconds);
    }

    /// Seconds of a step of `rows` rows; `None` before any step was measured. What has not been measured lies on the line
    /// between its neighbours; beyond the widest measured step, on the steeper of the last piece of that line and the line
    /// through its ends; after a single measured step, in proportion to the rows.
    pub fn step(&self, rows: usize) -> Option<f64> {
        self.steps.at(rows, None)
    }

    /// Seconds in which `drafter` drafts `drafted` tokens: as for steps, but no token takes no time.
    pub fn draft(&self, drafter: DrafterKind, drafted: usize) -> Option<f64> {
        if drafted == 0 {
            return Some(0.0);
        }
        self.drafts[drafter.index()].at(drafted, Some((0.0, 0.0)))
    }

    /// Whether steps of `rows` rows and drafts of the tokens they verify have been measured often enough.
    pub(crate) fn trusts(&self, rows: usize, drafter: DrafterKind) -> bool {
        self.steps.trusts(rows) && self.drafts[drafter.index()].trusts(rows - 1)
    }

    /// Seconds of plain decoding's step of one row, once that has been measured a few times: every comparison rests on it.
    /// No more than a wider step takes, because it is measured seldom while drafting pays.
    pub(crate) fn plain(&self) -> Option<f64> {
        let trusted = (1..=MAX_DRAFT + 1).filter(|&rows| self.steps.trusts(rows));
        if !self.steps.trusts(1) {
            return None;
        }
        trusted.filter_map(|rows| self.step(rows)).reduce(f64::min)
    }

    /// Seconds below which a step of `rows` rows is unlikely to be: the widest trusted step that is not wider.
    pub(crate) fn step_at_least(&self, rows: usize) -> Option<f64> {
        (1..=rows).rev().find(|&r| self.steps.trusts(r)).and_then(|r| self.step(r))
    }
}

/// Estimates at 1..=N from measurements at some of them.
#[derive(Debug, Clone)]
struct Curve<const N: usize> {
    samples: [Samples; N],
}

impl<const N: usize> Default for Curve<N> {
    fn default() -> Self {
        Self { samples: std::array::from_fn(|_| Samples::default()) }
    }
}

impl<const N: usize> Curve<N> {
    fn record(&mut self, x: usize, seconds: f64) {
        if let Some(samples) = x.checked_sub(1).and_then(|i| self.samples.get_mut(i))
            && seconds.is_finite()
            && seconds >= 0.0
        {
            samples.record(seconds);
        }
    }

    fn get(&self, x: usize) -> Option<&Samples> {
        x.checked_sub(1).and_then(|i| self.samples.get(i)).filter(|s| s.count > 0)
    }

    fn trusts(&self, x: usize) -> bool {
        self.get(x).is_some_and(|s| s.count >= TRUSTED)
    }

    /// The estimate at `x`, on a curve that passes through `origin` where there is one.
    fn at(&self, x: usize, origin: Option<(f64, f64)>) -> Option<f64> {
        let own = self.get(x);
        if let Some(samples) = own.filter(|s| s.count >= TRUSTED) {
            return Some(samples.estimate);
        }
        let others = self.line(x, origin, TRUSTED).or_else(|| self.line(x, origin, 1));
        // Few measurements can only make it cheaper: if all of them were disturbed, the place would not be tried again.
        own.map(|s| s.estimate).into_iter().chain(others).reduce(f64::min)
    }

    /// The estimate at `x` from places measured at least `least` times.
    fn line(&self, x: usize, origin: Option<(f64, f64)>, least: usize) -> Option<f64> {
        let mut points = (1..=N)
            .filter_map(|p| self.get(p).filter(|s| s.count >= least).map(|s| (p as f64, s.estimate)))
            .peekable();
        points.peek()?;
        let x = x as f64;
        let mut first = None;
        let mut before: Option<(f64, f64)> = None;
        let mut slope = 0.0;
        for point in origin.into_iter().chain(points) {
            if let Some(last) = before {
                slope = (point.1 - last.1) / (point.0 - last.0);
            }
            if x <= point.0 {
                // Below the narrowest measured step there is nothing to lean on: it costs no more than that.
                return Some(before.map_or(point.1, |last| last.1 + slope * (x - last.0)));
            }
            first = first.or(Some(point));
            before = Some(point);
        }
        let (first, last) = (first?, before?);
        let overall =
            if last.0 > first.0 { (last.1 - first.1) / (last.0 - first.0) } else { last.1 / last.0.max(1.0) };
        Some(last.1 + slope.max(overall).max(last.1 * LEAST_SLOPE) * (x - last.0))
    }
}

/// The newest measurements of one kind.
#[derive(Debug, Clone, Default)]
struct Samples {
    newest: [f64; KEPT],
    /// Measurements so far; the next one goes to this index modulo [`KEPT`].
    count: usize,
    estimate: f64,
}

impl Samples {
    fn record(&mut self, seconds: f64) {
        self.newest[self.count % KEPT] = seconds;
        self.count += 1;
        let mut sorted = self.newest;
        let kept = &mut sorted[..self.count.min(KEPT)];
        kept.sort_by(f64::total_cmp);
        // The smallest of three, the sixth of sixteen.
        self.estimate = kept[(kept.len() - 1) / 3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(measured: &[(usize, f64)], times: usize) -> StepCosts {
        let mut costs = StepCosts::new();
        for &(rows, seconds) in measured {
            (0..times).for_each(|_| costs.record_step(rows, seconds));
        }
        costs
    }

    #[test]
    fn fills_gaps_and_continues_cautiously() {
        type Case<'a> = (&'a [(usize, f64)], &'a [(usize, f64)]);
        let cases: &[Case] = &[
            (&[(1, 2.0)], &[(1, 2.0), (2, 4.0), (16, 32.0)]),
            (&[(1, 1.0), (5, 2.0)], &[(2, 1.25), (3, 1.5), (9, 3.0)]),
            (&[(1, 1.0), (4, 4.0), (8, 4.0)], &[(6, 4.0), (9, 4.0 + 3.0 / 7.0)]),
            (&[(1, 1.0), (2, 0.5)], &[(4, 0.5 + 2.0 * 0.5 / 64.0)]),
            (&[(4, 1.0)], &[(1, 1.0), (8, 2.0)]),
        ];
        for &(measured, expected) in cases {
            let costs = costs(measured, 3);
            for &(rows, seconds) in expected {
                let found = costs.step(rows).expect("measured");
                assert!(
                    (found - seconds).abs() < 1e-12,
                    "{measured:?}: {rows} rows cost {found}, not {seconds}"
                );
            }
        }
        assert_eq!(StepCosts::new().step(1), None);
    }

    #[test]
    fn drafts_start_from_nothing() {
        let mut costs = StepCosts::new();
        assert_eq!(costs.draft(DrafterKind::Mtp, 3), None);
        costs.record_draft(DrafterKind::Mtp, 4, 0.4);
        for (drafted, seconds) in [(0, 0.0), (1, 0.1), (4, 0.4), (8, 0.8)] {
            let found = costs.draft(DrafterKind::Mtp, drafted).expect("measured");
            assert!((found - seconds).abs() < 1e-12, "{drafted} tokens cost {found}");
        }
        assert_eq!(costs.draft(DrafterKind::Lookup, 1), None);
    }

    #[test]
    fn disturbed_measurements_do_not_decide() {
        let mut costs = costs(&[(1, 1.0)], 3);
        costs.record_step(2, 50.0);
        assert_eq!(costs.step(2), Some(2.0), "a first step that was slow is no worse than unknown");
        costs.record_step(2, 1.1);
        costs.record_step(2, 50.0);
        assert_eq!(costs.step(2), Some(1.1));
        (0..200).for_each(|i| costs.record_step(2, if i % 3 == 0 { 50.0 } else { 1.2 }));
        assert_eq!(costs.step(2), Some(1.2), "the newest count");
    }

    #[test]
    fn passes_over_what_is_no_measurement() {
        let mut costs = StepCosts::new();
        for (rows, seconds) in
            [(0, 1.0), (17, 1.0), (usize::MAX, 1.0), (1, f64::NAN), (1, -1.0), (1, f64::INFINITY)]
        {
            costs.record_step(rows, seconds);
            costs.record_draft(DrafterKind::Mtp, rows, seconds);
        }
        assert_eq!(costs.step(1), None);
        assert!((0..=16).skip(1).all(|n| n == 1 || n == 16 || costs.draft(DrafterKind::Mtp, n).is_none()));
    }
}
