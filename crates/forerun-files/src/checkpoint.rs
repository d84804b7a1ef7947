//! What a model loader needs of a file, whatever its format.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forerun_quant::{TensorType, refused_name};

use crate::error::FileError;
use crate::metadata::Metadata;

/// Element type of a tensor as the file states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorKind {
    /// A type that can be read.
    Known(TensorType),
    /// A ggml type id that cannot.
    Unknown(u32),
    /// An element type of another format that cannot.
    Foreign(&'static str),
}

impl TensorKind {
    /// The type's name, or its number.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            TensorKind::Known(t) => t.name().to_owned(),
            TensorKind::Unknown(id) => {
                refused_name(id).map_or_else(|| format!("ggml type {id}"), str::to_owned)
            }
            TensorKind::Foreign(name) => name.to_owned(),
        }
    }
}

impl fmt::Display for TensorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Dimensions, fastest first. None is 0, and their product fits `isize`.
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

/// A tensor of a supported type with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Name.
    pub name: &'a str,
    /// Dimensions, fastest first.
    pub dims: &'a [usize],
    /// Type.
    pub ty: TensorType,
    /// Rows one after the other, as many bytes as type and dimensions need.
    pub bytes: &'a [u8],
}

/// How a tensor's bytes are going to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// They are read once, front to back.
    Sequential,
    /// They are read soon.
    WillNeed,
    /// They are not read for a while: their pages may leave resident memory, and come back when they are touched.
    DontNeed,
}

/// A model file (or folder, or set of files): named, typed, mapped tensors and metadata.
///
/// Tensor infos that are passed in must be this checkpoint's own, from [`tensors`](Self::tensors) or
/// [`find`](Self::find).
pub trait Checkpoint: Send + Sync {
    /// The file that was opened.
    fn path(&self) -> &Path;
    /// Its metadata; empty where the format has none.
    fn metadata(&self) -> &Metadata;
    /// The `config.json` of a Hugging Face folder.
    fn config(&self) -> Option<&serde_json::Value> {
        None
    }
    /// Its tensors, in file order.
    fn tensors(&self) -> &[TensorInfo];
    /// A tensor by name.
    fn find(&self, name: &str) -> Option<&TensorInfo>;
    /// The mapped bytes of one file of the checkpoint, of which a tensor is a range.
    fn part(&self, part: usize) -> Option<Arc<dyn AsRef<[u8]> + Send + Sync>>;
    /// A tensor's bytes.
    ///
    /// # Errors
    /// When the tensor's type is not supported, or the tensor is not of this checkpoint.
    fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], FileError>;
    /// Tells the system how a tensor's bytes are going to be used. It may ignore that.
    fn advise(&self, tensor: &TensorInfo, advice: Advice);

    /// Lets a tensor's pages leave resident memory after they were copied.
    fn release(&self, tensor: &TensorInfo) {
        self.advise(tensor, Advice::DontNeed);
    }

    /// A tensor that must be there, with its bytes.
    ///
    /// # Errors
    /// When there is no such tensor, or its type is not supported.
    fn tensor(&self, name: &str) -> Result<TensorView<'_>, FileError> {
        let Some(info) = self.find(name) else {
            return Err(FileError::MissingTensor {
                path: self.path().to_path_buf(),
                tensor: name.to_owned(),
            });
        };
        let bytes = self.bytes(info)?;
        match info.kind {
            TensorKind::Known(ty) => Ok(TensorView { name: &info.name, dims: &info.dims, ty, bytes }),
            TensorKind::Unknown(_) | TensorKind::Foreign(_) => Err(FileError::UnsupportedType {
                path: self.path().to_path_buf(),
                tensor: info.name.clone(),
                found: info.kind.name(),
            }),
        }
    }
}
