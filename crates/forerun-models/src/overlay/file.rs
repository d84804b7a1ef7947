//! The affine weights of an overlay file: three tensors for every stem, checked against each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use forerun_files::{SafetensorsFile, TensorInfo, TensorKind};
use forerun_quant::{Affine, AffineParts, TensorType, decode_row};

use crate::error::{ModelError, Result};

const FORMAT: &str = "mlx-affine-dwq-v1";
const PARTS: [&str; 3] = ["weight", "scales", "biases"];
const DEFAULT_BITS: usize = 4;
const DEFAULT_GROUP: usize = 32;

/// A matrix of affine rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    pub(super) ty: Affine,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

/// An open overlay file.
pub(super) struct OverlayFile {
    file: SafetensorsFile,
    /// Matrices by stem.
    pub(super) matrices: BTreeMap<String, Matrix>,
    /// What the file says of its dense feed-forward weights: whether their rows are inputs.
    pub(super) transposed: Option<bool>,
}

impl OverlayFile {
    /// Opens a file and checks that every stem has its three tensors and that they fit each other.
    ///
    /// # Errors
    /// Names the key or the tensor at fault.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = SafetensorsFile::open(path)?;
        let (bits, group, transposed) = metadata(&file)?;
        let mut stems = BTreeSet::new();
        for tensor in file.tensors() {
            match tensor.name.rsplit_once('.') {
                Some((stem, part)) if PARTS.contains(&part) => stems.insert(stem),
                _ => {
                    let expected = "names that end with .weight, .scales or .biases";
                    return Err(wrong(path, &tensor.name, "another name", expected));
                }
            };
        }
        if stems.is_empty() {
            return Err(wrong(path, "*.weight", "no tensors at all", "weights to put over a model's"));
        }
        let matrices = stems.into_iter().map(|stem| Ok((stem.to_owned(), matrix(&file, stem, bits, group)?)));
        let matrices = matrices.collect::<Result<_>>()?;
        Ok(Self { file, matrices, transposed })
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// The error that a stem is not what it should be.
    pub(super) fn wrong(
        &self,
        stem: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        wrong(self.path(), &format!("{stem}.weight"), found, expected)
    }

    fn infos(&self, stem: &str) -> Option<[&TensorInfo; 3]> {
        let info = |part| self.file.find(&format!("{stem}.{part}"));
        Some([info(PARTS[0])?, info(PARTS[1])?, info(PARTS[2])?])
    }

    /// Writes rows of a matrix to `out`, from row `first` on: as many as it has room for.
    pub(super) fn join(&self, stem: &str, first: usize, out: &mut [u8]) -> Option<()> {
        let m = self.matrices.get(stem)?;
        let row = TensorType::Affine(m.ty).row_bytes(m.cols).filter(|n| *n > 0)?;
        let [weight, scales, biases] = self.infos(stem)?;
        let bytes = |info| self.file.bytes(info);
        let parts = AffineParts { weight: bytes(weight)?, scales: bytes(scales)?, biases: bytes(biases)? };
        let parts = parts.rows(m.ty, m.cols, first..first.checked_add(out.len() / row)?)?;
        m.ty.join(parts, out).ok()
    }

    /// The columns of a matrix as rows, in float32; `None` when memory is short.
    pub(super) fn columns(&self, stem: &str) -> Option<Vec<u8>> {
        /// Rows that are decoded at once, so that what is written together lies together.
        const TILE: usize = 16;
        let m = self.matrices.get(stem)?;
        let ty = TensorType::Affine(m.ty);
        let mut out: Vec<u8> = Vec::new();
        let size = m.rows.checked_mul(m.cols)?.checked_mul(size_of::<f32>())?;
        out.try_reserve_exact(size).ok()?;
        out.resize(size, 0);
        let mut packed = vec![0; ty.row_bytes(m.cols)?];
        let mut values = vec![0.0; m.cols.checked_mul(TILE)?];
        for first in (0..m.rows).step_by(TILE) {
            let rows = TILE.min(m.rows - first);
            for (row, values) in (first..first + rows).zip(values.chunks_exact_mut(m.cols)) {
                self.join(stem, row, &mut packed)?;
                decode_row(ty, &packed, values).ok()?;
            }
            for (col, out) in out.as_chunks_mut::<4>().0.chunks_exact_mut(m.rows).enumerate() {
                for (row, to) in out[first..first + rows].iter_mut().enumerate() {
                    *to = values[row * m.cols + col].to_le_bytes();
                }
            }
        }
        Some(out)
    }

