//! The gated delta net, one row after the other.

use super::cache::{SeqState, TapeRow};
use super::{Frame, ReferenceBackend, rms, sigmoid, silu};
use crate::plan::{DeltaNetOp, DeltaShape};

fn l2(x: &[f64], eps: f64) -> Vec<f64> {
    let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() + eps).sqrt();
    x.iter().map(|v| v * r).collect()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// The depthwise causal convolution of the history and the row, and SiLU.
fn convolve(state: &mut SeqState, row: &TapeRow, taps: &[f64], s: &DeltaShape) -> Vec<f64> {
    state.history.push(row.qkv.clone());
    let newest = &state.history;
    let column = |c: usize| (0..s.conv).map(|t| taps[c * s.conv + t] * newest[t][c]).sum();
    let mixed = (0..s.conv_cols()).map(|c| silu(column(c))).collect();
    state.history.remove(0);
    mixed
}

/// Brings one head's matrix `[key dim][value dim]` past a row: S ← decay·S; d = β·(v − Sᵀk); S ← S + k dᵀ; o = Sᵀq.
fn recur(matrix: &mut [Vec<f64>], q: &[f64], k: &[f64], value: &[f64], decay: f64, beta: f64) -> Vec<f64> {
    matrix.iter_mut().flatten().for_each(|x| *x *= decay);
    let column = |matrix: &[Vec<f64>], j: usize, x: &[f64]| -> f64 {
        matrix.iter().zip(x).map(|(row, x)| row[j] * x).sum()
    };
    let d: Vec<f64> = value.iter().enumerate().map(|(j, v)| beta * (v - column(matrix, j, k))).collect();
    for (row, k) in matrix.iter_mut().zip(k) {
        row.iter_mut().zip(&d).for_each(|(s, d)| *s += k * d);
    }
    (0..value.len()).map(|j| column(matrix, j, q)).collect()
}

/// Brings the state past one row; the row's output of each value head.
fn advance(state: &mut SeqState, row: &TapeRow, taps: &[f64], s: &DeltaShape, eps: f64) -> Vec<Vec<f64>> {
    state.pos += 1;
    let mixed = convolve(state, row, taps, s);
    let (q, rest) = mixed.split_at(s.key_heads * s.key_dim);
    let (k, v) = rest.split_at(s.key_heads * s.key_dim);
    let root = (s.key_dim as f64).sqrt();
    (0..s.value_heads)
        .map(|h| {
            let at = s.key_head(h) * s.key_dim;
            let q: Vec<f64> = l2(&q[at..at + s.key_dim], eps).iter().map(|x| x / root).collect();
            let k = l2(&k[at..at + s.key_dim], eps);
            let v = &v[h * s.value_dim..][..s.value_dim];
            recur(&mut state.s[h], &q, &k, v, row.decay[h], row.beta[h])
        })
        .collect()
}

impl ReferenceBackend {
    pub(super) fn delta_net(&mut self, op: &DeltaNetOp, f: &mut Frame<'_>) {
        let (s, eps) = (op.shape, f64::from(op.eps));
        let [taps, dt, a, norm] = [op.conv, op.dt_bias, op.a, op.norm].map(|w| self.weight(w).vector());
        let cache = &mut self.states[op.state.0 as usize];
        let mut out = Vec::new();
        let mut i = 0;
        for seq in &f.step.seqs {
            let slot = &mut cache.slots[seq.slot as usize];
            let mut state =
                slot.take().filter(|_| seq.pos > 0).unwrap_or_else(|| SeqState::zero(&cache.spec));
            let tape = std::mem::take(&mut state.tape);
            for row in tape.iter().take(seq.replay as usize) {
                advance(&mut state, row, &taps, &s, eps);
            }
            let mut committed = state.clone();
            for _ in 0..seq.rows {
                let (alpha, beta) = (&f.get(op.alpha)[i], &f.get(op.beta)[i]);
                let row = TapeRow {
                    qkv: f.get(op.qkv)[i].clone(),
                    decay: (0..s.value_heads).map(|h| (a[h] * softplus(alpha[h] + dt[h])).exp()).collect(),
                    beta: beta.iter().map(|b| sigmoid(*b)).collect(),
                };
                let heads = advance(&mut state, &row, &taps, &s, eps);
                let o = heads.iter().flat_map(|o| rms(o, Some(&norm), eps));
                out.push(o.zip(&f.get(op.z)[i]).map(|(o, z)| o * silu(*z)).collect());
                committed.tape.push(row);
                i += 1;
            }
            *slot = Some(if seq.commit { state } else { committed });
        }
        f.set(op.out, out);
    }
}
