//! Opening a checkpoint, whole or split into `-00001-of-000NN.gguf` files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::read::read_header;
use crate::checkpoint::{Checkpoint, TensorInfo};
use crate::error::FileError;
use crate::map::Mapped;
use crate::metadata::Metadata;

/// An open GGUF checkpoint.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    parts: Vec<Arc<Mapped>>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

fn broken(path: &Path, what: &str, found: impl ToString, expected: impl ToString) -> FileError {
    FileError::Broken {
        path: path.to_path_buf(),
        what: what.to_owned(),
        found: found.to_string(),
        expected: expected.to_string(),
    }
}

/// Name of part `no` (from 0) of `count`, after the name of any of its parts; `None` when that is no part's name.
fn part_path(path: &Path, no: usize, count: usize) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, total) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (digits(total) && digits(number)).then(|| path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", no + 1)))
}

impl Gguf {
    /// Opens a file; of a split checkpoint, any part may be named, and all are opened.
    ///
    /// # Errors
    /// When a file cannot be read or is broken; the message names the file and what is wrong in it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let first = Arc::new(Mapped::open(path)?);
        let header = read_header(path, (*first).as_ref(), 0)?;
        let count = header.metadata.opt_u32("split.count")?.unwrap_or(1) as usize;
        if count <= 1 {
            return Self::assemble(path, vec![first], header.metadata, header.tensors);
        }
        if count > 99_999 {
            return Err(broken(path, "key `split.count`", count, "at most 99999"));
        }
        let mut parts = Vec::new();
        let mut tensors = Vec::new();
        let mut metadata = None;
        for no in 0..count {
            let part = part_path(path, no, count)
                .ok_or_else(|| broken(path, "file name", path.display(), "NAME-00001-of-000NN.gguf for a split file"))?;
            let mapped = Arc::new(Mapped::open(&part)?);
            let header = read_header(&part, (*mapped).as_ref(), no)?;
            check_part(&part, &header.metadata, no, count)?;
            parts.push(mapped);
            tensors.extend(header.tensors);
            metadata.get_or_insert(header.metadata);
        }
        let metadata = metadata.unwrap_or_default();
        if let Some(total) = metadata.opt_u64("split.tensors.count")?
            && total != tensors.len() as u64
        {
            return Err(broken(path, "key `split.tensors.count`", total, format!("{} tensors", tensors.len())));
        }
        Self::assemble(path, parts, metadata, tensors)
    }

    fn assemble(
        path: &Path,
        parts: Vec<Arc<Mapped>>,
        metadata: Metadata,
        tensors: Vec<TensorInfo>,
    ) -> Result<Self, FileError> {
        let mut index = HashMap::with_capacity(tensors.len());
        for (i, t) in tensors.iter().enumerate() {
            if index.insert(t.name.clone(), i).is_some() {
                return Err(broken(path, &format!("tensor `{}`", t.name), "it in two parts", "every tensor once"));
            }
        }
        Ok(Self { path: path.to_path_buf(), parts, metadata, tensors, index })
    }
}

fn check_part(path: &Path, metadata: &Metadata, no: usize, count: usize) -> Result<(), FileError> {
    let found = (metadata.u32("split.no")? as usize, metadata.u32("split.count")? as usize);
    if found == (no, count) {
        Ok(())
    } else {
        Err(broken(path, "keys `split.no` and `split.count`", format!("{found:?}"), format!("{:?}", (no, count))))
    }
}

impl Checkpoint for Gguf {
    fn path(&self) -> &Path {
        &self.path
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }
    fn part(&self, part: usize) -> Option<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        self.parts.get(part).map(|p| -> Arc<dyn AsRef<[u8]> + Send + Sync> { p.clone() })
    }
    fn release(&self, tensor: &TensorInfo) {
        if let Some(part) = self.parts.get(tensor.part) {
            part.release(tensor.range.start, tensor.range.len());
        }
    }
}
