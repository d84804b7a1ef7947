//! GGUF, the ecosystem's file format: versions 2 and 3, little endian, single or split files.

mod cursor;
mod layout;
mod read;
mod split;
mod write;

pub use split::Gguf;
pub use write::GgufWriter;

/// The first four bytes of a file.
pub const MAGIC: [u8; 4] = *b"GGUF";
/// Alignment of tensor data where `general.alignment` does not say otherwise.
pub const DEFAULT_ALIGNMENT: usize = 32;
/// ggml tensors have at most so many dimensions.
pub const MAX_DIMS: usize = 4;
/// Longest tensor or key name that is accepted, in bytes.
pub const MAX_NAME: usize = 65_535;
