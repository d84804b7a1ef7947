//! The types with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.

use std::array::from_fn;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::lanes::{Groups, Lanes, WIDTH, gather};
use super::line::{Grid, lines};
use super::put_f16;
use super::symmetric::symmetric;

const BLOCK: usize = 32;

/// Levels of a block, from 0.
type Levels = [u8; BLOCK];

/// What tells the four types with nibbles apart.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// Four or five.
    bits: u32,
    /// Whether levels begin at a minimum, and not at a negative scale.
    minimum: bool,
    /// Bytes of a block.
    bytes: usize,
}

pub(super) const Q4_0: Format = Format { bits: 4, minimum: false, bytes: 18 };
pub(super) const Q4_1: Format = Format { bits: 4, minimum: true, bytes: 20 };
pub(super) const Q5_0: Format = Format { bits: 5, minimum: false, bytes: 22 };
pub(super) const Q5_1: Format = Format { bits: 5, minimum: true, bytes: 24 };

impl Format {
    /// Writes a block.
    #[inline(always)]
    fn write(self, out: &mut [u8], scale: f16, min: f16, levels: &Levels) {
        out[..2].copy_from_slice(&scale.to_le_bytes());
        let mut at = 2;
        if self.minimum {
            out[2..4].copy_from_slice(&min.to_le_bytes());
            at = 4;
        }
        if self.bits == 5 {
            let high = levels.iter().enumerate().fold(0u32, |bits, (i, l)| bits | u32::from(l >> 4 & 1) << i);
            out[at..at + 4].copy_from_slice(&high.to_le_bytes());
            at += 4;
        }
        for (i, to) in out[at..at + 16].iter_mut().enumerate() {
            *to = levels[i] & 15 | levels[i + 16] << 4;
        }
    }
}

/// 1 / x, and 0 for 0.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

#[inline(always)]
fn halves<V: Lanes>(x: &[f32; BLOCK]) -> [V; 2] {
    let (halves, _) = x.as_chunks::<WIDTH>();
    [V::load(&halves[0]), V::load(&halves[1])]
}

#[inline(always)]
fn bytes<V: Lanes>(halves: [V; 2]) -> Levels {
    let (low, high) = (halves[0].bytes(), halves[1].bytes());
    from_fn(|i| if i < WIDTH { low[i] } else { high[i - WIDTH] })
}

/// The largest and the smallest value of a block.
#[inline(always)]
fn ends<V: Lanes>([low, high]: [V; 2]) -> (f32, f32) {
    (low.max(high).ends().0, low.min(high).ends().1)
}

/// Encodes a row without importance: the ends of the block have the outermost levels. Sixteen blocks go through each pass, so
/// that divisions and conversions of their scales are vectors.
#[inline(always)]
pub(super) fn plain<V: Lanes>(format: Format, row: &[f32], out: &mut [u8]) {
    let half = (1u32 << (format.bits - 1)) as f32;
    let most = 2.0 * half - 1.0;
    let middle = V::splat(if format.minimum { 0.5 } else { half + 0.5 });
    for (x, out) in row.chunks(BLOCK * WIDTH).zip(out.chunks_mut(format.bytes * WIDTH)) {
        let (blocks, _) = x.as_chunks::<BLOCK>();
        let (mut high, mut low) = ([0.0; WIDTH], [0.0; WIDTH]);
        for ((x, high), low) in blocks.iter().zip(&mut high).zip(&mut low) {
            (*high, *low) = ends(halves::<V>(x));
        }
        let range = if format.minimum {
            (V::load(&high) - V::load(&low)) / V::splat(most)
        } else {
            for ((x, high), low) in blocks.iter().zip(&mut high).zip(&mut low) {
                (*high, *low) = (extreme(x, *high, *low), 0.0);
            }
            V::load(&high) / V::splat(-half)
        };
        let zero = V::splat(0.0);
        let inverses = V::choose(range.differs(zero), V::splat(1.0) / range, zero).to_array();
        let (mut scales, mut mins) = ([f16::ZERO; WIDTH], [f16::ZERO; WIDTH]);
        scales.convert_from_f32_slice(&range.to_array());
        mins.convert_from_f32_slice(&low);
        for (lane, (x, out)) in blocks.iter().zip(out.chunks_exact_mut(format.bytes)).enumerate() {
            let [mut a, mut b] = halves::<V>(x);
            if format.minimum {
                (a, b) = (a - V::splat(low[lane]), b - V::splat(low[lane]));
            }
            let inverse = V::splat(inverses[lane]);
            let levels = bytes([a * inverse + middle, b * inverse + middle]).map(|l| l.min(most as u8));
            format.write(out, scales[lane], mins[lane], &levels);
        }
    }
}

