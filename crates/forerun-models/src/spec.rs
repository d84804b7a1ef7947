//! What a file holds: the architecture, checked shapes, and sizes.

use std::path::{Path, PathBuf};

use forerun_files::TensorKind;
use forerun_tensor::{Backend, KvType};

use crate::caches::{CacheConfig, MemoryNeed};
use crate::error::{ModelError, Result};
use crate::qwen35_spec::{MtpSpec, Qwen35Spec};
use crate::source::Source;
use crate::tensors::{ReadPattern, TensorUse};

/// A supported architecture with its shapes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Architecture {
    /// `qwen35` and `qwen35moe`.
    Qwen35(Qwen35Spec),
}

/// Tensors of a model with the bytes each has in its file.
#[derive(Clone, Debug, PartialEq)]
struct Sized {
    tensor: TensorUse,
    ty: forerun_quant::TensorType,
    bytes: u64,
}

/// A checked model: nothing was loaded yet, and nothing in its shapes can surprise later.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    path: PathBuf,
    name: String,
    architecture: Architecture,
    sized: Vec<Sized>,
}

impl ModelSpec {
    /// Reads a source's metadata and checks every tensor.
    ///
    /// # Errors
    /// Names the key or tensor at fault; an unknown architecture is refused by name.
    pub fn read(source: &dyn Source) -> Result<Self> {
        let name = source.metadata().str("general.architecture")?;
        let architecture = match name.as_str() {
            "qwen35" => Architecture::Qwen35(Qwen35Spec::read(source, &name, false)?),
            "qwen35moe" => Architecture::Qwen35(Qwen35Spec::read(source, &name, true)?),
            other => {
                return Err(ModelError::Unsupported {
                    path: source.path().to_path_buf(),
                    what: format!("architecture {other:?}"),
                    supported: "qwen35, qwen35moe".into(),
                });
            }
        };
        let Architecture::Qwen35(spec) = &architecture;
        let sized = spec
            .tensors()
            .into_iter()
            .map(|tensor| {
                let (info, ty) = tensor.check(source)?;
                let (cols, rows, experts) = tensor.shape();
                let bytes = ty.row_bytes(cols).unwrap_or(0) as u64 * (rows * experts) as u64;
                debug_assert!(info.kind == TensorKind::Known(ty));
                Ok(Sized { tensor, ty, bytes })
            })
            .collect::<Result<_>>()?;
        Ok(Self { path: source.path().to_path_buf(), name, architecture, sized })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the architecture, as in `qwen35moe`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The architecture.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    fn qwen35(&self) -> &Qwen35Spec {
        let Architecture::Qwen35(spec) = &self.architecture;
        spec
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.qwen35().vocabulary
    }

    /// Context length the model was trained for.
    #[must_use]
    pub fn context_length(&self) -> usize {
        self.qwen35().context_length
    }

    /// The MTP block.
    #[must_use]
    pub fn mtp(&self) -> Option<&MtpSpec> {
        self.qwen35().mtp.as_ref()
    }

    /// The tensors a model of this shape loads.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorUse> {
        self.sized.iter().map(|s| &s.tensor)
    }

    /// Parameters of the main model.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.tensors().map(|t| t.dims.iter().map(|d| *d as u64).product::<u64>()).sum()
    }

    /// Bytes of the tensors to load, in the file's types.
    #[must_use]
    pub fn weight_bytes(&self) -> u64 {
        self.sized.iter().map(|s| s.bytes).sum()
    }

    /// Bytes that any engine must move for a step of `rows` rows of one sequence that has `context` positions: weights in
    /// the file's own types (embedding rows only; of experts, the number that so many rows choose on average), keys and
    /// values read, recurrent state read and written.
    #[must_use]
    pub fn step_bytes(&self, rows: usize, context: usize, kv: KvType) -> u64 {
        let weights: f64 = self
            .sized
            .iter()
            .map(|s| {
                let (_, table_rows, experts) = s.tensor.shape();
                let share = match s.tensor.read {
                    ReadPattern::All => 1.0,
                    ReadPattern::Nothing => 0.0,
                    ReadPattern::Rows => rows as f64 / table_rows as f64,
                    ReadPattern::Experts(used) => {
                        1.0 - (1.0 - used as f64 / experts as f64).powi(rows.min(1 << 20) as i32)
                    }
                };
                share * s.bytes as f64
            })
            .sum();
        let spec = self.qwen35();
        let recurrent = spec.recurrent.iter().filter(|r| **r).count() as u64;
        let full = spec.recurrent.len() as u64 - recurrent;
        let positions = (context + rows) as u64;
        weights as u64 + full * kv_bytes(spec, kv) * positions + 2 * recurrent * state_bytes(spec)
    }

    /// Memory needed under a cache configuration on a backend.
    #[must_use]
    pub fn memory(&self, backend: Option<&dyn Backend>, caches: &CacheConfig) -> MemoryNeed {
        let spec = self.qwen35();
        let recurrent = spec.recurrent.iter().filter(|r| **r).count() as u64;
        let full = spec.recurrent.len() as u64 - recurrent;
        let weights = self.sized.iter().map(|s| {
            let (cols, rows, experts) = s.tensor.shape();
            backend.map_or(0, |b| b.weight_bytes(s.ty, rows, cols, experts, s.tensor.usage)).max(s.bytes)
        });
        let width = spec.embedding_length * 8
            + spec.delta.conv_cols() * 4
            + spec.attention.heads * spec.attention.q_stride * 2
            + spec.feed_forward_length * 2;
        let tape_row = 4 * (spec.delta.conv_cols() + 2 * spec.delta.value_heads) as u64;
        let state = state_bytes(spec) * (caches.slots + caches.snapshots) as u64;
        MemoryNeed {
            weights: weights.sum(),
            kv: full * kv_bytes(spec, caches.kv) * (caches.context * caches.slots) as u64,
            state: recurrent * (state + tape_row * (caches.tape * caches.slots) as u64),
            activations: (4 * width * caches.chunk + 4 * spec.vocabulary * 80) as u64,
        }
    }
}

/// Bytes of one layer's keys and values at one position.
fn kv_bytes(spec: &Qwen35Spec, kv: KvType) -> u64 {
    let a = &spec.attention;
    (a.kv_heads * (kv.vector_bytes(a.key_dim) + kv.vector_bytes(a.value_dim))) as u64
}

/// Bytes of one delta-net layer's state.
fn state_bytes(spec: &Qwen35Spec) -> u64 {
    let d = &spec.delta;
    4 * (d.value_heads * d.key_dim * d.value_dim + (d.conv - 1) * d.conv_cols()) as u64
}
