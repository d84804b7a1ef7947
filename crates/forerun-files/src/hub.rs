//! Folders as Hugging Face publishes models: `config.json`, and tensors in one `model.safetensors` or in several files that
//! `model.safetensors.index.json` lists.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use crate::checkpoint::{Advice, Checkpoint, TensorInfo};
use crate::error::{FileError, Named};
use crate::map::Mapped;
use crate::metadata::Metadata;
use crate::safetensors_file::SafetensorsFile;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest file that is read whole.
const MOST_SMALL: u64 = 64 << 20;

/// An open folder.
pub struct HubFolder {
    metadata: Metadata,
    /// The folder, also where one file of it was opened.
    folder: PathBuf,
    config: Value,
    paths: Vec<PathBuf>,
    files: Vec<Arc<Mapped>>,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
}

impl HubFolder {
    /// Opens a folder, or the folder that a `.safetensors` file lies in (then only this file's tensors are taken).
    ///
    /// # Errors
    /// When a file is missing, cannot be read or is broken.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let single = !path.is_dir();
        let folder = if single { path.parent().unwrap_or(Path::new("")) } else { path };
        let config = read_json(&folder.join(CONFIG))?;
        let index = if single { None } else { Index::read(folder)? };
        let parts = match &index {
            Some(index) => index.files().into_iter().map(|f| folder.join(f)).collect(),
            None if single => vec![path.to_path_buf()],
            None => vec![folder.join(SINGLE)],
        };
        let mut open = Self {
            metadata: Metadata::new(path),
            folder: folder.to_path_buf(),
            config,
            paths: Vec::with_capacity(parts.len()),
            files: Vec::with_capacity(parts.len()),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        for part in parts {
            let what = if index.is_some() { "open the file that the index lists" } else { "open the file" };
            open.add(&part, what)?;
        }
        if let Some(index) = index {
            index.check(&open)?;
        }
        Ok(open)
    }

    /// Whether a path is for this reader rather than for GGUF.
    #[must_use]
    pub fn is_for(path: &Path) -> bool {
        path.is_dir() || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
    }

    /// Adds the tensors of another safetensors file, as a part of its own.
    ///
    /// # Errors
    /// When the file cannot be read or is broken, or has a tensor that is there already.
    pub fn add_file(&mut self, path: &Path) -> Result<(), FileError> {
        self.add(path, "open the file")
    }

