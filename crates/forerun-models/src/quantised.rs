//! A source whose float matrices are quantised as they are loaded.

use std::thread;

use forerun_files::{Metadata, TensorKind};
use forerun_quant::{ENCODED, TensorType, decode_row, encode_row};

use crate::error::{ModelError, Result};
use crate::source::{Source, SourceTensor, TensorHeader};

/// Another source with its matrices in one type. Rows that are no whole blocks of it become Q8_0 where they can, and stay as
/// they are otherwise; so do vectors.
pub struct QuantisedSource<'a> {
    from: &'a dyn Source,
    headers: Vec<TensorHeader>,
}

impl<'a> QuantisedSource<'a> {
    /// The tensors of `from`.
    ///
    /// # Errors
    /// When rows cannot be encoded in this type.
    pub fn new(from: &'a dyn Source, ty: TensorType) -> Result<Self> {
        if !ENCODED.contains(&ty) {
            let expected = format!("one of {}", ENCODED.map(|t| t.name().to_lowercase()).join(", "));
            return Err(ModelError::Option { option: "drafter type", found: ty.to_string(), expected });
        }
        let header = |t: &TensorHeader| TensorHeader { kind: wanted(t, ty), ..t.clone() };
        Ok(Self { from, headers: from.tensors().iter().map(header).collect() })
    }
}

/// The type that a tensor gets.
fn wanted(t: &TensorHeader, ty: TensorType) -> TensorKind {
    let matrix = t.dims.iter().skip(1).any(|d| *d > 1);
    let fits = |ty: &TensorType| t.dims.first().is_some_and(|cols| ty.row_bytes(*cols).is_some());
    match t.kind {
        TensorKind::Known(old) if matrix && old != ty => {
            [ty, TensorType::Q8_0].into_iter().find(fits).map_or(t.kind, TensorKind::Known)
        }
        kind => kind,
    }
}

/// Rows of one type in another; `None` when the bytes are not whole rows.
fn encoded(tensor: &SourceTensor, ty: TensorType) -> Option<Vec<u8>> {
    let cols = *tensor.dims.first()?;
    let (old, new) = (tensor.ty.row_bytes(cols)?, ty.row_bytes(cols)?);
    let rows = tensor.bytes.len() / old;
    let mut out = vec![0; rows.checked_mul(new)?];
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = rows.div_ceil(threads).max(1);
    let all_well = thread::scope(|s| {
        let parts = tensor.bytes.chunks(share * old).zip(out.chunks_mut(share * new));
        let workers: Vec<_> = parts
            .map(|(from, to)| {
                s.spawn(move || {
                    let mut row = vec![0.0; cols];
                    from.chunks_exact(old).zip(to.chunks_exact_mut(new)).all(|(from, to)| {
                        decode_row(tensor.ty, from, &mut row).is_ok() && encode_row(ty, &row, to).is_ok()
                    })
                })
            })
            .collect();
        workers.into_iter().all(|w| w.join().unwrap_or(false))
    });
    all_well.then_some(out)
}

impl Source for QuantisedSource<'_> {
    fn metadata(&self) -> &Metadata {
        self.from.metadata()
    }

    fn config(&self) -> Option<&serde_json::Value> {
        self.from.config()
    }

    fn tensors(&self) -> &[TensorHeader] {
        &self.headers
    }

    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let found = self.from.tensor(name)?;
        let header = self.headers.iter().find(|t| t.name == name)?;
        match header.kind {
            TensorKind::Known(ty) if ty != found.ty => {
                let bytes = encoded(&found, ty)?.into();
                Some(SourceTensor { dims: found.dims, ty, bytes })
            }
            _ => Some(found),
        }
    }

    fn is_mapped(&self) -> bool {
        false
    }

    fn release(&self, name: &str) {
        self.from.release(name);
    }
}
