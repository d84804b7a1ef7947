//! Token choice and normaliser. The vocabulary is cut at fixed ids; parts are combined in ascending order.

use std::cell::UnsafeCell;

use forerun_tensor::math::{exp, ln, tree16};
use forerun_tensor::noise::{NOISE_MAX, gumbel, gumbel_of_word, words16};
use forerun_tensor::{Act, Op, Pick, Picked, Picks, Plan, Result, TokenMap};

use crate::exec::{Ctx, Worker};
use crate::isa::{Isa, multiversion};

/// Ids of a part.
const PART: usize = 4096;

/// The largest logit of one part of one row.
#[derive(Clone, Copy)]
struct Top {
    max: f32,
    max_id: u32,
    nan: bool,
}

/// What the part adds once the row's largest logit is known.
#[derive(Clone, Copy)]
struct Rest {
    sum: f32,
    best: f32,
    best_id: u32,
}

/// Results of every [`Picks`] buffer of a plan, and the parts.
pub(crate) struct SampleScratch {
    tops: Vec<UnsafeCell<Top>>,
    rests: Vec<UnsafeCell<Rest>>,
    per_row: usize,
    picked: Vec<Vec<UnsafeCell<Picked>>>,
}

// SAFETY: a cell is written by the one unit that owns it, and read by others only in later phases.
unsafe impl Sync for SampleScratch {}

fn cells<T: Copy>(value: T, count: usize) -> Vec<UnsafeCell<T>> {
    (0..count).map(|_| UnsafeCell::new(value)).collect()
}

impl SampleScratch {
    pub(crate) fn new(plan: &Plan) -> Result<Self> {
        let logits = plan.ops().iter().filter_map(|op| match op {
            Op::Sample { logits, .. } => Some(plan.act(*logits).cols),
            _ => None,
        });
        let per_row = logits.max().unwrap_or(0).div_ceil(PART);
        let parts = per_row * plan.max_out();
        let none = Picked { token: u32::MAX, logit: f32::NAN, log_sum: f32::NAN, nan: false };
        Ok(Self {
            tops: cells(Top { max: f32::NEG_INFINITY, max_id: 0, nan: false }, parts),
            rests: cells(Rest { sum: 0.0, best: f32::NEG_INFINITY, best_id: u32::MAX }, parts),
            per_row,
            picked: (0..plan.picks()).map(|_| cells(none, plan.max_out())).collect(),
        })
    }

    /// A row's result, after [`sample`].
    pub(crate) fn picked(&self, picks: Picks, row: usize) -> Picked {
        // SAFETY: written in an earlier phase, and by nobody since.
        unsafe { *self.picked[picks.index()][row].get() }
    }

    fn tops(&self, row: usize, count: usize) -> impl Iterator<Item = Top> {
        // SAFETY: written in an earlier phase, and by nobody since.
        self.tops[row * self.per_row..][..count].iter().map(|t| unsafe { *t.get() })
    }

    /// The largest logit of a row, the first of equals.
    fn top(&self, row: usize, count: usize) -> Top {
        let first = |a: Top, b: Top| if b.max > a.max { b } else { a };
        self.tops(row, count).reduce(first).unwrap_or(Top { max: f32::NEG_INFINITY, max_id: 0, nan: false })
    }

    fn rests(&self, row: usize, count: usize) -> impl Iterator<Item = Rest> {
        // SAFETY: written in an earlier phase, and by nobody since.
        self.rests[row * self.per_row..][..count].iter().map(|r| unsafe { *r.get() })
    }
}

pub(super) fn sample(ctx: &Ctx<'_>, w: &Worker<'_>, logits: Act, map: Option<TokenMap>, picks: Picks) {
    let ids = Ids { map: map.map(|m| &ctx.plan.token_map(m)[..]) };
    let scratch = &ctx.scratch.sample;
    let (rows, cols) = (ctx.rows(logits), ctx.cols(logits));
    let count = cols.div_ceil(PART);
    let slice =
        |row: usize, part: usize| &ctx.act(logits).row(row)[part * PART..((part + 1) * PART).min(cols)];
    w.for_each(rows * count, |unit, _| {
        let (row, part) = (unit / count, unit % count);
        let (max, nan) = largest(ctx.isa, slice(row, part));
        let at = slice(row, part).iter().position(|v| *v == max).unwrap_or(0);
        let top = Top { max, max_id: (part * PART + at) as u32, nan };
        // SAFETY: this unit alone has the part.
        unsafe { *scratch.tops[row * scratch.per_row + part].get() = top };
    });
    w.for_each(rows * count, |unit, _| {
        let (row, part) = (unit / count, unit % count);
        let top = scratch.top(row, count);
        let x = slice(row, part);
        let (best, best_id) = noisy(ctx.isa, x, (part * PART) as u32, &ids, top, ctx.view.step.out[row].pick);
        let rest = Rest { sum: sum_of_exp(ctx.isa, x, top.max), best, best_id };
        // SAFETY: this unit alone has the part.
        unsafe { *scratch.rests[row * scratch.per_row + part].get() = rest };
    });
    w.for_each(rows, |row, _| {
        let picked = finish(scratch, row, count, &ids, ctx.view.step.out[row].pick, ctx.act(logits).row(row));
        // SAFETY: this unit alone has the row.
        unsafe { *scratch.picked[picks.index()][row].get() = picked };
    });
}

