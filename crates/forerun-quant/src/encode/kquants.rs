//! The K types: superblocks of 256 weights in sub-blocks of N (16 or 32) whose scales and minima are levels themselves. A
//! tile of superblocks goes through three passes: scales of its sub-blocks, scales of those, then the final levels.

use std::array::from_fn;

use super::lanes::{Groups, Lanes, WIDTH, gather};
use super::line::{Grid, lines};
use super::symmetric::{descent, nearest, positive, symmetric};
use super::{pack, put_f16};
use crate::kquants::scale_min;

/// Weights of a superblock.
pub(super) const SUPER: usize = 256;

/// Superblocks of a tile: their scales and their minima together fill the lanes.
const TILE: usize = WIDTH / 2;

/// The levels of a superblock.
pub(super) type Levels = [u8; SUPER];

/// Σ x², in order, of each superblock.
#[inline(always)]
pub(super) fn sums_of_squares(x: &[f32]) -> [f32; TILE] {
    let blocks = x.as_chunks::<SUPER>().0;
    let mut sums = [0.0f32; TILE];
    if let Ok(blocks) = <&[[f32; SUPER]; TILE]>::try_from(blocks) {
        // Sums of several superblocks at once: each is a chain of dependent additions.
        for i in 0..SUPER {
            for (sum, x) in sums.iter_mut().zip(blocks) {
                *sum += x[i] * x[i];
            }
        }
    } else {
        for (sum, x) in sums.iter_mut().zip(blocks) {
            *sum = x.iter().fold(0.0, |sum, x| sum + x * x);
        }
    }
    sums
}

/// Importance times √(mean square + x²), and the sums of these per group.
#[inline(always)]
fn weighted<V: Lanes, const N: usize>(
    x: &Groups<N>,
    importance: &[f32],
    mean_square: [f32; WIDTH],
) -> (Groups<N>, [f32; WIDTH]) {
    let mut w = gather::<N>(importance);
    let (mean_square, mut sum) = (V::load(&mean_square), V::splat(0.0));
    for (x, w) in x.iter().zip(&mut w) {
        let x = V::load(x);
        let weight = V::load(w) * (mean_square + x * x).sqrt();
        weight.store(w);
        sum = sum + weight;
    }
    (w, sum.to_array())
}

/// What tells the types with minima apart.
#[derive(Clone, Copy)]
pub(super) struct Format {
    /// The search without importance, and with it.
    plain: Grid,
    weighted: Grid,
    /// Largest level of a scale or minimum, and what those of both searches are cut to.
    most_scale: u8,
    cut: [u8; 2],
    /// What Σ x² is multiplied by for the weights of errors.
    factor: f32,
    /// Bytes of a superblock.
    bytes: usize,
    /// Writes d, dmin and the levels of scales and minima.
    write_scales: fn(&mut [u8], [f32; 2], [&[u8]; 2]),
    /// Levels of scale and minimum of a sub-block as a decoder reads them.
    scales: fn(&[u8], usize) -> (u8, u8),
    /// Writes the levels.
    write: fn(&mut [u8], &Levels),
}

const fn grid(most: f32, first: f32, by: f32, tries: u16, absolute: bool) -> Grid {
    Grid { most, first, by, tries, absolute }
}

pub(super) const Q2_K: Format = Format {
    plain: grid(3.0, -0.5, 0.1, 16, true),
    weighted: grid(3.0, -0.9, 0.05, 37, false),
    most_scale: 15,
    cut: [u8::MAX; 2],
    factor: 1.0,
    bytes: 84,
    write_scales: pack::q2_k_scales,
    scales: |b, j| (b[j] & 15, b[j] >> 4),
    write: pack::q2_k,
};
pub(super) const Q4_K: Format = Format {
    plain: grid(15.0, -1.0, 0.1, 21, false),
    weighted: grid(15.0, -0.9, 0.05, 37, false),
    most_scale: 63,
    cut: [63, u8::MAX],
    factor: 2.0,
    bytes: 144,
    write_scales: pack::q45_k_scales,
    scales: |b, j| scale_min(&b[4..16], j),
    write: pack::q4_k,
};
pub(super) const Q5_K: Format = Format {
    plain: grid(31.0, -0.5, 0.1, 16, false),
    weighted: grid(31.0, -0.9, 0.05, 37, false),
    most_scale: 63,
    cut: [63; 2],
    factor: 2.0,
    bytes: 176,
    write_scales: pack::q45_k_scales,
    scales: |b, j| scale_min(&b[4..16], j),
    write: pack::q5_k,
};

