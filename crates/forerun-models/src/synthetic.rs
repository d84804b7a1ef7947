//! Random weights of real models' shapes: speed and memory without the files.

mod dflash;
mod gemma4;

use std::collections::HashMap;
use std::path::Path;

use forerun_files::{Array, Metadata, TensorKind, Value};
use forerun_quant::{TensorType, random_rows};

use crate::error::{ModelError, Result};
use crate::ffn::FfnShape;
use crate::source::{Source, SourceTensor, TensorHeader};

pub use dflash::DFlashShape;
pub use gemma4::{GEMMA4_SHAPES, Gemma4Shape};

/// Sizes of a model of the Qwen3.5 family. Every fourth layer is full attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Name, as in `qwen35-9b`.
    pub name: &'static str,
    /// Hidden size.
    pub hidden: usize,
    /// Main layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Elements of a head; a quarter of them is rotated.
    pub head_dim: usize,
    /// Key heads of the delta nets.
    pub key_heads: usize,
    /// Value heads of the delta nets.
    pub value_heads: usize,
    /// Elements of a key or value of the delta nets.
    pub delta_dim: usize,
    /// Feed-forward sizes.
    pub ffn: FfnShape,
    /// Number of token ids.
    pub vocabulary: usize,
}

const fn dense(
    name: &'static str,
    hidden: usize,
    layers: usize,
    heads: [usize; 3],
    ffn: usize,
    vocabulary: usize,
) -> Shape {
    let [heads, kv_heads, value_heads] = heads;
    let ffn = FfnShape::Dense { ffn };
    Shape {
        name,
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim: 256,
        key_heads: 16,
        value_heads,
        delta_dim: 128,
        ffn,
        vocabulary,
    }
}

/// The shapes of the Qwen3.5 family that can be asked for by name. All are untied and have an MTP block.
pub const SHAPES: [Shape; 5] = [
    dense("qwen35-2b", 2048, 24, [8, 2, 16], 6144, 32_768),
    dense("qwen35-4b", 2560, 32, [16, 4, 32], 9216, 248_320),
    dense("qwen35-9b", 4096, 32, [16, 4, 32], 12_288, 248_320),
    dense("qwen35-27b", 5120, 64, [24, 4, 48], 17_408, 248_320),
    Shape {
        ffn: FfnShape::Experts { experts: 256, top_k: 8, ffn: 512, shared: 512 },
        ..dense("qwen35-35b-a3b", 2048, 40, [16, 2, 32], 0, 248_320)
    },
];

/// Types of a synthetic model's matrices. Norms, routers and other vectors are F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightMix {
    /// Q6_K for `ffn_down(_exps)`, `attn_v` and `output`, Q8_0 for shared experts and `eh_proj`, F32 for `ssm_alpha` and
    /// `ssm_beta`, Q4_K for the rest. Gemma: Q6_K for its tied embedding, and Q8_0 for an `ffn_down(_exps)` whose rows 256
    /// does not divide.
    Q4KM,
    /// One type for every matrix.
    All(TensorType),
}

impl WeightMix {
    /// `q4_k_m`, or the name of a type, in any case.
    ///
    /// # Errors
    /// When there is no such type.
    pub fn from_name(name: &str) -> Result<Self> {
        if name.eq_ignore_ascii_case("q4_k_m") {
            return Ok(WeightMix::Q4KM);
        }
        let ty = TensorType::from_name(name).filter(|t| t.is_weight()).ok_or_else(|| ModelError::Option {
            option: "type",
            found: format!("`{name}`"),
            expected: "q4_k_m or the name of a weight type, as in q8_0".into(),
        })?;
        Ok(WeightMix::All(ty))
    }

