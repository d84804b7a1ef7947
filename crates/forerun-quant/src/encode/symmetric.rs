//! The searches for a scale alone: levels on both sides of 0 for weights, levels from 0 for scales and minima.

use super::lanes::{Groups, Lanes, WIDTH, pair};

/// Groups whose largest magnitude is smaller have no scale.
const TINY: f32 = 1e-15;

/// The value of the largest magnitude of each group, the first of equals, and which groups have none above [`TINY`].
#[inline(always)]
pub(super) fn extremes<V: Lanes, const N: usize>(x: &Groups<N>) -> (V, V::Mask) {
    let (mut most, mut extreme) = (V::splat(0.0), V::splat(0.0));
    for x in x {
        let x = V::load(x);
        let larger = most.less(x.abs());
        most = V::choose(larger, x.abs(), most);
        extreme = V::choose(larger, x, extreme);
    }
    (extreme, most.less(V::splat(TINY)))
}

/// What was found for each of sixteen groups.
pub(super) struct Scales {
    pub scale: [f32; WIDTH],
    /// Levels are `x · inverse`, rounded and clamped; NaN for a group without a scale.
    pub inverse: [f32; WIDTH],
}

impl Scales {
    /// The level of a value of the group in a lane, counted from 0; 0 in a group without a scale.
    #[inline(always)]
    pub(super) fn level(&self, lane: usize, x: f32, half: i32) -> u8 {
        let inverse = self.inverse[lane];
        if inverse.is_nan() {
            return 0;
        }
        (half + nearest(inverse * x).clamp(-half, half - 1)) as u8
    }
}

/// [`Lanes::nearest`] of one value.
#[inline(always)]
pub(super) fn nearest(x: f32) -> i32 {
    ((x + 12_582_912.0).to_bits() & 0x007f_ffff) as i32 - 0x0040_0000
}

/// Weighted Σ x·l and Σ l² of each group under a step.
#[inline(always)]
fn sums<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, inverse: V, half: f32) -> (V, V) {
    let (mut sum_xl, mut sum_ll) = (V::splat(0.0), V::splat(0.0));
    for i in 0..N {
        let (x, w) = pair::<V, N>(x, w, i);
        let l = (inverse * x).nearest().clamp(-half, half - 1.0);
        sum_xl = sum_xl + w * x * l;
        sum_ll = sum_ll + w * l * l;
    }
    (sum_xl, sum_ll)
}

/// Finds the scale of levels from −half to half − 1 for each group of N weights with their importance: nineteen steps are
/// tried for levels, and the least squares scale that explains most is kept. The weight of the largest magnitude is negative
/// in levels, where there is one more.
#[inline(always)]
pub(super) fn symmetric<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, half: i16) -> Scales {
    let (zero, half) = (V::splat(0.0), f32::from(half));
    let (extreme, none) = extremes::<V, N>(x);
    let mut inverse = V::splat(-half) / extreme;
    let (sum_xl, sum_ll) = sums(x, w, inverse, half);
    let mut scale = V::choose(sum_ll.differs(zero), sum_xl / sum_ll, zero);
    let mut best = scale * sum_xl;
    for step in (-9i8..=9).filter(|step| *step != 0) {
        let tried = V::splat(-(half + 0.1 * f32::from(step))) / extreme;
        let (sum_xl, sum_ll) = sums(x, w, tried, half);
        let better = zero.less(sum_ll) & (best * sum_ll).less(sum_xl * sum_xl);
        let fit = sum_xl / sum_ll;
        scale = V::choose(better, fit, scale);
        best = V::choose(better, fit * sum_xl, best);
        inverse = V::choose(better, tried, inverse);
    }
    Scales {
        scale: V::choose(none, zero, scale).to_array(),
        inverse: V::choose(none, V::splat(f32::NAN), inverse).to_array(),
    }
}