/// Sub-blocks of a tile, at most.
const MOST_SUBS: usize = TILE * SUPER / 16;

/// What the searches found for the sub-blocks of a tile, in order.
struct Found {
    scale: [f32; MOST_SUBS],
    min: [f32; MOST_SUBS],
    inverse: [f32; MOST_SUBS],
    low: [f32; MOST_SUBS],
    /// Sums of the weights of errors.
    weight: [f32; MOST_SUBS],
}

impl Found {
    fn new() -> Self {
        let none = [0.0; MOST_SUBS];
        Self { scale: none, min: none, inverse: none, low: none, weight: none }
    }
}

/// Encodes a row of a type with scales and minima.
#[inline(always)]
pub(super) fn with_minima<V: Lanes, const N: usize, const SUBS: usize>(
    format: Format,
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) {
    let mut found = Found::new();
    let outs = out.chunks_mut(TILE * format.bytes);
    for (t, (x, out)) in row.chunks(TILE * SUPER).zip(outs).enumerate() {
        let importance = importance.map(|w| &w[t * TILE * SUPER..][..x.len()]);
        search_lines::<V, N, SUBS>(format, x, importance, &mut found);
        let scales = match importance {
            None => plain_scales::<SUBS>(format, &found),
            Some(_) => fitted_scales::<V, SUBS>(format, &found),
        };
        let blocks = x.as_chunks::<SUPER>().0.iter().zip(out.chunks_exact_mut(format.bytes));
        for (b, (x, out)) in blocks.enumerate() {
            let [d, dmin] = scales.factors[b].map(|d| half::f16::from_f32(d).to_f32());
            let [s, m] = [&scales.scale[b * SUBS..][..SUBS], &scales.min[b * SUBS..][..SUBS]];
            // A scale below 0, which rounding can give, has a level that the bytes do not hold: what they hold counts.
            (format.write_scales)(out, scales.factors[b], [s, m]);
            let mut levels = [0; SUPER];
            for (j, (x, to)) in x.as_chunks::<N>().0.iter().zip(levels.as_chunks_mut::<N>().0).enumerate() {
                let (s, m) = (format.scales)(out, j);
                let (step, min) = (d * f32::from(s), dmin * f32::from(m));
                let at = b * SUBS + j;
                // Without a step the levels of the search stay.
                let fresh = step != 0.0;
                let (add, times) = (V::splat(-found.low[at]), V::splat(found.inverse[at]));
                for (x, to) in x.as_chunks::<WIDTH>().0.iter().zip(to.as_chunks_mut::<WIDTH>().0) {
                    let x = V::load(x);
                    let l = if fresh { (x + V::splat(min)) / V::splat(step) } else { times * (x + add) };
                    *to = l.nearest().clamp(0.0, format.plain.most).bytes();
                }
            }
            (format.write)(out, &levels);
        }
    }
}

/// The first pass: a line for every sub-block of a tile.
#[inline(always)]
fn search_lines<V: Lanes, const N: usize, const SUBS: usize>(
    format: Format,
    x: &[f32],
    importance: Option<&[f32]>,
    found: &mut Found,
) {
    let means = importance.map(|_| sums_of_squares(x).map(|sum| format.factor * sum / SUPER as f32));
    for (batch, part) in x.chunks(WIDTH * N).enumerate() {
        let groups = gather::<N>(part);
        let first = batch * WIDTH;
        let (lines, sums) = match importance.zip(means) {
            None => {
                let w = plain_weights::<V, N>(&groups, format.plain.absolute);
                (lines::<V, N>(&groups, &w, format.plain), [0.0; WIDTH])
            }
            Some((importance, means)) => {
                let means = from_fn(|lane| means[((first + lane) / SUBS).min(TILE - 1)]);
                let importance = &importance[first * N..][..part.len()];
                let (w, sums) = weighted::<V, N>(&groups, importance, means);
                (lines::<V, N>(&groups, &w, format.weighted), sums)
            }
        };
        let to = first..first + WIDTH;
        found.scale[to.clone()].copy_from_slice(&lines.scale);
        found.min[to.clone()].copy_from_slice(&lines.min);
        found.inverse[to.clone()].copy_from_slice(&lines.inverse);
        found.low[to.clone()].copy_from_slice(&lines.low);
        found.weight[to].copy_from_slice(&sums);
    }
}

