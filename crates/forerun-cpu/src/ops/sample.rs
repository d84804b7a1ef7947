//! Token choice and normaliser. The vocabulary is cut at fixed ids; parts are combined in ascending order.

use std::cell::UnsafeCell;

use forerun_tensor::math::{exp, ln, tree16};
use forerun_tensor::noise::{NOISE_MAX, gumbel};
use forerun_tensor::{Act, Op, Pick, Picked, Picks, Plan, Result};

use crate::exec::{Ctx, Worker};
use crate::isa::multiversion;

/// Ids of a part.
const PART: usize = 4096;

/// What one part of one row found.
#[derive(Clone, Copy)]
struct Part {
    max: f32,
    max_id: u32,
    nan: bool,
    sum: f32,
    best: f32,
    best_id: u32,
}

const EMPTY: Part = Part { max: f32::NEG_INFINITY, max_id: 0, nan: false, sum: 0.0, best: f32::NEG_INFINITY, best_id: u32::MAX };

/// Results of every [`Picks`] buffer of a plan, and the parts.
pub(crate) struct SampleScratch {
    parts: Vec<UnsafeCell<Part>>,
    per_row: usize,
    picked: Vec<Vec<UnsafeCell<Picked>>>,
}

// SAFETY: cells are written by the one unit that owns them and read after a barrier.
unsafe impl Sync for SampleScratch {}

impl SampleScratch {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let vocabularies =
            plan.ops().iter().filter_map(|op| if let Op::Sample { logits, .. } = op { Some(plan.act(*logits).cols) } else { None });
        let per_row = vocabularies.max().unwrap_or(0).div_ceil(PART);
        let none = Picked { token: u32::MAX, logit: f32::NAN, log_sum: f32::NAN, nan: false };
        Ok(Self {
            parts: (0..per_row * plan.max_out()).map(|_| UnsafeCell::new(EMPTY)).collect(),
            per_row,
            picked: (0..plan.picks()).map(|_| (0..plan.max_out()).map(|_| UnsafeCell::new(none)).collect()).collect(),
        })
    }

    /// A row's result, after the barrier that ends [`sample`].
    pub(crate) fn picked(&self, picks: Picks, row: usize) -> Picked {
        // SAFETY: written before the last barrier, and by nobody since.
        unsafe { *self.picked[picks.index()][row].get() }
    }

    fn parts(&self, row: usize, count: usize) -> impl Iterator<Item = Part> {
        // SAFETY: written before the last barrier, and by nobody since.
        self.parts[row * self.per_row..][..count].iter().map(|p| unsafe { *p.get() })
    }
}

pub(super) fn sample(ctx: &Ctx<'_>, w: &Worker<'_>, logits: Act, picks: Picks) {
    let scratch = &ctx.scratch.sample;
    let (rows, cols) = (ctx.rows(logits), ctx.cols(logits));
    let count = cols.div_ceil(PART);
    let slice = |row: usize, part: usize| &ctx.act(logits).row(row)[part * PART..((part + 1) * PART).min(cols)];
    let cell = |row: usize, part: usize| scratch.parts[row * scratch.per_row + part].get();
    w.for_each(rows * count, |unit, _| {
        let (row, part) = (unit / count, unit % count);
        let (max, nan) = largest(ctx.isa, slice(row, part));
        let at = slice(row, part).iter().position(|v| *v == max).unwrap_or(0);
        // SAFETY: this unit alone has the part.
        unsafe { *cell(row, part) = Part { max, max_id: (part * PART + at) as u32, nan, ..EMPTY } };
    });
    w.for_each(rows * count, |unit, _| {
        let (row, part) = (unit / count, unit % count);
        let top = top_part(scratch, row, count);
        let sum = sum_of_exp(ctx.isa, slice(row, part), top.max);
        let best = match ctx.view.step.out[row].pick {
            Pick::Noise { temperature, seed, position } => {
                let floor = top.max / temperature + gumbel(seed, position, top.max_id);
                noisy(slice(row, part), (part * PART) as u32, floor, |l, id| l / temperature + gumbel(seed, position, id), temperature)
            }
            _ => (f32::NEG_INFINITY, u32::MAX),
        };
        // SAFETY: this unit alone writes `sum` and `best` of the part; others read only its maximum, through copies of
        // fields that do not change in this phase.
        unsafe {
            (*cell(row, part)).sum = sum;
            ((*cell(row, part)).best, (*cell(row, part)).best_id) = best;
        }
    });
    w.for_each(rows, |row, _| {
        let top = top_part(scratch, row, count);
        let sum = scratch.parts(row, count).fold(0.0, |a, p| a + p.sum);
        let token = match ctx.view.step.out[row].pick {
            Pick::None => u32::MAX,
            Pick::Given(token) => token,
            Pick::Greedy => top.max_id,
            Pick::Noise { .. } => {
                let better = |a: Part, b: Part| if b.best > a.best || (b.best == a.best && b.best_id < a.best_id) { b } else { a };
                let best = scratch.parts(row, count).reduce(better).map_or(u32::MAX, |p| p.best_id);
                if best == u32::MAX { top.max_id } else { best }
            }
        };
        let picked = Picked {
            token,
            logit: ctx.act(logits).row(row).get(token as usize).copied().unwrap_or(f32::NAN),
            log_sum: top.max + ln(sum),
            nan: scratch.parts(row, count).any(|p| p.nan),
        };
        // SAFETY: this unit alone has the row.
        unsafe { *scratch.picked[picks.index()][row].get() = picked };
    });
}

/// The part with the largest logit, the first of equals.
fn top_part(scratch: &SampleScratch, row: usize, count: usize) -> Part {
    scratch.parts(row, count).reduce(|a, b| if b.max > a.max { b } else { a }).unwrap_or(EMPTY)
}

multiversion! { fn largest = largest_body, (x: &[f32]) -> (f32, bool) }

#[inline(always)]
fn largest_body(x: &[f32]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; 16];
    let mut nan = [false; 16];
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        for l in 0..16 {
            max[l] = if chunk[l] > max[l] { chunk[l] } else { max[l] };
            nan[l] |= chunk[l].is_nan();
        }
    }
    for (l, v) in tail.iter().enumerate() {
        max[l] = if *v > max[l] { *v } else { max[l] };
        nan[l] |= v.is_nan();
    }
    (max.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a }), nan.contains(&true))
}

multiversion! { fn sum_of_exp = sum_of_exp_body, (x: &[f32], max: f32) -> f32 }

#[inline(always)]
fn sum_of_exp_body(x: &[f32], max: f32) -> f32 {
    let mut lanes = [0.0_f32; 16];
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        for l in 0..16 {
            lanes[l] += exp(chunk[l] - max);
        }
    }
    for (lane, v) in lanes.iter_mut().zip(tail) {
        *lane += exp(*v - max);
    }
    tree16(&lanes)
}

/// The best noisy value of a part, the lower id of equals. Tokens that could not reach `floor` (the value of the likeliest
/// token) with the largest noise are passed over.
fn noisy(x: &[f32], first: u32, floor: f32, value: impl Fn(f32, u32) -> f32, temperature: f32) -> (f32, u32) {
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for (l, id) in x.iter().zip(first..) {
        if *l / temperature + NOISE_MAX >= floor {
            let v = value(*l, id);
            if v > best.0 || (v == best.0 && id < best.1) {
                best = (v, id);
            }
        }
    }
    best
}
