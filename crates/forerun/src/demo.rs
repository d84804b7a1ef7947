//! The demo model that ships with the source.

use std::path::{Path, PathBuf};

use crate::error::{CliError, Result};
use crate::hub;

const FILE: &str = "models/demo/demo-Q4_K_M.gguf";
const DRAFTER: &str = "models/demo/demo-dflash-Q8_0.gguf";

/// The path of the named model, or the demo's.
///
/// # Errors
/// When a repository is named whose files cannot be had, or the demo is not there.
pub(crate) fn model_or_demo(model: Option<&Path>) -> Result<PathBuf> {
    model.map_or_else(|| find(FILE), |name| Ok(hub::locate(name)?))
}

/// The demo's DFlash drafter.
pub(crate) fn drafter() -> Result<PathBuf> {
    find(DRAFTER)
}

/// Looks beside the current directory, the source tree this program was built from, and the program itself.
fn find(file: &str) -> Result<PathBuf> {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let beside = std::env::current_exe().ok().and_then(|p| p.parent().map(Path::to_path_buf));
    let roots: Vec<PathBuf> =
        [Some(PathBuf::from(".")), source.canonicalize().ok(), beside].into_iter().flatten().collect();
    let candidates: Vec<PathBuf> = roots.iter().map(|root| root.join(file)).collect();
    candidates.iter().find(|p| p.is_file()).cloned().ok_or_else(|| CliError::NoDemo {
        looked: candidates.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", "),
    })
}
