//! Operators that treat every row by itself: embedding, norm, selection, softcap, gates.

use forerun_tensor::math::{gelu_tanh, silu, tanh, tree16};
use forerun_tensor::{Act, Activation, Factor, Ids, RingId, WeightId};

use crate::exec::{Ctx, Weight, Worker};
use crate::isa::multiversion;

/// Quantises a finished row where an integer product reads it.
///
/// # Safety
/// The caller's thread alone uses the row until the caller's unit is finished.
unsafe fn finish(ctx: &Ctx<'_>, act: Act, row: usize) {
    let cols = ctx.cols(act);
    // SAFETY: the caller's contract; integer products have whole blocks of columns.
    unsafe { ctx.act(act).quantise(ctx.isa, row, 0, cols) };
}

pub(super) fn embed(ctx: &Ctx<'_>, w: &Worker<'_>, table: WeightId, ids: Ids, scale: f32, out: Act) {
    w.for_each(ctx.rows(out), |row, _| {
        let id = match ids {
            Ids::Step => ctx.view.step.tokens[row],
            Ids::Picked(picks) => ctx.scratch.sample.picked(picks, row).token,
        };
        // SAFETY: this unit alone has the row.
        let y = unsafe { ctx.act(out).row_mut(row) };
        match &ctx.weights[table.0 as usize] {
            Weight::Matrix(m) => m.decode_row(ctx.isa, id as usize, y),
            Weight::Vector(v) => y.copy_from_slice(&v[id as usize * y.len()..][..y.len()]),
        }
        if scale != 1.0 {
            y.iter_mut().for_each(|v| *v *= scale);
        }
        // SAFETY: as above.
        unsafe { finish(ctx, out, row) };
    });
}

/// Operands of a norm.
pub(super) struct Norm {
    pub(super) x: Act,
    pub(super) weight: Option<WeightId>,
    pub(super) group: usize,
    pub(super) eps: f32,
    pub(super) residual: Option<Act>,
    pub(super) scale: Option<Factor>,
    pub(super) out: Act,
}

pub(super) fn rms_norm(ctx: &Ctx<'_>, w: &Worker<'_>, n: &Norm) {
    let gain = n.weight.map(|id| ctx.vector(id));
    let scale = n.scale.map(|s| match s {
        Factor::Weight(id) => ctx.vector(id)[0],
        Factor::Constant(c) => c,
    });
    w.for_each(ctx.rows(n.out), |row, local| {
        let x = ctx.act(n.x).row(row);
        let y = &mut local.floats;
        y.clear();
        y.extend_from_slice(x);
        y.chunks_exact_mut(n.group).for_each(|run| normalise(ctx.isa, run, gain, n.eps));
        if let Some(r) = n.residual {
            y.iter_mut().zip(ctx.act(r).row(row)).for_each(|(y, r)| *y += *r);
        }
        if let Some(s) = scale {
            y.iter_mut().for_each(|y| *y *= s);
        }
        // SAFETY: this unit alone has the row.
        unsafe {
            ctx.act(n.out).row_mut(row).copy_from_slice(y);
            finish(ctx, n.out, row);
        }
    });
}

multiversion! {
    /// `x = (x / √(mean(x²) + eps)) · gain`, in place.
    pub(super) fn normalise = normalise_body, (x: &mut [f32], gain: Option<&[f32]>, eps: f32)
}

#[inline(always)]
fn normalise_body(x: &mut [f32], gain: Option<&[f32]>, eps: f32) {
    let r = 1.0 / (sum_of_squares(x) / x.len() as f32 + eps).sqrt();
    match gain {
        Some(g) => x.iter_mut().zip(g).for_each(|(x, g)| *x = (*x * r) * *g),
        None => x.iter_mut().for_each(|x| *x *= r),
    }
}

/// Σx² in 16 lanes (index mod 16) and the fixed tree.
#[inline(always)]
pub(super) fn sum_of_squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        for l in 0..16 {
            lanes[l] = chunk[l].mul_add(chunk[l], lanes[l]);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(tail) {
        *lane = v.mul_add(*v, *lane);
    }
    tree16(&lanes)
}