    fn of(self, matrix: &str) -> TensorType {
        match (self, matrix) {
            (_, "ffn_gate_inp" | "ffn_gate_inp_shexp") => TensorType::F32,
            (WeightMix::All(ty), _) => ty,
            (_, "ffn_down" | "ffn_down_exps" | "attn_v" | "output") => TensorType::Q6_K,
            (_, "ffn_gate_shexp" | "ffn_up_shexp" | "ffn_down_shexp" | "nextn.eh_proj") => TensorType::Q8_0,
            (_, "ssm_alpha" | "ssm_beta") => TensorType::F32,
            _ => TensorType::Q4_K,
        }
    }
}

/// How the elements of a tensor are drawn. z is a bell-shaped random number of mean 0, variance 1 and |z| < 3.5.
#[derive(Clone, Copy, Debug)]
enum Draw {
    /// z / √columns: products of normed inputs stay near variance 1.
    Matrix,
    /// offset + scale · z.
    Around(f32, f32),
    /// 1 for the first quarter, 1e30 for the rest: what divides the rotary frequencies of proportional rotation.
    Divisors,
}

/// A model of random weights. Tensors are made when they are asked for, from the seed and their name alone.
pub struct Synthetic {
    metadata: Metadata,
    headers: Vec<TensorHeader>,
    index: HashMap<String, (usize, TensorType, Draw)>,
    seed: u64,
}

impl Synthetic {
    /// A shape of [`SHAPES`] or [`GEMMA4_SHAPES`] by name.
    ///
    /// # Errors
    /// When there is no such shape, or the types do not fit its rows.
    pub fn named(name: &str, mix: WeightMix, seed: u64) -> Result<Self> {
        if let Some(shape) = SHAPES.iter().find(|s| s.name == name) {
            return Self::new(shape, mix, seed);
        }
        if let Some(shape) = GEMMA4_SHAPES.iter().find(|s| s.name == name) {
            return Self::gemma4(shape, mix, seed);
        }
        let names: Vec<&str> =
            SHAPES.iter().map(|s| s.name).chain(GEMMA4_SHAPES.iter().map(|s| s.name)).collect();
        let (found, expected) = (format!("`{name}`"), names.join(", "));
        Err(ModelError::Option { option: "shape", found, expected })
    }

    /// Any shape of the Qwen3.5 family.
    ///
    /// # Errors
    /// When the types do not fit the shape's rows.
    pub fn new(shape: &Shape, mix: WeightMix, seed: u64) -> Result<Self> {
        let mut list = List::new(mix, metadata(shape));
        list.model(shape)?;
        Ok(list.finish(seed))
    }

    /// Any shape of Gemma 4.
    ///
    /// # Errors
    /// When the types do not fit the shape's rows.
    pub fn gemma4(shape: &Gemma4Shape, mix: WeightMix, seed: u64) -> Result<Self> {
        let mut list = List::new(mix, gemma4::metadata(shape));
        list.gemma4(shape)?;
        Ok(list.finish(seed))
    }
}

fn metadata(shape: &Shape) -> Metadata {
    let moe = matches!(shape.ffn, FfnShape::Experts { .. });
    let architecture = if moe { "qwen35moe" } else { "qwen35" };
    let mut m = Metadata::new(Path::new(shape.name));
    m.insert("general.architecture", Value::String(architecture.into()));
    m.insert("general.name", Value::String(format!("{} (random weights)", shape.name)));
    m.insert("tokenizer.ggml.model", Value::String("none".into()));
    let mut counts = vec![
        ("block_count", shape.layers + 1),
        ("nextn_predict_layers", 1),
        ("context_length", 262_144),
        ("embedding_length", shape.hidden),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("rope.dimension_count", shape.head_dim / 4),
        ("full_attention_interval", 4),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", shape.delta_dim),
        ("ssm.group_count", shape.key_heads),
        ("ssm.time_step_rank", shape.value_heads),
        ("ssm.inner_size", shape.value_heads * shape.delta_dim),
        ("vocab_size", shape.vocabulary),
    ];
    match shape.ffn {
        FfnShape::Dense { ffn } => counts.push(("feed_forward_length", ffn)),
        FfnShape::Experts { experts, top_k, ffn, shared } => counts.extend([
            ("expert_count", experts),
            ("expert_used_count", top_k),
            ("expert_feed_forward_length", ffn),
            ("expert_shared_feed_forward_length", shared),
        ]),
    }
    for (key, n) in counts {
        m.insert(&format!("{architecture}.{key}"), Value::U32(n as u32));
    }
    // Time, height and width have a third of the pairs each, or about.
    let pairs = shape.head_dim / 8;
    let first = pairs.div_ceil(3);
    let sections = [first, first.min(pairs - first), pairs.saturating_sub(2 * first), 0].map(|n| n as i32);
    m.insert(&format!("{architecture}.rope.dimension_sections"), Value::Array(Array::I32(sections.into())));
    m.insert(&format!("{architecture}.rope.freq_base"), Value::F32(1e7));
    m.insert(&format!("{architecture}.attention.layer_norm_rms_epsilon"), Value::F32(1e-6));
    m
}

