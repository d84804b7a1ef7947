//! The sampler: a pure function of logits, parameters, the tokens before, and the position.
//!
//! Every ordering is by (logit descending, id ascending) and every mass is summed in fixed point, so no result depends on
//! the order of a sum. The choice among the tokens that pass the filters is the arg max of `logit/T + noise`, which draws
//! exactly from their renormalised distribution.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use forerun_tensor::math;
use forerun_tensor::noise::{LEAST_TEMPERATURE, NOISE_MAX, gumbel};

use crate::sampling::SamplingParams;

/// A token that may still be chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Logit after bias and penalties.
    pub logit: f32,
    /// Token id.
    pub id: u32,
}

/// What bias and penalties may make of a logit: the least temperature divides it to a finite number.
const LARGEST_LOGIT: f32 = 1e30;

fn bounded(logit: f32) -> f32 {
    logit.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
}

/// Orders by (logit descending, id ascending).
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// exp(x) for x ≤ 0 in units of 2⁻⁴⁰.
fn fixed(x: f32) -> u64 {
    (f64::from(math::exp(x)) * (1u64 << 40) as f64) as u64
}

/// Chooses tokens for one request. Holds scratch memory only.
#[derive(Debug, Default)]
pub struct Sampler {
    candidates: Vec<Candidate>,
    order: Vec<(f32, u32)>,
}

impl Sampler {
    /// The token at `position`, given the raw `logits` of the row before it (none of them NaN) and all tokens `before` it.
    ///
    /// `None` when nothing is allowed: every token is banned.
    pub fn pick(
        &mut self,
        logits: &[f32],
        params: &SamplingParams,
        before: &[u32],
        position: u32,
    ) -> Option<u32> {
        self.allowed(logits, params, before);
        choose(&self.candidates, params.temperature, params.seed, position)
    }

    /// The tokens that pass every filter, with their adjusted logits.
    pub fn allowed(&mut self, logits: &[f32], params: &SamplingParams, before: &[u32]) -> &[Candidate] {
        self.candidates.clear();
        if params.top_k > 0 && params.logit_bias.is_empty() && !params.has_penalties() {
            largest(logits, params.top_k as usize, &mut self.candidates);
        } else {
            self.adjusted(logits, params, before);
        }
        if params.typical_p < 1.0 {
            self.typical(params.typical_p);
        }
        if params.top_p < 1.0 {
            top_p(&mut self.candidates, params.top_p);
        }
        if params.min_p > 0.0 {
            min_p(&mut self.candidates, params.min_p);
        }
        &self.candidates
    }

    /// Every token that is not banned, or the first of them by rank, after bias and penalties.
    fn adjusted(&mut self, logits: &[f32], params: &SamplingParams, before: &[u32]) {
        self.candidates.extend(logits.iter().zip(0..).map(|(&logit, id)| Candidate { logit, id }));
        for (&id, &bias) in &params.logit_bias {
            if let Some(c) = self.candidates.get_mut(id as usize) {
                c.logit = if bias == f32::NEG_INFINITY { bias } else { bounded(c.logit + bias) };
            }
        }
        if params.has_penalties() {
            penalise(&mut self.candidates, params, before);
        }
        self.candidates.retain(|c| c.logit > f32::NEG_INFINITY);
        if params.top_k > 0 {
            top_k(&mut self.candidates, params.top_k as usize);
        }
    }

    /// Keeps the tokens whose surprise is closest to the entropy, until their mass reaches `p` (Meister et al., "Locally
    /// typical sampling", 2023).
    fn typical(&mut self, p: f32) {
        self.candidates.sort_unstable_by(by_rank);
        let Some(best) = self.candidates.first().map(|c| c.logit) else { return };
        let total: u128 = self.candidates.iter().map(|c| u128::from(fixed(c.logit - best))).sum();
        let log_total = math::ln(total as f32) - 40.0 * std::f32::consts::LN_2;
        // Entropy = ln Σe − Σ (logit − best)·e / Σe; the products again in fixed point, all of one sign.
        let weighted: u128 = self
            .candidates
            .iter()
            .map(|c| (f64::from(best - c.logit) * fixed(c.logit - best) as f64) as u128)
            .sum();
        let entropy = log_total + (weighted as f64 / total as f64) as f32;
        self.order.clear();
        self.order.extend(self.candidates.iter().zip(0..).map(|(c, i)| {
            let surprise = log_total - (c.logit - best);
            ((surprise - entropy).abs(), i)
        }));
        // Candidates are in rank order, so the index breaks ties by rank.
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let target = share(total, p);
        let mut mass = 0u128;
        let mut keep = 0;
        for &(_, i) in &self.order {
            mass += u128::from(fixed(self.candidates[i as usize].logit - best));
            keep += 1;
            if mass >= target {
                break;
            }
        }
        let mut kept: Vec<Candidate> =
            self.order[..keep].iter().map(|&(_, i)| self.candidates[i as usize]).collect();
        kept.sort_unstable_by(by_rank);
        self.candidates = kept;
    }
}

