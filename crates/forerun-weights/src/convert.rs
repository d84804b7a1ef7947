//! Writing a model as a GGUF file, in the types it has or in others.
//!
//! One tensor after the other: of a tensor that changes its type, some megabytes at a time. What a folder's tensors become in
//! GGUF (names, order of heads, gains) is [`forerun_models::HubModel`]'s.

use std::path::Path;

use forerun_files::{GgufWriter, TensorKind, Value};
use forerun_models::{Source, SourceTensor, TensorHeader, always_f32, recode};
use forerun_quant::TensorType;

use crate::error::{Result, WeightsError};

/// Bytes of a tensor that are written at once, about.
const PIECE: usize = 16 << 20;

/// Types of a file's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileType {
    /// As they are.
    Same,
    /// All of this type. Rows that are no whole blocks of it become F16; vectors, norms, routers and convolution taps
    /// are F32 in every file.
    All(TensorType),
}

impl FileType {
    /// Names of the file types, with the numbers of `general.file_type`.
    const NAMED: [(TensorType, u32); 5] = [
        (TensorType::F32, 0),
        (TensorType::F16, 1),
        (TensorType::Q4_0, 2),
        (TensorType::Q8_0, 7),
        (TensorType::BF16, 32),
    ];

    /// The file type of a name in any case, as in `q8_0`; `same` leaves every type as it is.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("same") {
            return Some(FileType::Same);
        }
        let ty = TensorType::from_name(name)?;
        Self::NAMED.iter().any(|(named, _)| *named == ty).then_some(FileType::All(ty))
    }

    /// Every name.
    #[must_use]
    pub fn names() -> Vec<String> {
        let types = Self::NAMED.iter().map(|(ty, _)| ty.name().to_lowercase());
        std::iter::once("same".to_owned()).chain(types).collect()
    }

    /// The number that the file carries; `None` where it keeps its own.
    fn number(self) -> Option<u32> {
        let FileType::All(ty) = self else { return None };
        Self::NAMED.iter().find(|(named, _)| *named == ty).map(|(_, number)| *number)
    }

    /// The type that a tensor gets.
    #[must_use]
    pub fn of(self, name: &str, dims: &[usize], now: TensorType) -> TensorType {
        let FileType::All(ty) = self else { return now };
        // Integers are no weights.
        if !now.is_weight() {
            return now;
        }
        if always_f32(name, dims) {
            return TensorType::F32;
        }
        let whole = |ty: TensorType| dims.first().is_some_and(|cols| ty.row_bytes(*cols).is_some());
        if whole(ty) { ty } else { TensorType::F16 }
    }
}

/// How far a conversion has come, in bytes of the file that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of tensors that are written.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Converted {
    /// Number of tensors.
    pub tensors: usize,
    /// Of these, those whose type changed.
    pub changed: usize,
    /// Bytes of tensors read.
    pub read_bytes: u64,
    /// Bytes of tensors written.
    pub written_bytes: u64,
}

/// A tensor and the type it gets.
struct Planned<'a> {
    header: &'a TensorHeader,
    ty: TensorType,
    bytes: u64,
}

/// Writes a model to `out` as GGUF. The file gets its name when it is complete; until then, and when anything fails or
/// `progress` returns false, what had that name stays as it was.
///
/// # Errors
/// When a tensor has a type that cannot be read, or a value that is no number, or a file cannot be read or written;
/// [`WeightsError::Cancelled`].
pub fn convert(
    source: &dyn Source,
    out: &Path,
    ty: FileType,
    progress: &mut dyn FnMut(Progress) -> bool,
) -> Result<Converted> {
    let plan = plan(source, ty)?;
    let mut metadata = source.metadata().clone();
    if let Some(number) = ty.number() {
        metadata.set("general.file_type", Value::U32(number));
    }
    let tensors: Vec<_> = plan.iter().map(|p| (p.header.name.clone(), p.ty, p.header.dims.clone())).collect();
    let mut writer = GgufWriter::create(out, &metadata, &tensors)?;
    let total_bytes = plan.iter().fold(0u64, |n, p| n.saturating_add(p.bytes));
    let mut done = Converted::default();
    let mut tell = |written: u64| {
        let on = progress(Progress { done_bytes: written, total_bytes });
        if on { Ok(()) } else { Err(WeightsError::Cancelled) }
    };
    tell(0)?;
    for p in &plan {
        let tensor = source.tensor(&p.header.name).ok_or_else(|| {
            wrong(source, p.header, "bytes that cannot be read, or no memory for them", "a whole tensor")
        })?;
        write(source, p, &tensor, &mut |piece| {
            writer.tensor(&p.header.name, piece)?;
            done.written_bytes += piece.len() as u64;
            tell(done.written_bytes)
        })?;
        done.tensors += 1;
        done.changed += usize::from(p.ty != tensor.ty);
        done.read_bytes += tensor.bytes.len() as u64;
        drop(tensor);
        source.release(&p.header.name);
    }
    writer.finish()?;
    Ok(done)
}

fn wrong(
    source: &dyn Source,
    t: &TensorHeader,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> WeightsError {
    WeightsError::Tensor {
        path: source.metadata().path().to_path_buf(),
        tensor: t.name.clone(),
        found: found.into(),
        expected: expected.into(),
    }
}

/// What becomes of every tensor. Refuses what cannot be read before anything is written.
fn plan(source: &dyn Source, ty: FileType) -> Result<Vec<Planned<'_>>> {
    let plan = source.tensors().iter().map(|header| {
        let TensorKind::Known(now) = header.kind else {
            return Err(wrong(source, header, format!("type {}", header.kind), "a type that can be read"));
        };
        let ty = ty.of(&header.name, &header.dims, now);
        let written = TensorHeader { kind: TensorKind::Known(ty), ..header.clone() };
        Ok(Planned { header, ty, bytes: written.bytes() as u64 })
    });
    plan.collect()
}

/// Gives `put` the bytes of a tensor in the type it gets, piece by piece.
fn write(
    source: &dyn Source,
    p: &Planned<'_>,
    tensor: &SourceTensor,
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if p.ty == tensor.ty {
        return tensor.bytes.chunks(PIECE).try_for_each(put);
    }
    let cols = tensor.dims.first().copied().unwrap_or(0);
    let bytes = |ty: TensorType| ty.row_bytes(cols).unwrap_or(0).max(1);
    for rows in tensor.bytes.chunks((PIECE / bytes(p.ty)).max(1) * bytes(tensor.ty)) {
        let piece = recode(rows, [tensor.ty, p.ty], cols);
        put(&piece.map_err(|found| wrong(source, p.header, found, "whole rows of finite numbers"))?)?;
    }
    Ok(())
}