/// Collects the tensors of a shape.
struct List {
    mix: WeightMix,
    metadata: Metadata,
    headers: Vec<TensorHeader>,
    index: HashMap<String, (usize, TensorType, Draw)>,
}

impl List {
    fn new(mix: WeightMix, metadata: Metadata) -> Self {
        Self { mix, metadata, headers: Vec::new(), index: HashMap::new() }
    }

    fn finish(self, seed: u64) -> Synthetic {
        Synthetic { metadata: self.metadata, headers: self.headers, index: self.index, seed }
    }

    fn push(&mut self, name: String, dims: &[usize], ty: TensorType, draw: Draw) -> Result<()> {
        if ty.row_bytes(dims[0]).is_none() {
            return Err(ModelError::BadTensor {
                path: self.metadata.path().to_path_buf(),
                tensor: name,
                found: format!("rows of {} elements of type {ty}", dims[0]),
                expected: format!("whole blocks of {}", ty.block_elements()),
            });
        }
        self.index.insert(name.clone(), (self.headers.len(), ty, draw));
        self.headers.push(TensorHeader { name, dims: dims.to_vec(), kind: TensorKind::Known(ty) });
        Ok(())
    }

    fn matrix(&mut self, prefix: &str, stem: &str, dims: &[usize]) -> Result<()> {
        self.push(format!("{prefix}{stem}.weight"), dims, self.mix.of(stem), Draw::Matrix)
    }

    fn vector(&mut self, name: String, dims: &[usize], offset: f32, scale: f32) -> Result<()> {
        self.push(name, dims, TensorType::F32, Draw::Around(offset, scale))
    }

    fn norm(&mut self, prefix: &str, stem: &str, len: usize) -> Result<()> {
        self.vector(format!("{prefix}{stem}.weight"), &[len], 1.0, 0.1)
    }

    fn model(&mut self, s: &Shape) -> Result<()> {
        self.matrix("", "token_embd", &[s.hidden, s.vocabulary])?;
        for i in 0..s.layers {
            let block = format!("blk.{i}.");
            self.norm(&block, "attn_norm", s.hidden)?;
            if (i + 1).is_multiple_of(4) {
                self.attention(&block, s)?
            } else {
                self.delta_net(&block, s)?
            }
            self.norm(&block, "post_attention_norm", s.hidden)?;
            self.ffn(&block, s)?;
        }
        self.norm("", "output_norm", s.hidden)?;
        self.matrix("", "output", &[s.hidden, s.vocabulary])?;
        let block = format!("blk.{}.", s.layers);
        self.norm(&block, "attn_norm", s.hidden)?;
        self.attention(&block, s)?;
        self.norm(&block, "post_attention_norm", s.hidden)?;
        self.ffn(&block, s)?;
        self.matrix(&block, "nextn.eh_proj", &[2 * s.hidden, s.hidden])?;
        ["nextn.enorm", "nextn.hnorm", "nextn.shared_head_norm"]
            .iter()
            .try_for_each(|n| self.norm(&block, n, s.hidden))
    }

