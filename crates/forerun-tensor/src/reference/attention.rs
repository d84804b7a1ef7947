//! Rotary embedding, cache write, attention.

use super::cache::KvRow;
use super::{Frame, ReferenceBackend, rms, sigmoid};
use crate::plan::{AttentionOp, AttentionShape, Gate, RopeKvOp, RopeSpec};

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

/// Softmax of the scores of `q` with `keys`.
fn attention_weights(q: &[f64], keys: &[&[f64]], scale: f64) -> Vec<f64> {
    let dot = |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|k| dot(k) * scale).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// The KV head that query head `h` reads.
fn kv_head(s: &AttentionShape, h: usize) -> usize {
    h / (s.heads / s.kv_heads)
}

impl ReferenceBackend {
    pub(super) fn rope_kv(&mut self, op: &RopeKvOp, f: &mut Frame<'_>) {
        let (s, eps) = (op.shape, f64::from(op.eps));
        let rope = &f.plan.ropes()[op.rope.index()];
        let (q_norm, k_norm) = (self.vector(op.q_norm), self.vector(op.k_norm));
        let normed = |v: &[f64], gain: &Option<Vec<f64>>| match gain {
            Some(gain) => rms(v, Some(gain), eps),
            None => v.to_vec(),
        };
        if let Some(q) = op.q {
            for (i, row) in f.rows(q).into_iter().enumerate() {
                for head in f.acts[q.index()][i].chunks_exact_mut(s.q_stride) {
                    let mut v = normed(&head[..s.key_dim], &q_norm);
                    rotate(&mut v, rope, row.pos + op.advance as usize);
                    head[..s.key_dim].copy_from_slice(&v);
                }
            }
        }
        let (Some(k), Some(v)) = (op.k, op.v) else { return };
        for (i, row) in f.rows(k).into_iter().enumerate() {
            let pos = row.pos + op.advance as usize;
            let keys = f.get(k)[i].chunks_exact(s.key_dim);
            let values = f.get(v)[i].chunks_exact(s.value_dim);
            let heads: KvRow = keys
                .zip(values)
                .map(|(key, value)| {
                    let mut key = normed(key, &k_norm);
                    rotate(&mut key, rope, pos);
                    [key, if op.v_norm { rms(value, None, eps) } else { value.to_vec() }]
                })
                .collect();
            self.kvs[op.kv.0 as usize].put(row.slot, pos, heads);
        }
    }

    pub(super) fn attention(&self, op: &AttentionOp, f: &mut Frame<'_>) {
        let s = op.shape;
        let mut out = Vec::new();
        for (i, row) in f.rows(op.q).into_iter().enumerate() {
            let cache = &self.kvs[op.kv.0 as usize].slots[row.slot];
            let visible = row.visible(op);
            let seen: Vec<&KvRow> = visible.filter_map(|p| cache.get(p)).collect();
            let mut y = Vec::new();
            for h in 0..s.heads {
                let q = &f.get(op.q)[i][h * s.q_stride..][..s.key_dim];
                let keys: Vec<&[f64]> = seen.iter().map(|row| &row[kv_head(&s, h)][0][..]).collect();
                let weights = attention_weights(q, &keys, f64::from(op.scale));
                for c in 0..s.value_dim {
                    let values = seen.iter().map(|row| row[kv_head(&s, h)][1][c]);
                    let value: f64 = weights.iter().zip(values).map(|(w, v)| w * v).sum();
                    y.push(match op.gate {
                        Gate::None => value,
                        Gate::Interleaved => value * sigmoid(f.get(op.q)[i][h * s.q_stride + s.key_dim + c]),
                        Gate::Separate(g) => value * sigmoid(f.get(g)[i][h * s.value_dim + c]),
                    });
                }
            }
            out.push(y);
        }
        f.set(op.out, out);
    }
}
