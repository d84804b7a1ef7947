//! Text that a command reads.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{CliError, Result};

/// The longest text that is read: far beyond any context, and no end of memory for a file that never ends.
const MOST: u64 = 64 << 20;

/// The text of a file.
pub(crate) fn file(path: &Path) -> Result<String> {
    text(File::open(path).map_err(|error| CliError::Input { path: path.into(), error })?, path)
}

/// All text of a reader; `path` names it in errors.
pub(crate) fn text(reader: impl Read, path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(MOST + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| CliError::Input { path: path.into(), error })?;
    let wrong = |found: String, expected: String| CliError::Text { path: path.into(), found, expected };
    if bytes.len() as u64 > MOST {
        return Err(wrong("a longer text".into(), format!("at most {} MiB", MOST >> 20)));
    }
    String::from_utf8(bytes)
        .map_err(|e| wrong(format!("no UTF-8 at byte {}", e.utf8_error().valid_up_to()), "UTF-8 text".into()))
}
