//! Errors of files.

use std::path::PathBuf;

/// A file that cannot be read, or that is not what it should be. Every message names the file and the culprit.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A part of the file is not as the format wants it.
    #[error("{path}: {what}: found {found}, expected {expected}")]
    Broken {
        /// The file.
        path: PathBuf,
        /// The part: a header field, a key, a tensor.
        what: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A metadata key is absent.
    #[error("{path}: key `{key}` is missing")]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A metadata value has another type than its use needs.
    #[error("{path}: key `{key}`: found {found}, expected {expected}")]
    KeyType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value's type.
        found: String,
        /// The type that fits.
        expected: &'static str,
    },
}
