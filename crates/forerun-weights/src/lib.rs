//! Files of weights made from other files.
//!
//! [`convert`] writes a model, read from whatever files, as GGUF, and quantises it to a [`FileType`]; [`Imatrix`] is a file of what a model's products read;
//! [`compare`] says how far two models' predictions lie apart.

pub mod compare;
mod convert;
mod error;
mod file_type;
mod imatrix;
mod keep;
mod mix;
mod plan;

pub use convert::{Converted, Progress, convert};
pub use error::WeightsError;
pub use file_type::FileType;
pub use imatrix::{Imatrix, InputStats};
pub use keep::Keep;
pub use plan::{ConvertOptions, TypeShare};
