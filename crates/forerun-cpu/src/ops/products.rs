//! Products of activations with weights.
//!
//! A unit of work is a pair of groups: 32 output columns, so that a result which another integer product reads is quantised
//! where it was made.

use std::cell::OnceCell;

use forerun_tensor::math::{gelu_tanh, silu};
use forerun_tensor::{Act, Activation, Product, WeightId};

use crate::act::ActBuf;
use crate::exec::{Ctx, Local, Worker};
use crate::isa::multiversion;
use crate::matmul::{GROUP, InputRows, Matrix, TILE, Tile};

/// Groups of a unit.
pub(super) const PAIR: usize = 2;
/// The most units a thread claims at once.
const MOST: usize = 8;

/// The groups of unit `pair`.
pub(super) fn groups(m: &Matrix, pair: usize) -> std::ops::Range<usize> {
    PAIR * pair..(PAIR * (pair + 1)).min(m.groups())
}

/// Columns of a group that exist.
pub(super) fn columns(m: &Matrix, group: usize) -> std::ops::Range<usize> {
    GROUP * group..(GROUP * (group + 1)).min(m.rows)
}

pub(super) fn mat_mul(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, products: &[Product]) {
    let rows = ctx.rows(x);
    let pairs = |p: &Product| ctx.matrix(p.weight).groups().div_ceil(PAIR);
    let units = products.iter().map(pairs).sum();
    let one = OnceCell::new();
    w.for_each_grain(units, w.grain(units, MOST), |mut unit, local| {
        for p in products {
            let here = pairs(p);
            if unit < here {
                let one = one.get_or_init(|| single_tile(ctx.act(x), rows));
                product(ctx, (x, one.as_ref()), p, unit, rows, local);
                return;
            }
            unit -= here;
        }
    });
}

/// The rows of a step that is a single tile: what every unit reads is found once, by the thread's first unit. A thread that
/// comes late has none, and must not look at rows that others write by then.
fn single_tile(x: &ActBuf, rows: usize) -> Option<InputRows<'_>> {
    (rows > 0 && rows <= TILE).then(|| x.tile_rows(0, rows, None))
}

/// One pair of groups of one product, for all rows. `x` comes with its rows when they are a single tile.
fn product(
    ctx: &Ctx<'_>,
    (x, one): (Act, Option<&InputRows<'_>>),
    p: &Product,
    pair: usize,
    rows: usize,
    local: &mut Local,
) {
    let m = ctx.matrix(p.weight);
    let (input, out) = (ctx.act(x), ctx.act(p.out));
    for first in (0..rows).step_by(TILE) {
        let own;
        let tile = match one {
            Some(one) => one,
            None => {
                own = input.tile_rows(first, TILE.min(rows - first), None);
                &own
            }
        };
        for group in groups(m, pair) {
            let result = &mut local.tiles[0];
            m.tile(ctx.isa, 0, group, tile, &mut local.weights, result);
            let cols = columns(m, group);
            for (i, result) in result.iter().enumerate().take(tile.count) {
                // SAFETY: this unit alone has these columns.
                let y = unsafe { out.cols_mut(first + i, cols.start, cols.len()) };
                match p.residual {
                    None => copy(y, result),
                    Some(r) if r == p.out => y.iter_mut().zip(result).for_each(|(y, v)| *y += *v),
                    Some(r) => {
                        let r = &ctx.act(r).row(first + i)[cols.clone()];
                        y.iter_mut().zip(result.iter().zip(r)).for_each(|(y, (v, r))| *y = *r + *v);
                    }
                }
            }
        }
        finish_pair(ctx, out, m, pair, first, tile.count);
    }
}

/// Copies a group's columns; all of them without a call.
#[inline(always)]
fn copy(y: &mut [f32], result: &[f32; GROUP]) {
    match <&mut [f32; GROUP]>::try_from(&mut *y) {
        Ok(whole) => *whole = *result,
        Err(_) => y.copy_from_slice(&result[..y.len()]),
    }
}

/// Quantises the 32 columns of a unit.
fn finish_pair(ctx: &Ctx<'_>, out: &ActBuf, m: &Matrix, pair: usize, first: usize, count: usize) {
    if !out.is_quantised() {
        return;
    }
    let start = pair * PAIR * GROUP;
    let len = (PAIR * GROUP).min(m.rows - start);
    for row in first..first + count {
        // SAFETY: this unit alone has these columns.
        unsafe { out.quantise(ctx.isa, row, start, len) };
    }
}

/// Operands of a gated product.
pub(super) struct Gated {
    pub(super) x: Act,
    pub(super) gate: WeightId,
    pub(super) up: WeightId,
    pub(super) activation: Activation,
    pub(super) out: Act,
}

pub(super) fn gated_mat_mul(ctx: &Ctx<'_>, w: &Worker<'_>, g: &Gated) {
    let rows = ctx.rows(g.x);
    let (gate, up) = (ctx.matrix(g.gate), ctx.matrix(g.up));
    let (input, out) = (ctx.act(g.x), ctx.act(g.out));
    let units = gate.groups().div_ceil(PAIR);
    let one = OnceCell::new();
    w.for_each_grain(units, w.grain(units, MOST), |pair, local| {
        for first in (0..rows).step_by(TILE) {
            let own;
            let tile = match one.get_or_init(|| single_tile(input, rows)) {
                Some(one) => one,
                None => {
                    own = input.tile_rows(first, TILE.min(rows - first), None);
                    &own
                }
            };
            for group in groups(gate, pair) {
                let [a, b] = &mut *local.tiles;
                gate.tile(ctx.isa, 0, group, tile, &mut local.weights, a);
                up.tile(ctx.isa, 0, group, tile, &mut local.weights, b);
                combine(ctx.isa, g.activation, a, b, tile.count);
                let cols = columns(gate, group);
                for (i, a) in a.iter().enumerate().take(tile.count) {
                    // SAFETY: this unit alone has these columns.
                    let y = unsafe { out.cols_mut(first + i, cols.start, cols.len()) };
                    copy(y, a);
                }
            }
            finish_pair(ctx, out, gate, pair, first, tile.count);
        }
    });
}

multiversion! {
    /// `gate = activation(gate) · up`, in place.
    pub(super) fn combine = combine_body, (activation: Activation, gate: &mut Tile, up: &Tile, count: usize)
}

#[inline(always)]
fn combine_body(activation: Activation, gate: &mut Tile, up: &Tile, count: usize) {
    for (g, u) in gate.iter_mut().zip(up).take(count) {
        match activation {
            Activation::Silu => g.iter_mut().zip(u).for_each(|(g, u)| *g = silu(*g) * *u),
            Activation::GeluTanh => g.iter_mut().zip(u).for_each(|(g, u)| *g = gelu_tanh(*g) * *u),
        }
    }
}
