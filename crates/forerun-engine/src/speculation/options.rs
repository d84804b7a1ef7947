//! What a request and an engine say about speculation. Nothing of it changes a token.

use std::path::PathBuf;

use forerun_quant::TensorType;

use crate::speculation::{DrafterKind, MAX_DRAFT};

/// How many tokens a round drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// As many as pay, by the measured time of steps and the acceptance of recent rounds; often none.
    #[default]
    Auto,
    /// So many in every round, at most [`MAX_DRAFT`]; 0 decodes plainly.
    Fixed(usize),
}

/// Which of a request's drafters is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first that has a guess.
    #[default]
    InOrder,
    /// That which gains most, by the measured time of steps and drafts and by recent acceptance.
    Best,
}

/// How a request may be sped up.
#[derive(Clone, Debug, PartialEq)]
pub struct Speculation {
    /// Drafts of a round.
    pub depth: Depth,
    /// Who may draft, round by round.
    pub drafters: Vec<DrafterKind>,
    /// Which of them is asked.
    pub choice: Choice,
    /// The text that the caller expects, for [`DrafterKind::Prediction`]. It may be wrong anywhere.
    pub prediction: Option<String>,
    /// A draft that its drafter holds less likely than this ends its chain; 0 for never.
    pub confidence: f32,
}

impl Default for Speculation {
    fn default() -> Self {
        Self {
            depth: Depth::Auto,
            drafters: vec![DrafterKind::Mtp],
            choice: Choice::InOrder,
            prediction: None,
            confidence: 0.0,
        }
    }
}

impl Speculation {
    /// Plain decoding.
    #[must_use]
    pub fn off() -> Self {
        Self { depth: Depth::Fixed(0), ..Self::default() }
    }

    /// A fixed number of drafts in every round.
    #[must_use]
    pub fn fixed(depth: usize) -> Self {
        Self { depth: Depth::Fixed(depth), ..Self::default() }
    }

    /// The same with other drafters.
    #[must_use]
    pub fn with(self, drafters: &[DrafterKind]) -> Self {
        Self { drafters: drafters.to_vec(), ..self }
    }

    /// The same with whichever of these gains most.
    #[must_use]
    pub fn best_of(self, drafters: &[DrafterKind]) -> Self {
        Self { drafters: drafters.to_vec(), choice: Choice::Best, ..self }
    }

    pub(crate) fn validate(&self) -> crate::Result<()> {
        let bad =
            |option, found: String, expected| Err(crate::EngineError::Option { option, found, expected });
        match self.depth {
            Depth::Fixed(depth) if depth > MAX_DRAFT => bad("draft", depth.to_string(), "0 to 15, or auto"),
            _ if !(0.0..=1.0).contains(&self.confidence) => {
                bad("confidence", self.confidence.to_string(), "0 to 1")
            }
            _ => Ok(()),
        }
    }
}

/// Whether and from where an engine takes an MTP block.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MtpChoice {
    /// The model's own, where its file has one.
    #[default]
    Own,
    /// None: its weights are not loaded.
    Off,
    /// That of another file, which may hold nothing else.
    File(PathBuf),
}

/// A DFlash drafter in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DFlashFile {
    /// A GGUF file, a Hugging Face folder, or a safetensors file in one.
    pub path: PathBuf,
    /// Its matrices are quantised to this type while they are loaded; `None` to take them as they are.
    pub ty: Option<TensorType>,
    /// Times that a block is run: 1 guesses all tokens at once, each further pass knows one more of the guesses before. More
    /// passes cost more and hit more often.
    pub passes: usize,
}

/// What an engine loads for drafting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftOptions {
    /// The MTP block.
    pub mtp: MtpChoice,
    /// Guesses of the MTP block are chosen from so many of the most frequent tokens; `None` for all of them.
    pub vocabulary: Option<usize>,
    /// A DFlash drafter.
    pub dflash: Option<DFlashFile>,
}
