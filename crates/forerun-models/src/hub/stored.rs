//! Weights as a folder stores them: one tensor of floats, or the three tensors of MLX's affine weights.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use forerun_files::{Checkpoint, HubFolder, TensorInfo, TensorKind};
use forerun_quant::{Affine, AffineParts, TensorType};
use forerun_tensor::SharedBytes;

use super::quantization::Quantization;
use crate::error::{ModelError, Result};

const WEIGHT: &str = ".weight";
const SCALES: &str = ".scales";
const BIASES: &str = ".biases";

/// A weight of a folder.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) name: String,
    /// Dimensions of the weights themselves, fastest first.
    pub(super) dims: Vec<usize>,
    pub(super) kind: TensorKind,
    /// Which file of the folder it lies in.
    pub(super) part: usize,
    place: Place,
}

/// Indices among the folder's tensors.
#[derive(Clone, Copy, Debug)]
enum Place {
    Whole(usize),
    Affine { ty: Affine, weight: usize, scales: usize, biases: usize },
}

impl Stored {
    /// The weights of a folder, in the order of its tensors.
    pub(super) fn all(folder: &HubFolder, quantization: &Quantization<'_>) -> Result<Vec<Self>> {
        let tensors = folder.tensors();
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.as_str(), i)).collect();
        let reading = Reading { path: folder.path(), tensors, index, quantization };
        (0..tensors.len()).filter_map(|i| reading.weight(i).transpose()).collect()
    }

    /// Rows of `cols` elements as they lie in the folder, where they lie in one piece.
    pub(super) fn mapped(&self, folder: &HubFolder, cols: usize, rows: Range<usize>) -> Option<SharedBytes> {
        let Place::Whole(tensor) = self.place else { return None };
        let info = folder.tensors().get(tensor)?;
        let row = self.ty()?.row_bytes(cols)?;
        let start = info.range.start;
        SharedBytes::new(folder.part(info.part)?, start + rows.start * row..start + rows.end * row)
    }

    /// Whether [`Stored::mapped`] has bytes to give.
    pub(super) fn is_mapped(&self) -> bool {
        matches!(self.place, Place::Whole(_))
    }

    /// Rows of `cols` elements. `None` when memory is short or the folder is not what it was.
    pub(super) fn rows<'a>(
        &self,
        folder: &'a HubFolder,
        cols: usize,
        rows: Range<usize>,
    ) -> Option<Cow<'a, [u8]>> {
        let bytes = |tensor: usize| folder.bytes(folder.tensors().get(tensor)?).ok();
        match self.place {
            Place::Whole(tensor) => {
                let row = self.ty()?.row_bytes(cols)?;
                bytes(tensor)?.get(rows.start * row..rows.end * row).map(Cow::Borrowed)
            }
            Place::Affine { ty, weight, scales, biases } => {
                let parts =
                    AffineParts { weight: bytes(weight)?, scales: bytes(scales)?, biases: bytes(biases)? };
                let mut out = Vec::new();
                let size = TensorType::Affine(ty).row_bytes(cols)?.checked_mul(rows.len())?;
                out.try_reserve_exact(size).ok()?;
                out.resize(size, 0);
                ty.join(parts.rows(ty, cols, rows)?, &mut out).ok()?;
                Some(Cow::Owned(out))
            }
        }
    }

    /// Lets the pages of its tensors go.
    pub(super) fn release(&self, folder: &HubFolder) {
        let tensors = match self.place {
            Place::Whole(tensor) => vec![tensor],
            Place::Affine { weight, scales, biases, .. } => vec![weight, scales, biases],
        };
        tensors.into_iter().filter_map(|t| folder.tensors().get(t)).for_each(|info| folder.release(info));
    }

    fn ty(&self) -> Option<TensorType> {
        match self.kind {
            TensorKind::Known(ty) => Some(ty),
            _ => None,
        }
    }
}

/// A folder's tensors while weights are made of them.
struct Reading<'a> {
    path: &'a Path,
    tensors: &'a [TensorInfo],
    index: HashMap<&'a str, usize>,
    quantization: &'a Quantization<'a>,
}

