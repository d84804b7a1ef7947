//! A source whose float matrices are quantised as they are loaded.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
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

/// Rows of one type made rows of another.
#[derive(Clone, Copy, Debug)]
pub struct Recode<'a> {
    /// The type that rows have, and the one that they get.
    pub types: [TensorType; 2],
    /// Elements of a row.
    pub cols: usize,
    /// How much errors of each column count; encoders without weights leave it out.
    pub importance: Option<&'a [f32]>,
    /// Threads; `None` for one per core.
    pub threads: Option<NonZeroUsize>,
}

/// Elements that a thread takes at once, about.
const SHARE: usize = 1 << 16;

impl Recode<'_> {
    /// The new rows.
    ///
    /// # Errors
    /// Says what was found: bytes that are no whole rows, a type without an encoder, or for a type of blocks a value that is
    /// no finite number: the scale of a block is found among its values, and one such would spoil all of them.
    pub fn rows(&self, from: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let row_bytes = |ty: TensorType| {
            let bytes = ty.row_bytes(self.cols).filter(|n| *n > 0);
            bytes.ok_or_else(|| format!("rows of {} elements, which are no whole blocks of {ty}", self.cols))
        };
        let [old, new] = self.types.map(row_bytes);
        let (old, new) = (old?, new?);
        let rows = from.len() / old;
        let size = rows.checked_mul(new).filter(|_| rows * old == from.len());
        let mut out = vec![0; size.ok_or_else(|| format!("{} bytes, which are no whole rows", from.len()))?];
        let share = (SHARE / self.cols).max(1);
        let threads = self.threads.or_else(|| thread::available_parallelism().ok()).map_or(1, usize::from);
        // Threads take shares as they get to them: on a busy machine equal parts would wait for the slowest.
        let shares = Mutex::new(from.chunks(share * old).zip(out.chunks_mut(share * new)));
        let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
        let work = || {
            let mut values = vec![0.0; self.cols];
            while let Some((from, to)) = next() {
                let mut rows = from.chunks_exact(old).zip(to.chunks_exact_mut(new));
                rows.try_for_each(|(from, to)| self.row(from, to, &mut values))?;
            }
            Ok(())
        };
        thread::scope(|s| {
            let others = threads.min(rows.div_ceil(share)).saturating_sub(1);
            let workers: Vec<_> = (0..others).map(|_| s.spawn(work)).collect();
            let own = work();
            let failed = |_| Err("values that an encoder failed at".to_owned());
            workers.into_iter().fold(own, |done, w| done.and(w.join().unwrap_or_else(failed)))
        })?;
        Ok(out)
    }

    fn row(&self, from: &[u8], to: &mut [u8], values: &mut [f32]) -> std::result::Result<(), String> {
        let [old, new] = self.types;
        decode_row(old, from, values).map_err(|e| e.to_string())?;
        match values.iter().find(|v| !v.is_finite()) {
            Some(bad) if new.block_elements() > 1 => Err(bad.to_string()),
            _ => encode_row(new, values, self.importance, to).map_err(|e| e.to_string()),
        }
    }
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
                let types = [found.ty, ty];
                let recode = Recode { types, cols: *found.dims.first()?, importance: None, threads: None };
                let bytes = recode.rows(&found.bytes).ok()?.into();
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
