//! IQ3_S: fours of magnitudes from a grid of 512, signs beside them, a scale for 32. Bytes differ from llama.cpp's where 32
//! weights are zero: there it writes the rest of the superblock over their place, and the row decodes to something else.

use std::array::from_fn;
use std::sync::OnceLock;

use super::kquants::{SUPER, sums_of_squares};
use super::lanes::{Lanes, WIDTH};
use super::put_f16;
use super::symmetric::nearest;
use crate::grids::IQ3_S;

/// Weights of a group with one scale, and fours in it.
const GROUP: usize = 32;
const FOURS: usize = GROUP / 4;

/// Distances from a point beside the grid up to which grid points are its neighbours.
const RINGS: usize = 3;

/// Sixteen neighbours of a point.
struct Batch {
    /// Value i of each, as bytes.
    values: [[u8; WIDTH]; 4],
    /// Grid indices, in the order of distance; the last one is repeated.
    index: [u16; WIDTH],
    last: bool,
}

/// Where the points of the cube of four levels from 0 to 7 lie. A point is its levels, three bits each.
struct Neighbours {
    /// Index in the grid, or `BESIDE` and the first batch of the point's neighbours.
    at: Vec<u32>,
    batches: Vec<Batch>,
}

const BESIDE: u32 = 1 << 31;

/// The four levels of a point.
fn levels(point: u16) -> [u8; 4] {
    from_fn(|i| (point >> (3 * i) & 7) as u8)
}

fn point(levels: [u8; 4]) -> u16 {
    levels.iter().enumerate().fold(0, |point, (i, l)| point | u16::from(*l) << (3 * i))
}

impl Neighbours {
    fn get() -> &'static Self {
        static NEIGHBOURS: OnceLock<Neighbours> = OnceLock::new();
        NEIGHBOURS.get_or_init(Self::new)
    }

    fn new() -> Self {
        let mut all = Self { at: vec![BESIDE; 1 << 12], batches: Vec::new() };
        for (index, point) in (0u32..).zip(IQ3_S) {
            all.at[usize::from(point)] = index;
        }
        for point in 0..1u16 << 12 {
            if all.at[usize::from(point)] == BESIDE {
                all.at[usize::from(point)] |= all.batches.len() as u32;
                let near = Self::of(point);
                all.batches.extend(near.chunks(WIDTH).map(|part| {
                    let index = from_fn(|lane| part[lane.min(part.len() - 1)]);
                    let value = |i: usize, lane: usize| 2 * levels(IQ3_S[usize::from(index[lane])])[i] + 1;
                    let values = from_fn(|i| from_fn(|lane| value(i, lane)));
                    Batch { values, index, last: false }
                }));
                all.batches.last_mut().into_iter().for_each(|batch| batch.last = true);
            }
        }
        all
    }

    /// Grid points at the least distances from a point.
    fn of(point: u16) -> Vec<u16> {
        let from = levels(point);
        let square = |(a, b): (u8, u8)| u32::from(a.abs_diff(b)).pow(2);
        let distance = |to: u16| levels(to).into_iter().zip(from).map(square).sum::<u32>();
        let mut near: Vec<(u32, u16)> = (0u16..).zip(IQ3_S).map(|(i, to)| (distance(to), i)).collect();
        near.sort_unstable();
        let mut rings: Vec<u32> = near.iter().map(|(d, _)| *d).collect();
        rings.dedup();
        let most = rings.get(RINGS - 1).copied().unwrap_or(u32::MAX);
        near.into_iter().take_while(|(d, _)| *d <= most).map(|(_, i)| i).collect()
    }

    /// The grid point for levels: theirs where they are one, otherwise the neighbour that errs least under a scale, the
    /// nearest of equals.
    #[inline(always)]
    fn closest<V: Lanes>(&self, point: u16, x: &[f32], w: &[f32], scale: f32) -> (u16, bool) {
        let at = self.at[usize::from(point)];
        if at & BESIDE == 0 {
            return (at as u16, true);
        }
        let batches = &self.batches[(at ^ BESIDE) as usize..];
        // Errors that overflow leave none: any neighbour is as good.
        let (mut least, mut best) = (f32::MAX, batches[0].index[0]);
        let (scale, most) = (V::splat(scale), V::splat(f32::MAX));
        for batch in batches {
            let mut error = V::splat(0.0);
            for i in 0..4 {
                let off = scale * V::from_bytes(&batch.values[i]) - V::splat(x[i]);
                error = error + V::splat(w[i]) * off * off;
            }
            let error = V::choose(error.less(most), error, most);
            let smallest = error.ends().1;
            if smallest < least {
                least = smallest;
                best = batch.index[error.first(smallest)];
            }
            if batch.last {
                break;
            }
        }
        (best, false)
    }
}

/// The level of a magnitude: `scale · (2 · level + 1)`.
fn level(x: f32, inverse: f32, most: i32) -> u8 {
    nearest(0.5 * (inverse * x - 1.0)).clamp(0, most) as u8
}

/// What is known of a group.
struct Group {
    magnitudes: [f32; GROUP],
    /// Weights of errors, and their roots: those of neighbours.
    weights: [f32; GROUP],
    roots: [f32; GROUP],
}

/// A scale with the grid points under it.
struct Fit {
    scale: f32,
    points: [u16; FOURS],
}