/// The value of the largest magnitude of a block with these ends; the first of equals.
#[inline(always)]
fn extreme(x: &[f32; BLOCK], high: f32, low: f32) -> f32 {
    if high > -low {
        high
    } else if high < -low {
        low
    } else {
        x.iter().copied().find(|x| *x != 0.0 && x.abs() == high).unwrap_or(0.0)
    }
}

/// Encodes a row with importance: the search for the scale, or for scale and minimum, of sixteen blocks at once.
#[inline(always)]
pub(super) fn weighted<V: Lanes>(format: Format, row: &[f32], importance: &[f32], out: &mut [u8]) {
    let squares = row.iter().fold(0.0f32, |sum, x| sum + x * x);
    let mean_square = V::splat(squares / row.len() as f32);
    let tile = BLOCK * WIDTH;
    let inputs = row.chunks(tile).zip(importance.chunks(tile));
    for ((x, importance), out) in inputs.zip(out.chunks_mut(format.bytes * WIDTH)) {
        let groups = gather::<BLOCK>(x);
        let mut w = gather::<BLOCK>(importance);
        for (x, w) in groups.iter().zip(&mut w) {
            let x = V::load(x);
            (V::load(w) * (mean_square + x * x).sqrt()).store(w);
        }
        let blocks = x.as_chunks::<BLOCK>().0.iter().zip(out.chunks_exact_mut(format.bytes));
        if format.minimum {
            with_minimum::<V>(format, &groups, &w, blocks);
        } else {
            let half = 1i16 << (format.bits - 1);
            let found = symmetric::<V, BLOCK>(&groups, &w, half);
            for (lane, (x, out)) in blocks.enumerate() {
                let levels = from_fn(|i| found.level(lane, x[i], i32::from(half)));
                format.write(out, f16::from_f32(found.scale[lane]), f16::ZERO, &levels);
            }
        }
    }
}

#[inline(always)]
fn with_minimum<'a, V: Lanes>(
    format: Format,
    groups: &Groups<BLOCK>,
    w: &Groups<BLOCK>,
    blocks: impl Iterator<Item = (&'a [f32; BLOCK], &'a mut [u8])>,
) {
    let most = ((1u32 << format.bits) - 1) as f32;
    let grid = Grid { most, first: -0.9, by: 0.05, tries: 37, absolute: false };
    let found = lines::<V, BLOCK>(groups, w, grid);
    for (lane, (x, out)) in blocks.enumerate() {
        let (low, inverse) = (V::splat(found.low[lane]), V::splat(found.inverse[lane]));
        let [a, b] = halves::<V>(x);
        let a = (inverse * (a - low)).nearest().clamp(0.0, most);
        let b = (inverse * (b - low)).nearest().clamp(0.0, most);
        let (scale, min) = (f16::from_f32(found.scale[lane]), f16::from_f32(-found.min[lane]));
        format.write(out, scale, min, &bytes([a, b]));
    }
}

/// Encodes a row as Q8_0: levels of −127 to 127, ties away from 0.
#[inline(always)]
pub(super) fn q8_0<V: Lanes>(row: &[f32], out: &mut [u8]) {
    for (x, out) in row.as_chunks::<BLOCK>().0.iter().zip(out.chunks_exact_mut(34)) {
        let parts = halves::<V>(x);
        let scale = ends([parts[0].abs(), parts[1].abs()]).0 / 127.0;
        let inverse = V::splat(inverse(scale));
        put_f16(out, scale);
        out[2..].copy_from_slice(&bytes([away(parts[0] * inverse), away(parts[1] * inverse)]));
    }
}

/// What rounds to the nearest integer, ties away from 0, when it is cut towards 0.
#[inline(always)]
fn away<V: Lanes>(x: V) -> V {
    /// The largest float below a half: adding a half itself would round up what is just below one.
    const ALMOST_HALF: f32 = 0.499_999_97;
    let below = x.less(V::splat(0.0));
    x + V::choose(below, V::splat(-ALMOST_HALF), V::splat(ALMOST_HALF))
}
