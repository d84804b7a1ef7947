//! Files of weights made from other files.

pub mod compare;
mod error;
mod imatrix;

pub use error::WeightsError;
pub use imatrix::{Imatrix, InputStats};
