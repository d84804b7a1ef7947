//! Random weights of real models' shapes, for measuring without a download.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use forerun_files::{Metadata, TensorInfo, TensorKind, Value};
use forerun_quant::{TensorType, random_rows};
use forerun_tensor::{AttentionShape, DeltaShape, SharedBytes, WeightUse};

use crate::error::{ModelError, Result};
use crate::qwen35_spec::{MoeSpec, Qwen35Spec};
use crate::source::Source;
use crate::tensors::TensorUse;

/// Names of the shapes that [`Synthetic::new`] knows.
pub const SHAPES: &[&str] = &["qwen35-2b", "qwen35-4b", "qwen35-9b", "qwen35-27b", "qwen35-35b-a3b"];

/// Which type each matrix gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightMix {
    /// The usual Q4_K_M mix.
    Q4KM,
    /// One type for every matrix.
    One(TensorType),
}

impl WeightMix {
    /// `q4_k_m` or a type's name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("q4_k_m") {
            return Some(Self::Q4KM);
        }
        TensorType::from_name(name).filter(|t| t.is_weight()).map(Self::One)
    }
}

/// A source of random weights. A tensor is made when it is asked for, from its name alone.
#[derive(Debug)]
pub struct Synthetic {
    path: PathBuf,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

/// Width, layers, (query, KV) heads, (key, value) heads of the delta net, feed-forward width, vocabulary.
type Row = (usize, usize, (usize, usize), (usize, usize), usize, usize);

fn shape(name: &str) -> Option<Qwen35Spec> {
    let (h, layers, (heads, kv_heads), (key_heads, value_heads), ffn, vocabulary): Row = match name {
        "qwen35-2b" => (2048, 24, (8, 2), (16, 16), 6144, 32_768),
        "qwen35-4b" => (2560, 32, (16, 4), (16, 32), 9216, 248_320),
        "qwen35-9b" => (4096, 32, (16, 4), (16, 32), 12_288, 248_320),
        "qwen35-27b" => (5120, 64, (24, 4), (16, 48), 17_408, 248_320),
        "qwen35-35b-a3b" => (2048, 40, (16, 2), (16, 32), 0, 248_320),
        _ => return None,
    };
    let moe = MoeSpec { experts: 256, used: 8, hidden: 512, shared_hidden: 512, fused_gate_up: false };
    Some(Qwen35Spec {
        embedding_length: h,
        vocabulary,
        context_length: 262_144,
        recurrent: (0..layers).map(|i| (i + 1) % 4 != 0).collect(),
        fused_qkv: vec![false; layers],
        attention: AttentionShape { heads, kv_heads, key_dim: 256, value_dim: 256, q_stride: 512 },
        delta: DeltaShape { key_heads, value_heads, key_dim: 128, value_dim: 128, conv: 4, interleaved: true },
        feed_forward_length: ffn,
        moe: (ffn == 0).then_some(moe),
        eps: 1e-6,
        rope_base: 1e7,
        rope_dims: 64,
        tied: false,
        mtp: None,
    })
}

impl Synthetic {
    /// A source of the named shape.
    ///
    /// # Errors
    /// When the shape is unknown, or a matrix's columns do not fit the type.
    pub fn new(name: &str, mix: WeightMix) -> Result<Self> {
        let path = PathBuf::from(name);
        let Some(spec) = shape(name) else {
            return Err(ModelError::Unsupported {
                path,
                what: format!("shape {name:?}"),
                supported: SHAPES.join(", "),
            });
        };
        let mut tensors = Vec::new();
        for tensor in spec.tensors() {
            let ty = type_of(&tensor, mix);
            let (cols, rows, experts) = tensor.shape();
            let Some(row) = ty.row_bytes(cols) else {
                return Err(ModelError::TensorShape {
                    path,
                    name: tensor.name,
                    found: format!("{cols} columns"),
                    expected: format!("whole blocks of {} for {ty}", ty.block_elements()),
                });
            };
            let range = 0..row * rows * experts;
            tensors.push(TensorInfo { name: tensor.name, dims: tensor.dims, kind: TensorKind::Known(ty), part: 0, range });
        }
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { metadata: metadata(&path, &spec), path, tensors, index })
    }
}

