//! Drafters as the command line names them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use forerun_engine::{Choice, DrafterKind, Engine};

use crate::demo;
use crate::error::Result;
use crate::hub::{self, RepoName};

/// One word of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// The model's own multi-token prediction block.
    Mtp,
    /// Earlier places of the text where the newest tokens stood.
    Lookup,
    /// The text of --prediction.
    Prediction,
    /// Whichever gains most.
    Auto,
    /// The demo's DFlash drafter.
    Demo,
    /// A DFlash drafter: a path, or a repository.
    File(PathBuf),
}

/// Drafters in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DrafterList(pub(crate) Vec<Named>);

impl Named {
    /// The drafter that is meant; `None` for [`Named::Auto`].
    fn kind(&self) -> Option<DrafterKind> {
        match self {
            Named::Mtp => Some(DrafterKind::Mtp),
            Named::Lookup => Some(DrafterKind::Lookup),
            Named::Prediction => Some(DrafterKind::Prediction),
            Named::Demo | Named::File(_) => Some(DrafterKind::Dflash),
            Named::Auto => None,
        }
    }
}

impl DrafterList {
    /// Whether a drafter is named, or may be at hand for `auto`.
    pub(crate) fn may_use(&self, kind: DrafterKind) -> bool {
        self.0.iter().any(|d| d.kind().is_none_or(|k| k == kind))
    }

    /// Whether a drafter is named.
    pub(crate) fn names(&self, kind: DrafterKind) -> bool {
        self.0.iter().any(|d| d.kind() == Some(kind))
    }

    fn choice(&self) -> Choice {
        if self.0.contains(&Named::Auto) { Choice::Best } else { Choice::InOrder }
    }

    /// The file of the DFlash drafter.
    ///
    /// # Errors
    /// When the demo's is asked for and not there, or that of a repository cannot be had.
    pub(crate) fn file(&self) -> Result<Option<PathBuf>> {
        self.0
            .iter()
            .find_map(|d| match d {
                Named::File(name) => Some(hub::locate(name).map_err(Into::into)),
                Named::Demo => Some(demo::drafter()),
                _ => None,
            })
            .transpose()
    }

    /// The drafters, each once; for `auto` all that the engine has, with the text that is predicted where there is one.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub(crate) fn asked(&self, engine: &Engine, predicted: bool) -> Result<Asked> {
        let mut kinds: Vec<DrafterKind> = Vec::new();
        let mut add = |kind, there| {
            if there && !kinds.contains(&kind) {
                kinds.push(kind);
            }
        };
        for named in &self.0 {
            match named.kind() {
                Some(kind) => add(kind, true),
                None => {
                    add(DrafterKind::Prediction, predicted);
                    add(DrafterKind::Lookup, true);
                    add(DrafterKind::Mtp, engine.has_mtp()?);
                    add(DrafterKind::Dflash, engine.has_dflash()?);
                }
            }
        }
        Ok(Asked { kinds, choice: self.choice() })
    }
}

/// What a list means for a loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Drafters, in order.
    pub(crate) kinds: Vec<DrafterKind>,
    /// Which of them is asked.
    pub(crate) choice: Choice,
}

impl Asked {
    /// The first of these that has a guess.
    pub(crate) fn in_order(kinds: &[DrafterKind]) -> Self {
        Self { kinds: kinds.to_vec(), choice: Choice::InOrder }
    }

    /// Whichever of these gains most.
    pub(crate) fn best_of(kinds: &[DrafterKind]) -> Self {
        Self { kinds: kinds.to_vec(), choice: Choice::Best }
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.choice == Choice::Best {
            return f.pad("auto");
        }
        let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
        f.pad(&names.join("+"))
    }
}

impl FromStr for DrafterList {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let mut list: Vec<Named> = Vec::new();
        for word in text.split(',') {
            let named = match word.trim().to_ascii_lowercase().as_str() {
                "mtp" => Named::Mtp,
                "lookup" => Named::Lookup,
                "prediction" => Named::Prediction,
                "auto" => Named::Auto,
                "demo" => Named::Demo,
                _ if is_file(Path::new(word)) => Named::File(word.into()),
                _ => {
                    let expected =
                        "mtp, lookup, prediction, auto, demo, or the file, folder or repository of a drafter";
                    return Err(format!("found {word:?}, expected {expected}"));
                }
            };
            let file = matches!(named, Named::Demo | Named::File(_));
            if file && list.iter().any(|d| matches!(d, Named::Demo | Named::File(_)) && *d != named) {
                return Err(format!("found {text:?}, expected one DFlash drafter at most"));
            }
            if !list.contains(&named) {
                list.push(named);
            }
        }
        Ok(Self(list))
    }
}

/// Whether a word is a path that exists, or may be a repository.
fn is_file(word: &Path) -> bool {
    word.exists() || RepoName::guess(word).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files() {
        let list: DrafterList = "lookup,MTP,mtp".parse().expect("a list");
        assert_eq!(list.0, [Named::Lookup, Named::Mtp]);
        assert_eq!(list.choice(), Choice::InOrder);
        assert!(!list.may_use(DrafterKind::Dflash));
        let here = env!("CARGO_MANIFEST_DIR");
        let list: DrafterList = format!("auto,{here}").parse().expect("a list");
        assert_eq!(list.0, [Named::Auto, Named::File(here.into())]);
        assert_eq!(list.choice(), Choice::Best);
        assert!(list.may_use(DrafterKind::Mtp));
        let list: DrafterList = "lookup,z-lab/Qwen3.5-4B-DFlash".parse().expect("a list");
        assert_eq!(list.0, [Named::Lookup, Named::File("z-lab/Qwen3.5-4B-DFlash".into())]);
    }

    #[test]
    fn what_is_neither_is_refused() {
        for text in
            ["", "mtp,", "no-such-drafter", "no/such.gguf", &format!("demo,{}", env!("CARGO_MANIFEST_DIR"))]
        {
            assert!(text.parse::<DrafterList>().is_err(), "{text:?}");
        }
    }
}
