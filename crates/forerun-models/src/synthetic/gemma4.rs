//! Shapes of Gemma 4.

use std::path::Path;

use forerun_files::{Array, Metadata, Value};
use forerun_quant::TensorType;

use super::{Draw, List, WeightMix};
use crate::error::Result;

/// Sizes of a Gemma 4 model. Pairs are of full and of sliding attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gemma4Shape {
    /// Name, as in `gemma4-31b`.
    pub name: &'static str,
    /// Hidden size.
    pub hidden: usize,
    /// Layers.
    pub layers: usize,
    /// Every so many layers one is of full attention, the others slide.
    pub full_every: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: [usize; 2],
    /// Elements of a head.
    pub head_dim: [usize; 2],
    /// Whether layers of full attention have values of their own; otherwise they take them from the keys.
    pub full_values: bool,
    /// Positions that a row of a sliding layer sees.
    pub window: usize,
    /// Dense feed-forward length.
    pub ffn: usize,
    /// Number of experts, experts that a row runs, feed-forward length of one; `None` for dense models.
    pub experts: Option<[usize; 3]>,
    /// Length of a per-layer embedding; 0 for none.
    pub per_layer: usize,
    /// Last layers that read the keys and values of earlier ones.
    pub shared_kv_layers: usize,
    /// Number of token ids.
    pub vocabulary: usize,
}

/// The shapes that can be asked for by name. The 31B has the sizes that its model card and parameter count give.
pub const GEMMA4_SHAPES: [Gemma4Shape; 2] = [
    Gemma4Shape {
        name: "gemma4-26b-a4b",
        hidden: 2816,
        layers: 30,
        full_every: 6,
        heads: 16,
        kv_heads: [2, 8],
        head_dim: [512, 256],
        full_values: false,
        window: 1024,
        ffn: 2112,
        experts: Some([128, 8, 704]),
        per_layer: 0,
        shared_kv_layers: 0,
        vocabulary: 262_144,
    },
    Gemma4Shape {
        name: "gemma4-31b",
        hidden: 5376,
        layers: 60,
        full_every: 6,
        heads: 32,
        kv_heads: [4, 16],
        head_dim: [512, 256],
        full_values: false,
        window: 1024,
        ffn: 21_504,
        experts: None,
        per_layer: 0,
        shared_kv_layers: 0,
        vocabulary: 262_144,
    },
];

impl Gemma4Shape {
    fn is_sliding(&self, layer: usize) -> bool {
        !(layer + 1).is_multiple_of(self.full_every)
    }

    fn shares(&self, layer: usize) -> bool {
        layer >= self.layers - self.shared_kv_layers
    }
}

/// Type of a matrix with rows of `cols`.
fn type_of(mix: WeightMix, matrix: &str, cols: usize) -> TensorType {
    match (mix, matrix) {
        (_, "ffn_gate_inp") => TensorType::F32,
        (WeightMix::All(ty), _) => ty,
        (_, "ffn_down" | "ffn_down_exps") if !cols.is_multiple_of(256) => TensorType::Q8_0,
        (_, "ffn_down" | "ffn_down_exps" | "attn_v" | "token_embd" | "per_layer_token_embd") => {
            TensorType::Q6_K
        }
        _ => TensorType::Q4_K,
    }
}

/// Keys of a file of this shape.
pub(super) fn metadata(s: &Gemma4Shape) -> Metadata {
    let mut m = Metadata::new(Path::new(s.name));
    m.insert("general.architecture", Value::String("gemma4".into()));
    m.insert("general.name", Value::String(format!("{} (random weights)", s.name)));
    m.insert("tokenizer.ggml.model", Value::String("none".into()));
    let mut counts = vec![
        ("block_count", s.layers),
        ("context_length", 262_144),
        ("embedding_length", s.hidden),
        ("feed_forward_length", s.ffn),
        ("attention.head_count", s.heads),
        ("attention.key_length", s.head_dim[0]),
        ("attention.value_length", s.head_dim[0]),
        ("attention.key_length_swa", s.head_dim[1]),
        ("attention.value_length_swa", s.head_dim[1]),
        ("attention.sliding_window", s.window),
        ("attention.shared_kv_layers", s.shared_kv_layers),
        ("rope.dimension_count", s.head_dim[0]),
        ("rope.dimension_count_swa", s.head_dim[1]),
        ("embedding_length_per_layer_input", s.per_layer),
        ("vocab_size", s.vocabulary),
    ];
    if let Some([experts, top_k, ffn]) = s.experts {
        counts.extend([
            ("expert_count", experts),
            ("expert_used_count", top_k),
            ("expert_feed_forward_length", ffn),
        ]);
    }
    for (key, n) in counts {
        m.insert(&format!("gemma4.{key}"), Value::U32(n as u32));
    }
    let floats = [
        ("rope.freq_base", 1e6),
        ("rope.freq_base_swa", 1e4),
        ("attention.layer_norm_rms_epsilon", 1e-6),
        ("final_logit_softcapping", 30.0),
    ];
    for (key, x) in floats {
        m.insert(&format!("gemma4.{key}"), Value::F32(x));
    }
    let sliding = || (0..s.layers).map(|i| s.is_sliding(i));
    let kv_heads = sliding().map(|sliding| s.kv_heads[usize::from(sliding)] as u32).collect();
    m.insert("gemma4.attention.head_count_kv", Value::Array(Array::U32(kv_heads)));
    m.insert("gemma4.attention.sliding_window_pattern", Value::Array(Array::Bool(sliding().collect())));
    m
}