    /// Number of files that the tensors lie in.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.files.len()
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Safetensors files of the folder that belong to no part, in the order of their names.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn other_files(&self) -> Result<Vec<PathBuf>, FileError> {
        let folder = if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder };
        let io = FileError::io(folder, "read the folder");
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(&io)? {
            let path = self.folder.join(entry.map_err(&io)?.file_name());
            if path.extension().is_some_and(|e| e == "safetensors") && !self.paths.contains(&path) {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// A JSON file of the folder; `None` where there is none of that name.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 64 MiB or no JSON.
    pub fn json(&self, name: &str) -> Result<Option<Value>, FileError> {
        let path = self.folder.join(name);
        if path.exists() { read_json(&path).map(Some) } else { Ok(None) }
    }

    /// A text file of the folder; `None` where there is none of that name.
    ///
    /// # Errors
    /// When it cannot be read, is larger than 64 MiB or no UTF-8.
    pub fn text(&self, name: &str) -> Result<Option<String>, FileError> {
        let path = self.folder.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let text = String::from_utf8(read_small(&path)?);
        text.map(Some).map_err(|e| FileError::broken(&path, "file", e, "UTF-8"))
    }

    /// Adds a file's tensors in the order of their data.
    fn add(&mut self, path: &Path, what: &str) -> Result<(), FileError> {
        let file = SafetensorsFile::open_as(path, self.files.len(), what)?;
        for info in file.tensors {
            if let Some(first) = self.index.insert(info.name.clone(), self.tensors.len()) {
                let first = self.tensors.get(first).and_then(|t| self.paths.get(t.part));
                let found = first.map_or("it again".into(), |p| format!("it in {} too", p.display()));
                return Err(FileError::broken(path, Named("tensor", &info.name), found, "every name once"));
            }
            self.tensors.push(info);
        }
        self.paths.push(path.to_path_buf());
        self.files.push(file.map);
        Ok(())
    }
}

/// A file that is read whole.
fn read_small(path: &Path) -> Result<Vec<u8>, FileError> {
    let meta = fs::metadata(path).map_err(FileError::io(path, "open the file"))?;
    if !meta.is_file() {
        return Err(FileError::broken(path, "file", "no regular file", "a file"));
    }
    if meta.len() > MOST_SMALL {
        let found = format!("{} bytes", meta.len());
        return Err(FileError::broken(path, "file", found, format!("at most {MOST_SMALL} bytes")));
    }
    fs::read(path).map_err(FileError::io(path, "read the file"))
}

fn read_json(path: &Path) -> Result<Value, FileError> {
    serde_json::from_slice(&read_small(path)?).map_err(|e| FileError::broken(path, "file", e, "JSON"))
}

/// Which file of the folder holds which tensor.
struct Index {
    path: PathBuf,
    /// Files by tensor.
    map: BTreeMap<String, String>,
}

impl Index {
    /// `None` where the folder has no index.
    fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        let path = folder.join(INDEX);
        if !path.exists() {
            return Ok(None);
        }
        let index = read_json(&path)?;
        let wrong = |found: String| {
            FileError::broken(&path, "`weight_map`", found, "names of tensors and of files in this folder")
        };
        let entries =
            index.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("no object".into()))?;
        let mut map = BTreeMap::new();
        for (tensor, file) in entries {
            // A plain name only: an index must not lead out of its folder.
            match file.as_str().filter(|f| Path::new(f).file_name().is_some_and(|n| n == *f)) {
                Some(name) => map.insert(tensor.clone(), name.to_owned()),
                None => return Err(wrong(format!("{file} for `{tensor}`"))),
            };
        }
        if map.is_empty() {
            return Err(wrong("no tensors".into()));
        }
        Ok(Some(Self { path, map }))
    }

    /// Every file once, in the order of their names.
    fn files(&self) -> Vec<&str> {
        let mut files: Vec<&str> = self.map.values().map(String::as_str).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Refuses a listed tensor that its file has not.
    fn check(&self, open: &HubFolder) -> Result<(), FileError> {
        for (tensor, file) in &self.map {
            let holder = open.find(tensor).and_then(|t| open.paths.get(t.part)?.file_name());
            if holder.is_none_or(|holder| holder != file.as_str()) {
                let found = holder.map_or("it in no file".into(), |h| format!("it in {}", h.display()));
                let expected = format!("it in {file}");
                return Err(FileError::broken(&self.path, Named("tensor", tensor), found, expected));
            }
        }
        Ok(())
    }
}

impl Checkpoint for HubFolder {
    fn path(&self) -> &Path {
        self.metadata.path()
    }
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn config(&self) -> Option<&Value> {
        Some(&self.config)
    }
    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }
    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }
    fn part(&self, part: usize) -> Option<Arc<dyn AsRef<[u8]> + Send + Sync>> {
        self.files.get(part).map(|f| f.clone() as Arc<dyn AsRef<[u8]> + Send + Sync>)
    }
    fn bytes(&self, tensor: &TensorInfo) -> Result<&[u8], FileError> {
        let found = self.files.get(tensor.part).and_then(|f| (**f).as_ref().get(range(tensor)));
        found.ok_or_else(|| FileError::MissingTensor {
            path: self.path().to_path_buf(),
            tensor: tensor.name.clone(),
        })
    }
    fn advise(&self, tensor: &TensorInfo, advice: Advice) {
        if let Some(file) = self.files.get(tensor.part) {
            file.advise(&tensor.range, advice);
        }
    }
}

fn range(tensor: &TensorInfo) -> Range<usize> {
    tensor.range.clone()
}
