//! Errors of text.

use forerun_files::{FileError, printable};

/// A tokenizer or chat template that cannot be built or used.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A metadata key is missing or has the wrong type.
    #[error(transparent)]
    File(#[from] FileError),
    /// The tokenizer's description is not usable.
    #[error("{origin}: key `{key}`: found {}, expected {}", printable(.found), printable(.expected))]
    Spec {
        /// Where the description comes from, usually a file.
        origin: String,
        /// The metadata key.
        key: &'static str,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// The BPE library refused.
    #[error("{origin}: tokenizer: {}", printable(.message))]
    Bpe {
        /// Where the tokenizer comes from.
        origin: String,
        /// Why.
        message: String,
    },
    /// A chat template does not parse, fails while it renders, or raises an exception itself.
    #[error("chat template, line {line}: {}", printable(.message))]
    Template {
        /// The line of the template, from 1; 0 when the failure has no place.
        line: usize,
        /// What went wrong.
        message: String,
    },
}
