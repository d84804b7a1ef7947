//! Errors of the command line.

use std::path::PathBuf;

use forerun_engine::EngineError;
use forerun_models::ModelError;
use forerun_weights::WeightsError;

/// What ends a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The engine refused.
    #[error(transparent)]
    Engine(EngineError),
    /// The prompt does not fit the context.
    #[error("{0} (--context TOKENS)")]
    PromptTooLong(EngineError),
    /// A model cannot be had from its repository.
    #[error(transparent)]
    Hub(#[from] crate::hub::HubError),
    /// A model file is broken.
    #[error(transparent)]
    File(#[from] forerun_files::FileError),
    /// A model is not supported.
    #[error(transparent)]
    Model(ModelError),
    /// A file of weights cannot be read or made.
    #[error(transparent)]
    Weights(WeightsError),
    /// Writing the result failed.
    #[error("cannot write the result: {0}")]
    Output(#[from] std::io::Error),
    /// An input file cannot be read.
    #[error("{path}: {error}")]
    Input {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// An option does not fit.
    #[error("option {option}: found {found}, expected {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// An input is not text that can be used.
    #[error("{path}: found {found}, expected {expected}")]
    Text {
        /// Where it comes from.
        path: PathBuf,
        /// What is wrong with it.
        found: String,
        /// What would fit.
        expected: String,
    },
    /// The prompt has no text.
    #[error("the prompt is empty: expected at least one character")]
    EmptyPrompt,
    /// No prompt was given.
    #[error("no prompt: give one as an argument, with --file, or on standard input")]
    NoPrompt,
    /// The demo model is not where it ships.
    #[error("the demo model was not found in {looked}; name a model with -m FILE")]
    NoDemo {
        /// Where it was looked for.
        looked: String,
    },
    /// A result could not be put into JSON.
    #[error("cannot write JSON: {0}")]
    Json(serde_json::Error),
    /// The line editor failed.
    #[error("terminal: {0}")]
    Terminal(#[from] rustyline::error::ReadlineError),
    /// Requests gave other tokens than plain decoding.
    #[error("{0} of {1} requests differ from plain decoding")]
    Differs(usize, usize),
    /// Ctrl-C before there was anything to show.
    #[error("interrupted")]
    Interrupted,
}

impl CliError {
    /// Whether an option of the caller is at fault.
    pub(crate) fn is_option(&self) -> bool {
        matches!(self, CliError::Option { .. })
    }
}

impl From<WeightsError> for CliError {
    fn from(error: WeightsError) -> Self {
        match error {
            WeightsError::Option { option, found, expected } => {
                CliError::Option { option: flag(option), found, expected }
            }
            error => CliError::Weights(error),
        }
    }
}

impl From<EngineError> for CliError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Option { option, found, expected } => {
                CliError::Option { option: flag(option), found, expected: expected.into() }
            }
            EngineError::Model(error) => error.into(),
            EngineError::PromptTooLong { .. } => CliError::PromptTooLong(error),
            error => CliError::Engine(error),
        }
    }
}

impl From<ModelError> for CliError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Option { option, found, expected } => {
                CliError::Option { option: flag(option), found, expected }
            }
            error => CliError::Model(error),
        }
    }
}

/// The flag that sets an option of the libraries.
fn flag(option: &'static str) -> &'static str {
    match option {
        "context" => "--context",
        "temperature" => "--temperature",
        "top_p" => "--top-p",
        "typical_p" => "--typical-p",
        "min_p" => "--min-p",
        "repetition_penalty" => "--repetition-penalty",
        "frequency_penalty" => "--frequency-penalty",
        "presence_penalty" => "--presence-penalty",
        "logit_bias" => "--logit-bias",
        "stop" => "--stop",
        "draft" => "--draft",
        "confidence" => "--draft-confidence",
        "draft head" => "--draft-vocab",
        "shape" => "--shape",
        "type" => "--type",
        "keep" => "--keep",
        other => other,
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() { CliError::Output(error.into()) } else { CliError::Json(error) }
    }
}

/// Result of a command.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;
