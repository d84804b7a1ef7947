//! The tensors of a model as a list: names, dimensions, uses. Validation, loading, sizes and random weights all go by it.

use forerun_files::{TensorInfo, TensorKind};
use forerun_quant::TensorType;
use forerun_tensor::WeightUse;

use crate::error::{ModelError, Result};
use crate::source::Source;

/// How much of a tensor a step reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPattern {
    /// All of it.
    All,
    /// One row per token.
    Rows,
    /// The matrices of the experts that its rows are routed to, so many a row.
    Experts(usize),
    /// Nothing: it belongs to a block that plain decoding does not run.
    Nothing,
}

/// A tensor that a model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorUse {
    /// Name in the file.
    pub name: String,
    /// Dimensions, fastest first.
    pub dims: Vec<usize>,
    /// How it is used.
    pub usage: WeightUse,
    /// How much of it a step reads.
    pub read: ReadPattern,
}

impl TensorUse {
    /// Input columns, output rows and stacked matrices.
    #[must_use]
    pub fn shape(&self) -> (usize, usize, usize) {
        let dim = |i: usize| self.dims.get(i).copied().unwrap_or(1);
        (dim(0), dim(1), dim(2))
    }

    /// Finds the tensor and checks its shape and type.
    pub(crate) fn check<'s>(&self, source: &'s dyn Source) -> Result<(&'s TensorInfo, TensorType)> {
        let path = || source.path().to_path_buf();
        let Some(info) = source.find(&self.name) else {
            return Err(ModelError::MissingTensor { path: path(), name: self.name.clone(), dims: self.dims.clone() });
        };
        let wrong = |found: String, expected: String| ModelError::TensorShape {
            path: path(),
            name: self.name.clone(),
            found,
            expected,
        };
        if trimmed(&info.dims) != trimmed(&self.dims) {
            return Err(wrong(format!("dimensions {:?}", info.dims), format!("{:?}", self.dims)));
        }
        match info.kind {
            TensorKind::Known(ty) if self.usage == WeightUse::Vector && !is_float(ty) => {
                Err(wrong(format!("type {ty}"), "F32, F16 or BF16".into()))
            }
            TensorKind::Known(ty) if ty.is_weight() => Ok((info, ty)),
            kind => Err(wrong(format!("type {}", kind.name()), "a supported weight type".into())),
        }
    }
}

fn is_float(ty: TensorType) -> bool {
    matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}

/// Dimensions without trailing ones, which writers add or leave out.
fn trimmed(dims: &[usize]) -> &[usize] {
    let end = dims.iter().rposition(|d| *d != 1).map_or(1, |i| i + 1);
    &dims[..end.min(dims.len())]
}
