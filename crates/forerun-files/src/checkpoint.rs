//! What a model loader needs of a file, whatever its format.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forerun_quant::{TensorType, refused_name};

use crate::metadata::Metadata;

/// Element type of a tensor as the file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// A type that can be read.
    Known(TensorType),
    /// A ggml type id that cannot.
    Unknown(u32),
}

impl TensorKind {
    /// The type's name, or its number.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            TensorKind::Known(t) => t.name().to_owned(),
            TensorKind::Unknown(id) => refused_name(id).map_or_else(|| format!("ggml type {id}"), str::to_owned),
        }
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<usize>,
    /// Type.
    pub kind: TensorKind,
    /// Which file of a split checkpoint holds it.
    pub part: usize,
    /// Where its bytes are in that file. Empty for unknown types, whose size is not known.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A model file (or folder, or set of files): named, typed, mapped tensors and metadata.
pub trait Checkpoint: Send + Sync {
    /// The file that was opened.
    fn path(&self) -> &Path;
    /// Its metadata.
    fn metadata(&self) -> &Metadata;
    /// Its tensors, in file order.
    fn tensors(&self) -> &[TensorInfo];
    /// A tensor by name.
    fn find(&self, name: &str) -> Option<&TensorInfo>;
    /// The mapped bytes of one file of the checkpoint, of which a tensor is a range.
    fn part(&self, part: usize) -> Option<Arc<dyn AsRef<[u8]> + Send + Sync>>;
    /// Lets a tensor's pages leave resident memory after they were copied.
    fn release(&self, tensor: &TensorInfo);
}
