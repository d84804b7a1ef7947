//! Exact speculation. A round drafts a few tokens, has the model run them all in one step, and keeps those that the model
//! itself would have chosen: the text is what plain decoding gives, token for token and bit for bit.
//!
//! `options` says what a request wants, `rounds` asks the drafters, `request` holds a request's drafts, `accept` judges
//! them; `depth` and `costs` decide how many drafts pay, `trial` measures before the
//! first request, `stats` counts. Drafters: `mtp` and `dflash` (both choose tokens by `guess`, and make keys and values by `late`), `text` (over `lookup` and
//! `prediction`), `scripted`, and those of the engine's caller (`custom`).

mod accept;
mod choice;
mod costs;
mod custom;
mod depth;
mod dflash;
mod drafter;
mod grams;
mod guess;
mod late;
mod lookup;
mod mtp;
mod options;
mod prediction;
mod request;
mod rounds;
mod scripted;
mod stats;
mod text;
mod trial;

pub use accept::{Accepted, accept};
pub use costs::StepCosts;
pub use depth::AutoDepth;
pub use drafter::{Ask, Drafter, View};
pub use lookup::Lookup;
pub use options::{Choice, DFlashFile, Depth, DraftOptions, MtpChoice, Speculation};
pub use prediction::Prediction;
pub use scripted::{Rounds, Scripted};
pub use stats::{DrafterKind, DrafterStats, MAX_DRAFT, PositionStats, SpecStats};

pub(crate) use dflash::DFlashSettings;
pub(crate) use request::Drafting;
pub(crate) use rounds::{Speculator, frequent_ids};
pub(crate) use trial::measure;
