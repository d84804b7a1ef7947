//! The tensors of a file, checked off one by one as an architecture asks for them.

use std::collections::HashMap;
use std::path::Path;

use forerun_files::TensorKind;
use forerun_quant::TensorType;
use forerun_tensor::{SharedBytes, WeightData, WeightUse};

use crate::error::{ModelError, Result};
use crate::source::{Source, TensorHeader};

/// A group of tensors, either as the file has them (`T` = [`TensorSpec`]) or loaded (`T` = `Weight`).
macro_rules! tensor_group {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name<T> { $($(#[$field_doc])* pub $field: T),* }

        impl<T> $name<T> {
            #[allow(dead_code)]
            pub(crate) fn fields(&self) -> Vec<&T> {
                vec![$(&self.$field),*]
            }

            pub(crate) fn try_map<U, E>(&self, mut f: impl FnMut(&T) -> Result<U, E>) -> Result<$name<U>, E> {
                Ok($name { $($field: f(&self.$field)?),* })
            }
        }
    };
}
pub(crate) use tensor_group;

/// A weight of the model: a tensor of the file, or some of the rows of one (parts of a fused tensor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name of the tensor in the file.
    pub name: String,
    /// Type.
    pub ty: TensorType,
    /// Output rows (of one expert); 1 for a vector.
    pub rows: usize,
    /// Input columns.
    pub cols: usize,
    /// Stacked matrices.
    pub experts: usize,
    /// First of the rows within the tensor (of each expert).
    pub first_row: usize,
    /// Rows that the tensor has (per expert).
    pub stored_rows: usize,
    /// What it is for.
    pub usage: WeightUse,
}

impl TensorSpec {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        [self.rows, self.cols, self.experts].iter().fold(1, |n, d| n.saturating_mul(*d as u64))
    }

    /// Bytes of a row in the file's type.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.cols).unwrap_or(0) as u64
    }

    /// Bytes of one expert's rows in the file's type.
    #[must_use]
    pub fn expert_bytes(&self) -> u64 {
        self.row_bytes().saturating_mul(self.rows as u64)
    }

    /// Bytes in the file's type.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.expert_bytes().saturating_mul(self.experts as u64)
    }

    /// Some of the rows, as a weight of its own.
    pub(crate) fn part(&self, first_row: usize, rows: usize) -> Self {
        Self { first_row, rows, ..self.clone() }
    }

    /// The weight in the bytes of its tensor; `None` when they are too few.
    pub(crate) fn data(&self, bytes: &SharedBytes) -> Option<WeightData> {
        let row = self.ty.row_bytes(self.cols)?;
        let start = row.checked_mul(self.first_row)?;
        Some(WeightData {
            name: self.name.clone(),
            ty: self.ty,
            rows: self.rows,
            cols: self.cols,
            experts: self.experts,
            expert_stride: row.checked_mul(self.stored_rows)?,
            bytes: bytes.slice(start..bytes.len())?,
            usage: self.usage,
        })
    }
}

/// What all of these weights come to; the largest number instead of overflowing.
pub(crate) fn total<'a>(
    tensors: impl IntoIterator<Item = &'a TensorSpec>,
    of: impl Fn(&TensorSpec) -> u64,
) -> u64 {
    tensors.into_iter().fold(0, |n, t| n.saturating_add(of(t)))
}

/// The tensors of a source, and which of them were asked for.
pub(crate) struct Inventory<'a> {
    pub(crate) path: &'a Path,
    entries: HashMap<&'a str, (&'a TensorHeader, bool)>,
}

/// Dimensions without trailing ones, which do not matter.
fn trimmed(dims: &[usize]) -> &[usize] {
    let len = dims.iter().rposition(|d| *d != 1).map_or(0, |i| i + 1);
    &dims[..len]
}

impl<'a> Inventory<'a> {
    pub(crate) fn new(source: &'a dyn Source) -> Self {
        let entries = source.tensors().iter().map(|t| (t.name.as_str(), (t, false))).collect();
        Self { path: source.metadata().path(), entries }
    }

