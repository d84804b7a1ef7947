//! What becomes of every tensor of a file, decided before anything is written.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use forerun_files::{Metadata, TensorKind, Value};
use forerun_models::{Source, TensorHeader};
use forerun_quant::{ENCODED, TensorType};

use crate::error::{Result, WeightsError};
use crate::file_type::FileType;
use crate::imatrix::{Imatrix, InputStats, shape};
use crate::keep::{Keep, fixed};
use crate::mix::types;

/// What to make of a model.
#[derive(Clone, Copy, Debug)]
pub struct ConvertOptions<'a> {
    /// Type of the file.
    pub ty: FileType,
    /// What the model's products read; encoders then keep errors where they hurt least.
    pub imatrix: Option<&'a Imatrix>,
    /// Types of tensors that the file's type does not decide. The first that fits counts.
    pub keep: &'a [Keep],
    /// Whether blocks of one type may become blocks of another, which adds the errors of both.
    pub allow_requantize: bool,
    /// Threads that encode; `None` for one per core.
    pub threads: Option<NonZeroUsize>,
}

impl ConvertOptions<'_> {
    /// A file of this type.
    #[must_use]
    pub fn new(ty: FileType) -> Self {
        Self { ty, imatrix: None, keep: &[], allow_requantize: false, threads: None }
    }
}

/// A tensor and the type it gets.
pub(crate) struct Planned<'a> {
    pub(crate) header: &'a TensorHeader,
    pub(crate) from: TensorType,
    pub(crate) to: TensorType,
    /// Bytes in the type it gets.
    pub(crate) bytes: u64,
    /// What its products read, where it is known and matters.
    pub(crate) importance: Option<&'a InputStats>,
}

pub(crate) fn wrong(
    source: &dyn Source,
    tensor: &str,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> WeightsError {
    WeightsError::Tensor {
        path: source.metadata().path().to_path_buf(),
        tensor: tensor.to_owned(),
        found: found.into(),
        expected: expected.into(),
    }
}

/// Whether the encoder of a type weighs errors.
fn weighs(ty: TensorType) -> bool {
    ty.block_elements() > 1 && ty != TensorType::Q8_0
}

/// What becomes of every tensor. Refuses what cannot be read or made.
pub(crate) fn plan<'a>(source: &'a dyn Source, options: &ConvertOptions<'a>) -> Result<Vec<Planned<'a>>> {
    let tensors = source.tensors();
    let wishes = fixed(options.keep, tensors)?;
    let to = types(options.ty, source.metadata(), options.imatrix.is_some(), tensors, &wishes)?;
    let plan = tensors.iter().zip(to).map(|(header, to)| {
        let (TensorKind::Known(from), TensorKind::Known(to)) = (header.kind, to) else {
            return Err(wrong(
                source,
                &header.name,
                format!("type {}", header.kind),
                "a type that can be read",
            ));
        };
        let written = TensorHeader { kind: TensorKind::Known(to), ..header.clone() };
        let planned = Planned {
            header,
            from,
            to,
            bytes: written.bytes() as u64,
            importance: importance(options, header)?,
        };
        check(source, &planned, options)?;
        Ok(planned)
    });
    plan.collect()
}

fn check(source: &dyn Source, p: &Planned<'_>, options: &ConvertOptions<'_>) -> Result<()> {
    if p.from == p.to && p.to.ggml_id().is_some() {
        return Ok(());
    }
    let fault = |found: String, expected: &str| Err(wrong(source, &p.header.name, found, expected));
    if p.to.ggml_id().is_none() {
        return fault(format!("type {}", p.to), "a type of GGUF files: --type says which");
    }
    if !ENCODED.contains(&p.to) {
        return fault(format!("{} to be made of it", p.to), "a type that rows can be encoded in");
    }
    let blocks = |ty: TensorType| ty.block_elements() > 1;
    // What MLX quantised has no other way into a GGUF file.
    let affine = matches!(p.from, TensorType::Affine(_));
    if blocks(p.from) && blocks(p.to) && !affine && !options.allow_requantize {
        let expected =
            "floats to quantise: quantising twice costs quality (--allow-requantize does it all the same)";
        return fault(format!("{}, to become {}", p.from, p.to), expected);
    }
    // What so few levels make of a matrix without weights for its columns is of no use.
    let needs = options.ty == FileType::Q2_K_S && p.to == TensorType::Q2_K;
    let embedding = matches!(&*p.header.name, "token_embd.weight" | "per_layer_token_embd.weight");
    if needs && !embedding && p.importance.is_none() {
        return fault("no entry of an importance matrix".to_owned(), "one (--imatrix), which q2_k_s needs");
    }
    Ok(())
}

/// What the importance matrix says of a tensor.
fn importance<'a>(options: &ConvertOptions<'a>, t: &TensorHeader) -> Result<Option<&'a InputStats>> {
    let Some(imatrix) = options.imatrix else { return Ok(None) };
    let Some(stats) = imatrix.get(&t.name) else { return Ok(None) };
    let (cols, matrices) = (t.dims.first().copied().unwrap_or(0), t.dims.iter().skip(2).product());
    if (stats.cols(), stats.matrices()) == (cols, matrices) {
        return Ok(Some(stats));
    }
    Err(WeightsError::Tensor {
        path: imatrix.path().to_path_buf(),
        tensor: t.name.clone(),
        found: shape(stats.cols(), stats.matrices()),
        expected: format!("{}, as the model has", shape(cols, matrices)),
    })
}

/// Names of matrices whose errors would be weighed, but for which the importance matrix has no entry.
pub(crate) fn unweighed(plan: &[Planned<'_>], options: &ConvertOptions<'_>) -> Vec<String> {
    let without = |p: &&Planned<'_>| p.from != p.to && weighs(p.to) && p.importance.is_none();
    let names = plan.iter().filter(without).map(|p| p.header.name.clone());
    if options.imatrix.is_some() { names.collect() } else { Vec::new() }
}

/// The metadata of the file that is written: what the source has, and what became of it.
pub(crate) fn metadata(source: &dyn Source, options: &ConvertOptions<'_>) -> Metadata {
    let mut metadata = Metadata::new(source.metadata().path());
    for (key, value) in source.metadata().iter() {
        // One file is written, whatever it is made of.
        if !key.starts_with("split.") {
            metadata.insert(key, value.clone());
        }
    }
    if let Some(number) = options.ty.number() {
        metadata.set("general.quantization_version", Value::U32(2));
        metadata.set("general.file_type", Value::U32(number));
    }
    if let Some(imatrix) = options.imatrix {
        let mut note = |key: &str, value| metadata.set(&format!("quantize.imatrix.{key}"), value);
        note("file", Value::String(imatrix.path().display().to_string()));
        if let Some(first) = imatrix.datasets.first() {
            note("dataset", Value::String(first.clone()));
        }
        note("entries_count", Value::U32(u32::try_from(imatrix.len()).unwrap_or(u32::MAX)));
        note("chunks_count", Value::U32(imatrix.chunks));
    }
    metadata
}

/// Tensors of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TypeShare {
    /// Their number.
    pub tensors: usize,
    /// Their elements.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Tensors by the type that they get.
pub(crate) fn shares(plan: &[Planned<'_>]) -> BTreeMap<TensorType, TypeShare> {
    let mut shares: BTreeMap<TensorType, TypeShare> = BTreeMap::new();
    for p in plan {
        let share = shares.entry(p.to).or_default();
        share.tensors += 1;
        share.elements = share.elements.saturating_add(p.header.elements() as u64);
        share.bytes = share.bytes.saturating_add(p.bytes);
    }
    shares
}