fn type_of(tensor: &TensorUse, mix: WeightMix) -> TensorType {
    if tensor.usage == WeightUse::Vector {
        return TensorType::F32;
    }
    match (mix, Qwen35Spec::q4_k_m_type(&tensor.name)) {
        (_, TensorType::F32) => TensorType::F32,
        (WeightMix::One(ty), _) => ty,
        (WeightMix::Q4KM, ty) => ty,
    }
}

fn metadata(path: &Path, spec: &Qwen35Spec) -> Metadata {
    let arch = if spec.moe.is_some() { "qwen35moe" } else { "qwen35" };
    let mut m = Metadata::new(path);
    m.insert("general.architecture", Value::String(arch.into()));
    let mut int = |key: &str, v: usize| {
        m.insert(&format!("{arch}.{key}"), Value::U32(v as u32));
    };
    let (a, d) = (&spec.attention, &spec.delta);
    int("block_count", spec.recurrent.len());
    int("context_length", spec.context_length);
    int("embedding_length", spec.embedding_length);
    int("attention.head_count", a.heads);
    int("attention.head_count_kv", a.kv_heads);
    int("attention.key_length", a.key_dim);
    int("attention.value_length", a.value_dim);
    int("rope.dimension_count", spec.rope_dims);
    int("ssm.conv_kernel", d.conv);
    int("ssm.state_size", d.key_dim);
    int("ssm.group_count", d.key_heads);
    int("ssm.time_step_rank", d.value_heads);
    int("ssm.inner_size", d.value_cols());
    match &spec.moe {
        None => int("feed_forward_length", spec.feed_forward_length),
        Some(moe) => {
            int("expert_count", moe.experts);
            int("expert_used_count", moe.used);
            int("expert_feed_forward_length", moe.hidden);
            int("expert_shared_feed_forward_length", moe.shared_hidden);
        }
    }
    m.insert(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(spec.eps));
    m.insert(&format!("{arch}.rope.freq_base"), Value::F32(spec.rope_base));
    m
}

/// FNV-1a of a name.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

impl Source for Synthetic {
    fn path(&self) -> &Path {
        &self.path
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    fn bytes(&self, tensor: &TensorInfo) -> Result<SharedBytes> {
        let TensorKind::Known(ty) = tensor.kind else { return Err(self.no_bytes(tensor)) };
        let cols = tensor.dims[0];
        let rows = tensor.dims[1..].iter().product();
        let mut bytes = random_rows(ty, rows, cols, hash(&tensor.name)).ok_or_else(|| self.no_bytes(tensor))?;
        let (scale, shift) = match tensor.name.rsplit_once('.').map_or("", |(stem, _)| stem) {
            name if name.ends_with("norm") => (0.1, 1.0),
            name if name.ends_with("ssm_dt") => (0.5, 0.0),
            _ if tensor.name.ends_with("ssm_a") => (0.3, -1.0),
            _ => return Ok(bytes.into()),
        };
        // Vectors are F32; their random values have a deviation of 1/√length.
        let unit = (cols as f32).sqrt() * scale;
        for b in bytes.as_chunks_mut::<4>().0 {
            *b = (f32::from_le_bytes(*b) * unit + shift).to_le_bytes();
        }
        Ok(bytes.into())
    }

    fn release(&self, _: &TensorInfo) {}
}

impl Synthetic {
    fn no_bytes(&self, tensor: &TensorInfo) -> ModelError {
        ModelError::TensorShape {
            path: self.path.clone(),
            name: tensor.name.clone(),
            found: format!("dimensions {:?} of type {}", tensor.dims, tensor.kind.name()),
            expected: "a size that fits into memory".into(),
        }
    }
}