/// Weights of errors without importance: the magnitude, or that and the root mean square of the group.
#[inline(always)]
fn plain_weights<V: Lanes, const N: usize>(x: &Groups<N>, magnitude: bool) -> Groups<N> {
    let mut squares = V::splat(0.0);
    for x in x {
        squares = squares + V::load(x) * V::load(x);
    }
    let mean = if magnitude { V::splat(0.0) } else { (squares / V::splat(N as f32)).sqrt() };
    let mut w = [[0.0; WIDTH]; N];
    for (x, w) in x.iter().zip(&mut w) {
        (mean + V::load(x).abs()).store(w);
    }
    w
}

/// Levels of a tile's scales and minima, and the two factors of each superblock.
struct ScaleLevels {
    factors: [[f32; 2]; TILE],
    scale: [u8; MOST_SUBS],
    min: [u8; MOST_SUBS],
}

/// The second pass without importance: the largest scale has the largest level.
#[inline(always)]
fn plain_scales<const SUBS: usize>(format: Format, found: &Found) -> ScaleLevels {
    let mut out = ScaleLevels { factors: [[0.0; 2]; TILE], scale: [0; MOST_SUBS], min: [0; MOST_SUBS] };
    let most = f32::from(format.most_scale);
    for (b, factors) in out.factors.iter_mut().enumerate() {
        let subs = b * SUBS..(b + 1) * SUBS;
        let pairs = [(&found.scale, &mut out.scale), (&found.min, &mut out.min)];
        for ((values, levels), factor) in pairs.into_iter().zip(factors) {
            let high = values[subs.clone()].iter().fold(0.0f32, |high, x| if *x > high { *x } else { high });
            let inverse = if high > 0.0 { most / high } else { 0.0 };
            for (x, level) in values[subs.clone()].iter().zip(&mut levels[subs.clone()]) {
                *level = if high > 0.0 { (nearest(inverse * x) as u8).min(format.cut[0]) } else { 0 };
            }
            *factor = high / most;
        }
    }
    out
}

/// The second pass with importance: a search over the scales and minima of all superblocks of the tile, one in a lane each.
#[inline(always)]
fn fitted_scales<V: Lanes, const SUBS: usize>(format: Format, found: &Found) -> ScaleLevels {
    let side = |lane: usize, i: usize| (lane / TILE, (lane % TILE) * SUBS + i);
    let value = |lane: usize, i: usize| match side(lane, i) {
        (0, at) => found.scale[at],
        (_, at) => found.min[at],
    };
    let x: Groups<SUBS> = from_fn(|i| from_fn(|lane| value(lane, i)));
    let w: Groups<SUBS> = from_fn(|i| from_fn(|lane| found.weight[side(lane, i).1]));
    let mut levels = [[0.0; WIDTH]; SUBS];
    let fit = positive::<V, SUBS>(&x, &w, f32::from(format.most_scale), &mut levels);
    let level = |lane: usize, at: usize| (levels[at % SUBS][lane + at / SUBS] as u8).min(format.cut[1]);
    let subs = |from: usize| from_fn(|at| if at < TILE * SUBS { level(from, at) } else { 0 });
    ScaleLevels { factors: from_fn(|b| [fit[b], fit[b + TILE]]), scale: subs(0), min: subs(TILE) }
}

/// Writes levels of a superblock from its symmetric sub-blocks: `x / (d · scale)` rounded, counted from 0.
#[inline(always)]
fn symmetric_levels<V: Lanes>(x: &[f32; SUPER], d: f32, scales: &[i8; 16], half: f32, levels: &mut Levels) {
    let subs = x.as_chunks::<16>().0.iter().zip(levels.as_chunks_mut::<16>().0);
    for ((x, to), scale) in subs.zip(scales) {
        let step = d * f32::from(*scale);
        if step != 0.0 {
            let l = (V::load(x) / V::splat(step)).nearest().clamp(-half, half - 1.0);
            *to = (l + V::splat(half)).bytes();
        }
    }
}

