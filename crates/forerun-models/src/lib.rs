//! Model architectures: one file each, written once over [`forerun_tensor::Backend`]. A model reads and checks its shapes
//! ([`ModelSpec`]), loads its weights and caches ([`Model`]), and records the plan of a step; it never names a backend.

mod caches;
mod error;
mod load;
mod model;
mod qwen35;
mod qwen35_spec;
mod source;
mod spec;
mod synthetic;
mod tensors;

pub use caches::{CacheConfig, MemoryNeed};
pub use error::ModelError;
pub use load::LoadProgress;
pub use model::{Model, StepShape, Taps};
pub use qwen35_spec::{MoeSpec, MtpSpec, Qwen35Spec};
pub use source::{CheckpointSource, Source};
pub use spec::{Architecture, ModelSpec};
pub use synthetic::{SHAPES, Synthetic, WeightMix};
pub use tensors::{ReadPattern, TensorUse};
