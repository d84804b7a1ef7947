//! The command line's words about speculation.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::{Path, PathBuf};

use clap::Args;
use forerun_engine::{
    DFlashFile, Depth, DraftOptions, DrafterKind, Engine, MAX_DRAFT, MtpChoice, Speculation, TensorType,
};

use crate::drafter_list::{Asked, DrafterList, Named};
use crate::error::{CliError, Result};
use crate::hub;
use crate::input;

/// How to run ahead of the model. None of it changes the text.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Speculation (none of it changes the text)")]
pub(crate) struct DraftArgs {
    /// Tokens to draft in a round: up to 15, 0 for plain decoding, or auto for as many as pay
    #[arg(long, value_name = "N|auto", default_value = "auto", allow_negative_numbers = true, value_parser = parse_depth)]
    pub(crate) draft: Depth,
    /// Who drafts: the first of these that has a guess. mtp, lookup, prediction, or a DFlash drafter: its GGUF file,
    /// Hugging Face folder or repository, or demo for that of the demo model. With auto, whichever gains most of those named and those
    /// at hand [default: mtp; with --prediction: prediction,mtp]
    #[arg(long, value_name = "NAMES|FILE")]
    pub(crate) drafter: Option<DrafterList>,
    /// Quantise the matrices of the DFlash drafter to this type, as q8_0, q4_0 or q4_k [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    pub(crate) drafter_type: Option<TensorType>,
    /// Times that the DFlash drafter runs a block: each further pass knows one more guess, costs more and hits more often
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = crate::args::whole::<usize>)]
    pub(crate) drafter_passes: usize,
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

/// A weight type by name.
pub(crate) fn parse_type(text: &str) -> std::result::Result<TensorType, String> {
    TensorType::from_name(text)
        .ok_or_else(|| format!("found {text:?}, expected a weight type, as q8_0, q4_0 or q4_k"))
}

impl DraftArgs {
    /// What to load.
    ///
    /// # Errors
    /// When a drafter is asked for that cannot be had, or something is said of a drafter that is not asked for.
    pub(crate) fn options(&self) -> Result<DraftOptions> {
        if self.draft == Depth::Fixed(0) {
            return Ok(DraftOptions { mtp: MtpChoice::Off, ..DraftOptions::default() });
        }
        let list = self.list();
        let mtp = if list.may_use(DrafterKind::Mtp) {
            mtp_choice(self.mtp.as_deref())?
        } else {
            self.says_nothing_of_mtp()?;
            MtpChoice::Off
        };
        let dflash = dflash_file(list.file()?, self.drafter_type, self.drafter_passes)?;
        Ok(DraftOptions { mtp, vocabulary: self.draft_vocab, dflash })
    }

    /// Options of the MTP block mean nothing where it does not draft.
    fn says_nothing_of_mtp(&self) -> Result<()> {
        let expected = "mtp or auto among --drafter";
        match (&self.mtp, self.draft_vocab) {
            (Some(path), _) => wrong("--mtp", &path.to_string_lossy(), expected),
            (None, Some(n)) => wrong("--draft-vocab", &n.to_string(), expected),
            (None, None) => Ok(()),
        }
    }

    fn list(&self) -> DrafterList {
        let default = || match self.prediction {
            Some(_) => DrafterList(vec![Named::Prediction, Named::Mtp]),
            None => DrafterList(vec![Named::Mtp]),
        };
        self.drafter.clone().unwrap_or_else(default)
    }

    /// What a request is to do. Asking by name for what is not there is an error.
    pub(crate) fn speculation(&self, engine: &Engine) -> Result<Speculation> {
        let list = self.list();
        let Asked { kinds: drafters, choice } = list.asked(engine, self.prediction.is_some())?;
        let named = |kind| self.drafter.as_ref().is_some_and(|d| d.names(kind));
        if self.draft != Depth::Fixed(0) && !engine.has_mtp()? {
            if named(DrafterKind::Mtp) {
                return wrong("--drafter", "mtp", "a model with an MTP block, or --mtp FILE");
            }
            if let (Depth::Fixed(depth), [DrafterKind::Mtp]) = (self.draft, &drafters[..]) {
                let expected = "0 for a model without an MTP block, or another --drafter, or --mtp FILE";
                return wrong("--draft", &depth.to_string(), expected);
            }
        }
        if named(DrafterKind::Prediction) && self.prediction.is_none() {
            return wrong("--drafter", "prediction", "--prediction FILE with it");
        }
        let prediction = self.prediction.as_deref().map(input::file).transpose()?;
        let (depth, confidence) = (self.draft, self.draft_confidence);
        Ok(Speculation { depth, drafters, choice, prediction, confidence })
    }
}

/// The MTP block to load: that of the file or repository, else the model's own.
pub(crate) fn mtp_choice(named: Option<&Path>) -> Result<MtpChoice> {
    Ok(named.map(hub::locate).transpose()?.map_or(MtpChoice::Own, MtpChoice::File))
}

/// The DFlash drafter to load. Saying how, where there is none, is an error.
pub(crate) fn dflash_file(
    path: Option<PathBuf>,
    ty: Option<TensorType>,
    passes: usize,
) -> Result<Option<DFlashFile>> {
    let expected = "the file or folder of a DFlash drafter in --drafter";
    match (path, ty) {
        (Some(path), ty) => Ok(Some(DFlashFile { path, ty, passes })),
        (None, Some(ty)) => wrong("--drafter-type", ty.name(), expected),
        (None, None) if passes != 1 => wrong("--drafter-passes", &passes.to_string(), expected),
        (None, None) => Ok(None),
    }
}

fn wrong<T>(option: &'static str, found: &str, expected: &str) -> Result<T> {
    Err(CliError::Option { option, found: found.into(), expected: expected.into() })
}
