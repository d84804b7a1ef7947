//! Opening a checkpoint, whole or split into `-00001-of-000NN.gguf` files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::read::{Header, read_header};
use crate::checkpoint::{Advice, Checkpoint, TensorInfo, TensorKind};
use crate::error::{FileError, Named};
use crate::map::Mapped;
use crate::metadata::Metadata;

/// An open GGUF checkpoint.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    parts: Vec<Part>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    map: Arc<Mapped>,
}

/// What the name of a part says.
struct PartName<'a> {
    stem: &'a str,
    /// From 0.
    no: usize,
    count: usize,
}

impl<'a> PartName<'a> {
    /// Reads a name of the form `STEM-00001-of-00003.gguf`.
    fn of(path: &'a Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let number = |s: &str| {
            let plain = s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
            if plain { s.parse::<usize>().ok() } else { None }
        };
        let (no, count) = (number(no)?.checked_sub(1)?, number(count)?);
        (no < count).then_some(Self { stem, no, count })
    }

    fn sibling(&self, path: &Path, no: usize) -> PathBuf {
        path.with_file_name(format!("{}-{:05}-of-{:05}.gguf", self.stem, no + 1, self.count))
    }
}

impl Gguf {
    /// Opens a file; of a split checkpoint, any part may be named, and all are opened.
    ///
    /// # Errors
    /// When a file cannot be read or is broken; the message names the file and what is wrong in it.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let map = Mapped::open(path, "open the file")?;
        let name = PartName::of(path).filter(|n| n.count > 1);
        let header = read_header(path, map.as_ref(), name.as_ref().map_or(0, |n| n.no))?;
        match (name, header.metadata.opt_u32("split.count")?) {
            (None, None | Some(0 | 1)) => Self::assemble(path, vec![(path.to_path_buf(), map, header)]),
            (None, Some(_)) => Err(FileError::broken(
                path,
                "file name",
                path.display(),
                "NAME-00001-of-000NN.gguf for a split file",
            )),
            (Some(name), _) => Self::open_parts(path, &name, map, header),
        }
    }

    /// A file that is in memory already; `path` is what errors call it. The bytes are copied. A part of a split
    /// checkpoint is read alone.
    ///
    /// # Errors
    /// When the bytes are broken.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        let map = Mapped::copy(path, bytes)?;
        let header = read_header(path, map.as_ref(), 0)?;
        Self::assemble(path, vec![(path.to_path_buf(), map, header)])
    }

    fn open_parts(path: &Path, name: &PartName<'_>, map: Mapped, header: Header) -> Result<Self, FileError> {
        check_part(path, &header.metadata, name.no, name.count)?;
        let mut own = Some((path.to_path_buf(), map, header));
        let mut parts = Vec::new();
        for no in 0..name.count {
            if no == name.no {
                parts.extend(own.take());
                continue;
            }
            let path = name.sibling(path, no);
            let map = Mapped::open(&path, &format!("open part {} of {}", no + 1, name.count))?;
            let header = read_header(&path, map.as_ref(), no)?;
            check_part(&path, &header.metadata, no, name.count)?;
            parts.push((path, map, header));
        }
        let total: usize = parts.iter().map(|(.., header)| header.tensors.len()).sum();
        for (path, _, header) in &parts {
            const KEY: &str = "split.tensors.count";
            if let Some(found) = header.metadata.opt_u64(KEY)?
                && found != total as u64
            {
                let expected = format!("{total}, as many as the parts have");
                return Err(FileError::broken(path, Named("key", KEY), found, expected));
            }
        }
        Self::assemble(path, parts)
    }

    fn assemble(path: &Path, opened: Vec<(PathBuf, Mapped, Header)>) -> Result<Self, FileError> {
        let mut parts = Vec::with_capacity(opened.len());
        let mut metadata: Option<Metadata> = None;
        let mut tensors: Vec<TensorInfo> = Vec::new();
        let mut index = HashMap::new();
        for (path, map, header) in opened {
            match &mut metadata {
                None => metadata = Some(header.metadata),
                Some(all) => merge(all, &header.metadata)?,
            }
            for tensor in header.tensors {
                if index.insert(tensor.name.clone(), tensors.len()).is_some() {
                    let what = Named("tensor", &tensor.name);
                    return Err(FileError::broken(&path, what, "it in two parts", "every tensor once"));
                }
                tensors.push(tensor);
            }
            parts.push(Part { path, map: Arc::new(map) });
        }
        Ok(Self { path: path.to_path_buf(), parts, metadata: metadata.unwrap_or_default(), tensors, index })
    }
}

/// Checks that a part says what its name says.
fn check_part(path: &Path, metadata: &Metadata, no: usize, count: usize) -> Result<(), FileError> {
    for (key, expected) in [("split.no", no), ("split.count", count)] {
        let found = metadata.u32(key)? as usize;
        if found != expected {
            let expected = format!("{expected}, as the file's name says");
            return Err(FileError::broken(path, Named("key", key), found, expected));
        }
    }
    Ok(())
}

/// Adds a later part's keys. A key that only describes the part may differ, every other must agree.
fn merge(all: &mut Metadata, part: &Metadata) -> Result<(), FileError> {
    for (key, value) in part.iter() {
        match all.get(key) {
            None => {
                all.insert(key, value.clone());
            }
            Some(first) if first != value && !matches!(key, "split.no" | "general.alignment") => {
                let expected = format!("{}, as in {}", first.summary(), all.path().display());
                return Err(FileError::broken(part.path(), Named("key", key), value.summary(), expected));
            }
            Some(_) => {}
        }
    }
    Ok(())
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
        self.index.get(name).and_then(|&i| self.tensors.get(i))
    }
    fn part(&self, part: usize) -> Option<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        self.parts.get(part).map(|p| -> Arc<dyn AsRef<[u8]> + Send + Sync> { p.map.clone() })
    }
    fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], FileError> {
        let part = self.parts.get(tensor.part);
        let path = part.map_or(&self.path, |p| &p.path);
        if let TensorKind::Unknown(_) = tensor.kind {
            let found = tensor.kind.name();
            return Err(FileError::UnsupportedType {
                path: path.clone(),
                tensor: tensor.name.clone(),
                found,
            });
        }
        part.and_then(|p| (*p.map).as_ref().get(tensor.range.clone())).ok_or_else(|| {
            let found = format!("bytes {:?} of part {}", tensor.range, tensor.part);
            FileError::broken(path, Named("tensor", &tensor.name), found, "a tensor of this file")
        })
    }
    fn advise(&self, tensor: &TensorInfo, advice: Advice) {
        if let Some(part) = self.parts.get(tensor.part) {
            part.map.advise(&tensor.range, advice);
        }
    }
}
