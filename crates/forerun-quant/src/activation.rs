//! Activations as integer dot products see them.

/// 32 activations as 8-bit integers with one scale.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantBlock {
    /// Scale: `x ≈ d · q`. NaN when an input was infinite or NaN.
    pub d: f32,
    /// Levels, −127 to 127.
    pub q: [i8; 32],
    /// Sums of the levels of each half of 16.
    pub half_sums: [i32; 2],
    /// `d · (sum of all levels)`, rounded once.
    pub sx: f32,
}

impl QuantBlock {
    /// Quantises 32 activations.
    ///
    /// The largest magnitude is found on the bit patterns, so that NaN counts as the largest of all. A block whose
    /// magnitudes are all below 1e-30 becomes zero.
    #[must_use]
    pub fn new(x: &[f32; 32]) -> Self {
        let top = x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0);
        let amax = f32::from_bits(top);
        let (d, q) = if top >= f32::INFINITY.to_bits() {
            (f32::NAN, [0; 32])
        } else if amax < 1e-30 {
            (0.0, [0; 32])
        } else {
            let inverse = 127.0 / amax;
            (amax / 127.0, x.map(|v| (v * inverse).round_ties_even() as i8))
        };
        let half = |r: std::ops::Range<usize>| q[r].iter().map(|&v| i32::from(v)).sum::<i32>();
        let half_sums = [half(0..16), half(16..32)];
        Self { d, q, half_sums, sx: d * (half_sums[0] + half_sums[1]) as f32 }
    }
}

/// A row of activations in blocks of 32.
#[derive(Clone, Debug, PartialEq)]
pub struct QuantRow {
    /// The blocks.
    pub blocks: Vec<QuantBlock>,
}

impl QuantRow {
    /// Quantises a row; a tail shorter than 32 (which no integer weight type has) is left out.
    #[must_use]
    pub fn new(x: &[f32]) -> Self {
        Self { blocks: x.as_chunks::<32>().0.iter().map(QuantBlock::new).collect() }
    }
}