    /// Lets the pages of a matrix go.
    pub(super) fn release(&self, stem: &str) {
        self.infos(stem).into_iter().flatten().for_each(|info| self.file.release(info));
    }
}

fn wrong(path: &Path, tensor: &str, found: impl Into<String>, expected: impl Into<String>) -> ModelError {
    let (found, expected) = (found.into(), expected.into());
    ModelError::BadTensor { path: path.to_path_buf(), tensor: tensor.to_owned(), found, expected }
}

/// Bits, group size, and whether dense feed-forward weights are transposed.
fn metadata(file: &SafetensorsFile) -> Result<(usize, usize, Option<bool>)> {
    let refuse = |key: &str, found: &str, expected: &str| ModelError::Key {
        path: file.path().to_path_buf(),
        key: key.into(),
        found: format!("`{found}`"),
        expected: expected.into(),
    };
    if let Some(found) = file.string("format").filter(|f| *f != FORMAT) {
        return Err(refuse("format", found, &format!("`{FORMAT}`, or no such key")));
    }
    let number = |key, default, good: &dyn Fn(usize) -> bool, expected| match file.string(key) {
        None => Ok(default),
        Some(text) => {
            text.trim().parse().ok().filter(|n| good(*n)).ok_or_else(|| refuse(key, text, expected))
        }
    };
    let is_type = |bits, group| Affine::new(bits, group, TensorType::F32).is_ok();
    let bits = number("bits", DEFAULT_BITS, &|bits| is_type(bits, DEFAULT_GROUP), "2, 3, 4, 5, 6 or 8")?;
    let group = number("group_size", DEFAULT_GROUP, &|group| is_type(DEFAULT_BITS, group), "32, 64 or 128")?;
    let transposed = match file.string("transposed") {
        None => None,
        Some(text) => Some(text.trim().parse().map_err(|_| refuse("transposed", text, "true or false"))?),
    };
    Ok((bits, group, transposed))
}

/// The matrix that the three tensors of a stem make.
fn matrix(file: &SafetensorsFile, stem: &str, bits: usize, group: usize) -> Result<Matrix> {
    let fault = |part: &str, found: String, expected: String| {
        wrong(file.path(), &format!("{stem}.{part}"), found, expected)
    };
    let info = |part: &str| {
        let expected = || format!("`{stem}` with .weight, .scales and .biases");
        file.find(&format!("{stem}.{part}")).ok_or_else(|| fault(part, "missing".into(), expected()))
    };
    let [weight, scales, biases] = [info("weight")?, info("scales")?, info("biases")?];
    if weight.kind != TensorKind::Foreign("U32") {
        return Err(fault("weight", format!("type {}", weight.kind), "U32".into()));
    }
    let ty = match scales.kind {
        TensorKind::Known(scale) => Affine::new(bits, group, scale).ok(),
        _ => None,
    };
    let Some(ty) = ty else {
        return Err(fault("scales", format!("type {}", scales.kind), "F32, F16 or BF16".into()));
    };
    if biases.kind != scales.kind {
        let expected = format!("{}, as the scales have", scales.kind);
        return Err(fault("biases", format!("type {}", biases.kind), expected));
    }
    let &[groups, rows] = scales.dims.as_slice() else {
        let expected = format!("[rows, columns / {group}]");
        return Err(fault("scales", shape(scales), expected));
    };
    if biases.dims != scales.dims {
        return Err(fault("biases", shape(biases), format!("the {} of the scales", shape(scales))));
    }
    let cols = groups.checked_mul(group);
    let words = cols.and_then(|cols| cols.checked_mul(bits)).map(|n| n / 32);
    match (cols, words) {
        (Some(cols), Some(words)) if weight.dims == [words, rows] => Ok(Matrix { ty, rows, cols }),
        (_, words) => {
            let words = words.map_or_else(|| "fewer".to_owned(), |n| n.to_string());
            let why = format!("{bits} bits in groups of {group} and {rows} rows of {groups} scales");
            Err(fault("weight", shape(weight), format!("shape [{rows}, {words}] of {why}")))
        }
    }
}

/// The shape as safetensors lists it.
fn shape(info: &TensorInfo) -> String {
    format!("shape {:?}", info.dims.iter().rev().collect::<Vec<_>>())
}
