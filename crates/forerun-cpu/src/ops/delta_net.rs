//! The gated delta net: gates and convolution per row, the recurrence per value head and strip of columns, the gated norm.
//!
//! The state of a slot stands at its last committed row. A step first replays the accepted rows of the tape and writes the
//! state back, then runs its own rows: with `commit` the state after them is written, otherwise they go on the tape.

use forerun_tensor::math::{exp, sigmoid, silu, softplus};
use forerun_tensor::{DeltaNetOp, DeltaShape, Op, Plan, Result};

use super::rows::{normalise, sum_of_squares};
use crate::caches::{StateCache, tape_width};
use crate::exec::{Ctx, Worker};
use crate::isa::multiversion;
use crate::memory::Buffer;
use crate::view::Seq;

/// Columns of the state that a unit carries through all rows: they stay in the first-level cache.
const STRIP: usize = 64;

/// Rows of a step in the tape's form.
pub(crate) struct DeltaScratch {
    rows: Buffer<f32>,
    width: usize,
}

impl DeltaScratch {
    pub(crate) fn new(plan: &Plan, states: &[StateCache]) -> Result<Self> {
        let ops = plan.ops().iter().filter_map(|op| if let Op::DeltaNet(d) = op { Some(d) } else { None });
        let width = ops.map(|d| tape_width(&states[d.state.0 as usize].spec)).max().unwrap_or(0);
        Ok(Self { rows: Buffer::new(plan.max_rows() * width, "delta net")?, width })
    }

    fn row(&self, row: usize) -> &[f32] {
        &self.rows[row * self.width..(row + 1) * self.width]
    }

    /// # Safety
    /// No other thread uses this row until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    unsafe fn row_mut(&self, row: usize) -> &mut [f32] {
        // SAFETY: rows are below `max_rows`; exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.rows.as_ptr().add(row * self.width), self.width) }
    }
}

/// A row in the tape's form.
#[derive(Clone, Copy)]
struct TapeRow<'a> {
    raw: &'a [f32],
    mixed: &'a [f32],
    decay: &'a [f32],
    beta: &'a [f32],
}

impl<'a> TapeRow<'a> {
    fn new(row: &'a [f32], s: &DeltaShape) -> Self {
        let (raw, rest) = row.split_at(s.conv_cols());
        let (mixed, rest) = rest.split_at(s.conv_cols());
        let (decay, rest) = rest.split_at(s.value_heads);
        Self { raw, mixed, decay, beta: &rest[..s.value_heads] }
    }
}

pub(super) fn delta_net(ctx: &Ctx<'_>, w: &Worker<'_>, op: &DeltaNetOp) {
    let (s, state) = (op.shape, &ctx.states[op.state.0 as usize]);
    let seq_of: Vec<Seq> = ctx.view.all.seqs.iter().flat_map(|q| std::iter::repeat_n(*q, q.rows)).collect();
    let rows = seq_of.len();
    w.for_each(rows, |row, local| prepare_row(ctx, op, state, seq_of[row], row, &mut local.floats));
    let strips = s.value_dim.div_ceil(STRIP);
    let units = ctx.view.all.seqs.len() * s.value_heads * strips;
    w.for_each(units, |unit, local| {
        let (seq, rest) =
            (ctx.view.all.seqs[unit / (s.value_heads * strips)], unit % (s.value_heads * strips));
        let strip = Strip { head: rest / strips, first: rest % strips * STRIP };
        recur(ctx, op, state, seq, strip, &mut local.floats);
    });
    w.for_each(rows + ctx.view.all.seqs.len(), |unit, _| {
        if unit < rows {
            gated_norm(ctx, op, unit);
        } else {
            settle(ctx, state, &s, ctx.view.all.seqs[unit - rows]);
        }
    });
    if !s.value_dim.is_multiple_of(32) && ctx.act(op.out).is_quantised() {
        let cols = ctx.cols(op.out);
        // SAFETY: a unit per row.
        w.for_each(rows, |row, _| unsafe { ctx.act(op.out).quantise(ctx.isa, row, 0, cols) });
    }
}

