//! Router and mixture of experts. Rows are grouped by expert; results are added in the order of each row's ranking.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use forerun_tensor::math::{exp, sigmoid, tree16};
use forerun_tensor::{ExpertsOp, Op, Plan, Result, RouteOp, RouterKind, Routes};

use super::collect;
use super::products::{combine, write_pair};
use crate::act::ActBuf;
use crate::exec::{Ctx, Local, Worker, room};
use crate::isa::multiversion;
use crate::memory::Buffer;

/// Routes, and the experts' inner results.
pub(crate) struct MoeScratch {
    /// Per routing buffer: `[row][rank]` ids.
    ids: Vec<Buffer<i32>>,
    /// Per routing buffer: `[row][rank]` weights.
    weights: Vec<Buffer<f32>>,
    /// `[row · rank][hidden]`.
    hidden: Option<ActBuf>,
    /// `[row · rank][cols]`.
    out: Option<ActBuf>,
    /// Rows (as row · top_k + rank) sorted by expert, and each expert's first.
    order: Vec<AtomicU32>,
    starts: Vec<AtomicU32>,
    /// Experts that have rows.
    busy: Vec<AtomicU32>,
    /// Per routing buffer, how many those are. A thread that comes late asks when other experts are under way.
    busy_count: Vec<AtomicUsize>,
}

impl MoeScratch {
    pub(crate) fn new(plan: &Plan, experts: usize) -> Result<Self> {
        let rows = plan.max_rows();
        let buffers = plan.routes();
        let ops = || plan.ops().iter().filter_map(|op| if let Op::Experts(e) = op { Some(e) } else { None });
        let pairs = ops().map(|e| rows * buffers[e.routes.index()]).max().unwrap_or(0);
        let cols = ops().map(|e| plan.act(e.out).cols).max().unwrap_or(0);
        Ok(Self {
            ids: buffers.iter().map(|k| Buffer::new(rows * k, "routes")).collect::<Result<_>>()?,
            weights: buffers.iter().map(|k| Buffer::new(rows * k, "routes")).collect::<Result<_>>()?,
            hidden: None,
            out: if pairs > 0 { Some(ActBuf::new(pairs, cols, false)?) } else { None },
            order: (0..pairs).map(|_| AtomicU32::new(0)).collect(),
            starts: (0..=experts).map(|_| AtomicU32::new(0)).collect(),
            busy: (0..experts).map(|_| AtomicU32::new(0)).collect(),
            busy_count: buffers.iter().map(|_| AtomicUsize::new(0)).collect(),
        })
    }

    /// Allocates the inner results, whose width the weights tell.
    pub(crate) fn with_hidden(mut self, pairs: usize, hidden: usize, quantised: bool) -> Result<Self> {
        self.hidden = if pairs > 0 { Some(ActBuf::new(pairs, hidden, quantised)?) } else { None };
        Ok(self)
    }

    fn routes(&self, routes: Routes, row: usize, k: usize) -> (&[i32], &[f32]) {
        let at = row * k..(row + 1) * k;
        (&self.ids[routes.index()][at.clone()], &self.weights[routes.index()][at])
    }
}

pub(super) fn route(ctx: &Ctx<'_>, w: &Worker<'_>, op: &RouteOp) {
    let scale = match op.kind {
        RouterKind::SoftmaxRenormalised => None,
        RouterKind::SoftmaxRenormalisedScaled(id) => Some(ctx.vector(id)),
    };
    let (ids, weights) = (&ctx.scratch.moe.ids[op.out.index()], &ctx.scratch.moe.weights[op.out.index()]);
    w.for_each(ctx.rows(op.logits), |row, local| {
        let p = &mut local.floats;
        p.clear();
        p.extend_from_slice(ctx.act(op.logits).row(row));
        softmax(ctx.isa, p);
        // SAFETY: this unit alone has the row's entries.
        let (ids, weights) = unsafe {
            (
                std::slice::from_raw_parts_mut(ids.as_ptr().add(row * op.top_k), op.top_k),
                std::slice::from_raw_parts_mut(weights.as_ptr().add(row * op.top_k), op.top_k),
            )
        };
        for rank in 0..op.top_k {
            let better = |a: usize, b: usize| if p[b] > p[a] || p[a].is_nan() { b } else { a };
            let free = |e: &usize| !ids[..rank].contains(&(*e as i32));
            let best = (0..p.len()).filter(free).reduce(better).unwrap_or(0);
            (ids[rank], weights[rank]) = (best as i32, p[best]);
        }
        let sum = weights.iter().fold(0.0, |a, b| a + b);
        for (w, id) in weights.iter_mut().zip(ids) {
            *w /= sum;
            if let Some(s) = scale {
                *w *= s[*id as usize];
            }
        }
    });
}

