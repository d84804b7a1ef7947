//! Model architectures: what a file must hold, how its weights reach a device, and a step as a recorded plan.
//!
//! [`ModelSpec::read`] checks every metadata key and tensor of a [`Source`] before any weight is touched;
//! [`Model::load`] streams the weights into a [`Backend`](forerun_tensor::Backend) and allocates the caches;
//! [`Model::record`] writes a step down as a [`Plan`](forerun_tensor::Plan). No backend is named here. An architecture
//! has a file of its own that reads like its maths, with fields named after the tensors.

mod caches;
mod captures;
mod collect;
pub mod dflash;
pub mod error;
pub mod ffn;
pub mod gemma4;
mod hub;
mod json;
mod keys;
pub mod memory;
mod model;
pub mod mtp;
mod overlay;
mod quantised;
pub mod qwen35;
mod source;
mod spec;
mod synthetic;
mod tensors;

pub use caches::{CacheConfig, KvLayer};
pub use captures::Taps;
pub use collect::Collected;
pub use dflash::{DFlash, DFlashPart, DFlashStep};
pub use error::{ModelError, Result};
pub use hub::{HubModel, always_f32};
pub use memory::{MemoryNeed, StepBytes};
pub use model::{LoadProgress, Model, MtpSource, StepShape};
pub use mtp::{Mtp, MtpPart, MtpStep};
pub use overlay::{OverlayReport, OverlaySource};
pub use quantised::{QuantisedSource, Recode};
pub use source::{CheckpointSource, Source, SourceTensor, TensorHeader, open, open_with};
pub use spec::{Architecture, ModelSpec};
pub use synthetic::{DFlashShape, GEMMA4_SHAPES, Gemma4Shape, SHAPES, Shape, Synthetic, WeightMix};
pub use tensors::TensorSpec;
