//! Rotary frequencies, plain and stretched by YaRN (Peng, Quesnelle, Fan, Shippole, arXiv 2309.00071).

use std::f64::consts::PI;

use forerun_tensor::RopeSpec;
use forerun_tensor::math::{ln64, powf64};

/// Settings of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Yarn {
    /// How many times the trained context is stretched.
    pub(crate) factor: f64,
    /// Positions that the model was trained for before.
    pub(crate) original: f64,
    /// Turns within `original` from which a pair keeps its frequency.
    pub(crate) beta_fast: f64,
    /// Turns below which it is divided by `factor`.
    pub(crate) beta_slow: f64,
    /// Factor on cosine and sine.
    pub(crate) attention_factor: f64,
    /// Whether the ends of the ramp are whole pairs.
    pub(crate) truncate: bool,
}

impl Yarn {
    /// 0.1 · m · ln(factor) + 1, and 1 for factors up to 1.
    pub(crate) fn scale(factor: f64, m: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * m * ln64(factor) + 1.0 }
    }

    /// First and last pair of the ramp.
    fn ramp(&self, base: f64, dims: usize) -> (f64, f64) {
        let pair = |turns: f64| dims as f64 * ln64(self.original / (2.0 * PI * turns)) / (2.0 * ln64(base));
        let (low, high) = (pair(self.beta_fast), pair(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dims as f64 - 1.0));
        (low, if low == high { high + 0.001 } else { high })
    }
}

/// Frequencies of heads of `dims` elements, all of them rotated.
pub(crate) fn rope(base: f64, dims: usize, yarn: Option<Yarn>) -> RopeSpec {
    let plain = |p: usize| powf64(base, -((2 * p) as f64) / dims as f64);
    let Some(yarn) = yarn else {
        return RopeSpec { frequencies: (0..dims / 2).map(plain).collect(), scale: 1.0 };
    };
    let (low, high) = yarn.ramp(base, dims);
    let frequency = |p: usize| {
        let stretched = ((p as f64 - low) / (high - low)).clamp(0.0, 1.0);
        plain(p) * (stretched / yarn.factor + (1.0 - stretched))
    };
    let frequencies = (0..dims / 2).map(frequency).collect();
    RopeSpec { frequencies, scale: yarn.attention_factor as f32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YARN: Yarn = Yarn {
        factor: 4.0,
        original: 32.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.0,
        truncate: true,
    };

    #[test]
    fn fast_pairs_keep_their_frequency_and_slow_ones_are_stretched() {
        let plain = rope(1e6, 128, None).frequencies;
        let yarn = Yarn { original: 4096.0, ..YARN };
        let stretched = rope(1e6, 128, Some(yarn)).frequencies;
        assert_eq!(stretched[0], plain[0]);
        assert_eq!(stretched[63], plain[63] / 4.0);
        // Turns of pair p within the trained context are original · f / 2π: 32 of them at p = 13.9, one at p = 30.02.
        assert_eq!(stretched[13], plain[13]);
        assert!(stretched[14] < plain[14] && stretched[30] > plain[30] / 4.0);
        assert_eq!(stretched[31], plain[31] / 4.0);
    }

    #[test]
    fn a_ramp_of_no_length_is_a_step() {
        // Fewer positions than a turn of the first pair: both ends fall on pair 0.
        let yarn = Yarn { original: 3.0, ..YARN };
        let frequencies = rope(1e6, 32, Some(yarn)).frequencies;
        assert!(frequencies.iter().all(|f| f.is_finite()));
        assert_eq!(frequencies[1], rope(1e6, 32, None).frequencies[1] / 4.0);
    }

    #[test]
    fn attention_factor() {
        assert_eq!(Yarn::scale(0.5, 1.0), 1.0);
        assert!((Yarn::scale(4.0, 1.0) - 1.138_629_436_111_989).abs() < 1e-12);
    }
}
