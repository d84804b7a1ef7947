//! Errors of models.

use std::path::PathBuf;

/// A model that cannot be run, with the file and the key or tensor at fault.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file cannot be read or is broken.
    #[error(transparent)]
    File(#[from] forerun_files::FileError),
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] forerun_tensor::TensorError),
    /// A key contradicts another, or is out of range.
    #[error("{path}: key `{key}`: found {found}, expected {expected}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// A tensor is missing.
    #[error("{path}: tensor `{name}` is missing, expected dimensions {dims:?}")]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dimensions, fastest first.
        dims: Vec<usize>,
    },
    /// A tensor has the wrong shape or type.
    #[error("{path}: tensor `{name}`: found {found}, expected {expected}")]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// The architecture, or a feature of it, is not supported.
    #[error("{path}: {what} is not supported; supported: {supported}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What was found.
        what: String,
        /// What is there instead.
        supported: String,
    },
    /// The model does not fit into memory.
    #[error("{path}: needs about {need} of memory, and {free} are free: {hint}")]
    Memory {
        /// The file.
        path: PathBuf,
        /// What it needs.
        need: String,
        /// What there is.
        free: String,
        /// What would help.
        hint: &'static str,
    },
    /// Loading was stopped from outside.
    #[error("loading was cancelled")]
    Cancelled,
}

/// Result of this crate.
pub(crate) type Result<T, E = ModelError> = std::result::Result<T, E>;
