//! Per-head norms, rotary embedding, cache write.

use forerun_tensor::math::sin_cos;
use forerun_tensor::{Result, RopeKvOp, RopeSpec};

use super::rows::normalise;
use crate::exec::{Ctx, Worker};
use crate::isa::multiversion;
use crate::memory::Buffer;

/// Cosines and sines of a rotary embedding for the rows of a step.
pub(crate) struct Rotations {
    pairs: usize,
    /// `[row][cosines | sines]`.
    table: Buffer<f32>,
}

impl Rotations {
    pub(crate) fn new(spec: &RopeSpec, max_rows: usize) -> Result<Self> {
        let pairs = spec.frequencies.len();
        Ok(Self { pairs, table: Buffer::new(2 * pairs * max_rows, "rotary table")? })
    }

    /// Fills the table for a step. Only the thread that starts the step calls this, before any other runs.
    pub(crate) fn fill(&mut self, spec: &RopeSpec, positions: impl Iterator<Item = usize>) {
        for (row, pos) in self.table.chunks_exact_mut(2 * self.pairs.max(1)).zip(positions) {
            rotation(spec, pos, row);
        }
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.table[2 * self.pairs * row..2 * self.pairs * (row + 1)]
    }
}

/// Cosines, then sines, of position · frequency.
fn rotation(spec: &RopeSpec, pos: usize, out: &mut [f32]) {
    let (cosines, sines) = out.split_at_mut(spec.frequencies.len());
    for ((f, c), s) in spec.frequencies.iter().zip(cosines).zip(sines) {
        let (sin, cos) = sin_cos(pos as f64 * f);
        (*c, *s) = (cos as f32, sin as f32);
        if spec.scale != 1.0 {
            *c *= spec.scale;
            *s *= spec.scale;
        }
    }
}

multiversion! { fn rotate = rotate_body, (v: &mut [f32], table: &[f32]) }

#[inline(always)]
fn rotate_body(v: &mut [f32], table: &[f32]) {
    let pairs = table.len() / 2;
    let (cosines, sines) = table.split_at(pairs);
    let (a, rest) = v.split_at_mut(pairs);
    for (((a, b), c), s) in a.iter_mut().zip(&mut rest[..pairs]).zip(cosines).zip(sines) {
        let (x, y) = (*a, *b);
        *a = x.mul_add(*c, -(y * *s));
        *b = y.mul_add(*c, x * *s);
    }
}

pub(super) fn rope_kv(ctx: &Ctx<'_>, w: &Worker<'_>, op: &RopeKvOp) {
    let s = op.shape;
    let kv = &ctx.kvs[op.kv.0 as usize];
    let (q_norm, k_norm) = (op.q_norm.map(|id| ctx.vector(id)), op.k_norm.map(|id| ctx.vector(id)));
    let query_heads = if op.q.is_some() { s.heads } else { 0 };
    let key_heads = if op.k.is_some() { s.kv_heads } else { 0 };
    let Some(of) = op.q.or(op.k) else { return };
    let rows = &ctx.rows_of(of).rows;
    let units = rows.len() * (query_heads + key_heads);
    w.for_each_grain(units, w.grain(units, 64), |unit, local| {
        let (row, head) = (unit / (query_heads + key_heads), unit % (query_heads + key_heads));
        let at = rows[row];
        let pos = at.pos + op.advance as usize;
        let own;
        let table = if op.advance == 0 {
            ctx.scratch.rotations[op.rope.index()].row(at.index)
        } else {
            let spec = &ctx.plan.ropes()[op.rope.index()];
            let mut t = vec![0.0; 2 * spec.frequencies.len()];
            rotation(spec, pos, &mut t);
            own = t;
            &own
        };
        if let (Some(q), true) = (op.q, head < query_heads) {
            // SAFETY: this unit alone has the head.
            let v = unsafe { ctx.act(q).cols_mut(row, head * s.q_stride, s.key_dim) };
            if q_norm.is_some() {
                normalise(ctx.isa, v, q_norm, op.eps);
            }
            rotate(ctx.isa, v, table);
            return;
        }
        let (Some(k), Some(v)) = (op.k, op.v) else { return };
        let head = head - query_heads;
        let (key, value) = (&mut local.floats, &mut local.more);
        key.clear();
        key.extend_from_slice(&ctx.act(k).row(row)[head * s.key_dim..(head + 1) * s.key_dim]);
        if k_norm.is_some() {
            normalise(ctx.isa, key, k_norm, op.eps);
        }
        rotate(ctx.isa, key, table);
        value.clear();
        value.extend_from_slice(&ctx.act(v).row(row)[head * s.value_dim..(head + 1) * s.value_dim]);
        if op.v_norm {
            normalise(ctx.isa, value, None, op.eps);
        }
        // SAFETY: this unit alone has the position in this slot and head.
        unsafe { kv.write(at.slot, head, pos, key, value) };
    });
}
