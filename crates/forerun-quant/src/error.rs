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
    /// Importance without a weight per column.
    #[error("the importance of a row of {cols} columns has {found} weights: expected one per column")]
    ImportanceLength {
        /// Columns of the row.
        cols: usize,
        /// Weights found.
        found: usize,
    },
    /// A weight of the importance that cannot be one.
    #[error("the importance of column {column} is {found}: expected a finite number, 0 or more")]
    Importance {
        /// The column.
        column: usize,
        /// Its weight.
        found: String,
    },
    /// Importance by which no column counts.
    #[error("the importance of all {cols} columns is 0: expected a column that counts")]
    NoImportance {
        /// Columns of the row.
        cols: usize,
    },
    /// No affine type is like this.
    #[error(
        "affine weights have 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128, and scales of F32, F16 or BF16: \
         found {bits} bits, groups of {group}, {scale} scales"
    )]
    NoAffine {
        /// Bits of a level.
        bits: usize,
        /// Elements of a group.
        group: usize,
        /// Type of scales and biases.
        scale: TensorType,
    },
    /// A part of affine weights has not the bytes of the groups asked for.
    #[error("the {part} of {groups} {ty} groups have {expected} bytes: found {found}")]
    Part {
        /// The type.
        ty: TensorType,
        /// Groups asked for.
        groups: usize,
        /// Which part.
        part: &'static str,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
}