/// Token ids of the columns.
struct Ids<'a> {
    /// `None` when a token is its column.
    map: Option<&'a [u32]>,
}

impl Ids<'_> {
    fn token(&self, column: u32) -> u32 {
        self.map.map_or(column, |m| m[column as usize])
    }

    fn column(&self, token: u32) -> Option<usize> {
        self.map.map_or(Some(token as usize), |m| m.binary_search(&token).ok())
    }
}

/// Combines the parts of a row.
fn finish(
    scratch: &SampleScratch,
    row: usize,
    count: usize,
    ids: &Ids<'_>,
    pick: Pick,
    logits: &[f32],
) -> Picked {
    let top = scratch.top(row, count);
    let sum = scratch.rests(row, count).fold(0.0, |a, r| a + r.sum);
    let token = match pick {
        Pick::None => u32::MAX,
        Pick::Given(token) => token,
        Pick::Greedy => ids.token(top.max_id),
        Pick::Noise { .. } => {
            let first = |a: Rest, b: Rest| if b.best > a.best { b } else { a };
            let best = scratch.rests(row, count).filter(|r| r.best_id != u32::MAX).reduce(first);
            ids.token(best.map_or(top.max_id, |r| r.best_id))
        }
    };
    Picked {
        token,
        logit: ids.column(token).and_then(|c| logits.get(c)).copied().unwrap_or(f32::NAN),
        log_sum: top.max + ln(sum),
        nan: scratch.tops(row, count).any(|t| t.nan),
    }
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

/// The best noisy value of a part and its column, the first of equals.
fn noisy(isa: Isa, x: &[f32], first: u32, ids: &Ids<'_>, top: Top, pick: Pick) -> (f32, u32) {
    let Pick::Noise { temperature, seed, position } = pick else { return (f32::NEG_INFINITY, u32::MAX) };
    let key = NoiseKey { seed, position, temperature };
    let floor = top.max / temperature + gumbel(seed, position, ids.token(top.max_id));
    let mut best = (f32::NEG_INFINITY, u32::MAX);
    for (chunk, first) in x.chunks(16).zip((first..).step_by(16)) {
        // Tokens that could not reach the value of the likeliest with the largest noise are passed over, 16 at a time.
        let largest = chunk.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        if largest / temperature + NOISE_MAX < floor {
            continue;
        }
        let mut lanes = [f32::NEG_INFINITY; 16];
        lanes[..chunk.len()].copy_from_slice(chunk);
        let tokens =
            std::array::from_fn(|l| ids.token((first + l as u32).min(first + chunk.len() as u32 - 1)));
        let values = noisy_values(isa, &lanes, &tokens, key);
        for (value, column) in values.into_iter().zip(first..).take(chunk.len()) {
            if value > best.0 {
                best = (value, column);
            }
        }
    }
    best
}

/// What the noise of a row depends on beside the token.
#[derive(Clone, Copy)]
struct NoiseKey {
    seed: u64,
    position: u32,
    temperature: f32,
}

multiversion! {
    /// `logit / temperature + noise` of 16 tokens.
    fn noisy_values = noisy_values_body, (logits: &[f32; 16], tokens: &[u32; 16], key: NoiseKey) -> [f32; 16]
}

#[inline(always)]
fn noisy_values_body(logits: &[f32; 16], tokens: &[u32; 16], key: NoiseKey) -> [f32; 16] {
    let words = words16(key.seed, key.position, tokens);
    let mut out = [0.0; 16];
    for l in 0..16 {
        out[l] = logits[l] / key.temperature + gumbel_of_word(words[l]);
    }
    out
}
