//! Errors of making files of weights.

use std::path::PathBuf;

use forerun_files::{FileError, printable};

/// A file of weights that cannot be made. Messages name the file, the tensor or option, what was found and what would fit.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A tensor of a file, or what an importance matrix says of it, does not fit.
    #[error("{path}: tensor `{}`: found {}, expected {}", printable(.tensor), printable(.found), printable(.expected))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What was found.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// A metadata key has a value that does not fit.
    #[error("{path}: key `{}`: found {}, expected {}", printable(.key), printable(.found), printable(.expected))]
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
    /// An option does not fit the model.
    #[error("option {option}: found {}, expected {}", printable(.found), printable(.expected))]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Result of making files of weights.
pub(crate) type Result<T, E = WeightsError> = std::result::Result<T, E>;