/// Projections `back` rows before row `row` of the step (0 is the row itself): from the step, the replayed tape, or the
/// history; `None` before the sequence's start.
fn input_before<'a>(
    ctx: &'a Ctx<'_>,
    op: &DeltaNetOp,
    state: &'a StateCache,
    seq: Seq,
    row: usize,
    back: usize,
) -> Option<&'a [f32]> {
    let cols = op.shape.conv_cols();
    let index = row - seq.first;
    if back <= index {
        return Some(ctx.act(op.qkv).row(row - back));
    }
    if seq.pos == 0 {
        return None;
    }
    let before = back - index - 1;
    if before < seq.replay {
        return Some(&state.tape_row(seq.slot, seq.replay - 1 - before)[..cols]);
    }
    let past = op.shape.conv - 2 - (before - seq.replay);
    Some(&state.history(seq.slot)[past * cols..(past + 1) * cols])
}

/// Convolution, SiLU, L2 norms and gates of one row.
fn prepare_row(
    ctx: &Ctx<'_>,
    op: &DeltaNetOp,
    state: &StateCache,
    seq: Seq,
    row: usize,
    zeros: &mut Vec<f32>,
) {
    let s = op.shape;
    let cols = s.conv_cols();
    zeros.clear();
    zeros.resize(cols, 0.0);
    let inputs: Vec<&[f32]> =
        (0..s.conv).rev().map(|back| input_before(ctx, op, state, seq, row, back).unwrap_or(zeros)).collect();
    // SAFETY: this unit alone has the row.
    let out = unsafe { ctx.scratch.delta.row_mut(row) };
    let (raw, rest) = out.split_at_mut(cols);
    let (mixed, rest) = rest.split_at_mut(cols);
    let (decay, rest) = rest.split_at_mut(s.value_heads);
    let beta = &mut rest[..s.value_heads];
    raw.copy_from_slice(ctx.act(op.qkv).row(row));
    convolve(ctx.isa, &inputs, ctx.vector(op.conv), mixed);
    let (q, k) = mixed.split_at_mut(s.key_heads * s.key_dim);
    let scale = 1.0 / (s.key_dim as f32).sqrt();
    for head in q.chunks_exact_mut(s.key_dim) {
        l2_norm(ctx.isa, head, op.eps);
        head.iter_mut().for_each(|v| *v *= scale);
    }
    for head in k.chunks_exact_mut(s.key_dim).take(s.key_heads) {
        l2_norm(ctx.isa, head, op.eps);
    }
    let gates = GateInputs {
        alpha: ctx.act(op.alpha).row(row),
        dt: ctx.vector(op.dt_bias),
        a: ctx.vector(op.a),
        beta: ctx.act(op.beta).row(row),
    };
    gate(ctx.isa, gates, decay, beta);
}

multiversion! { fn convolve = convolve_body, (inputs: &[&[f32]], taps: &[f32], out: &mut [f32]) }

/// Depthwise convolution, oldest tap first, then SiLU.
#[inline(always)]
fn convolve_body(inputs: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    let n = inputs.len();
    if let ([a, b, c, d], (taps, [])) = (inputs, taps.as_chunks::<4>()) {
        let n = out.len();
        let (a, b, c, d, taps) = (&a[..n], &b[..n], &c[..n], &d[..n], &taps[..n]);
        for i in 0..n {
            let t = taps[i];
            let sum = t[0].mul_add(a[i], 0.0);
            out[i] = t[3].mul_add(d[i], t[2].mul_add(c[i], t[1].mul_add(b[i], sum)));
        }
        out.iter_mut().for_each(|o| *o = silu(*o));
        return;
    }
    for (c, o) in out.iter_mut().enumerate() {
        let mut sum = 0.0_f32;
        for (t, input) in inputs.iter().enumerate() {
            sum = taps[c * n + t].mul_add(input[c], sum);
        }
        *o = sum;
    }
    out.iter_mut().for_each(|o| *o = silu(*o));
}

