//! Attention over the cache in key blocks of fixed absolute positions.
//!
//! The arithmetic of a query row and head is one sequence: for each block ascending, scores, the block's maximum, weights,
//! their sum and the weighted values; then the block joins what came before. A step of few rows computes blocks in
//! parallel and joins them afterwards; a prompt gives each unit some rows and lets it walk the blocks. Both do the same
//! operations in the same order.

use forerun_tensor::math::{exp, sigmoid, tree16};
use forerun_tensor::{AttentionOp, Gate, Op, Plan, Result};

use crate::caches::{KvCache, Span};
use crate::exec::{Ctx, Local, Worker};
use crate::isa::multiversion;
use crate::memory::Buffer;
use crate::view::Rows;

/// Key blocks that a round of the parallel form covers.
const ROUND: usize = 128;
/// Steps with at most so many query rows and heads in all take the parallel form.
const FEW: usize = 256;
/// Query rows of a unit in the other form.
const UNIT_ROWS: usize = 16;

/// Blocks' results between the phases of the parallel form.
pub(crate) struct AttentionScratch {
    /// `[row · head][block of the round][maximum, sum, values]`.
    partial: Buffer<f32>,
    /// `[row · head][maximum, sum, values]`.
    joined: Buffer<f32>,
    width: usize,
}

fn attention_ops(plan: &Plan) -> impl Iterator<Item = &AttentionOp> {
    plan.ops().iter().filter_map(|op| if let Op::Attention(a) = op { Some(a) } else { None })
}

/// Rounds that all attention operators of a plan may need together.
pub(super) fn rounds(plan: &Plan, kvs: &[KvCache]) -> usize {
    attention_ops(plan)
        .map(|a| {
            let spec = &kvs[a.kv.0 as usize].spec;
            spec.capacity.div_ceil(spec.block).div_ceil(ROUND) + 2
        })
        .sum()
}

impl AttentionScratch {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let width = attention_ops(plan).map(|a| a.shape.value_dim + 2).max().unwrap_or(0);
        let pairs =
            attention_ops(plan).map(|a| (a.shape.heads * plan.max_rows()).min(FEW)).max().unwrap_or(0);
        Ok(Self {
            partial: Buffer::new(pairs * ROUND * width, "attention")?,
            joined: Buffer::new(pairs * width, "attention")?,
            width,
        })
    }

    /// # Safety
    /// No other thread uses this entry until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    unsafe fn partial_mut(&self, pair: usize, block: usize) -> &mut [f32] {
        // SAFETY: pairs are at most FEW and blocks at most ROUND; exclusive by the caller's contract.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.partial.as_ptr().add((pair * ROUND + block) * self.width),
                self.width,
            )
        }
    }

    fn partial(&self, pair: usize, block: usize) -> &[f32] {
        &self.partial[(pair * ROUND + block) * self.width..][..self.width]
    }

    /// # Safety
    /// No other thread uses this entry until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    unsafe fn joined_mut(&self, pair: usize) -> &mut [f32] {
        // SAFETY: pairs are at most FEW; exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.joined.as_ptr().add(pair * self.width), self.width) }
    }
}

/// Keys that a query row sees: positions `from..to`.
fn visible(ctx: &Ctx<'_>, op: &AttentionOp, row: usize) -> (usize, usize) {
    let r = ctx.rows_of(op.q).rows[row];
    let advance = op.advance as usize;
    let pos = r.pos + advance;
    let to = if op.causal { pos } else { r.last + advance } + 1;
    let from = op.window.map_or(0, |w| (pos + 1).saturating_sub(w as usize));
    (from, to)
}

pub(super) fn attention(ctx: &Ctx<'_>, w: &Worker<'_>, op: &AttentionOp) {
    let rows = ctx.rows(op.q);
    if rows * op.shape.heads <= FEW {
        by_blocks(ctx, w, op);
    } else {
        by_rows(ctx, w, op);
    }
    if !op.shape.value_dim.is_multiple_of(32) && ctx.act(op.out).is_quantised() {
        let cols = ctx.cols(op.out);
        // SAFETY: a unit per row.
        w.for_each(rows, |row, _| unsafe { ctx.act(op.out).quantise(ctx.isa, row, 0, cols) });
    }
}