    fn attention(&mut self, block: &str, s: &Shape) -> Result<()> {
        self.matrix(block, "attn_q", &[s.hidden, 2 * s.head_dim * s.heads])?;
        self.matrix(block, "attn_k", &[s.hidden, s.head_dim * s.kv_heads])?;
        self.matrix(block, "attn_v", &[s.hidden, s.head_dim * s.kv_heads])?;
        self.norm(block, "attn_q_norm", s.head_dim)?;
        self.norm(block, "attn_k_norm", s.head_dim)?;
        self.matrix(block, "attn_output", &[s.head_dim * s.heads, s.hidden])
    }

    fn delta_net(&mut self, block: &str, s: &Shape) -> Result<()> {
        let values = s.value_heads * s.delta_dim;
        let conv = 2 * s.key_heads * s.delta_dim + values;
        self.matrix(block, "attn_qkv", &[s.hidden, conv])?;
        self.matrix(block, "attn_gate", &[s.hidden, values])?;
        self.matrix(block, "ssm_alpha", &[s.hidden, s.value_heads])?;
        self.matrix(block, "ssm_beta", &[s.hidden, s.value_heads])?;
        self.vector(format!("{block}ssm_conv1d.weight"), &[4, conv], 0.0, 0.5)?;
        self.vector(format!("{block}ssm_dt.bias"), &[s.value_heads], 0.0, 0.5)?;
        // Between −1.5 and −0.1: a state halves within one to ten tokens.
        self.vector(format!("{block}ssm_a"), &[s.value_heads], -0.8, 0.2)?;
        self.norm(block, "ssm_norm", s.delta_dim)?;
        self.matrix(block, "ssm_out", &[values, s.hidden])
    }

    fn ffn(&mut self, block: &str, s: &Shape) -> Result<()> {
        let h = s.hidden;
        match s.ffn {
            FfnShape::Dense { ffn } => {
                self.matrix(block, "ffn_gate", &[h, ffn])?;
                self.matrix(block, "ffn_up", &[h, ffn])?;
                self.matrix(block, "ffn_down", &[ffn, h])
            }
            FfnShape::Experts { experts, ffn, shared, .. } => {
                self.matrix(block, "ffn_gate_inp", &[h, experts])?;
                self.matrix(block, "ffn_gate_exps", &[h, ffn, experts])?;
                self.matrix(block, "ffn_up_exps", &[h, ffn, experts])?;
                self.matrix(block, "ffn_down_exps", &[ffn, h, experts])?;
                self.matrix(block, "ffn_gate_inp_shexp", &[h])?;
                self.matrix(block, "ffn_gate_shexp", &[h, shared])?;
                self.matrix(block, "ffn_up_shexp", &[h, shared])?;
                self.matrix(block, "ffn_down_shexp", &[shared, h])
            }
        }
    }
}

/// FNV-1a (Fowler, Noll, Vo), 64 bits.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Source for Synthetic {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let (i, ty, draw) = *self.index.get(name)?;
        let dims = self.headers[i].dims.clone();
        let cols = dims[0];
        let rows = dims[1..].iter().product();
        let mut bytes = random_rows(ty, rows, cols, self.seed ^ hash(name))?;
        let floats = bytes.as_chunks_mut::<4>().0;
        match draw {
            Draw::Matrix => {}
            Draw::Around(offset, scale) => {
                // The numbers come with a deviation of 1/√cols.
                let scale = scale * (cols as f32).sqrt();
                floats.iter_mut().for_each(|b| *b = (offset + scale * f32::from_le_bytes(*b)).to_le_bytes());
            }
            Draw::Divisors => {
                let value = |i: usize| if 4 * i < cols { 1.0_f32 } else { 1e30 };
                floats.iter_mut().enumerate().for_each(|(i, b)| *b = value(i).to_le_bytes());
            }
        }
        Some(SourceTensor { dims, ty, bytes: bytes.into() })
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn release(&self, _: &str) {}
}
