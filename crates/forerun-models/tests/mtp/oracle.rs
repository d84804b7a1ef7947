//! The MTP block in plain float64 loops, one pair at a time, from the tensors of files by their names.

use forerun_models::Shape;
use forerun_models::ffn::FfnShape;

use crate::fake::Fake;

const EPS: f64 = 1e-6;
const ROPE_BASE: f64 = 1e7;

/// Rows of a matrix; of a stack, those of all experts.
struct Matrix {
    cols: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.cols..(i + 1) * self.cols]
    }

    /// `rows` products from row `first` on.
    fn part(&self, first: usize, rows: usize, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.cols);
        let dot = |i| self.row(i).iter().zip(x).map(|(w, x)| w * x).sum();
        (first..first + rows).map(dot).collect()
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        self.part(0, self.values.len() / self.cols, x)
    }
}

fn rms(x: &[f64], gain: &[f64]) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().zip(gain).map(|(v, g)| v / (mean + EPS).sqrt() * g).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|v| (v - max).exp()).sum();
    x.iter().map(|v| (v - max).exp() / sum).collect()
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `silu(gate) ⊙ up`.
fn gated(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect()
}

/// The block, with the keys and values of its pairs so far.
pub(crate) struct Block<'a> {
    model: &'a Fake,
    file: &'a Fake,
    prefix: String,
    shape: &'a Shape,
    /// Per pair.
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

impl<'a> Block<'a> {
    /// Block `shape.layers` of `file`, drafting for `model`.
    pub(crate) fn new(model: &'a Fake, file: &'a Fake, shape: &'a Shape) -> Self {
        let prefix = format!("blk.{}.", shape.layers);
        Self { model, file, prefix, shape, keys: Vec::new(), values: Vec::new() }
    }

    /// Forgets the pairs so far.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.values.clear();
    }

    fn find(source: &Fake, name: &str) -> Option<Matrix> {
        source.values(name).map(|(dims, values)| Matrix { cols: dims[0], values })
    }

    fn own(&self, stem: &str) -> Option<Matrix> {
        Self::find(self.file, &format!("{}{stem}.weight", self.prefix))
    }

    fn get(&self, stem: &str) -> Matrix {
        self.own(stem).unwrap_or_else(|| panic!("{stem} is missing"))
    }

    fn shared(&self, names: &[&str]) -> Matrix {
        names.iter().find_map(|n| Self::find(self.model, n)).expect("a tensor of the model")
    }

    /// The pair after those so far: its n and its logits.
    pub(crate) fn pair(&mut self, hidden: &[f64], token: u32) -> (Vec<f64>, Vec<f64>) {
        let table = self.own("nextn.embed_tokens").unwrap_or_else(|| self.shared(&["token_embd.weight"]));
        let e = rms(table.row(token as usize), &self.get("nextn.enorm").values);
        let h = rms(hidden, &self.get("nextn.hnorm").values);
        let z = self.get("nextn.eh_proj").times(&[e, h].concat());
        let x = rms(&z, &self.get("attn_norm").values);
        let r = add(&z, &self.attention(&x));
        let y = add(&r, &self.ffn(&rms(&r, &self.get("post_attention_norm").values)));
        let norm = self.own("nextn.shared_head_norm").unwrap_or_else(|| self.shared(&["output_norm.weight"]));
        let n = rms(&y, &norm.values);
        let shared = || self.shared(&["output.weight", "token_embd.weight"]);
        let logits = self.own("nextn.shared_head_head").unwrap_or_else(shared).times(&n);
        (n, logits)
    }

    /// Per-head norm where the file has one, then rotary of the head's first quarter.
    fn head(&self, v: &[f64], norm: &str, pos: usize) -> Vec<f64> {
        let mut v = self.own(norm).map_or(v.to_vec(), |gain| rms(v, &gain.values));
        let rotary = self.shape.head_dim / 4;
        for p in 0..rotary / 2 {
            let angle = pos as f64 * ROPE_BASE.powf(-2.0 * p as f64 / rotary as f64);
            let (a, b) = (v[p], v[p + rotary / 2]);
            v[p] = a * angle.cos() - b * angle.sin();
            v[p + rotary / 2] = b * angle.cos() + a * angle.sin();
        }
        v
    }

    /// Queries with their gates where there are any, keys, values.
    fn projections(&self, x: &[f64]) -> [Vec<f64>; 3] {
        let Some(fused) = self.own("attn_qkv") else {
            return ["attn_q", "attn_k", "attn_v"].map(|n| self.get(n).times(x));
        };
        let mut q = fused.times(x);
        let kv = self.shape.kv_heads * self.shape.head_dim;
        let v = q.split_off(q.len() - kv);
        let k = q.split_off(q.len() - kv);
        [q, k, v]
    }

    fn attention(&mut self, x: &[f64]) -> Vec<f64> {
        let Shape { heads, kv_heads, head_dim: dim, .. } = *self.shape;
        let [q, k, v] = self.projections(x);
        let pos = self.keys.len();
        self.keys.push(k.chunks(dim).flat_map(|k| self.head(k, "attn_k_norm", pos)).collect());
        self.values.push(v);
        let separate = self.own("attn_gate").map(|w| w.times(x));
        let stride = q.len() / heads;
        let mut out = Vec::new();
        for h in 0..heads {
            let query = self.head(&q[h * stride..][..dim], "attn_q_norm", pos);
            let at = h / (heads / kv_heads) * dim;
            let dot = |k: &Vec<f64>| k[at..at + dim].iter().zip(&query).map(|(k, q)| k * q).sum::<f64>();
            let scores: Vec<f64> = self.keys.iter().map(|k| dot(k) / (dim as f64).sqrt()).collect();
            let weights = softmax(&scores);
            for c in 0..dim {
                let sum: f64 = weights.iter().zip(&self.values).map(|(w, v)| w * v[at + c]).sum();
                let gate = match &separate {
                    Some(gate) => sigmoid(gate[h * dim + c]),
                    None if stride == 2 * dim => sigmoid(q[h * stride + dim + c]),
                    None => 1.0,
                };
                out.push(sum * gate);
            }
        }
        self.get("attn_output").times(&out)
    }

    fn ffn(&self, x: &[f64]) -> Vec<f64> {
        let swiglu = |kind: &str| {
            let [gate, up, down] = ["gate", "up", "down"].map(|part| self.get(&format!("ffn_{part}{kind}")));
            down.times(&gated(&gate.times(x), &up.times(x)))
        };
        if self.own("ffn_gate").is_some() {
            return swiglu("");
        }
        let FfnShape::Experts { experts, top_k, ffn, .. } = self.shape.ffn else {
            panic!("no feed-forward layer")
        };
        let probabilities = softmax(&self.get("ffn_gate_inp").times(x));
        let mut ranked: Vec<usize> = (0..experts).collect();
        ranked.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
        ranked.truncate(top_k);
        let total: f64 = ranked.iter().map(|e| probabilities[*e]).sum();
        let [gates, ups, downs] = ["gate", "up", "down"].map(|p| self.get(&format!("ffn_{p}_exps")));
        let gate = sigmoid(self.get("ffn_gate_inp_shexp").times(x)[0]);
        let mut y: Vec<f64> = swiglu("_shexp").iter().map(|v| v * gate).collect();
        for e in ranked {
            let h = gated(&gates.part(e * ffn, ffn, x), &ups.part(e * ffn, ffn, x));
            let out = downs.part(e * x.len(), x.len(), &h);
            y = y.iter().zip(out).map(|(y, o)| y + probabilities[e] / total * o).collect();
        }
        y
    }
}
