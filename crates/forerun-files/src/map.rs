//! Memory-mapped files.

use std::fs::File;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};

use crate::error::FileError;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct Mapped(Mmap);

impl Mapped {
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        let io = |source| FileError::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if !meta.is_file() {
            return Err(FileError::Broken {
                path: path.to_path_buf(),
                what: "file".into(),
                found: if meta.is_dir() { "a directory".into() } else { "no regular file".into() },
                expected: "a GGUF file".into(),
            });
        }
        if meta.len() == 0 {
            return Err(FileError::Broken {
                path: path.to_path_buf(),
                what: "file".into(),
                found: "0 bytes".into(),
                expected: "a GGUF file".into(),
            });
        }
        // SAFETY: the mapping is private and read-only. Another process that truncates the file while it is in use can
        // end this one by a signal, as with every engine that maps its weights; nothing here writes to it.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self(map))
    }

    /// Lets the pages of a range leave this process's resident memory; they are read again when touched.
    pub(crate) fn release(&self, start: usize, len: usize) {
        const PAGE: usize = 4096;
        let from = start.next_multiple_of(PAGE);
        let to = (start + len) / PAGE * PAGE;
        if from < to {
            // SAFETY: the mapping is backed by a file and never written, so dropping its pages loses nothing: a later
            // read brings the same bytes back. A refusal only leaves the pages resident.
            let _ = unsafe { self.0.unchecked_advise_range(UncheckedAdvice::DontNeed, from, to - from) };
        }
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