/// Query heads that share a KV head.
fn sharing(op: &AttentionOp) -> usize {
    op.shape.heads / op.shape.kv_heads
}

/// Decodes one block of a slot's keys and values into the thread's memory; the number of positions.
fn load_block(
    ctx: &Ctx<'_>,
    kv: &KvCache,
    slot: usize,
    head: usize,
    block: usize,
    end: usize,
    local: &mut Local,
) -> usize {
    let first = block * kv.spec.block;
    let count = kv.spec.block.min(end - first);
    let width = kv.spec.block.next_multiple_of(16);
    local.floats.resize(kv.spec.key_dim * width, 0.0);
    local.more.resize(kv.spec.value_dim * kv.spec.block, 0.0);
    kv.read(ctx.isa, slot, head, Span { first, count, width }, &mut local.floats, &mut local.more);
    count
}

/// The scores, weights and weighted values of one query over one decoded block.
struct BlockArgs<'a> {
    query: &'a [f32],
    keys: &'a [f32],
    values: &'a [f32],
    width: usize,
    /// Visible positions of the block, relative to its start.
    from: usize,
    to: usize,
    scale: f32,
    /// Maximum, sum, values.
    out: &'a mut [f32],
}

multiversion! { fn block_partial = block_partial_body, (a: BlockArgs<'_>, weights: &mut Vec<f32>) }

#[inline(always)]
fn block_partial_body(a: BlockArgs<'_>, weights: &mut Vec<f32>) {
    weights.resize(a.width, 0.0);
    for (t, out) in weights.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        if 16 * t >= a.to || 16 * (t + 1) <= a.from {
            continue;
        }
        let mut s = [0.0_f32; 16];
        for (q, keys) in a.query.iter().zip(a.keys.chunks_exact(a.width)) {
            let keys = &keys[16 * t..16 * t + 16];
            for l in 0..16 {
                s[l] = q.mul_add(keys[l], s[l]);
            }
        }
        *out = s.map(|v| v * a.scale);
    }
    let seen = &mut weights[a.from..a.to];
    let max = seen.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
    // A NaN score passes the comparison above unseen; it must not be lost.
    let max = if seen.iter().any(|v| v.is_nan()) { f32::NAN } else { max };
    seen.iter_mut().for_each(|v| *v = exp(*v - max));
    let mut lanes = [0.0_f32; 16];
    for j in a.from..a.to {
        lanes[j % 16] += weights[j];
    }
    a.out[0] = max;
    a.out[1] = tree16(&lanes);
    let dim = a.values.len() / (a.values.len() / (a.out.len() - 2));
    weighted_values(&mut a.out[2..], &weights[a.from..a.to], &a.values[a.from * dim..]);
}

/// `out[c] = Σ_j weights[j] · values[j][c]`, j ascending, in strips of columns that stay in registers.
#[inline(always)]
fn weighted_values(out: &mut [f32], weights: &[f32], values: &[f32]) {
    const STRIP: usize = 64;
    let dim = out.len();
    let mut first = 0;
    while first < dim {
        let n = STRIP.min(dim - first);
        let mut acc = [0.0_f32; STRIP];
        if n == STRIP {
            for (w, v) in weights.iter().zip(values.chunks(dim)) {
                let v = &v[first..first + STRIP];
                for c in 0..STRIP {
                    acc[c] = w.mul_add(v[c], acc[c]);
                }
            }
        } else {
            for (w, v) in weights.iter().zip(values.chunks(dim)) {
                for (a, v) in acc.iter_mut().zip(&v[first..first + n]) {
                    *a = w.mul_add(*v, *a);
                }
            }
        }
        out[first..first + n].copy_from_slice(&acc[..n]);
        first += n;
    }
}

multiversion! {
    /// Joins a block's result to those of the blocks before.
    fn join = join_body, (so_far: &mut [f32], block: &[f32])
}

#[inline(always)]
fn join_body(so_far: &mut [f32], block: &[f32]) {
    let (m, mb) = (so_far[0], block[0]);
    let max = if mb > m || mb.is_nan() { mb } else { m };
    let a = if m == f32::NEG_INFINITY { 0.0 } else { exp(m - max) };
    let b = exp(mb - max);
    so_far[0] = max;
    for (s, v) in so_far[1..].iter_mut().zip(&block[1..]) {
        *s = s.mul_add(a, *v * b);
    }
}

multiversion! { fn finish_head = finish_head_body, (so_far: &[f32], gate: Option<&[f32]>, out: &mut [f32]) }

#[inline(always)]
fn finish_head_body(so_far: &[f32], gate: Option<&[f32]>, out: &mut [f32]) {
    let r = 1.0 / so_far[1];
    match gate {
        None => out.iter_mut().zip(&so_far[2..]).for_each(|(o, v)| *o = *v * r),
        Some(g) => {
            out.iter_mut().zip(&so_far[2..]).zip(g).for_each(|((o, v), g)| *o = (*v * r) * sigmoid(*g))
        }
    }
}

fn start(so_far: &mut [f32]) {
    so_far.fill(0.0);
    so_far[0] = f32::NEG_INFINITY;
}

/// Normalises, gates and writes a head's result.
fn finish(ctx: &Ctx<'_>, op: &AttentionOp, row: usize, head: usize, so_far: &[f32]) {
    let (s, dim) = (op.shape, op.shape.value_dim);
    let gate = match op.gate {
        Gate::None => None,
        Gate::Interleaved => Some(&ctx.act(op.q).row(row)[head * s.q_stride + s.key_dim..][..dim]),
        Gate::Separate(g) => Some(&ctx.act(g).row(row)[head * dim..][..dim]),
    };
    // SAFETY: this unit alone has the head's columns.
    unsafe {
        finish_head(ctx.isa, so_far, gate, ctx.act(op.out).cols_mut(row, head * dim, dim));
        if dim.is_multiple_of(32) {
            ctx.act(op.out).quantise(ctx.isa, row, head * dim, dim);
        }
    }
}

/// One query over one decoded block.
fn query_block(
    ctx: &Ctx<'_>,
    op: &AttentionOp,
    q: (usize, usize),
    block: usize,
    kv: &KvCache,
    l: &mut Parts<'_>,
    out: &mut [f32],
) {
    let (row, head) = q;
    let (s, size) = (op.shape, kv.spec.block);
    let (from, to) = visible(ctx, op, row);
    let args = BlockArgs {
        query: &ctx.act(op.q).row(row)[head * s.q_stride..][..s.key_dim],
        keys: l.keys,
        values: &l.values[..s.value_dim * size],
        width: size.next_multiple_of(16),
        from: from.saturating_sub(block * size),
        to: (to - block * size).min(size),
        scale: op.scale,
        out,
    };
    block_partial(ctx.isa, args, l.weights);
}

/// A thread's decoded block and its weights.
struct Parts<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    weights: &'a mut Vec<f32>,
}