/// `p` of a fixed-point mass, rounded up.
fn share(total: u128, p: f32) -> u128 {
    (total as f64 * f64::from(p)).ceil() as u128
}

fn penalise(candidates: &mut [Candidate], params: &SamplingParams, before: &[u32]) {
    let window = &before[before.len().saturating_sub(params.penalty_window as usize)..];
    let mut counts = BTreeMap::<u32, u32>::new();
    for &id in window {
        *counts.entry(id).or_default() += 1;
    }
    for (id, count) in counts {
        let Some(c) = candidates.get_mut(id as usize).filter(|c| c.logit > f32::NEG_INFINITY) else {
            continue;
        };
        let repeated = if c.logit > 0.0 {
            c.logit / params.repetition_penalty
        } else {
            c.logit * params.repetition_penalty
        };
        let counted = bounded(repeated) - count as f32 * params.frequency_penalty;
        c.logit = bounded(bounded(counted) - params.presence_penalty);
    }
}

fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k, by_rank);
        candidates.truncate(k);
    }
}

/// The first `k` tokens by rank, in one pass over the logits: a run of them without one above the `k` best so far is passed
/// over as a whole.
fn largest(logits: &[f32], k: usize, best: &mut Vec<Candidate>) {
    const RUN: usize = 64;
    let mut least = f32::NEG_INFINITY;
    for (run, first) in logits.chunks(RUN).zip((0..).step_by(RUN)) {
        if run.iter().fold(true, |below, l| below & (*l < least)) {
            continue;
        }
        // Of equal logits the lower id goes first, and is here already.
        let above = run.iter().zip(first..).filter(|(l, _)| l.total_cmp(&least) == Ordering::Greater);
        best.extend(above.map(|(&logit, id)| Candidate { logit, id }));
        if best.len() >= 2 * k + RUN {
            top_k(best, k);
            least = best.iter().map(|c| c.logit).min_by(f32::total_cmp).unwrap_or(least);
        }
    }
    top_k(best, k);
}

fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    candidates.sort_unstable_by(by_rank);
    let Some(best) = candidates.first().map(|c| c.logit) else { return };
    let total: u128 = candidates.iter().map(|c| u128::from(fixed(c.logit - best))).sum();
    let target = share(total, p);
    let mut mass = 0u128;
    let keep = candidates.iter().position(|c| {
        mass += u128::from(fixed(c.logit - best));
        mass >= target
    });
    candidates.truncate(keep.map_or(candidates.len(), |i| i + 1));
}

fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    let Some(best) = candidates.iter().map(|c| c.logit).max_by(f32::total_cmp) else { return };
    let floor = best + math::ln(p);
    candidates.retain(|c| c.logit >= floor);
}

/// The arg max of `logit/T + noise(seed, position, id)` (of the logit when T is below [`LEAST_TEMPERATURE`], which counts
/// as 0), ties to the lower id.
///
/// Noise is costly and bounded, so a token that could not win even with the largest noise is passed over.
#[must_use]
pub fn choose(candidates: &[Candidate], temperature: f32, seed: u64, position: u32) -> Option<u32> {
    let better = |a: (f32, u32), b: (f32, u32)| if a.0 > b.0 || (a.0 == b.0 && a.1 < b.1) { a } else { b };
    if temperature < LEAST_TEMPERATURE {
        return candidates.iter().map(|c| (c.logit, c.id)).reduce(better).map(|(_, id)| id);
    }
    let value = |c: &Candidate| c.logit / temperature + gumbel(seed, position, c.id);
    let likeliest = candidates.iter().min_by(|a, b| by_rank(a, b))?;
    let mut best = (value(likeliest), likeliest.id);
    for c in candidates {
        if c.logit / temperature + NOISE_MAX >= best.0 {
            best = better((value(c), c.id), best);
        }
    }
    Some(best.1)
}