multiversion! { fn l2_norm = l2_norm_body, (x: &mut [f32], eps: f32) }

#[inline(always)]
fn l2_norm_body(x: &mut [f32], eps: f32) {
    let r = 1.0 / (sum_of_squares(x) + eps).sqrt();
    x.iter_mut().for_each(|v| *v *= r);
}

struct GateInputs<'a> {
    alpha: &'a [f32],
    dt: &'a [f32],
    a: &'a [f32],
    beta: &'a [f32],
}

multiversion! { fn gate = gate_body, (x: GateInputs<'_>, decay: &mut [f32], beta: &mut [f32]) }

#[inline(always)]
fn gate_body(x: GateInputs<'_>, decay: &mut [f32], beta: &mut [f32]) {
    for (h, (d, b)) in decay.iter_mut().zip(beta).enumerate() {
        *d = exp(x.a[h] * softplus(x.alpha[h] + x.dt[h]));
        *b = sigmoid(x.beta[h]);
    }
}

/// Columns `first..first + STRIP` (or to the end) of a value head.
#[derive(Clone, Copy)]
struct Strip {
    head: usize,
    first: usize,
}

/// Brings a strip of the state through the replayed and the new rows.
fn recur(ctx: &Ctx<'_>, op: &DeltaNetOp, state: &StateCache, seq: Seq, strip: Strip, s_copy: &mut Vec<f32>) {
    let s = op.shape;
    let n = STRIP.min(s.value_dim - strip.first);
    let head = state.head(seq.slot, strip.head);
    s_copy.clear();
    s_copy.resize(s.key_dim * STRIP, 0.0);
    // SAFETY: this unit alone has these columns of the slot's head.
    let at = |i: usize| unsafe { std::slice::from_raw_parts_mut(head.add(i * s.value_dim + strip.first), n) };
    if seq.pos > 0 {
        s_copy
            .as_chunks_mut::<STRIP>()
            .0
            .iter_mut()
            .enumerate()
            .for_each(|(i, c)| c[..n].copy_from_slice(at(i)));
    }
    let write = |s_copy: &[f32]| {
        s_copy.as_chunks::<STRIP>().0.iter().enumerate().for_each(|(i, c)| at(i).copy_from_slice(&c[..n]));
    };
    let mut unused = [0.0; STRIP];
    for r in 0..seq.replay {
        let row = TapeRow::new(state.tape_row(seq.slot, r), &s);
        advance(ctx.isa, s_copy, RowArgs::new(row, &s, strip, n), &mut unused[..n]);
    }
    if !seq.commit && (seq.replay > 0 || seq.pos == 0) {
        write(s_copy);
    }
    for r in 0..seq.rows {
        let row = TapeRow::new(ctx.scratch.delta.row(seq.first + r), &s);
        // SAFETY: this unit alone has these columns of the row.
        let out =
            unsafe { ctx.act(op.out).cols_mut(seq.first + r, strip.head * s.value_dim + strip.first, n) };
        advance(ctx.isa, s_copy, RowArgs::new(row, &s, strip, n), out);
    }
    if seq.commit {
        write(s_copy);
    }
}

/// A row as one strip sees it.
struct RowArgs<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    decay: f32,
    beta: f32,
}

impl<'a> RowArgs<'a> {
    fn new(row: TapeRow<'a>, s: &DeltaShape, strip: Strip, n: usize) -> Self {
        let keys = s.key_heads * s.key_dim;
        let key = s.key_head(strip.head) * s.key_dim;
        Self {
            q: &row.mixed[key..key + s.key_dim],
            k: &row.mixed[keys + key..keys + key + s.key_dim],
            v: &row.mixed[2 * keys + strip.head * s.value_dim + strip.first..][..n],
            decay: row.decay[strip.head],
            beta: row.beta[strip.head],
        }
    }
}

multiversion! { fn advance = advance_body, (state: &mut [f32], row: RowArgs<'_>, out: &mut [f32]) }

/// `S ← decay·S; d = β·(v − Sᵀk); S ← S + k dᵀ; out = Sᵀq` for one strip of columns.
#[inline(always)]
fn advance_body(state: &mut [f32], row: RowArgs<'_>, out: &mut [f32]) {
    let state = state.as_chunks_mut::<STRIP>().0;
    let mut seen = [0.0_f32; STRIP];
    for (s, k) in state.iter().zip(row.k) {
        for c in 0..STRIP {
            seen[c] = k.mul_add(row.decay * s[c], seen[c]);
        }
    }
    let mut d = [0.0_f32; STRIP];
    for ((d, v), seen) in d.iter_mut().zip(row.v).zip(&seen) {
        *d = row.beta * (*v - *seen);
    }
    let mut o = [0.0_f32; STRIP];
    for ((s, k), q) in state.iter_mut().zip(row.k).zip(row.q) {
        for c in 0..STRIP {
            s[c] = k.mul_add(d[c], row.decay * s[c]);
            o[c] = q.mul_add(s[c], o[c]);
        }
    }
    out.copy_from_slice(&o[..out.len()]);
}

/// `RMS(o, norm) · SiLU(z)` of every head of a row.
fn gated_norm(ctx: &Ctx<'_>, op: &DeltaNetOp, row: usize) {
    let s = op.shape;
    let z = ctx.act(op.z).row(row);
    // SAFETY: this unit alone has the row.
    let out = unsafe { ctx.act(op.out).row_mut(row) };
    for (o, z) in out.chunks_exact_mut(s.value_dim).zip(z.chunks_exact(s.value_dim)) {
        normalise(ctx.isa, o, Some(ctx.vector(op.norm)), op.eps);
        multiply_silu(ctx.isa, o, z);
    }
    if s.value_dim.is_multiple_of(32) {
        // SAFETY: as above.
        unsafe { ctx.act(op.out).quantise(ctx.isa, row, 0, s.value_cols()) };
    }
}

multiversion! { fn multiply_silu = multiply_silu_body, (o: &mut [f32], z: &[f32]) }

#[inline(always)]
fn multiply_silu_body(o: &mut [f32], z: &[f32]) {
    o.iter_mut().zip(z).for_each(|(o, z)| *o *= silu(*z));
}

/// Moves a sequence's convolution history to its new committed boundary and puts undecided rows on the tape.
fn settle(ctx: &Ctx<'_>, state: &StateCache, s: &DeltaShape, seq: Seq) {
    let keep = s.conv - 1;
    let cols = s.conv_cols();
    let new_row = |r: usize| TapeRow::new(ctx.scratch.delta.row(seq.first + r), s).raw;
    let tape_row = |r: usize| TapeRow::new(state.tape_row(seq.slot, r), s).raw;
    let old: Vec<f32> = if seq.pos == 0 { vec![0.0; keep * cols] } else { state.history(seq.slot).to_vec() };
    let committed = seq.replay + if seq.commit { seq.rows } else { 0 };
    let newest: Vec<&[f32]> = (0..keep)
        .map(|i| match (committed + i).checked_sub(keep) {
            None => &old[(committed + i) * cols..][..cols],
            Some(r) if r < seq.replay => tape_row(r),
            Some(r) => new_row(r - seq.replay),
        })
        .collect();
    let joined: Vec<f32> = newest.concat();
    // SAFETY: this unit alone has the slot, and its readers were units of earlier phases.
    unsafe { state.history_mut(seq.slot) }.copy_from_slice(&joined);
    if seq.commit {
        state.set_place(seq.slot, seq.pos + seq.rows, 0);
        return;
    }
    for r in 0..seq.rows {
        let tape = tape_width(&state.spec);
        // SAFETY: as above.
        unsafe { state.tape_row_mut(seq.slot, r) }
            .copy_from_slice(&ctx.scratch.delta.row(seq.first + r)[..tape]);
    }
    state.set_place(seq.slot, seq.pos, seq.rows);
}
