//! How far the predictions of two models lie apart: statistics over rows of logits and hidden states.
//!
//! All of it is float64. Equal inputs give a divergence of exactly 0 and a cosine of exactly 1.

/// A row of logits of two models, over the same vocabulary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowComparison {
    /// `Σ p ln(p / q)`, p the first model's probabilities and q the second's, in nats.
    pub divergence: f64,
    /// Whether both hold the same token most likely (ties to the lower id).
    pub same_top: bool,
    /// Negative logprob of the token that came next, under each model, in nats.
    pub losses: [f64; 2],
}

impl RowComparison {
    /// Compares raw logits. `next` is the token that came next.
    ///
    /// # Panics
    /// When the rows have different lengths or `next` is outside them.
    #[must_use]
    pub fn of(first: &[f32], second: &[f32], next: usize) -> Self {
        assert_eq!(first.len(), second.len(), "logits of one vocabulary");
        let (a, b) = (log_sum(first), log_sum(second));
        let mut divergence = 0.0;
        for (x, y) in first.iter().zip(second) {
            let (p, q) = (f64::from(*x) - a, f64::from(*y) - b);
            let mass = p.exp();
            // A token without mass adds nothing, however unlikely the other holds it.
            if mass > 0.0 {
                divergence += mass * (p - q);
            }
        }
        Self {
            // Rounding may leave a sum of nearly nothing below zero.
            divergence: divergence.max(0.0),
            same_top: top(first) == top(second),
            losses: [a - f64::from(first[next]), b - f64::from(second[next])],
        }
    }
}

/// `ln Σ exp(logit)`.
fn log_sum(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)));
    max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln()
}

fn top(logits: &[f32]) -> usize {
    (0..logits.len()).reduce(|a, b| if logits[b] > logits[a] { b } else { a }).unwrap_or(0)
}

/// Cosine of the angle between two vectors; 1 when both are zero, 0 when one is.
///
/// # Panics
/// When their lengths differ.
#[must_use]
pub fn cosine(first: &[f32], second: &[f32]) -> f64 {
    assert_eq!(first.len(), second.len(), "vectors of one length");
    let [mut xx, mut yy, mut xy] = [0.0; 3];
    for (x, y) in first.iter().zip(second) {
        let (x, y) = (f64::from(*x), f64::from(*y));
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    if xx == 0.0 || yy == 0.0 {
        return if xx == yy { 1.0 } else { 0.0 };
    }
    // Equal vectors have equal sums, which the roots would not give back to the bit.
    if xx == yy { xy / xx } else { xy / (xx.sqrt() * yy.sqrt()) }
}

/// How values spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Value that 90 % lie below.
    pub p90: f64,
    /// Value that 95 % lie below.
    pub p95: f64,
    /// Value that 99 % lie below.
    pub p99: f64,
    /// Value that 99.9 % lie below.
    pub p99_9: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// The spread of some values; all 0 when there is none. Between two neighbours a share is interpolated.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let Some(max) = sorted.last().copied() else { return Self::default() };
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            // Without this an infinite value would make NaN of itself.
            if below == above { below } else { below + place.fract() * (above - below) }
        };
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            median: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p99_9: at(0.999),
            max,
        }
    }
}

/// Mean and extremes of values as they come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tally {
    count: u64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Self { count: 0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Tally {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 without any.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    /// The smallest; infinite without any.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.min
    }

    /// The largest; negative infinite without any.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, wanted: f64) {
        assert!((found - wanted).abs() <= 1e-12 * wanted.abs().max(1.0), "{found}, expected {wanted}");
    }

    fn logits(probabilities: [f32; 3]) -> [f32; 3] {
        probabilities.map(f32::ln)
    }

    #[test]
    fn divergence_of_known_distributions() {
        // p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2): 1/2 ln 2 − 1/4 ln 2.
        let ln2 = std::f64::consts::LN_2;
        let (p, q) = ([2.0 * ln2 as f32, ln2 as f32, ln2 as f32], [ln2 as f32, ln2 as f32, 2.0 * ln2 as f32]);
        let row = RowComparison::of(&p, &q, 0);
        assert!((row.divergence - 0.25 * ln2).abs() < 1e-7, "{row:?}");
        assert!((row.losses[0] - ln2).abs() < 1e-7 && (row.losses[1] - 2.0 * ln2).abs() < 1e-7, "{row:?}");
        assert!(!row.same_top);
        // A shift of all logits changes nothing.
        let shifted = RowComparison::of(&p.map(|x| x + 8.0), &q.map(|x| x - 4.0), 0);
        assert!((shifted.divergence - row.divergence).abs() < 1e-6);
    }

    #[test]
    fn equal_rows_do_not_diverge_at_all() {
        let rows =
            [logits([0.7, 0.2, 0.1]), [1e30, -1e30, 0.0], [f32::NEG_INFINITY, 0.0, 3.0], [0.1, 0.1, 0.1]];
        for row in rows {
            let same = RowComparison::of(&row, &row, 1);
            assert!(same.divergence == 0.0 && same.same_top && same.losses[0] == same.losses[1], "{same:?}");
        }
        let impossible = RowComparison::of(&[0.0, 0.0], &[0.0, f32::NEG_INFINITY], 0);
        assert!(impossible.divergence == f64::INFINITY && impossible.same_top);
        assert!(RowComparison::of(&[0.0, f32::NEG_INFINITY], &[0.0, 0.0], 0).divergence.is_finite());
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        assert_eq!(top(&[1.0, 2.0, 2.0]), 1);
        assert!(RowComparison::of(&[1.0, 1.0, 0.0], &[3.0, 0.0, 3.0], 0).same_top);
    }

    #[test]
    fn cosines() {
        for (a, b, wanted) in [
            ([1.0, 0.0], [0.0, 2.0], 0.0),
            ([1.0, 1.0], [1.0, 0.0], std::f64::consts::FRAC_1_SQRT_2),
            ([1.0, 2.0], [-2.0, -4.0], -1.0),
            ([0.0, 0.0], [0.0, 0.0], 1.0),
            ([0.0, 0.0], [0.0, 1.0], 0.0),
        ] {
            close(cosine(&a, &b), wanted);
        }
        for seed in 1..50_u32 {
            let v: Vec<f32> = (0..37).map(|i| (seed * 7919 + i * 104_729) as f32 * 1e-9 - 0.3).collect();
            assert!(cosine(&v, &v) == 1.0, "{seed}");
        }
    }

    #[test]
    fn spreads() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]);
        close(spread.mean, 2.5);
        close(spread.median, 2.5);
        close(spread.p90, 3.7);
        close(spread.max, 4.0);
        let many: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let spread = Spread::of(&many);
        for (found, wanted) in [
            (spread.mean, 500.0),
            (spread.median, 500.0),
            (spread.p90, 900.0),
            (spread.p95, 950.0),
            (spread.p99, 990.0),
            (spread.p99_9, 999.0),
            (spread.max, 1000.0),
        ] {
            close(found, wanted);
        }
        assert_eq!(Spread::of(&[]), Spread::default());
        let one = Spread::of(&[f64::INFINITY]);
        assert!(one.median == f64::INFINITY && one.p99_9 == f64::INFINITY);
    }

    #[test]
    fn tallies() {
        let mut tally = Tally::default();
        assert_eq!((tally.count(), tally.mean()), (0, 0.0));
        [0.5, 1.0, -0.75].into_iter().for_each(|x| tally.add(x));
        assert_eq!((tally.count(), tally.mean(), tally.min(), tally.max()), (3, 0.25, -0.75, 1.0));
    }
}
