//! Memory-mapped files.

use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapMut};

use crate::checkpoint::Advice;
use crate::error::FileError;

/// Bytes of a file, mapped for reading. They start at a page boundary.
#[derive(Debug)]
pub(crate) struct Mapped {
    map: Mmap,
    /// Whether dropped pages come back from a file.
    backed: bool,
}

impl Mapped {
    /// Maps a file; `what` says what is tried when the system refuses.
    pub(crate) fn open(path: &Path, what: &str) -> Result<Self, FileError> {
        let io = FileError::io(path, what);
        // Asked before opening, since opening a pipe would wait for its other end.
        let meta = fs::metadata(path).map_err(&io)?;
        let found = match (meta.is_file(), meta.is_dir()) {
            (true, _) if meta.len() > 0 => None,
            (true, _) => Some("an empty file"),
            (_, true) => Some("a directory"),
            _ => Some("neither a file nor a directory"),
        };
        if let Some(found) = found {
            return Err(FileError::broken(path, "file", found, "a model file"));
        }
        let file = File::open(path).map_err(&io)?;
        // SAFETY: the mapping is only read. Another process that changes or truncates the file while it is in use can
        // change what is read or end this process by a signal, as with every engine that maps its weights; bytes are
        // never assumed to be valid beyond what was checked on an owned copy.
        let map = unsafe { Mmap::map(&file) }.map_err(&io)?;
        Ok(Self { map, backed: true })
    }

    /// Copies bytes that are in memory already into a mapping, which gives them a page's alignment.
    pub(crate) fn copy(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        if bytes.is_empty() {
            return Err(FileError::broken(path, "file", "0 bytes", "a model file"));
        }
        let io = FileError::io(path, "allocate memory");
        let mut map = MmapMut::map_anon(bytes.len()).map_err(&io)?;
        map.copy_from_slice(bytes);
        Ok(Self { map: map.make_read_only().map_err(&io)?, backed: false })
    }

    /// Tells the system how a range will be used. What lies outside the file is ignored, and so is a refusal.
    #[cfg(unix)]
    pub(crate) fn advise(&self, range: &Range<usize>, advice: Advice) {
        let end = range.end.min(self.map.len());
        if range.start >= end {
            return;
        }
        let (start, len) = (range.start, end - range.start);
        let _ = match advice {
            Advice::Sequential => self.map.advise_range(memmap2::Advice::Sequential, start, len),
            Advice::WillNeed => self.map.advise_range(memmap2::Advice::WillNeed, start, len),
            Advice::DontNeed if !self.backed => Ok(()),
            // SAFETY: the range lies inside the mapping, which is backed by a file and never written, so dropping its
            // pages loses nothing: a later read brings the file's bytes back.
            Advice::DontNeed => unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len)
            },
        };
    }

    #[cfg(not(unix))]
    pub(crate) fn advise(&self, _: &Range<usize>, _: Advice) {}
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}