fn by_blocks(ctx: &Ctx<'_>, w: &Worker<'_>, op: &AttentionOp) {
    let kv = &ctx.kvs[op.kv.0 as usize];
    let (s, size, share) = (op.shape, kv.spec.block, sharing(op));
    let Rows { rows, seqs } = ctx.rows_of(op.q);
    let rows = rows.len();
    let blocks = (0..rows).map(|r| visible(ctx, op, r).1).max().unwrap_or(0).div_ceil(size);
    let first_block = (0..rows).map(|r| visible(ctx, op, r).0).min().unwrap_or(0) / size;
    let width = s.value_dim + 2;
    let mut round = first_block;
    while round < blocks {
        let here = ROUND.min(blocks - round);
        w.for_each(seqs.len() * s.kv_heads * here, |unit, local| {
            let (seq, rest) = (seqs[unit / (s.kv_heads * here)], unit % (s.kv_heads * here));
            let (head, block) = (rest / here, round + rest % here);
            let seen = |r: usize| {
                let (from, to) = visible(ctx, op, r);
                block * size < to && (block + 1) * size > from
            };
            let mut own = (seq.first..seq.first + seq.rows).filter(|r| seen(*r)).peekable();
            if own.peek().is_none() {
                return;
            }
            let end = (seq.first..seq.first + seq.rows).map(|r| visible(ctx, op, r).1).max().unwrap_or(0);
            load_block(ctx, kv, seq.slot, head, block, end, local);
            let mut parts = Parts { keys: &local.floats, values: &local.more, weights: &mut local.weights };
            for row in own {
                for h in head * share..(head + 1) * share {
                    // SAFETY: this unit alone has the block of this row and head.
                    let out = unsafe { ctx.scratch.attention.partial_mut(row * s.heads + h, block - round) };
                    query_block(ctx, op, (row, h), block, kv, &mut parts, &mut out[..width]);
                }
            }
        });
        let last = round + here == blocks;
        w.for_each(rows * s.heads, |pair, _| {
            let (row, head) = (pair / s.heads, pair % s.heads);
            let (from, to) = visible(ctx, op, row);
            // SAFETY: this unit alone has the pair.
            let joined = &mut unsafe { ctx.scratch.attention.joined_mut(pair) }[..width];
            if round == first_block {
                start(joined);
            }
            for block in round.max(from / size)..(round + here).min(to.div_ceil(size)) {
                join(ctx.isa, joined, &ctx.scratch.attention.partial(pair, block - round)[..width]);
            }
            if last {
                finish(ctx, op, row, head, joined);
            }
        });
        round += here;
    }
}