impl List {
    fn gemma_matrix(&mut self, prefix: &str, stem: &str, dims: &[usize]) -> Result<()> {
        self.push(format!("{prefix}{stem}.weight"), dims, type_of(self.mix, stem, dims[0]), Draw::Matrix)
    }

    /// The tensors of a file of this shape.
    pub(super) fn gemma4(&mut self, s: &Gemma4Shape) -> Result<()> {
        let (h, all) = (s.hidden, s.layers * s.per_layer);
        self.gemma_matrix("", "token_embd", &[h, s.vocabulary])?;
        self.push("rope_freqs.weight".into(), &[s.head_dim[0] / 2], TensorType::F32, Draw::Divisors)?;
        if s.per_layer > 0 {
            self.gemma_matrix("", "per_layer_token_embd", &[all, s.vocabulary])?;
            self.gemma_matrix("", "per_layer_model_proj", &[h, all])?;
            self.norm("", "per_layer_proj_norm", s.per_layer)?;
        }
        (0..s.layers).try_for_each(|i| self.gemma_block(s, i))?;
        self.norm("", "output_norm", h)
    }

    fn gemma_block(&mut self, s: &Gemma4Shape, i: usize) -> Result<()> {
        let (h, block) = (s.hidden, format!("blk.{i}."));
        let norms = ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"];
        norms.iter().try_for_each(|n| self.norm(&block, n, h))?;
        self.gemma_attention(s, i, &block)?;
        self.gemma_matrix(&block, "ffn_gate", &[h, s.ffn])?;
        self.gemma_matrix(&block, "ffn_up", &[h, s.ffn])?;
        self.gemma_matrix(&block, "ffn_down", &[s.ffn, h])?;
        if let Some([experts, _, ffn]) = s.experts {
            let norms = ["pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"];
            norms.iter().try_for_each(|n| self.norm(&block, n, h))?;
            self.vector(format!("{block}ffn_gate_inp.scale"), &[h], 1.0, 0.1)?;
            self.vector(format!("{block}ffn_down_exps.scale"), &[experts], 1.0, 0.1)?;
            self.gemma_matrix(&block, "ffn_gate_inp", &[h, experts])?;
            self.gemma_matrix(&block, "ffn_gate_up_exps", &[h, 2 * ffn, experts])?;
            self.gemma_matrix(&block, "ffn_down_exps", &[ffn, h, experts])?;
        }
        if s.per_layer > 0 {
            self.gemma_matrix(&block, "inp_gate", &[h, s.per_layer])?;
            self.gemma_matrix(&block, "proj", &[s.per_layer, h])?;
            self.norm(&block, "post_norm", h)?;
        }
        self.vector(format!("{block}layer_output_scale.weight"), &[1], 1.0, 0.02)
    }

    fn gemma_attention(&mut self, s: &Gemma4Shape, i: usize, block: &str) -> Result<()> {
        let kind = usize::from(s.is_sliding(i));
        let (h, dim) = (s.hidden, s.head_dim[kind]);
        // Scores are not divided by √dim: gains of dim^(−1/4) keep their variance near 1.
        let gain = 1.0 / (dim as f32).sqrt().sqrt();
        self.gemma_matrix(block, "attn_q", &[h, dim * s.heads])?;
        self.vector(format!("{block}attn_q_norm.weight"), &[dim], gain, 0.1 * gain)?;
        self.gemma_matrix(block, "attn_output", &[dim * s.heads, h])?;
        if s.shares(i) {
            return Ok(());
        }
        self.gemma_matrix(block, "attn_k", &[h, dim * s.kv_heads[kind]])?;
        self.vector(format!("{block}attn_k_norm.weight"), &[dim], gain, 0.1 * gain)?;
        if s.is_sliding(i) || s.full_values {
            self.gemma_matrix(block, "attn_v", &[h, dim * s.kv_heads[kind]])?;
        }
        Ok(())
    }
}
