//! Errors of models.

use std::path::PathBuf;

use forerun_files::{FileError, printable};
use forerun_tensor::TensorError;

use crate::memory::{MemoryNeed, gib};

/// A file that holds no model that can be run, or a model that cannot be loaded. Messages about a file name it and the
/// culprit in it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file could not be read, or a metadata key is missing or of the wrong type.
    #[error(transparent)]
    File(#[from] FileError),
    /// The device or the plan refused.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The architecture is not supported.
    #[error("{path}: architecture `{}` is not supported, expected {expected}", printable(.found))]
    Architecture {
        /// The file.
        path: PathBuf,
        /// The value of `general.architecture`.
        found: String,
        /// The names that are.
        expected: &'static str,
    },
    /// A metadata key has a value that the architecture does not allow or that another key contradicts.
    #[error("{path}: key `{}`: found {}, expected {}", printable(.key), printable(.found), printable(.expected))]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A tensor is missing, superfluous, or of another shape or type than the metadata ask for.
    #[error("{path}: tensor `{}`: {}, expected {}", printable(.tensor), printable(.found), printable(.expected))]
    BadTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was found.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// A drafter does not fit the model that it is to draft for.
    #[error("{path}: {what} of the drafter: found {}, expected {}", printable(.found), printable(.expected))]
    Drafter {
        /// The drafter's file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
        /// What the drafter has.
        found: String,
        /// What the model has.
        expected: String,
    },
    /// The device refused a tensor of the file.
    #[error("{path}: {source}")]
    Load {
        /// The file.
        path: PathBuf,
        /// Why; names the tensor.
        source: TensorError,
    },
    /// The model does not fit.
    #[error("{path}: the model needs {need}, and {} is available", gib(*.available))]
    Memory {
        /// The file.
        path: PathBuf,
        /// What it needs.
        need: MemoryNeed,
        /// Bytes that can be had.
        available: u64,
    },
    /// An option of loading or recording has a value out of range.
    #[error("option {option}: found {found}, expected {expected}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// The progress callback asked to stop.
    #[error("loading was cancelled")]
    Cancelled,
}

/// Result of the model layer.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;
