//! Files of weights made from other files.
//!
//! [`convert`] writes a model, read from whatever files, as GGUF.

mod convert;
mod error;

pub use convert::{Converted, FileType, Progress, convert};
pub use error::WeightsError;
