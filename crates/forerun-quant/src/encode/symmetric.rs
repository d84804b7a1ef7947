//! The searches for a scale alone: levels on both sides of 0 for weights, levels from 0 for scales and minima.

use super::lanes::{Groups, Lanes, WIDTH};

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
    /// Levels are `x · inverse`, rounded and clamped; 0 for a group without a scale.
    pub inverse: [f32; WIDTH],
}

impl Scales {
    /// The level of a value of the group in a lane, counted from 0; 0 in a group without a scale.
    #[inline(always)]
    pub(super) fn level(&self, lane: usize, x: f32, half: i32) -> u8 {
        let inverse = self.inverse[lane];
        if inverse == 0.0 {
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

/// Finds the scale of levels from −half to half − 1 for each group of N weights with their importance: nineteen steps are
/// tried for levels, and the least squares scale that explains most is kept. The weight of the largest magnitude is negative
/// in levels, where there is one more.
#[inline(always)]
pub(super) fn symmetric<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, half: i16) -> Scales {
    let (zero, half) = (V::splat(0.0), f32::from(half));
    let (extreme, none) = extremes::<V, N>(x);
    let sums = |inverse: V| {
        let (mut sum_xl, mut sum_ll) = (zero, zero);
        for (x, w) in x.iter().zip(w) {
            let (x, w) = (V::load(x), V::load(w));
            let l = (inverse * x).nearest().clamp(-half, half - 1.0);
            sum_xl = sum_xl + w * x * l;
            sum_ll = sum_ll + w * l * l;
        }
        (sum_xl, sum_ll)
    };
    let mut inverse = V::splat(-half) / extreme;
    let (sum_xl, sum_ll) = sums(inverse);
    let mut scale = V::choose(sum_ll.differs(zero), sum_xl / sum_ll, zero);
    let mut best = scale * sum_xl;
    for step in (-9i8..=9).filter(|step| *step != 0) {
        let tried = V::splat(-(half + 0.1 * f32::from(step))) / extreme;
        let (sum_xl, sum_ll) = sums(tried);
        let better = zero.less(sum_ll) & (best * sum_ll).less(sum_xl * sum_xl);
        let fit = sum_xl / sum_ll;
        scale = V::choose(better, fit, scale);
        best = V::choose(better, fit * sum_xl, best);
        inverse = V::choose(better, tried, inverse);
    }
    Scales {
        scale: V::choose(none, zero, scale).to_array(),
        inverse: V::choose(none, zero, inverse).to_array(),
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
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let pair = |i: usize| (V::load(&x[i]), V::load(&w[i]));
    let high = x.iter().fold(zero, |high, x| high.max(V::load(x)));
    let none = high.less(V::splat(TINY));
    let level = |x: V, inverse: V| (inverse * x).nearest().min(V::splat(most));
    let error = |inverse: V, level: &dyn Fn(V) -> V| {
        let (scale, mut sum) = (one / inverse, zero);
        for i in 0..N {
            let (x, w) = pair(i);
            let off = x - scale * level(x);
            sum = sum + w * off * off;
        }
        sum
    };
    let mut inverse = V::splat(most) / high;
    let mut least = error(inverse, &|x| (inverse * x).nearest_byte());
    for step in (-4i8..=4).filter(|step| *step != 0) {
        let tried = V::splat(0.1 * f32::from(step) + most) / high;
        let errs = error(tried, &|x| level(x, tried));
        let better = errs.less(least);
        least = V::choose(better, errs, least);
        inverse = V::choose(better, tried, inverse);
    }
    let (mut sum_xl, mut sum_ll) = (zero, zero);
    for i in 0..N {
        let (x, w) = pair(i);
        let l = level(x, inverse);
        l.nearest_byte().store(&mut levels[i]);
        sum_xl = sum_xl + w * x * l;
        sum_ll = sum_ll + w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for i in 0..N {
            let ((x, w), l) = (pair(i), V::load(&levels[i]));
            let (xl, ll) = (sum_xl - w * x * l, sum_ll - w * l * l);
            let new = (x * ll / xl).nearest().min(V::splat(most));
            let (new_xl, new_ll) = (xl + w * x * new, ll + w * new * new);
            let more = (sum_xl * sum_xl * new_ll).less(new_xl * new_xl * sum_ll);
            let better = zero.less(xl) & zero.less(ll) & more & new.differs(l);
            V::choose(better, new.nearest_byte(), l).store(&mut levels[i]);
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
