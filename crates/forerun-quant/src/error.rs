//! Errors of decoding and encoding.

use crate::{ENCODED, TensorType};

/// A row of bytes that is not what its type needs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantError {
    /// The number of columns is no multiple of the type's block.
    #[error("{ty} rows come in blocks of {block}: found {cols} columns")]
    Columns {
        /// The type.
        ty: TensorType,
        /// Columns asked for.
        cols: usize,
        /// Elements of a block.
        block: usize,
    },
    /// The bytes do not fit the columns.
    #[error("a {ty} row of {cols} columns has {expected} bytes: found {found}")]
    Length {
        /// The type.
        ty: TensorType,
        /// Columns.
        cols: usize,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// The type has no float values.
    #[error("{0} is no weight type")]
    NotAWeight(TensorType),
    /// Rows of the type can be read but not written.
    #[error("{} rows cannot be encoded: expected one of {}", .0, ENCODED.map(TensorType::name).join(", "))]
    NoEncoder(TensorType),
}
