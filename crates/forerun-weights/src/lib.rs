//! Files of weights made from other files.
//!
//! [`convert`] writes a model, read from whatever files, as GGUF; [`Imatrix`] is a file of what a model's products read;
//! [`compare`] says how far two models' predictions lie apart.

pub mod compare;
mod convert;
mod error;
mod imatrix;

pub use convert::{Converted, FileType, Progress, convert};
pub use error::WeightsError;
pub use imatrix::{Imatrix, InputStats};
