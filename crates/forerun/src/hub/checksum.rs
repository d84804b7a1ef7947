//! Checksums by which a hub names the content of its files.

use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// What the bytes of a file must come to. A hub gives it as the file's etag, and the cache names blobs by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    /// The SHA-256 of the bytes: large files.
    Sha256(String),
    /// The SHA-1 that Git gives a blob, of `blob LENGTH\0` and the bytes: small files.
    Git(String),
}

impl Checksum {
    /// An etag, without quotes and the mark of a weak one. `None` where it is no checksum: a part of a path could hide
    /// in it.
    pub(super) fn of_etag(etag: &str) -> Option<Self> {
        let etag = etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"');
        if !etag.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        match etag.len() {
            64 => Some(Self::Sha256(etag.into())),
            40 => Some(Self::Git(etag.into())),
            _ => None,
        }
    }

    /// That of a blob in the cache, by its name.
    pub(super) fn of_blob(blob: &Path) -> Option<Self> {
        Self::of_etag(blob.file_name()?.to_str()?)
    }

    /// The digits.
    pub(super) fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }

    /// Its name for messages.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Sha256(_) => "sha256",
            Self::Git(_) => "git sha1",
        }
    }

    /// An empty sum for a file of `size` bytes.
    pub(super) fn start(&self, size: u64) -> Sum {
        match self {
            Self::Sha256(_) => Sum::Sha256(Sha256::new()),
            Self::Git(_) => Sum::Git(Sha1::new_with_prefix(format!("blob {size}\0"))),
        }
    }
}

/// A sum that grows with the file.
pub(super) enum Sum {
    Sha256(Sha256),
    Git(Sha1),
}

impl Sum {
    /// Adds the next bytes.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(sum) => sum.update(bytes),
            Self::Git(sum) => sum.update(bytes),
        }
    }

    /// The digits, in hexadecimal.
    pub(super) fn digits(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect();
        match self {
            Self::Sha256(sum) => hex(&sum.clone().finalize()),
            Self::Git(sum) => hex(&sum.clone().finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_usual_tools() {
        // sha256sum and git hash-object of "hello\n".
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        for digits in [sha256, git] {
            let mut sum = Checksum::of_etag(digits).expect("a checksum").start(6);
            sum.add(b"hel");
            sum.add(b"lo\n");
            assert_eq!(sum.digits(), digits);
        }
    }

    #[test]
    fn an_etag_that_is_no_checksum_is_none() {
        let digits = "ce013625030ba8dba906f756967f9e9ca394464a";
        for etag in [format!("W/\"{digits}\""), format!("\"{digits}\"")] {
            assert_eq!(Checksum::of_etag(&etag), Some(Checksum::Git(digits.into())));
        }
        for etag in ["", "\"\"", "../../x", &digits.to_uppercase(), &digits[1..], &digits.replace('c', "/")] {
            assert_eq!(Checksum::of_etag(etag), None, "{etag:?}");
        }
    }
}
