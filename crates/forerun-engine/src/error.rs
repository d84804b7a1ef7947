//! Errors of the engine.

use std::path::PathBuf;

/// What can go wrong while loading a model or serving a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file could not be read or is broken.
    #[error(transparent)]
    File(#[from] forerun_files::FileError),
    /// The model is not supported, contradicts itself, or does not fit.
    #[error(transparent)]
    Model(forerun_models::ModelError),
    /// The tokenizer or chat template is not usable.
    #[error(transparent)]
    Text(#[from] forerun_text::TextError),
    /// The device refused.
    #[error(transparent)]
    Tensor(#[from] forerun_tensor::TensorError),
    /// An option has a value out of range.
    #[error("option {option}: found {found}, expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// The prompt has no tokens.
    #[error("the prompt is empty: expected at least one token")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {found} tokens, and the context holds {context}: shorten it, or load with a larger context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        found: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A prompt token is outside the vocabulary.
    #[error("token {id} at index {index} of the prompt: the vocabulary has {vocabulary} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Its place in the prompt.
        index: usize,
        /// Size of the vocabulary.
        vocabulary: usize,
    },
    /// The model computed a logit that is no number.
    #[error(
        "{path}: the model computed NaN at position {position}: a weight is broken or an activation overflowed"
    )]
    NotANumber {
        /// The model's file.
        path: PathBuf,
        /// Position of the row.
        position: u32,
    },
    /// Every token is banned by bias.
    #[error("no token is allowed at position {0}: the logit biases ban every one")]
    NothingAllowed(u32),
    /// As many sessions exist as the engine was loaded for.
    #[error("all {0} sessions are in use: drop one, or load with more sessions")]
    NoFreeSession(usize),
    /// Another thread failed while it held the engine.
    #[error("the engine stopped after a failure in another session")]
    Poisoned,
    /// Loading was cancelled.
    #[error("loading was cancelled")]
    Cancelled,
}

impl From<forerun_models::ModelError> for EngineError {
    fn from(error: forerun_models::ModelError) -> Self {
        match error {
            forerun_models::ModelError::Cancelled => EngineError::Cancelled,
            other => EngineError::Model(other),
        }
    }
}

/// Result of the engine.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;