pub(super) fn select(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, out: Act) {
    w.for_each(ctx.rows(out), |row, _| {
        let from = ctx.view.step.out[row].row as usize;
        // SAFETY: this unit alone has the row.
        unsafe {
            ctx.act(out).row_mut(row).copy_from_slice(ctx.act(x).row(from));
            finish(ctx, out, row);
        }
    });
}

pub(super) fn softcap(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, cap: f32) {
    w.for_each(ctx.rows(x), |row, _| {
        // SAFETY: this unit alone has the row.
        unsafe {
            cap_row(ctx.isa, ctx.act(x).row_mut(row), cap);
            finish(ctx, x, row);
        }
    });
}

multiversion! { fn cap_row = cap_row_body, (x: &mut [f32], cap: f32) }

#[inline(always)]
fn cap_row_body(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|v| *v = cap * tanh(*v / cap));
}

/// `by` comes with its first column.
pub(super) fn multiply(
    ctx: &Ctx<'_>,
    w: &Worker<'_>,
    x: Act,
    activation: Activation,
    (by, first): (Act, usize),
) {
    let cols = ctx.cols(x);
    w.for_each(ctx.rows(x), |row, _| {
        let factors = &ctx.act(by).row(row)[first..first + cols];
        // SAFETY: this unit alone has the row.
        unsafe {
            gate_row(ctx.isa, activation, ctx.act(x).row_mut(row), factors);
            finish(ctx, x, row);
        }
    });
}

multiversion! {
    /// `x = activation(x) · by`, in place.
    fn gate_row = gate_row_body, (activation: Activation, x: &mut [f32], by: &[f32])
}

#[inline(always)]
fn gate_row_body(activation: Activation, x: &mut [f32], by: &[f32]) {
    match activation {
        Activation::Silu => x.iter_mut().zip(by).for_each(|(x, by)| *x = silu(*x) * *by),
        Activation::GeluTanh => x.iter_mut().zip(by).for_each(|(x, by)| *x = gelu_tanh(*x) * *by),
    }
}

/// Copies a buffer out at this point of the plan: later operators may change it in place.
pub(super) fn output(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, slot: usize) {
    let cols = ctx.cols(x);
    w.for_each(ctx.rows(x), |row, _| {
        // SAFETY: the tap has room for every row of the plan, and this unit alone has this one.
        let out = unsafe { std::slice::from_raw_parts_mut(ctx.taps[slot].as_ptr().add(row * cols), cols) };
        out.copy_from_slice(ctx.act(x).row(row));
    });
}

pub(super) fn concat(ctx: &Ctx<'_>, w: &Worker<'_>, parts: &[Act], out: Act) {
    w.for_each(ctx.rows(out), |row, _| {
        let mut first = 0;
        for part in parts {
            let x = ctx.act(*part).row(row);
            // SAFETY: this unit alone has the row.
            unsafe { ctx.act(out).cols_mut(row, first, x.len()).copy_from_slice(x) };
            first += x.len();
        }
        // SAFETY: as above.
        unsafe { finish(ctx, out, row) };
    });
}

pub(super) fn keep(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, (ring, first): (RingId, usize), ahead: u32) {
    let rows = &ctx.rows_of(x).rows;
    w.for_each(rows.len(), |row, _| {
        let (at, pos) = (rows[row], rows[row].pos + ahead as usize);
        // SAFETY: rows of a step stand at different slots or positions, fewer than the ring holds, so this unit alone
        // has the ring's row.
        let kept = unsafe { ctx.rings[ring.0 as usize].row_mut(at.slot, pos) };
        let x = ctx.act(x).row(row);
        kept[first..first + x.len()].copy_from_slice(x);
    });
}

pub(super) fn recall(ctx: &Ctx<'_>, w: &Worker<'_>, ring: RingId, out: Act) {
    let rows = &ctx.rows_of(out).rows;
    w.for_each(rows.len(), |row, _| {
        // SAFETY: this unit alone has the row.
        unsafe {
            let from = ctx.rings[ring.0 as usize].row(rows[row].slot, rows[row].pos);
            ctx.act(out).row_mut(row).copy_from_slice(from);
            finish(ctx, out, row);
        }
    });
}
