//! The gated delta net, one row after the other.

use super::cache::{SeqState, StateCache, TapeRow};
use super::{Frame, ReferenceBackend, rms};
use crate::plan::{Activation, DeltaNetOp, DeltaShape};

fn silu(x: f64) -> f64 {
    super::activate(Activation::Silu, x)
}

fn l2(x: &[f64], eps: f64) -> Vec<f64> {
    let r = 1.0 / (x.iter().map(|v| v * v).sum::<f64>() + eps).sqrt();
    x.iter().map(|v| v * r).collect()
}

/// Brings the state past one row; the row's output per value head.
fn advance(state: &mut SeqState, row: &TapeRow, taps: &[f64], s: &DeltaShape, eps: f64) -> Vec<Vec<f64>> {
    let mixed: Vec<f64> = (0..s.conv_cols())
        .map(|c| {
            let past = state.history.iter().chain([&row.qkv]).enumerate();
            silu(past.map(|(t, input)| taps[c * s.conv + t] * input[c]).sum())
        })
        .collect();
    state.history.remove(0);
    state.history.push(row.qkv.clone());
    let key_cols = s.key_heads * s.key_dim;
    (0..s.value_heads)
        .map(|v| {
            let at = s.key_head(v) * s.key_dim;
            let q: Vec<f64> =
                l2(&mixed[at..at + s.key_dim], eps).iter().map(|x| x / (s.key_dim as f64).sqrt()).collect();
            let k = l2(&mixed[key_cols + at..key_cols + at + s.key_dim], eps);
            let value = &mixed[2 * key_cols + v * s.value_dim..][..s.value_dim];
            let matrix = &mut state.s[v];
            matrix.iter_mut().flatten().for_each(|x| *x *= row.decay[v]);
            let mut o = vec![0.0; s.value_dim];
            for j in 0..s.value_dim {
                let seen: f64 = (0..s.key_dim).map(|i| matrix[i][j] * k[i]).sum();
                let d = row.beta[v] * (value[j] - seen);
                for i in 0..s.key_dim {
                    matrix[i][j] += k[i] * d;
                    o[j] += matrix[i][j] * q[i];
                }
            }
            o
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
        for seq in &f.rows.step.seqs {
            let mut state = if seq.pos == 0 {
                StateCache::zero(&cache.spec)
            } else {
                cache.slots[seq.slot as usize].clone()
            };
            let tape = std::mem::take(&mut state.tape);
            for row in &tape[..seq.replay as usize] {
                advance(&mut state, row, &taps, &s, eps);
            }
            let mut committed = state.clone();
            for _ in 0..seq.rows {
                let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
                let (alpha, beta) = (&f.get(op.alpha)[i], &f.get(op.beta)[i]);
                let row = TapeRow {
                    qkv: f.get(op.qkv)[i].clone(),
                    decay: (0..s.value_heads).map(|v| (a[v] * softplus(alpha[v] + dt[v])).exp()).collect(),
                    beta: beta.iter().map(|b| super::sigmoid(*b)).collect(),
                };
                let heads = advance(&mut state, &row, &taps, &s, eps);
                let z = &f.get(op.z)[i];
                let y = heads.iter().flat_map(|o| rms(o, Some(&norm), eps)).zip(z).map(|(o, z)| o * silu(*z)).collect();
                out.push(y);
                committed.tape.push(row);
                i += 1;
            }
            cache.slots[seq.slot as usize] = if seq.commit { state } else { committed };
        }
        f.set(op.out, out);
    }
}