/// Whether a tensor holds the words of quantised weights.
fn is_words(tensor: &TensorInfo) -> bool {
    matches!(tensor.kind, TensorKind::Foreign("U32"))
}

impl Reading<'_> {
    fn wrong(
        &self,
        tensor: &TensorInfo,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::BadTensor {
            path: self.path.to_path_buf(),
            tensor: tensor.name.clone(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    fn find(&self, module: &str, suffix: &str) -> Option<usize> {
        self.index.get(format!("{module}{suffix}").as_str()).copied()
    }

    /// The weight that a tensor is or that its levels are in; `None` for the scales and biases of another's.
    fn weight(&self, i: usize) -> Result<Option<Stored>> {
        let tensor = &self.tensors[i];
        if let Some(module) = [SCALES, BIASES].iter().find_map(|s| tensor.name.strip_suffix(s)) {
            return match self.find(module, WEIGHT) {
                Some(weight) if is_words(&self.tensors[weight]) => Ok(None),
                Some(weight) => {
                    let found = format!("beside `{module}.weight` of {}", self.tensors[weight].kind);
                    Err(self.wrong(tensor, found, "32-bit words (U32) that it belongs to"))
                }
                None => Err(self.wrong(tensor, "alone", format!("`{module}.weight` beside it"))),
            };
        }
        match tensor.name.strip_suffix(WEIGHT) {
            Some(module) if is_words(tensor) => self.affine(i, module).map(Some),
            _ => Ok(Some(Stored {
                name: tensor.name.clone(),
                dims: tensor.dims.clone(),
                kind: tensor.kind,
                part: tensor.part,
                place: Place::Whole(i),
            })),
        }
    }

    fn affine(&self, weight: usize, module: &str) -> Result<Stored> {
        let words = &self.tensors[weight];
        let beside = |suffix: &str| {
            let found = || format!("32-bit words without `{module}{suffix}`");
            let expected = "the scales and biases of MLX's affine weights beside them";
            self.find(module, suffix).ok_or_else(|| self.wrong(words, found(), expected))
        };
        let (scales, biases) = (beside(SCALES)?, beside(BIASES)?);
        let [bits, group] = self.quantization.of(module)?;
        let (lines, offsets) = (&self.tensors[scales], &self.tensors[biases]);
        let float = match lines.kind {
            TensorKind::Known(ty @ (TensorType::F32 | TensorType::F16 | TensorType::BF16)) => ty,
            kind => return Err(self.wrong(lines, format!("type {kind}"), "F32, F16 or BF16")),
        };
        if offsets.kind != lines.kind || offsets.dims != lines.dims {
            let [found, expected] =
                [offsets, lines].map(|t| format!("{:?} (columns first) of {}", t.dims, t.kind));
            return Err(self.wrong(offsets, found, format!("{expected}, as the scales")));
        }
        let dims = dims(&words.dims, &lines.dims, bits, group).ok_or_else(|| {
            let found = format!("{:?} words (columns first) and {:?} scales", words.dims, lines.dims);
            let expected = format!("rows of {bits} bits in groups of {group}, as config.json says");
            self.wrong(words, found, expected)
        })?;
        let ty =
            Affine::new(bits, group, float).map_err(|e| self.wrong(words, e.to_string(), "MLX's types"))?;
        Ok(Stored {
            name: words.name.clone(),
            dims,
            kind: TensorKind::Known(TensorType::Affine(ty)),
            part: words.part,
            place: Place::Affine { ty, weight, scales, biases },
        })
    }
}

/// Dimensions of weights by those of their words and of their scales.
fn dims(words: &[usize], scales: &[usize], bits: usize, group: usize) -> Option<Vec<usize>> {
    let ((words, rows), (groups, lines)) = (words.split_first()?, scales.split_first()?);
    let cols = groups.checked_mul(group)?;
    let fits = rows == lines && !rows.is_empty() && cols.checked_mul(bits)? == words.checked_mul(32)?;
    fits.then(|| std::iter::once(cols).chain(rows.iter().copied()).collect())
}
