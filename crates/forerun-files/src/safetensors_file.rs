//! One safetensors file: its tensors, mapped, and the strings that its header keeps under `__metadata__`.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forerun_quant::TensorType;
use safetensors::tensor::{Dtype, SafeTensorError, SafeTensors};

use crate::checkpoint::{Advice, TensorInfo, TensorKind};
use crate::error::FileError;
use crate::map::Mapped;

/// An open safetensors file.
pub struct SafetensorsFile {
    path: PathBuf,
    pub(crate) map: Arc<Mapped>,
    pub(crate) tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    strings: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Maps a file and checks its header.
    ///
    /// # Errors
    /// When it cannot be read, or is broken or cut short.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_as(path, 0, "open the file")
    }

    /// The file as a part of a checkpoint; `what` says what is tried when the system refuses.
    pub(crate) fn open_as(path: &Path, part: usize, what: &str) -> Result<Self, FileError> {
        let map = Mapped::open(path, what)?;
        let bytes = map.as_ref();
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| broken(path, &e))?;
        let strings = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let file = SafeTensors::deserialize(bytes).map_err(|e| broken(path, &e))?;
        let start = bytes.as_ptr().addr();
        let mut tensors = Vec::with_capacity(file.len());
        for (name, view) in file.iter() {
            let at = view.data().as_ptr().addr() - start;
            tensors.push(TensorInfo {
                name: name.to_owned(),
                dims: dims(path, name, view.shape())?,
                kind: kind(view.dtype()),
                part,
                range: at..at + view.data().len(),
            });
        }
        tensors.sort_by(|a, b| (a.range.start, &a.name).cmp(&(b.range.start, &b.name)));
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { path: path.to_path_buf(), map: Arc::new(map), tensors, index, strings })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A string of `__metadata__`.
    #[must_use]
    pub fn string(&self, key: &str) -> Option<&str> {
        self.strings.get(key).map(String::as_str)
    }

    /// Tensors in the order of their data.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// A tensor by name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// A tensor's bytes, little endian; `None` when it is not of this file.
    #[must_use]
    pub fn bytes(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        (*self.map).as_ref().get(tensor.range.clone())
    }

    /// Lets a tensor's pages leave resident memory after they were copied.
    pub fn release(&self, tensor: &TensorInfo) {
        self.map.advise(&tensor.range, Advice::DontNeed);
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
