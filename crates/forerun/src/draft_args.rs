//! The command line's words about speculation.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use forerun_engine::{Depth, DraftOptions, DrafterKind, Engine, MAX_DRAFT, MtpChoice, Speculation};

use crate::error::{CliError, Result};
use crate::input;

/// How to run ahead of the model. None of it changes the text.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation (none of it changes the text)")]
pub(crate) struct DraftArgs {
    /// Tokens to draft in a round: up to 15, 0 for plain decoding, or auto for as many as pay
    #[arg(long, value_name = "N|auto", default_value = "auto", allow_negative_numbers = true, value_parser = parse_depth)]
    pub(crate) draft: Depth,
    /// Who drafts: the first of these that has a guess [default: mtp; with --prediction: prediction,mtp]
    #[arg(long, value_enum, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) drafter: Vec<DrafterArg>,
    /// File with the text that you expect; it may be wrong anywhere
    #[arg(long, value_name = "FILE")]
    pub(crate) prediction: Option<PathBuf>,
    /// End a chain of drafts before a token that the drafter gives less than this probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) draft_confidence: f32,
    /// Draft from the N most frequent tokens only [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = crate::args::whole::<usize>)]
    pub(crate) draft_vocab: Option<usize>,
    /// Take the MTP block from this file instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub(crate) mtp: Option<PathBuf>,
}

/// Drafters that can be asked for.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrafterArg {
    /// The model's own multi-token prediction block
    Mtp,
    /// Earlier places of the text where the newest tokens stood
    Lookup,
    /// The text of --prediction
    Prediction,
}

impl From<DrafterArg> for DrafterKind {
    fn from(arg: DrafterArg) -> Self {
        match arg {
            DrafterArg::Mtp => DrafterKind::Mtp,
            DrafterArg::Lookup => DrafterKind::Lookup,
            DrafterArg::Prediction => DrafterKind::Prediction,
        }
    }
}

/// A number of drafts, or `auto`.
pub(crate) fn parse_depth(text: &str) -> std::result::Result<Depth, String> {
    match text.trim() {
        "auto" => Ok(Depth::Auto),
        "off" => Ok(Depth::Fixed(0)),
        number => match number.parse() {
            Ok(depth) if depth <= MAX_DRAFT => Ok(Depth::Fixed(depth)),
            _ => Err(format!("found {number:?}, expected 0 to {MAX_DRAFT}, or auto")),
        },
    }
}

impl DraftArgs {
    /// What to load.
    pub(crate) fn options(&self) -> DraftOptions {
        let needed = self.draft != Depth::Fixed(0) && self.kinds().contains(&DrafterKind::Mtp);
        let mtp = match &self.mtp {
            _ if !needed => MtpChoice::Off,
            Some(path) => MtpChoice::File(path.clone()),
            None => MtpChoice::Own,
        };
        DraftOptions { mtp, vocabulary: self.draft_vocab }
    }

    fn kinds(&self) -> Vec<DrafterKind> {
        match (&self.drafter[..], &self.prediction) {
            ([], Some(_)) => vec![DrafterKind::Prediction, DrafterKind::Mtp],
            ([], None) => vec![DrafterKind::Mtp],
            (named, _) => named.iter().map(|d| DrafterKind::from(*d)).collect(),
        }
    }

    /// What a request is to do. Asking by name for what is not there is an error.
    pub(crate) fn speculation(&self, engine: &Engine) -> Result<Speculation> {
        let wrong = |option, found: &str, expected: &str| {
            Err(CliError::Option { option, found: found.into(), expected: expected.into() })
        };
        let drafters = self.kinds();
        let named = |arg: DrafterArg| self.drafter.contains(&arg);
        if self.draft != Depth::Fixed(0) && !engine.has_mtp()? {
            if named(DrafterArg::Mtp) {
                return wrong("--drafter", "mtp", "a model with an MTP block, or --mtp FILE");
            }
            if let (Depth::Fixed(depth), [DrafterKind::Mtp]) = (self.draft, &drafters[..]) {
                let expected = "0 for a model without an MTP block, or another --drafter, or --mtp FILE";
                return wrong("--draft", &depth.to_string(), expected);
            }
        }
        if named(DrafterArg::Prediction) && self.prediction.is_none() {
            return wrong("--drafter", "prediction", "--prediction FILE with it");
        }
        let prediction = self.prediction.as_deref().map(input::file).transpose()?;
        Ok(Speculation { depth: self.draft, drafters, prediction, confidence: self.draft_confidence })
    }
}
