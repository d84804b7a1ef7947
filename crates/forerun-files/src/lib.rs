//! Model files: GGUF (read and write) and Hugging Face folders of safetensors behind the [`Checkpoint`] trait, which gives
//! named, typed, mapped tensors and metadata. No maths.

mod checkpoint;
mod error;
pub mod gguf;
mod hub;
mod map;
mod metadata;
mod safetensors_file;

pub use checkpoint::{Advice, Checkpoint, TensorInfo, TensorKind, TensorView};
pub use error::{FileError, printable};
pub use gguf::{Gguf, GgufWriter};
pub use hub::HubFolder;
pub use metadata::{Array, Metadata, Value};
pub use safetensors_file::SafetensorsFile;
