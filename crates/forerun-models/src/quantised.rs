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

/// Rows of `cols` elements of one type (the first) in another, on all cores.
///
/// # Errors
/// Says what was found: bytes that are no whole rows, a type without an encoder, or for a type of blocks a value that is no
/// finite number: the scale of a block is found among its values, and one such would spoil all of them.
pub fn recode(from: &[u8], [old, new]: [TensorType; 2], cols: usize) -> std::result::Result<Vec<u8>, String> {
    let row_bytes = |ty: TensorType| {
        let bytes = ty.row_bytes(cols).filter(|n| *n > 0);
        bytes.ok_or_else(|| format!("rows of {cols} elements, which are no whole blocks of {ty}"))
    };
    let (old_row, new_row) = (row_bytes(old)?, row_bytes(new)?);
    let rows = from.len() / old_row;
    let size = rows.checked_mul(new_row).filter(|_| rows * old_row == from.len());
    let mut out = vec![0; size.ok_or_else(|| format!("{} bytes, which are no whole rows", from.len()))?];
    let row = |from: &[u8], to: &mut [u8], values: &mut [f32]| {
        decode_row(old, from, values).map_err(|e| e.to_string())?;
        match values.iter().find(|v| !v.is_finite()) {
            Some(bad) if new.block_elements() > 1 => Err(bad.to_string()),
            _ => encode_row(new, values, None, to).map_err(|e| e.to_string()),
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let share = rows.div_ceil(threads).max(1);
    thread::scope(|s| {
        let parts = from.chunks(share * old_row).zip(out.chunks_mut(share * new_row));
        let workers: Vec<_> = parts
            .map(|(from, to)| {
                s.spawn(move || {
                    let mut values = vec![0.0; cols];
                    let mut rows = from.chunks_exact(old_row).zip(to.chunks_exact_mut(new_row));
                    rows.try_for_each(|(from, to)| row(from, to, &mut values))
                })
            })
            .collect();
        let failed = |_| Err("values that an encoder failed at".to_owned());
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(failed))
    })?;
    Ok(out)
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
                let bytes = recode(&found.bytes, [found.ty, ty], *found.dims.first()?).ok()?.into();
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
