//! Errors of the command line.

use std::path::PathBuf;

/// What ends a command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] forerun_engine::EngineError),
    /// A model file is broken.
    #[error(transparent)]
    File(#[from] forerun_files::FileError),
    /// A model is not supported.
    #[error(transparent)]
    Model(#[from] forerun_models::ModelError),
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
        matches!(
            self,
            CliError::Option { .. }
                | CliError::Engine(forerun_engine::EngineError::Option { .. })
                | CliError::Model(forerun_models::ModelError::Option { .. })
        )
    }
}

impl From<serde_json::Error> for CliError {
    fn from(error: serde_json::Error) -> Self {
        if error.is_io() { CliError::Output(error.into()) } else { CliError::Json(error) }
    }
}

/// Result of a command.
pub(crate) type Result<T, E = CliError> = std::result::Result<T, E>;
