//! The engine of Forerun: loads a model, samples, and runs sessions that share steps. This is the API that other programs
//! embed.
//!
//! The tokens of a request are a function of the model file, the prompt, the sampling parameters, the seed and the
//! arithmetic id, and of nothing else.

mod active;
mod core;
mod engine;
mod error;
mod request;
mod runner;
mod sampler;
mod sampling;
mod session;
mod speculation;

pub use engine::{BackendChoice, DEFAULT_CONTEXT, Engine, LoadOptions};
pub use error::{EngineError, Result};
pub use forerun_cpu::{CpuConfig, Isa};
pub use forerun_files::Metadata;
pub use forerun_models::{Collected, LoadProgress, ModelSpec, OverlayReport, Source, Taps};
pub use forerun_quant::TensorType;
pub use forerun_tensor::{BackendInfo, KvType};
pub use forerun_text::{Message, Split, ThinkSplitter, Tokenizer};
pub use request::{
    CancelToken, Completion, Event, Fingerprint, FinishReason, Prompt, Request, Summary, Token,
};
pub use runner::{DraftProfile, FULL_OUT_ROWS, Profile, Runner};
pub use sampler::{Candidate, Sampler, choose};
pub use sampling::SamplingParams;
pub use session::{Generation, Session, run_together};
pub use speculation::{
    Accepted, Ask, AutoDepth, Choice, DFlashFile, Depth, DraftOptions, Drafter, DrafterKind, DrafterStats,
    Lookup, MAX_DRAFT, MtpChoice, PositionStats, Prediction, Rounds, Scripted, SpecStats, Speculation,
    StepCosts, View, accept,
};
