//! Products of activations with weights.
//!
//! A unit of work is a pair of groups: 32 output columns, so that a result which another integer product reads is quantised
//! where it was made.

use forerun_tensor::math::{gelu_tanh, silu};
use forerun_tensor::{Act, Activation, Product, WeightId};

use crate::act::ActBuf;
use crate::exec::{Ctx, Local, Worker, room};
use crate::isa::multiversion;
use crate::matmul::{Columns, Matrix};

/// The most units a thread claims at once.
const MOST: usize = 8;

pub(super) fn mat_mul(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, products: &[Product]) {
    let rows = ctx.rows(x);
    let pairs = |p: &Product| ctx.matrix(p.weight).pairs();
    let units = products.iter().map(pairs).sum();
    w.for_each_grain(units, w.grain(units, MOST), |mut unit, local| {
        for p in products {
            let here = pairs(p);
            if unit < here {
                product(ctx, x, p, unit, rows, local);
                return;
            }
            unit -= here;
        }
    });
}

/// One pair of groups of one product, for all rows.
fn product(ctx: &Ctx<'_>, x: Act, p: &Product, pair: usize, rows: usize, local: &mut Local) {
    let m = ctx.matrix(p.weight);
    let (input, out) = (ctx.act(x), ctx.act(p.out));
    let results = room(&mut local.results[0], rows);
    m.pair(ctx.isa, (0, pair), input.run(0, rows), &mut local.space, results);
    let cols = m.columns(pair);
    for (row, result) in results.iter().enumerate() {
        // SAFETY: this unit alone has these columns.
        let y = unsafe { out.cols_mut(row, cols.start, cols.len()) };
        match p.residual {
            None => copy(y, result),
            Some(r) if r == p.out => y.iter_mut().zip(result).for_each(|(y, v)| *y += *v),
            Some(r) => {
                let r = &ctx.act(r).row(row)[cols.clone()];
                y.iter_mut().zip(result.iter().zip(r)).for_each(|(y, (v, r))| *y = *r + *v);
            }
        }
        quantise_pair(ctx, out, m, pair, row);
    }
}

/// Copies a pair's columns; all of them without a call.
#[inline(always)]
fn copy(y: &mut [f32], result: &Columns) {
    match <&mut Columns>::try_from(&mut *y) {
        Ok(whole) => *whole = *result,
        Err(_) => y.copy_from_slice(&result[..y.len()]),
    }
}

/// Writes a pair's columns to a row, quantised where an integer product reads them.
///
/// # Safety
/// The caller's unit alone has these columns.
pub(super) unsafe fn write_pair(
    ctx: &Ctx<'_>,
    out: &ActBuf,
    m: &Matrix,
    pair: usize,
    row: usize,
    y: &Columns,
) {
    let cols = m.columns(pair);
    // SAFETY: the caller's contract.
    copy(unsafe { out.cols_mut(row, cols.start, cols.len()) }, y);
    quantise_pair(ctx, out, m, pair, row);
}

fn quantise_pair(ctx: &Ctx<'_>, out: &ActBuf, m: &Matrix, pair: usize, row: usize) {
    if out.is_quantised() {
        let cols = m.columns(pair);
        // SAFETY: only called for columns that the caller's unit alone has.
        unsafe { out.quantise(ctx.isa, row, cols.start, cols.len()) };
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
    let units = gate.pairs();
    w.for_each_grain(units, w.grain(units, MOST), |pair, local| {
        let [a, b] = &mut local.results;
        let (a, b) = (room(a, rows), room(b, rows));
        gate.pair(ctx.isa, (0, pair), input.run(0, rows), &mut local.space, a);
        up.pair(ctx.isa, (0, pair), input.run(0, rows), &mut local.space, b);
        combine(ctx.isa, g.activation, a, b);
        for (row, a) in a.iter().enumerate() {
            // SAFETY: this unit alone has these columns.
            unsafe { write_pair(ctx, out, gate, pair, row, a) };
        }
    });
}

multiversion! {
    /// `gate = activation(gate) · up`, in place.
    pub(super) fn combine = combine_body, (activation: Activation, gate: &mut [Columns], up: &[Columns])
}

#[inline(always)]
fn combine_body(activation: Activation, gate: &mut [Columns], up: &[Columns]) {
    for (g, u) in gate.iter_mut().zip(up) {
        match activation {
            Activation::Silu => g.iter_mut().zip(u).for_each(|(g, u)| *g = silu(*g) * *u),
            Activation::GeluTanh => g.iter_mut().zip(u).for_each(|(g, u)| *g = gelu_tanh(*g) * *u),
        }
    }
}