fn by_rows(ctx: &Ctx<'_>, w: &Worker<'_>, op: &AttentionOp) {
    let kv = &ctx.kvs[op.kv.0 as usize];
    let (s, size, share) = (op.shape, kv.spec.block, sharing(op));
    let units: Vec<(usize, usize, usize)> = ctx
        .rows_of(op.q)
        .seqs
        .iter()
        .flat_map(|q| {
            (0..q.rows).step_by(UNIT_ROWS).map(move |r| (q.slot, q.first + r, UNIT_ROWS.min(q.rows - r)))
        })
        .collect();
    let width = s.value_dim + 2;
    w.for_each(units.len() * s.kv_heads, |unit, local| {
        // Late rows see most keys: they come first, so that the threads end together.
        let (slot, first, count) = units[units.len() - 1 - unit / s.kv_heads];
        let head = unit % s.kv_heads;
        let rows = first..first + count;
        let from = rows.clone().map(|r| visible(ctx, op, r).0).min().unwrap_or(0);
        let end = rows.clone().map(|r| visible(ctx, op, r).1).max().unwrap_or(0);
        let mut joined = vec![0.0; count * share * width];
        joined.chunks_exact_mut(width).for_each(start);
        let mut partial = vec![0.0; width];
        for block in from / size..end.div_ceil(size) {
            load_block(ctx, kv, slot, head, block, end, local);
            let mut parts = Parts { keys: &local.floats, values: &local.more, weights: &mut local.weights };
            for (i, row) in rows.clone().enumerate() {
                let (from, to) = visible(ctx, op, row);
                if block * size >= to || (block + 1) * size <= from {
                    continue;
                }
                for h in 0..share {
                    query_block(ctx, op, (row, head * share + h), block, kv, &mut parts, &mut partial);
                    join(ctx.isa, &mut joined[(i * share + h) * width..][..width], &partial);
                }
            }
        }
        for (i, row) in rows.enumerate() {
            for h in 0..share {
                finish(ctx, op, row, head * share + h, &joined[(i * share + h) * width..][..width]);
            }
        }
    });
}
