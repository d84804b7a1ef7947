//! Errors of files.

use std::fmt::{self, Display, Write};
use std::path::{Path, PathBuf};

/// A file that cannot be read or written, or that is not what it should be. Every message names the file and the
/// culprit.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as in `open the file`.
        what: String,
        /// Why it failed.
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
    #[error("{path}: {}: found no such key, expected {expected}", Named("key", .key))]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A metadata value has another type than its use needs.
    #[error("{path}: {}: found {found}, expected {expected}", Named("key", .key))]
    KeyType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value's type and value.
        found: String,
        /// The type that fits.
        expected: &'static str,
    },
    /// A tensor is absent.
    #[error("{path}: {}: found no such tensor, expected one of that name", Named("tensor", .tensor))]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has a type that cannot be read.
    #[error("{path}: {}: found type {found}, expected a supported type", Named("tensor", .tensor))]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's name or number.
        found: String,
    },
}

impl FileError {
    pub(crate) fn broken(
        path: &Path,
        what: impl Display,
        found: impl Display,
        expected: impl Display,
    ) -> Self {
        Self::Broken {
            path: path.to_path_buf(),
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// For `map_err`: says which file and what was tried.
    pub(crate) fn io(path: &Path, what: &str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_path_buf(), what: what.to_owned(), source }
    }
}

/// A kind of thing and its name. Names come from files, so they are escaped, and cut when they are long.
pub(crate) struct Named<'a>(pub(crate) &'static str, pub(crate) &'a str);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        write!(f, "{} `", self.0)?;
        for c in self.1.chars().take(SHOWN).flat_map(char::escape_debug) {
            f.write_char(c)?;
        }
        f.write_str(if self.1.chars().nth(SHOWN).is_some() { "…`" } else { "`" })
    }
}
