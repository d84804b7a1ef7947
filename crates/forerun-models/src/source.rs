//! Where weights come from: a file, or a generator.

use std::path::Path;
use std::sync::Arc;

use forerun_files::{Checkpoint, Gguf, Metadata, TensorInfo};
use forerun_tensor::SharedBytes;

use crate::error::{ModelError, Result};

/// Tensors and metadata of a model.
pub trait Source: Send + Sync {
    /// What error messages call it.
    fn path(&self) -> &Path;
    /// Metadata.
    fn metadata(&self) -> &Metadata;
    /// Every tensor.
    fn tensors(&self) -> &[TensorInfo];
    /// A tensor by name.
    fn find(&self, name: &str) -> Option<&TensorInfo>;
    /// A tensor's bytes.
    ///
    /// # Errors
    /// When they cannot be had.
    fn bytes(&self, tensor: &TensorInfo) -> Result<SharedBytes>;
    /// Lets go of a tensor's bytes after they were copied.
    fn release(&self, tensor: &TensorInfo);
}

/// An open checkpoint as a source.
pub struct CheckpointSource(Arc<dyn Checkpoint>);

impl CheckpointSource {
    /// Opens a GGUF file.
    ///
    /// # Errors
    /// When it cannot be read or is broken.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self(Arc::new(Gguf::open(path)?)))
    }
}

impl Source for CheckpointSource {
    fn path(&self) -> &Path {
        self.0.path()
    }
    fn metadata(&self) -> &Metadata {
        self.0.metadata()
    }
    fn tensors(&self) -> &[TensorInfo] {
        self.0.tensors()
    }
    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.0.find(name)
    }
    fn bytes(&self, tensor: &TensorInfo) -> Result<SharedBytes> {
        self.0.part(tensor.part).and_then(|part| SharedBytes::new(part, tensor.range.clone())).ok_or_else(|| {
            ModelError::TensorShape {
                path: self.path().to_path_buf(),
                name: tensor.name.clone(),
                found: format!("bytes {:?} of part {}", tensor.range, tensor.part),
                expected: "bytes of the file".into(),
            }
        })
    }
    fn release(&self, tensor: &TensorInfo) {
        self.0.release(tensor);
    }
}
