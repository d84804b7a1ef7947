//! Shapes of DFlash drafters.

use std::path::Path;

use forerun_files::{Array, Metadata, Value};
use forerun_quant::TensorType;

use super::{List, Synthetic, WeightMix};
use crate::error::Result;
use crate::spec::ModelSpec;

/// Sizes of a drafter whose layers but the last slide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DFlashShape {
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Feed-forward length.
    pub ffn: usize,
    /// Rows of a block.
    pub block: usize,
    /// Positions that a row of a sliding layer sees.
    pub window: usize,
}

impl Default for DFlashShape {
    /// A drafter as they are published for models of a few billion parameters.
    fn default() -> Self {
        Self { layers: 5, heads: 32, kv_heads: 4, head_dim: 128, ffn: 6144, block: 16, window: 2048 }
    }
}

impl Synthetic {
    /// A drafter of one type for a model, which gives it the outputs of as many layers as the drafter has.
    ///
    /// # Errors
    /// When the type does not fit the shape's rows.
    pub fn dflash(shape: &DFlashShape, model: &ModelSpec, ty: TensorType, seed: u64) -> Result<Self> {
        let mut list = List::new(WeightMix::All(ty), metadata(shape, model));
        list.dflash(shape, model)?;
        Ok(list.finish(seed))
    }
}

/// Inputs of layers, as a file numbers them, spread evenly.
fn target_layers(s: &DFlashShape, model: &ModelSpec) -> Vec<u32> {
    let count = s.layers.min(model.layers());
    (1..=count).map(|i| (i * model.layers() / count) as u32).collect()
}

fn metadata(s: &DFlashShape, model: &ModelSpec) -> Metadata {
    let mut m = Metadata::new(Path::new("random drafter"));
    m.insert("general.architecture", Value::String("dflash".into()));
    let counts = [
        ("block_count", s.layers),
        ("embedding_length", model.hidden()),
        ("feed_forward_length", s.ffn),
        ("attention.head_count", s.heads),
        ("attention.head_count_kv", s.kv_heads),
        ("attention.key_length", s.head_dim),
        ("attention.value_length", s.head_dim),
        ("attention.sliding_window", s.window),
        ("block_size", s.block),
        ("vocab_size", model.vocabulary()),
    ];
    for (key, n) in counts {
        m.insert(&format!("dflash.{key}"), Value::U32(n as u32));
    }
    m.insert("dflash.rope.freq_base", Value::F32(1e6));
    m.insert("dflash.attention.layer_norm_rms_epsilon", Value::F32(1e-6));
    m.insert("dflash.target_layers", Value::Array(Array::U32(target_layers(s, model))));
    let sliding = (0..s.layers).map(|i| i + 1 < s.layers).collect();
    m.insert("dflash.attention.sliding_window_pattern", Value::Array(Array::Bool(sliding)));
    m.insert("tokenizer.ggml.mask_token_id", Value::U32(0));
    m
}

impl List {
    fn dflash(&mut self, s: &DFlashShape, model: &ModelSpec) -> Result<()> {
        let h = model.hidden();
        let (q, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        self.matrix("", "fc", &[target_layers(s, model).len() * h, h])?;
        self.norm("", "enc.output_norm", h)?;
        for i in 0..s.layers {
            let block = format!("blk.{i}.");
            self.norm(&block, "attn_norm", h)?;
            self.matrix(&block, "attn_q", &[h, q])?;
            self.matrix(&block, "attn_k", &[h, kv])?;
            self.matrix(&block, "attn_v", &[h, kv])?;
            self.norm(&block, "attn_q_norm", s.head_dim)?;
            self.norm(&block, "attn_k_norm", s.head_dim)?;
            self.matrix(&block, "attn_output", &[q, h])?;
            self.norm(&block, "ffn_norm", h)?;
            self.matrix(&block, "ffn_gate", &[h, s.ffn])?;
            self.matrix(&block, "ffn_up", &[h, s.ffn])?;
            self.matrix(&block, "ffn_down", &[s.ffn, h])?;
        }
        self.norm("", "output_norm", h)
    }
}