multiversion! { fn softmax = softmax_body, (x: &mut [f32]) }

#[inline(always)]
fn softmax_body(x: &mut [f32]) {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| if *v > m { *v } else { m });
    x.iter_mut().for_each(|v| *v = exp(*v - max));
    let mut lanes = [0.0_f32; 16];
    x.iter().enumerate().for_each(|(e, v)| lanes[e % 16] += v);
    let sum = tree16(&lanes);
    x.iter_mut().for_each(|v| *v /= sum);
}

pub(super) fn experts(ctx: &Ctx<'_>, w: &Worker<'_>, op: &ExpertsOp) {
    let moe = &ctx.scratch.moe;
    let k = ctx.plan.routes()[op.routes.index()];
    let (Some(hidden), Some(results)) = (&moe.hidden, &moe.out) else { return };
    w.for_each(1, |_, _| sort_by_expert(moe, op.routes, ctx.rows(op.x) * k));
    let (gate, down) = (ctx.matrix(op.gate), ctx.matrix(op.down));
    if let Some(sums) = op.sums.input {
        let sums = &ctx.sums[sums.0 as usize];
        each_pair(w, moe, op.routes, collect::units(gate.cols), |expert, unit, entries, _| {
            let rows: Vec<u32> = entries.iter().map(|e| e / k as u32).collect();
            collect::add(ctx.isa, ctx.act(op.x).list(&rows), sums, expert, unit);
        });
    }
    each_pair(w, moe, op.routes, gate.pairs(), |expert, pair, entries, local| {
        gated(ctx, op, k, hidden, Unit { expert, pair, entries }, local);
    });
    if let Some(sums) = op.sums.hidden {
        let sums = &ctx.sums[sums.0 as usize];
        each_pair(w, moe, op.routes, collect::units(down.cols), |expert, unit, entries, _| {
            collect::add(ctx.isa, hidden.list(entries), sums, expert, unit);
        });
    }
    each_pair(w, moe, op.routes, down.pairs(), |expert, pair, entries, local| {
        let a = room(&mut local.results[0], entries.len());
        down.pair(ctx.isa, (expert, pair), hidden.list(entries), &mut local.space, a);
        for (e, a) in entries.iter().zip(a) {
            // SAFETY: an entry belongs to one expert, and this unit alone has these columns of it.
            unsafe { write_pair(ctx, results, down, pair, *e as usize, a) };
        }
    });
    w.for_each(ctx.rows(op.x), |row, local| combine_row(ctx, op, k, results, row, &mut local.floats));
}

/// Calls `f(expert, pair of groups, entries, thread's memory)` for every expert that has entries and every pair of groups
/// (or whatever else its work is divided into).
fn each_pair(
    w: &Worker<'_>,
    moe: &MoeScratch,
    routes: Routes,
    pairs: usize,
    mut f: impl FnMut(usize, usize, &[u32], &mut Local),
) {
    let units = moe.busy_count[routes.index()].load(Ordering::Relaxed) * pairs;
    w.for_each_grain(units, w.grain(units, 4), |unit, local| {
        let expert = moe.busy[unit / pairs].load(Ordering::Relaxed) as usize;
        let at = |e: usize| moe.starts[e].load(Ordering::Relaxed) as usize;
        let entries = moe.order[at(expert)..at(expert + 1)].iter().map(|e| e.load(Ordering::Relaxed));
        f(expert, unit % pairs, &entries.collect::<Vec<u32>>(), local);
    });
}

