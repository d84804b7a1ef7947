//! The search for a scale and a minimum: the line through small levels, `scale · level + minimum`, that errs least.

use super::lanes::{Groups, Lanes, WIDTH, pair};

/// What levels there are, and which steps are tried for them.
#[derive(Clone, Copy)]
pub(super) struct Grid {
    /// The largest level; the smallest is 0.
    pub most: f32,
    /// The range is taken to be `most + first` steps wide, then `by` more of them, `tries` times in all.
    pub first: f32,
    pub by: f32,
    pub tries: u16,
    /// Errors are weighed as they are, not squared.
    pub absolute: bool,
}

/// What was found for each of sixteen groups.
pub(super) struct Lines {
    pub scale: [f32; WIDTH],
    /// What is taken from `scale · level`; not below 0 where the numbers are finite.
    pub min: [f32; WIDTH],
    /// Levels of the best line are `(x − low) · inverse`, rounded and clamped.
    pub inverse: [f32; WIDTH],
    pub low: [f32; WIDTH],
}

/// Fits a line to each group of N weights with their importance. Every try takes a step, rounds the weights to levels, and
/// puts the weighted least squares line through them; the line that errs least is kept. The minimum of a better line is also
/// where the levels of later tries begin. The minimum is never above 0, so that a weight of 0 stays near 0.
#[inline(always)]
pub(super) fn lines<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, grid: Grid) -> Lines {
    let (zero, most) = (V::splat(0.0), V::splat(grid.most));
    let (first, first_w) = pair::<V, N>(x, w, 0);
    let (mut low, mut high, mut sum_w, mut sum_x) = (first, first, first_w, first_w * first);
    for i in 1..N {
        let (x, w) = pair::<V, N>(x, w, i);
        low = x.min(low);
        high = x.max(high);
        sum_w = sum_w + w;
        sum_x = sum_x + w * x;
    }
    low = V::choose(zero.less(low), zero, low);
    let (wide, flat_min) = (high.differs(low), low);
    let mut inverse = most / (high - low);
    let mut best_low = low;
    let mut scale = V::splat(1.0) / inverse;
    let mut kept = [[0.0; WIDTH]; N];
    for (x, kept) in x.iter().zip(&mut kept) {
        level(V::load(x), low, inverse, grid.most).store(kept);
    }
    let mut least = error(x, w, &kept, [scale, low], grid.absolute);
    for try_ in 0..grid.tries {
        let step = V::splat(grid.first + grid.by * f32::from(try_) + grid.most) / (high - low);
        let (mut sum_l, mut sum_ll, mut sum_xl) = (zero, zero, zero);
        for (i, kept) in kept.iter_mut().enumerate() {
            let (x, w) = pair::<V, N>(x, w, i);
            let l = level(x, low, step, grid.most);
            l.store(kept);
            let wl = w * l;
            sum_l = sum_l + wl;
            sum_ll = sum_ll + wl * l;
            sum_xl = sum_xl + wl * x;
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        let fit_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        let fit_min = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
        let above = zero.less(fit_min);
        let fit_min = V::choose(above, zero, fit_min);
        let fit_scale = V::choose(above, sum_xl / sum_ll, fit_scale);
        let errs = error(x, w, &kept, [fit_scale, fit_min], grid.absolute);
        let better = zero.less(determinant) & errs.less(least);
        least = V::choose(better, errs, least);
        scale = V::choose(better, fit_scale, scale);
        inverse = V::choose(better, step, inverse);
        best_low = V::choose(better, low, best_low);
        low = V::choose(better, fit_min, low);
    }
    Lines {
        scale: V::choose(wide, scale, zero).to_array(),
        min: V::choose(wide, low, flat_min).to_array().map(|min| -min),
        inverse: V::choose(wide, inverse, zero).to_array(),
        low: V::choose(wide, best_low, zero).to_array(),
    }
}

#[inline(always)]
fn level<V: Lanes>(x: V, low: V, inverse: V, most: f32) -> V {
    (inverse * (x - low)).nearest().clamp(0.0, most)
}

/// The weighted error of each group under its line.
#[inline(always)]
fn error<V: Lanes, const N: usize>(
    x: &Groups<N>,
    w: &Groups<N>,
    levels: &Groups<N>,
    [scale, min]: [V; 2],
    absolute: bool,
) -> V {
    let mut sum = V::splat(0.0);
    for (i, level) in levels.iter().enumerate() {
        let (x, w) = pair::<V, N>(x, w, i);
        let off = scale * V::load(level) + min - x;
        sum = sum + w * if absolute { off.abs() } else { off * off };
    }
    sum
}