/// Finds scale and levels from −half to half − 1 for each group of N weights that count by their squares: from the levels of
/// the largest weight, each level in turn moves to where it explains more, until none does. Levels are left in `levels`,
/// counted from 0; a group without a scale has only 0.
#[inline(always)]
pub(super) fn descent<V: Lanes, const N: usize>(
    x: &Groups<N>,
    half: i16,
    levels: &mut Groups<N>,
) -> [f32; WIDTH] {
    let (zero, half) = (V::splat(0.0), f32::from(half));
    let (extreme, none) = extremes::<V, N>(x);
    let inverse = V::splat(-half) / extreme;
    let (mut sum_xl, mut sum_ll) = (zero, zero);
    for (x, level) in x.iter().zip(levels.iter_mut()) {
        let x = V::load(x);
        let w = x * x;
        let l = (inverse * x).nearest().clamp(-half, half - 1.0);
        l.store(level);
        sum_xl = sum_xl + w * x * l;
        sum_ll = sum_ll + w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (x, level) in x.iter().zip(levels.iter_mut()) {
            let (x, l) = (V::load(x), V::load(level));
            let w = x * x;
            let (xl, ll) = (sum_xl - w * x * l, sum_ll - w * l * l);
            let new = (x * ll / xl).nearest().clamp(-half, half - 1.0);
            let (new_xl, new_ll) = (xl + w * x * new, ll + w * new * new);
            let more = (sum_xl * sum_xl * new_ll).less(new_xl * new_xl * sum_ll);
            let better = zero.less(xl) & zero.less(new_ll) & more & new.differs(l);
            V::choose(better, new, l).store(level);
            sum_xl = V::choose(better, new_xl, sum_xl);
            sum_ll = V::choose(better, new_ll, sum_ll);
            changed |= V::any(better);
        }
        if !changed {
            break;
        }
    }
    for level in levels {
        let l = V::load(level) + V::splat(half);
        V::choose(none, zero, l).store(level);
    }
    let scale = V::choose(zero.less(sum_ll), sum_xl / sum_ll, zero);
    V::choose(none, zero, scale).to_array()
}

/// Finds scale and levels from 0 to `most` for each group of N values that are not negative, with their importance: nine steps
/// are tried, then each level in turn moves to where it explains more. Levels are left in `levels`, as bytes.
#[inline(always)]
pub(super) fn positive<V: Lanes, const N: usize>(
    x: &Groups<N>,
    w: &Groups<N>,
    most: f32,
    levels: &mut Groups<N>,
) -> [f32; WIDTH] {
    let (zero, top) = (V::splat(0.0), V::splat(most));
    let mut high = zero;
    for x in x {
        high = high.max(V::load(x));
    }
    let none = high.less(V::splat(TINY));
    let mut inverse = top / high;
    // The first levels are bytes, but have no upper bound: a value cannot be above the largest.
    for (x, l) in x.iter().zip(levels.iter_mut()) {
        (inverse * V::load(x)).nearest_byte().store(l);
    }
    let mut least = error::<V, N>(x, w, levels, inverse);
    for step in (-4i8..=4).filter(|step| *step != 0) {
        let tried = V::splat(0.1 * f32::from(step) + most) / high;
        for (x, l) in x.iter().zip(levels.iter_mut()) {
            (tried * V::load(x)).nearest().min(top).store(l);
        }
        let errs = error::<V, N>(x, w, levels, tried);
        let better = errs.less(least);
        least = V::choose(better, errs, least);
        inverse = V::choose(better, tried, inverse);
    }
    let (mut sum_xl, mut sum_ll) = (zero, zero);
    for (i, level) in levels.iter_mut().enumerate() {
        let (x, w) = pair::<V, N>(x, w, i);
        let l = (inverse * x).nearest().min(top);
        l.nearest_byte().store(level);
        sum_xl = sum_xl + w * x * l;
        sum_ll = sum_ll + w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (i, level) in levels.iter_mut().enumerate() {
            let ((x, w), l) = (pair::<V, N>(x, w, i), V::load(level));
            let (xl, ll) = (sum_xl - w * x * l, sum_ll - w * l * l);
            let new = (x * ll / xl).nearest().min(top);
            let (new_xl, new_ll) = (xl + w * x * new, ll + w * new * new);
            let more = (sum_xl * sum_xl * new_ll).less(new_xl * new_xl * sum_ll);
            let better = zero.less(xl) & zero.less(ll) & more & new.differs(l);
            V::choose(better, new.nearest_byte(), l).store(level);
            sum_xl = V::choose(better, new_xl, sum_xl);
            sum_ll = V::choose(better, new_ll, sum_ll);
            changed |= V::any(better);
        }
        if !changed {
            break;
        }
    }
    for l in levels {
        V::choose(none, zero, V::load(l)).store(l);
    }
    let scale = V::choose(zero.less(sum_ll), sum_xl / sum_ll, zero);
    V::choose(none, zero, scale).to_array()
}

/// The weighted error of each group under a step.
#[inline(always)]
fn error<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, levels: &Groups<N>, inverse: V) -> V {
    let (scale, mut sum) = (V::splat(1.0) / inverse, V::splat(0.0));
    for (i, level) in levels.iter().enumerate() {
        let (x, w) = pair::<V, N>(x, w, i);
        let off = x - scale * V::load(level);
        sum = sum + w * off * off;
    }
    sum
}
