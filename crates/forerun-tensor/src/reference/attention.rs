//! Rotary embedding, cache write, attention.

use super::{Frame, ReferenceBackend, rms, sigmoid};
use crate::plan::{AttentionOp, Gate, RopeKvOp, RopeSpec};

/// Rotates dim p with p + pairs by position · frequency.
fn rotate(v: &mut [f64], rope: &RopeSpec, pos: usize) {
    let pairs = rope.frequencies.len();
    let scale = f64::from(rope.scale);
    for (p, frequency) in rope.frequencies.iter().enumerate() {
        let (sin, cos) = (pos as f64 * frequency).sin_cos();
        let (a, b) = (v[p], v[p + pairs]);
        v[p] = (a * cos - b * sin) * scale;
        v[p + pairs] = (b * cos + a * sin) * scale;
    }
}

impl ReferenceBackend {
    pub(super) fn rope_kv(&mut self, op: &RopeKvOp, f: &mut Frame<'_>) {
        let (s, eps) = (op.shape, f64::from(op.eps));
        let rope = f.plan.ropes()[op.rope.index()].clone();
        let (q_norm, k_norm) = (self.gain(op.q_norm), self.gain(op.k_norm));
        let normed = |v: &[f64], gain: &Option<Vec<f64>>| gain.as_ref().map_or_else(|| v.to_vec(), |g| rms(v, Some(g), eps));
        for (i, row) in f.rows.list.clone().into_iter().enumerate() {
            let pos = row.pos + op.advance as usize;
            if let Some(q) = op.q {
                for h in 0..s.heads {
                    let at = h * s.q_stride;
                    let mut v = normed(&f.acts[q.index()][i][at..at + s.key_dim], &q_norm);
                    rotate(&mut v, &rope, pos);
                    f.acts[q.index()][i][at..at + s.key_dim].copy_from_slice(&v);
                }
            }
            let (Some(k), Some(v)) = (op.k, op.v) else { continue };
            for h in 0..s.kv_heads {
                let mut key = normed(&f.get(k)[i][h * s.key_dim..(h + 1) * s.key_dim], &k_norm);
                rotate(&mut key, &rope, pos);
                let value = &f.get(v)[i][h * s.value_dim..(h + 1) * s.value_dim];
                let value = if op.v_norm { rms(value, None, eps) } else { value.to_vec() };
                self.kvs[op.kv.0 as usize].put(row.slot, pos, h, &key, &value);
            }
        }
    }

    pub(super) fn attention(&self, op: &AttentionOp, f: &mut Frame<'_>) {
        let s = op.shape;
        let kv = &self.kvs[op.kv.0 as usize];
        let mut out = Vec::new();
        for (i, row) in f.rows.list.iter().enumerate() {
            let pos = row.pos + op.advance as usize;
            let last = if op.causal { pos } else { row.last + op.advance as usize };
            let seen = |p: &usize| op.window.is_none_or(|w| pos < p + w as usize);
            let mut y = Vec::new();
            for h in 0..s.heads {
                let q = &f.get(op.q)[i][h * s.q_stride..h * s.q_stride + s.key_dim];
                let keys: Vec<_> =
                    (0..=last).filter(seen).map(|p| kv.get(row.slot, p, h / (s.heads / s.kv_heads))).collect();
                let scores: Vec<f64> = keys
                    .iter()
                    .map(|(k, _)| q.iter().zip(*k).map(|(q, k)| q * k).sum::<f64>() * f64::from(op.scale))
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for c in 0..s.value_dim {
                    let value: f64 = weights.iter().zip(&keys).map(|(w, (_, v))| w * v[c]).sum::<f64>() / sum;
                    let gate = match op.gate {
                        Gate::None => 1.0,
                        Gate::Interleaved => sigmoid(f.get(op.q)[i][h * s.q_stride + s.key_dim + c]),
                        Gate::Separate(g) => sigmoid(f.get(g)[i][h * s.value_dim + c]),
                    };
                    y.push(value * gate);
                }
            }
            out.push(y);
        }
        f.set(op.out, out);
    }
}