impl Group {
    /// Grid points under a step, and whether the levels were all on the grid.
    #[inline(always)]
    fn points<V: Lanes>(&self, grid: &Neighbours, inverse: f32, scale: f32) -> ([u16; FOURS], bool) {
        let mut levels = [0; GROUP];
        for (x, levels) in
            self.magnitudes.as_chunks::<WIDTH>().0.iter().zip(levels.as_chunks_mut::<WIDTH>().0)
        {
            let x = V::splat(0.5) * (V::splat(inverse) * V::load(x) - V::splat(1.0));
            *levels = x.nearest().clamp(0.0, 7.0).bytes();
        }
        let (mut all, mut points) = (true, [0; FOURS]);
        for (k, (levels, to)) in levels.as_chunks::<4>().0.iter().zip(&mut points).enumerate() {
            let part = 4 * k..4 * k + 4;
            let (x, w) = (&self.magnitudes[part.clone()], &self.roots[part]);
            let (index, on) = grid.closest::<V>(point(*levels), x, w, scale);
            all &= on;
            *to = index;
        }
        (points, all)
    }

    /// Weighted Σ x·q and Σ q² over the values of grid points.
    fn sums(&self, points: &[u16; FOURS]) -> (f32, f32) {
        let (mut sum_qx, mut sum_qq) = (0.0, 0.0);
        for (k, index) in points.iter().enumerate() {
            for (i, l) in levels(IQ3_S[usize::from(*index)]).into_iter().enumerate() {
                let (w, q) = (self.weights[4 * k + i], f32::from(2 * l + 1));
                sum_qx += w * self.magnitudes[4 * k + i] * q;
                sum_qq += w * q * q;
            }
        }
        (sum_qx, sum_qq)
    }

    /// The least squares scale of the step that explains most; where that step's levels left the grid, points and scale
    /// once more from that scale.
    #[inline(always)]
    fn fit<V: Lanes>(&self, grid: &Neighbours, high: f32) -> Fit {
        let mut best = 0.0;
        let (mut fit, mut on_grid) = (Fit { scale: high / 15.0, points: [0; FOURS] }, false);
        for step in -9i8..=9 {
            let inverse = (15.0 + f32::from(step) * 0.2) / high;
            let (points, on) = self.points::<V>(grid, inverse, 1.0 / inverse);
            let (sum_qx, sum_qq) = self.sums(&points);
            if sum_qq > 0.0 && sum_qx * sum_qx > best * sum_qq {
                let scale = sum_qx / sum_qq;
                best = scale * sum_qx;
                (fit, on_grid) = (Fit { scale, points }, on);
            }
        }
        if !on_grid && fit.scale > 0.0 {
            fit.points = self.points::<V>(grid, 1.0 / fit.scale, fit.scale).0;
            let (sum_qx, sum_qq) = self.sums(&fit.points);
            if sum_qq > 0.0 {
                fit.scale = sum_qx / sum_qq;
            }
        }
        fit
    }
}

/// Weights of errors: importance times √(mean square + x²), or x².
fn weights(x: &[f32], importance: Option<&[f32]>, mean_square: f32) -> [f32; GROUP] {
    from_fn(|i| match importance {
        Some(w) => w[i] * (mean_square + x[i] * x[i]).sqrt(),
        None => x[i] * x[i],
    })
}

/// Encodes a row as IQ3_S.
#[inline(always)]
pub(super) fn iq3_s<V: Lanes>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let grid = Neighbours::get();
    for (b, (x, out)) in row.as_chunks::<SUPER>().0.iter().zip(out.as_chunks_mut::<110>().0).enumerate() {
        superblock::<V>(grid, x, importance.map(|w| &w[b * SUPER..][..SUPER]), out);
    }
}

#[inline(always)]
fn superblock<V: Lanes>(
    grid: &Neighbours,
    x: &[f32; SUPER],
    importance: Option<&[f32]>,
    out: &mut [u8; 110],
) {
    out.fill(0);
    let mean_square = 2.0 * sums_of_squares(x)[0] / SUPER as f32;
    let mut scales = [0.0; SUPER / GROUP];
    for (g, (x, scale)) in x.as_chunks::<GROUP>().0.iter().zip(&mut scales).enumerate() {
        let magnitudes = x.map(|x| if x >= 0.0 { x } else { -x });
        let high = magnitudes.iter().fold(magnitudes[0], |high, x| if high > *x { high } else { *x });
        if high == 0.0 {
            continue;
        }
        let weights = weights(x, importance.map(|w| &w[g * GROUP..][..GROUP]), mean_square);
        let group = Group { magnitudes, weights, roots: weights.map(f32::sqrt) };
        let fit = group.fit::<V>(grid, high);
        *scale = fit.scale;
        for (k, index) in fit.points.iter().enumerate() {
            out[2 + FOURS * g + k] = *index as u8;
            out[66 + g] |= ((index >> 8) as u8) << k;
        }
        for (byte, x) in out[74 + 4 * g..].iter_mut().zip(x.as_chunks::<8>().0) {
            *byte = x.iter().enumerate().fold(0, |bits, (i, x)| bits | u8::from(*x < 0.0) << i);
        }
    }
    let most = scales.iter().fold(0.0f32, |most, s| if most > *s { most } else { *s });
    if most == 0.0 {
        return;
    }
    let d = most / 31.0;
    put_f16(out, d * 1.033);
    let inverse = 1.0 / d;
    for (byte, pair) in out[106..].iter_mut().zip(scales.as_chunks::<2>().0) {
        *byte = level(pair[0], inverse, 15) | level(pair[1], inverse, 15) << 4;
    }
}
