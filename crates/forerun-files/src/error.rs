//! Errors of files.

use std::fmt::{self, Display, Write};
use std::path::{Path, PathBuf};

/// A file that cannot be read or written, or that is not what it should be. Every message names the file and the
/// culprit.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried, as in `open the file`.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A part of the file is not as the format wants it.
    #[error("{path}: {}: found {}, expected {}", printable(.what), printable(.found), printable(.expected))]
    Broken {
        /// The file.
        path: PathBuf,
        /// The part: a header field, a key, a tensor.
        what: String,
        /// What is there.
        found: String,
        /// What should be.
        expected: String,
    },
    /// A metadata key is absent.
    #[error("{path}: {}: found no such key, expected {expected}", Named("key", .key))]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A metadata value has another type than its use needs.
    #[error("{path}: {}: found {}, expected {expected}", Named("key", .key), printable(.found))]
    KeyType {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The value's type and value.
        found: String,
        /// The type that fits.
        expected: &'static str,
    },
    /// A tensor is absent.
    #[error("{path}: {}: found no such tensor, expected one of that name", Named("tensor", .tensor))]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has a type that cannot be read.
    #[error("{path}: {}: found type {}, expected a supported type", Named("tensor", .tensor), printable(.found))]
    UnsupportedType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The type's name or number.
        found: String,
    },
}

impl FileError {
    pub(crate) fn broken(
        path: &Path,
        what: impl Display,
        found: impl Display,
        expected: impl Display,
    ) -> Self {
        Self::Broken {
            path: path.to_path_buf(),
            what: what.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// For `map_err`: says which file and what was tried.
    pub(crate) fn io(path: &Path, what: &str) -> impl Fn(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_path_buf(), what: what.to_owned(), source }
    }
}

/// Text from a file as an error or a terminal may show it: control characters and those that hide or reorder text are
/// escaped, so that it neither steers a terminal nor looks like other text, and what is longer than 1,000 characters is
/// cut.
#[must_use]
pub fn printable(text: &str) -> String {
    const SHOWN: usize = 1000;
    let hides = |c: char| {
        c.is_control()
            || matches!(c,
                '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    let mut out = String::with_capacity(text.len().min(SHOWN));
    for c in text.chars().take(SHOWN) {
        if hides(c) {
            out.extend(c.escape_debug());
        } else {
            out.push(c);
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        out.push('…');
    }
    out
}

/// A kind of thing and its name. Names come from files, so they are escaped, and cut when they are long.
pub(crate) struct Named<'a>(pub(crate) &'static str, pub(crate) &'a str);

impl Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 80;
        write!(f, "{} `", self.0)?;
        for c in self.1.chars().take(SHOWN).flat_map(char::escape_debug) {
            f.write_char(c)?;
        }
        f.write_str(if self.1.chars().nth(SHOWN).is_some() { "…`" } else { "`" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_cannot_steer_a_terminal() {
        for (text, shown) in [
            ("plain 'é' \"x\" \\", "plain 'é' \"x\" \\"),
            ("\x1b[2J\n\x07", "\\u{1b}[2J\\n\\u{7}"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("a\u{202e}b\u{200b}", "a\\u{202e}b\\u{200b}"),
        ] {
            assert_eq!(printable(text), shown);
            assert_eq!(printable(shown), shown);
        }
        assert_eq!(printable(&"x".repeat(2000)).chars().count(), 1001);
    }
}
