//! IQ4_NL and IQ4_XS: sixteen levels that lie closer near 0, blocks of 32.

use std::array::from_fn;

use super::kquants::{SUPER, sums_of_squares};
use super::lanes::{Groups, Lanes, WIDTH, gather, pair};
use super::put_f16;
use super::symmetric::{extremes, nearest};
use crate::IQ4_VALUES;

const VALUES: [f32; 16] = {
    let mut out = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = IQ4_VALUES[i] as f32;
        i += 1;
    }
    out
};

/// Halfway between neighbours: from there on the larger one is meant.
const BOUNDS: [f32; 16] = {
    let mut out = [f32::INFINITY; 16];
    let mut i = 0;
    while i < 15 {
        out[i] = (VALUES[i] + VALUES[i + 1]) / 2.0;
        i += 1;
    }
    out
};

/// Index and value of the level that a value is nearest to.
#[cfg(test)]
pub(super) fn nearest_level(x: f32) -> (usize, f32) {
    let (index, value) = super::Portable::splat(x).pick(&BOUNDS, &VALUES);
    (index.to_array()[0] as usize, value.to_array()[0])
}

/// Steps tried on each side of the one that gives the largest weight the largest level.
const TRIES: i8 = 7;

/// Weighted Σ q·x and Σ q² of each block under a step.
#[inline(always)]
fn sums<V: Lanes>(x: &Groups<32>, w: &Groups<32>, inverse: V) -> (V, V) {
    let (mut sum_qx, mut sum_qq) = (V::splat(0.0), V::splat(0.0));
    for i in 0..32 {
        let (x, w) = pair::<V, 32>(x, w, i);
        let q = (inverse * x).pick(&BOUNDS, &VALUES).1;
        let wq = w * q;
        sum_qx = sum_qx + wq * x;
        sum_qq = sum_qq + wq * q;
    }
    (sum_qx, sum_qq)
}

/// Finds a scale for each of sixteen blocks: the least squares scale of the step that explains most.
#[inline(always)]
fn scales<V: Lanes>(x: &Groups<32>, w: &Groups<32>) -> [f32; WIDTH] {
    let zero = V::splat(0.0);
    let (extreme, none) = extremes::<V, 32>(x);
    let (sum_qx, sum_qq) = sums(x, w, V::splat(1.0) / (extreme / V::splat(-VALUES[0])));
    let mut scale = V::choose(zero.less(sum_qq), sum_qx / sum_qq, zero);
    let mut best = scale * sum_qx;
    for step in -TRIES..=TRIES {
        let (sum_qx, sum_qq) = sums(x, w, V::splat(f32::from(step) + VALUES[0]) / extreme);
        let better = zero.less(sum_qq) & (best * sum_qq).less(sum_qx * sum_qx);
        let fit = sum_qx / sum_qq;
        scale = V::choose(better, fit, scale);
        best = V::choose(better, fit * sum_qx, best);
    }
    V::choose(none, zero, scale).to_array()
}

/// Weights of errors: importance times √(mean square + x²), or x².
#[inline(always)]
fn weights<V: Lanes>(x: &Groups<32>, importance: Option<&[f32]>, mean_square: V) -> Groups<32> {
    let mut w = importance.map_or([[0.0; WIDTH]; 32], gather::<32>);
    for (x, w) in x.iter().zip(&mut w) {
        let x = V::load(x);
        let weight = match importance {
            Some(_) => V::load(w) * (mean_square + x * x).sqrt(),
            None => x * x,
        };
        weight.store(w);
    }
    w
}

/// Writes the nibbles of a block of 32 under a scale.
#[inline(always)]
fn levels<V: Lanes>(x: &[f32], scale: f32, out: &mut [u8]) {
    let inverse = V::splat(if scale == 0.0 { 0.0 } else { 1.0 / scale });
    let (halves, _) = x.as_chunks::<WIDTH>();
    let low = (inverse * V::load(&halves[0])).pick(&BOUNDS, &VALUES).0.bytes();
    let high = (inverse * V::load(&halves[1])).pick(&BOUNDS, &VALUES).0.bytes();
    for (to, (low, high)) in out.iter_mut().zip(low.iter().zip(high)) {
        *to = low | high << 4;
    }
}

/// Encodes a row as IQ4_NL.
#[inline(always)]
pub(super) fn iq4_nl<V: Lanes>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (t, (x, out)) in row.chunks(32 * WIDTH).zip(out.chunks_mut(18 * WIDTH)).enumerate() {
        let groups = gather::<32>(x);
        let importance = importance.map(|w| &w[t * 32 * WIDTH..][..x.len()]);
        let mut squares = V::splat(0.0);
        for x in &groups {
            squares = squares + V::load(x) * V::load(x);
        }
        let w = weights::<V>(&groups, importance, squares * V::splat(2.0 / 32.0));
        let scales = scales::<V>(&groups, &w);
        let blocks = x.as_chunks::<32>().0.iter().zip(out.chunks_exact_mut(18));
        for ((x, out), scale) in blocks.zip(scales) {
            put_f16(out, scale);
            levels::<V>(x, scale, &mut out[2..]);
        }
    }
}

/// Encodes a row as IQ4_XS.
#[inline(always)]
pub(super) fn iq4_xs<V: Lanes>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (t, (x, out)) in row.chunks(2 * SUPER).zip(out.chunks_mut(2 * 136)).enumerate() {
        let groups = gather::<32>(x);
        let importance = importance.map(|w| &w[t * 2 * SUPER..][..x.len()]);
        let squares = sums_of_squares(x);
        let means = from_fn(|lane| squares[lane / 8] * (2.0 / SUPER as f32));
        let w = weights::<V>(&groups, importance, V::load(&means));
        let scales = scales::<V>(&groups, &w);
        let blocks = x.as_chunks::<SUPER>().0.iter().zip(out.chunks_exact_mut(136));
        for ((x, out), scales) in blocks.zip(scales.as_chunks::<8>().0) {
            let most = scales.iter().fold(0.0f32, |most, s| if s.abs() > most.abs() { *s } else { most });
            let d = -most / 32.0;
            let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
            put_f16(out, d);
            let s: [i32; 8] = from_fn(|j| nearest(inverse * scales[j]).clamp(-32, 31));
            let high =
                s.iter().enumerate().fold(0u16, |bits, (j, s)| bits | ((s + 32) as u16 >> 4) << (2 * j));
            out[2..4].copy_from_slice(&high.to_le_bytes());
            for j in 0..4 {
                out[4 + j] = (s[2 * j] + 32) as u8 & 15 | ((s[2 * j + 1] + 32) as u8) << 4;
            }
            for ((x, s), out) in x.as_chunks::<32>().0.iter().zip(s).zip(out[8..].chunks_exact_mut(16)) {
                levels::<V>(x, d * s as f32, out);
            }
        }
    }
}