/// Of the largest magnitude, with its sign; the first of equals.
fn extreme(scales: &[f32]) -> f32 {
    scales.iter().fold(0.0f32, |most, s| if s.abs() > most.abs() { *s } else { most })
}

/// Encodes a row as Q3_K.
#[inline(always)]
pub(super) fn q3_k<V: Lanes>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (t, (x, out)) in row.chunks(TILE * SUPER).zip(out.chunks_mut(TILE * 110)).enumerate() {
        let blocks = x.as_chunks::<SUPER>().0;
        let mut levels = [[0; SUPER]; TILE];
        let mut scales = [[0.0; WIDTH]; TILE];
        let mut sums = [[0.0; WIDTH]; TILE];
        let importance = importance.map(|w| &w[t * TILE * SUPER..][..x.len()]);
        let means = importance.map(|_| sums_of_squares(x).map(|sum| 2.0 * sum / SUPER as f32));
        for (b, x) in blocks.iter().enumerate() {
            let groups = gather::<16>(x);
            if let Some((importance, means)) = importance.zip(means) {
                let (w, sum) =
                    weighted::<V, 16>(&groups, &importance[b * SUPER..][..SUPER], [means[b]; WIDTH]);
                let found = symmetric::<V, 16>(&groups, &w, 4);
                levels[b] = from_fn(|i| found.level(i / 16, x[i], 4));
                (scales[b], sums[b]) = (found.scale, sum);
            } else {
                let mut l = [[0.0; WIDTH]; 16];
                scales[b] = descent::<V, 16>(&groups, 4, &mut l);
                levels[b] = from_fn(|i| l[i % 16][i / 16] as u8);
            }
        }
        let fitted = importance.map(|_| {
            let x: Groups<16> = from_fn(|i| from_fn(|lane| scales.get(lane).map_or(0.0, |s| s[i])));
            let w: Groups<16> = from_fn(|i| from_fn(|lane| sums.get(lane).map_or(0.0, |s| s[i])));
            symmetric::<V, 16>(&x, &w, 32)
        });
        for (b, (x, out)) in blocks.iter().zip(out.chunks_exact_mut(110)).enumerate() {
            let (d, s): (f32, [i8; 16]) = match &fitted {
                Some(found) => {
                    (found.scale[b], from_fn(|j| found.level(b, scales[b][j], 32).cast_signed() - 32))
                }
                None => {
                    let most = extreme(&scales[b]);
                    let inverse = -32.0 / most;
                    let level = |s: f32| i32::from(nearest(inverse * s) as i8).clamp(-32, 31) as i8;
                    if most == 0.0 { (0.0, [-32; 16]) } else { (1.0 / inverse, scales[b].map(level)) }
                }
            };
            let d = put_f16(&mut out[108..], d);
            symmetric_levels::<V>(x, d, &s, 4.0, &mut levels[b]);
            pack::q3_k(out, &s, &levels[b]);
        }
    }
}

/// Encodes a row as Q6_K.
#[inline(always)]
pub(super) fn q6_k<V: Lanes>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    for (b, (x, out)) in row.as_chunks::<SUPER>().0.iter().zip(out.chunks_exact_mut(210)).enumerate() {
        let groups = gather::<16>(x);
        let w = match importance {
            Some(w) => gather::<16>(&w[b * SUPER..][..SUPER]),
            None => groups.map(|x| x.map(|x| x * x)),
        };
        let found = symmetric::<V, 16>(&groups, &w, 32);
        let most = extreme(&found.scale);
        if most.abs() < 1e-15 {
            out.fill(0);
            continue;
        }
        let inverse = -128.0 / most;
        let d = put_f16(&mut out[208..], 1.0 / inverse);
        let s = found.scale.map(|s| nearest(inverse * s).min(127) as i8);
        let mut levels = [0; SUPER];
        if s.iter().any(|s| d * f32::from(*s) == 0.0) {
            levels = from_fn(|i| found.level(i / 16, x[i], 32));
        }
        symmetric_levels::<V>(x, d, &s, 32.0, &mut levels);
        pack::q6_k(out, &s, &levels);
    }
}