/// Work on one expert: a pair of groups for some entries.
struct Unit<'a> {
    expert: usize,
    pair: usize,
    entries: &'a [u32],
}

/// `activation(gate · x) · (up · x)` of a unit.
fn gated(ctx: &Ctx<'_>, op: &ExpertsOp, k: usize, hidden: &ActBuf, u: Unit<'_>, local: &mut Local) {
    let (gate, up) = (ctx.matrix(op.gate), ctx.matrix(op.up));
    let rows: Vec<u32> = u.entries.iter().map(|e| e / k as u32).collect();
    let x = ctx.act(op.x).list(&rows);
    let [a, b] = &mut local.results;
    let (a, b) = (room(a, rows.len()), room(b, rows.len()));
    gate.pair(ctx.isa, (u.expert, u.pair), x, &mut local.space, a);
    up.pair(ctx.isa, (u.expert, u.pair), x, &mut local.space, b);
    combine(ctx.isa, op.activation, a, b);
    for (e, a) in u.entries.iter().zip(a) {
        // SAFETY: an entry belongs to one expert, and this unit alone has these columns of it.
        unsafe { write_pair(ctx, hidden, gate, u.pair, *e as usize, a) };
    }
}

/// Adds a row's experts in rank order, then the shared expert, then the residual.
fn combine_row(ctx: &Ctx<'_>, op: &ExpertsOp, k: usize, results: &ActBuf, row: usize, y: &mut Vec<f32>) {
    let (_, weights) = ctx.scratch.moe.routes(op.routes, row, k);
    let cols = ctx.cols(op.out);
    y.clear();
    y.resize(cols, 0.0);
    for (rank, weight) in weights.iter().enumerate() {
        add_scaled(ctx.isa, y, results.row(row * k + rank), *weight, rank == 0);
    }
    if let Some(s) = op.shared {
        add_scaled(ctx.isa, y, ctx.act(s.out).row(row), sigmoid(ctx.act(s.gate).row(row)[0]), false);
    }
    if let Some(r) = op.residual {
        y.iter_mut().zip(ctx.act(r).row(row)).for_each(|(y, r)| *y += *r);
    }
    // SAFETY: the unit that calls this alone has the row.
    unsafe {
        ctx.act(op.out).row_mut(row).copy_from_slice(y);
        ctx.act(op.out).quantise(ctx.isa, row, 0, cols);
    }
}

/// Sorts the entries (row · top_k + rank) by expert, ascending within one.
fn sort_by_expert(moe: &MoeScratch, routes: Routes, entries: usize) {
    let ids = &moe.ids[routes.index()][..entries];
    let experts = moe.busy.len();
    let mut starts = vec![0u32; experts + 1];
    ids.iter().for_each(|e| starts[*e as usize + 1] += 1);
    let mut busy = 0;
    for e in 0..experts {
        if starts[e + 1] > 0 {
            moe.busy[busy].store(e as u32, Ordering::Relaxed);
            busy += 1;
        }
        starts[e + 1] += starts[e];
    }
    moe.busy_count[routes.index()].store(busy, Ordering::Relaxed);
    for (to, from) in moe.starts.iter().zip(&starts) {
        to.store(*from, Ordering::Relaxed);
    }
    for (entry, e) in ids.iter().enumerate() {
        let at = &mut starts[*e as usize];
        moe.order[*at as usize].store(entry as u32, Ordering::Relaxed);
        *at += 1;
    }
}

multiversion! { fn add_scaled = add_scaled_body, (y: &mut [f32], x: &[f32], weight: f32, first: bool) }

#[inline(always)]
fn add_scaled_body(y: &mut [f32], x: &[f32], weight: f32, first: bool) {
    if first {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = weight * *x);
    } else {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = weight.mul_add(*x, *y));
    }
}
