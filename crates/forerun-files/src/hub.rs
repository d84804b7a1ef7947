//! Folders as Hugging Face publishes models: `config.json`, and tensors in one `model.safetensors` or in several files that
//! `model.safetensors.index.json` lists.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_quant::TensorType;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use crate::checkpoint::{Advice, Checkpoint, TensorInfo, TensorKind};
use crate::error::FileError;
use crate::map::Mapped;
use crate::metadata::Metadata;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The largest JSON file that is read.
const MOST_JSON: u64 = 64 << 20;

/// An open folder.
pub struct HubFolder {
    metadata: Metadata,
    config: Value,
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
        let parts = if single { vec![path.to_path_buf()] } else { parts(folder)? };
        let mut open = Self {
            metadata: Metadata::new(path),
            config,
            files: Vec::with_capacity(parts.len()),
            tensors: Vec::new(),
            index: HashMap::new(),
        };
        for part in parts {
            open.add(&part)?;
        }
        Ok(open)
    }

    /// Whether a path is for this reader rather than for GGUF.
    #[must_use]
    pub fn is_for(path: &Path) -> bool {
        path.is_dir() || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors"))
    }

    fn add(&mut self, path: &Path) -> Result<(), FileError> {
        let map = Mapped::open(path, "open the file")?;
        let bytes = map.as_ref();
        let file = SafeTensors::deserialize(bytes).map_err(|e| broken(path, &e))?;
        let start = bytes.as_ptr().addr();
        for (name, view) in file.iter() {
            let at = view.data().as_ptr().addr() - start;
            let info = TensorInfo {
                name: name.to_owned(),
                dims: dims(path, name, view.shape())?,
                kind: kind(view.dtype()),
                part: self.files.len(),
                range: at..at + view.data().len(),
            };
            if self.index.insert(info.name.clone(), self.tensors.len()).is_some() {
                return Err(FileError::broken(path, "tensors", format!("`{name}` again"), "every name once"));
            }
            self.tensors.push(info);
        }
        self.files.push(Arc::new(map));
        Ok(())
    }
}

fn broken(path: &Path, error: &SafeTensorError) -> FileError {
    FileError::broken(path, "safetensors header", error, "a whole safetensors file")
}

/// Dimensions, fastest first; a scalar has one.
fn dims(path: &Path, name: &str, shape: &[usize]) -> Result<Vec<usize>, FileError> {
    let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    if elements.is_none_or(|n| n == 0 || n > isize::MAX as usize) {
        return Err(FileError::broken(
            path,
            format!("tensor `{name}`"),
            format!("shape {shape:?}"),
            "dimensions above 0",
        ));
    }
    Ok(if shape.is_empty() { vec![1] } else { shape.iter().rev().copied().collect() })
}

fn kind(dtype: Dtype) -> TensorKind {
    match dtype {
        Dtype::F32 => TensorKind::Known(TensorType::F32),
        Dtype::F16 => TensorKind::Known(TensorType::F16),
        Dtype::BF16 => TensorKind::Known(TensorType::BF16),
        Dtype::F64 => TensorKind::Foreign("F64"),
        Dtype::U8 => TensorKind::Foreign("U8"),
        Dtype::I8 => TensorKind::Foreign("I8"),
        Dtype::U32 => TensorKind::Foreign("U32"),
        Dtype::I32 => TensorKind::Foreign("I32"),
        Dtype::I64 => TensorKind::Foreign("I64"),
        Dtype::F8_E4M3 => TensorKind::Foreign("F8_E4M3"),
        Dtype::F8_E5M2 => TensorKind::Foreign("F8_E5M2"),
        _ => TensorKind::Foreign("of another format"),
    }
}

fn read_json(path: &Path) -> Result<Value, FileError> {
    let size = fs::metadata(path).map_err(FileError::io(path, "open the file"))?.len();
    if size > MOST_JSON {
        let found = format!("{size} bytes");
        return Err(FileError::broken(path, "file", found, format!("at most {MOST_JSON} bytes of JSON")));
    }
    let text = fs::read(path).map_err(FileError::io(path, "read the file"))?;
    serde_json::from_slice(&text).map_err(|e| FileError::broken(path, "file", e, "JSON"))
}

/// The safetensors files of a folder, in the order of their names.
fn parts(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let index_path = folder.join(INDEX);
    if !index_path.exists() {
        return Ok(vec![folder.join(SINGLE)]);
    }
    let index = read_json(&index_path)?;
    let wrong = |found: String| {
        FileError::broken(&index_path, "`weight_map`", found, "names of tensors and of files in this folder")
    };
    let map = index.get("weight_map").and_then(Value::as_object).ok_or_else(|| wrong("no object".into()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        // A plain name only: an index must not lead out of its folder.
        match file.as_str().filter(|f| Path::new(f).file_name().is_some_and(|n| n == *f)) {
            Some(name) => names.insert(name),
            None => return Err(wrong(format!("{file} for `{tensor}`"))),
        };
    }
    if names.is_empty() {
        return Err(wrong("no tensors".into()));
    }
    Ok(names.into_iter().map(|n| folder.join(n)).collect())
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