    pub(crate) fn wrong(
        &self,
        tensor: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> ModelError {
        ModelError::BadTensor {
            path: self.path.to_path_buf(),
            tensor: tensor.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Dimensions of a tensor, fastest first.
    pub(crate) fn dims(&self, name: &str) -> Option<&'a [usize]> {
        self.entries.get(name).map(|(t, _)| t.dims.as_slice())
    }

    pub(crate) fn headers(&self) -> impl Iterator<Item = &'a TensorHeader> {
        self.entries.values().map(|(t, _)| *t)
    }

    fn take(&mut self, name: &str, dims: &[usize], usage: WeightUse) -> Result<TensorSpec> {
        let Some((header, used)) = self.entries.get_mut(name) else {
            return Err(self.wrong(name, "missing", format!("dims {dims:?}")));
        };
        *used = true;
        let header = *header;
        if trimmed(&header.dims) != trimmed(dims) {
            return Err(self.wrong(name, format!("dims {:?}", header.dims), format!("{dims:?}")));
        }
        let vector = usage == WeightUse::Vector;
        let ty = match header.kind {
            TensorKind::Known(ty) if !vector && ty.is_weight() => ty,
            TensorKind::Known(ty @ (TensorType::F32 | TensorType::F16 | TensorType::BF16)) => ty,
            kind => {
                let expected = if vector { "F32, F16 or BF16" } else { "a supported weight type" };
                return Err(self.wrong(name, format!("type {}", kind.name()), expected));
            }
        };
        let at = |i: usize| dims.get(i).copied().unwrap_or(1);
        let (cols, rows, experts) = (at(0), at(1), at(2));
        if ty.row_bytes(cols).is_none() {
            let blocks = format!("whole blocks of {}", ty.block_elements());
            return Err(self.wrong(name, format!("rows of {cols} elements of type {ty}"), blocks));
        }
        Ok(TensorSpec {
            name: name.to_owned(),
            ty,
            rows,
            cols,
            experts,
            first_row: 0,
            stored_rows: rows,
            usage,
        })
    }

    /// A vector of `len`.
    pub(crate) fn vector(&mut self, name: &str, len: usize) -> Result<TensorSpec> {
        self.take(name, &[len], WeightUse::Vector)
    }

    /// Convolution taps: `channels` rows of `taps`.
    pub(crate) fn taps(&mut self, name: &str, taps: usize, channels: usize) -> Result<TensorSpec> {
        self.take(name, &[taps, channels], WeightUse::Vector)
    }

    /// A matrix of `rows` rows of `cols`.
    pub(crate) fn matrix(&mut self, name: &str, cols: usize, rows: usize) -> Result<TensorSpec> {
        self.take(name, &[cols, rows], WeightUse::Matrix)
    }

    /// A stack of matrices.
    pub(crate) fn experts(
        &mut self,
        name: &str,
        cols: usize,
        rows: usize,
        experts: usize,
    ) -> Result<TensorSpec> {
        self.take(name, &[cols, rows, experts], WeightUse::Matrix)
    }

    /// An embedding table whose number of rows is the file's to say.
    pub(crate) fn table(&mut self, name: &str, cols: usize, usage: WeightUse) -> Result<TensorSpec> {
        const MOST_TOKENS: usize = 1 << 24;
        let rows = match self.entries.get(name).map(|(t, _)| t.dims.as_slice()) {
            Some(&[_, rows]) if rows <= MOST_TOKENS => rows,
            Some(dims) => {
                return Err(self.wrong(
                    name,
                    format!("dims {dims:?}"),
                    format!("[{cols}, at most {MOST_TOKENS}]"),
                ));
            }
            None => return Err(self.wrong(name, "missing", format!("dims [{cols}, vocabulary]"))),
        };
        self.take(name, &[cols, rows], usage)
    }

    /// Passes over a tensor that the model is known not to need.
    pub(crate) fn leave_out(&mut self, name: &str) {
        if let Some((_, used)) = self.entries.get_mut(name) {
            *used = true;
        }
    }

    /// Refuses tensors that nothing asked for: leaving one out could change what the model says.
    pub(crate) fn finish(self, architecture: &str) -> Result<()> {
        self.finish_prefix("", architecture)
    }

    /// The same for tensors whose names begin with `prefix`.
    pub(crate) fn finish_prefix(&self, prefix: &str, architecture: &str) -> Result<()> {
        let unused = self.entries.values().filter(|(_, used)| !used).map(|(t, _)| t.name.as_str());
        let left = unused.filter(|name| name.starts_with(prefix)).min();
        left.map_or(Ok(()), |name| {
            Err(self.wrong(name, "not known", format!("only tensors of architecture `{architecture}`")))
        })
    }
}
