//! Where the tensors of a model come from.

use std::path::Path;
use std::sync::Arc;

use forerun_files::{Checkpoint, FileError, Gguf, HubFolder, Metadata, TensorKind};
use forerun_quant::TensorType;
use forerun_tensor::SharedBytes;

use crate::error::Result;
use crate::hub::HubModel;
use crate::overlay::{OverlayReport, OverlaySource};

/// What is known of a tensor before its bytes are touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<usize>,
    /// Type.
    pub kind: TensorKind,
}

impl TensorHeader {
    /// Number of elements; the largest number instead of overflowing.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().fold(1, |n, d| n.saturating_mul(*d))
    }

    /// Bytes in its type; 0 where that is not known.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let TensorKind::Known(ty) = self.kind else { return 0 };
        let Some((cols, rows)) = self.dims.split_first() else { return 0 };
        rows.iter().fold(ty.row_bytes(*cols).unwrap_or(0), |n, d| n.saturating_mul(*d))
    }
}

/// A tensor with its bytes.
#[derive(Clone, Debug)]
pub struct SourceTensor {
    /// Dimensions, fastest first.
    pub dims: Vec<usize>,
    /// Type.
    pub ty: TensorType,
    /// Rows in order, each `ty.row_bytes(dims[0])` long.
    pub bytes: SharedBytes,
}

/// Metadata and tensors of a model, whether they lie in a file or are made up.
pub trait Source: Send + Sync {
    /// Metadata; its path is what error messages name.
    fn metadata(&self) -> &Metadata;
    /// The `config.json` of a Hugging Face folder.
    fn config(&self) -> Option<&serde_json::Value> {
        None
    }
    /// What an overlay changed.
    fn overlay(&self) -> Option<&OverlayReport> {
        None
    }
    /// Every tensor.
    fn tensors(&self) -> &[TensorHeader];
    /// A tensor's bytes. `None` when there is no such tensor, its type is not known, or memory is short.
    fn tensor(&self, name: &str) -> Option<SourceTensor>;
    /// Whether tensors lie in a mapped file, whose pages the system can drop, rather than in memory of their own.
    fn is_mapped(&self) -> bool {
        true
    }
    /// Says that a tensor's bytes were copied, so that they may leave memory.
    fn release(&self, name: &str);
}

/// Opens a model: a GGUF file (of a split file, any part), or a Hugging Face folder or a safetensors file in one.
///
/// # Errors
/// When a file is missing or broken, or a folder holds no model that is supported.
pub fn open(path: &Path) -> Result<Box<dyn Source>> {
    if HubFolder::is_for(path) {
        return Ok(Box::new(HubModel::open(path)?));
    }
    Ok(Box::new(CheckpointSource::open(path)?))
}

/// Opens a model as [`open`] does, and lays an overlay over it where one is named.
///
/// # Errors
/// As [`open`] and [`OverlaySource::open`].
pub fn open_with(path: &Path, overlay: Option<&Path>) -> Result<Box<dyn Source>> {
    let model = open(path)?;
    match overlay {
        Some(overlay) => Ok(Box::new(OverlaySource::open(model, overlay)?)),
        None => Ok(model),
    }
}

/// The tensors of a checkpoint.
pub struct CheckpointSource {
    checkpoint: Arc<dyn Checkpoint>,
    headers: Vec<TensorHeader>,
}

impl CheckpointSource {
    /// The tensors of an open checkpoint.
    #[must_use]
    pub fn new(checkpoint: Arc<dyn Checkpoint>) -> Self {
        let header = |t: &forerun_files::TensorInfo| TensorHeader {
            name: t.name.clone(),
            dims: t.dims.clone(),
            kind: t.kind,
        };
        let headers = checkpoint.tensors().iter().map(header).collect();
        Self { checkpoint, headers }
    }

    /// Opens a GGUF file (of a split file, any part).
    ///
    /// # Errors
    /// When the file cannot be read or is broken.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Ok(Self::new(Arc::new(Gguf::open(path)?)))
    }

    /// Opens a GGUF file, or a Hugging Face folder or a safetensors file in one.
    ///
    /// # Errors
    /// When the file cannot be read or is broken.
    pub fn open_any(path: &Path) -> Result<Self, FileError> {
        if HubFolder::is_for(path) {
            return Ok(Self::new(Arc::new(HubFolder::open(path)?)));
        }
        Self::open(path)
    }

    /// The checkpoint.
    #[must_use]
    pub fn checkpoint(&self) -> &dyn Checkpoint {
        &*self.checkpoint
    }
}

impl Source for CheckpointSource {
    fn metadata(&self) -> &Metadata {
        self.checkpoint.metadata()
    }
    fn config(&self) -> Option<&serde_json::Value> {
        self.checkpoint.config()
    }
    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }
    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let info = self.checkpoint.find(name)?;
        let TensorKind::Known(ty) = info.kind else { return None };
        let bytes = SharedBytes::new(self.checkpoint.part(info.part)?, info.range.clone())?;
        Some(SourceTensor { dims: info.dims.clone(), ty, bytes })
    }
    fn release(&self, name: &str) {
        if let Some(info) = self.checkpoint.find(name) {
            self.checkpoint.release(info);
        }
    }
}
