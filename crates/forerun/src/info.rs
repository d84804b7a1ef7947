//! `forerun info`: what a model file is, what it needs, and whether it runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use forerun_engine::{LoadOptions, SamplingParams};
use forerun_files::{Array, Metadata, Value};
use forerun_models::{MemoryNeed, ModelSpec, Source, TensorHeader};
use forerun_text::{Tokenizer, TokenizerSpec};
use serde::Serialize;

use crate::args::InfoArgs;
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};
use crate::overlay::OverlayJson;

mod text;

pub(crate) use text::count;

#[derive(Default, Serialize)]
struct TypeCount {
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Report {
    file: String,
    architecture: String,
    name: Option<String>,
    /// Whether `run` accepts it.
    supported: bool,
    /// Why it does not.
    unsupported_reason: Option<String>,
    /// Elements of all tensors.
    parameters: u64,
    /// Sizes that the metadata states, whatever the architecture.
    stated: Stated,
    tensors: usize,
    types: BTreeMap<String, TypeCount>,
    /// What an overlay changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<OverlayJson>,
    model: Option<ModelReport>,
    tokenizer: Option<TokenizerReport>,
    /// Why there is none.
    tokenizer_error: Option<String>,
    chat_template: bool,
    arithmetic_id: String,
    backend: String,
}

#[derive(Serialize)]
struct Stated {
    layers: Option<u32>,
    hidden: Option<u32>,
    context_length: Option<u32>,
}

#[derive(Serialize)]
struct TokenizerReport {
    /// `tokenizer.ggml.model` and `tokenizer.ggml.pre`.
    model: String,
    pre: String,
    tokens: usize,
    /// Begins every prompt.
    bos: Option<String>,
    /// Each ends a text.
    end_of_text: Vec<String>,
}

#[derive(Serialize)]
struct ModelReport {
    /// Without the MTP block.
    parameters: u64,
    context_length: usize,
    layers: usize,
    /// Of full attention.
    attention_layers: usize,
    sliding_layers: usize,
    /// Positions that a row of a sliding layer sees.
    window: Option<usize>,
    hidden: usize,
    vocabulary: usize,
    experts_per_row: usize,
    mtp_parameters: Option<u64>,
    context: usize,
    weights_bytes: u64,
    kv_bytes: u64,
    state_bytes: u64,
    activation_bytes: u64,
    sampling: SamplingParams,
}

/// The report with what was asked for beside it.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    report: Report,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<BTreeMap<&'a str, serde_json::Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor_list: Option<Vec<TensorReport<'a>>>,
}

#[derive(Serialize)]
struct TensorReport<'a> {
    name: &'a str,
    #[serde(rename = "type")]
    kind: String,
    /// Contiguous first, as GGUF lists them.
    dims: &'a [usize],
    bytes: usize,
}

impl<'a> TensorReport<'a> {
    fn new(t: &'a TensorHeader) -> Self {
        Self { name: &t.name, kind: t.kind.name(), dims: &t.dims, bytes: t.bytes() }
    }
}

pub(crate) fn info(args: &InfoArgs) -> Result<()> {
    let path = model_or_demo(args.file.as_deref())?;
    let file = forerun_models::open_with(&path, args.overlay.overlay.as_deref())?;
    let options = LoadOptions { context: args.context, kv: args.kv.into(), ..LoadOptions::default() };
    let backend = options.make_backend()?;
    let spec = ModelSpec::read(&*file);
    let model = spec
        .map_err(CliError::from)
        .and_then(|spec| model_report(&spec, &options, &*backend, file.metadata()));
    let (model, unsupported_reason) = match model {
        Ok(model) => (Some(model), None),
        // The caller's option is at fault, not the file.
        Err(error) if args.context.is_some() && error.is_option() => return Err(error),
        Err(error) => (None, Some(error.to_string())),
    };
    let report = report(&path, &*file, model, unsupported_reason, &*backend);
    let mut out = std::io::stdout().lock();
    if args.json {
        let listed = Listed {
            report,
            metadata: args.metadata.then(|| file.metadata().iter().map(|(k, v)| (k, json(v))).collect()),
            tensor_list: args.tensors.then(|| file.tensors().iter().map(TensorReport::new).collect()),
        };
        serde_json::to_writer_pretty(&mut out, &listed)?;
        writeln!(out)?;
        return Ok(());
    }
    text::print(&mut out, &report)?;
    text::overlay(&mut out, &*file)?;
    if args.metadata {
        text::metadata(&mut out, &*file)?;
    }
    if args.tensors {
        text::tensors(&mut out, &*file)?;
    }
    Ok(())
}

fn report(
    path: &Path,
    file: &dyn Source,
    model: Option<ModelReport>,
    unsupported_reason: Option<String>,
    backend: &dyn forerun_tensor::Backend,
) -> Report {
    let mut types = BTreeMap::<String, TypeCount>::new();
    for t in file.tensors() {
        let entry = types.entry(t.kind.name()).or_default();
        entry.tensors += 1;
        entry.bytes += t.bytes() as u64;
    }
    let metadata = file.metadata();
    let text = |key: &str| metadata.opt_str(key).ok().flatten().map(|s| s.to_string());
    let architecture = text("general.architecture").unwrap_or_else(|| "not given".into());
    let count = |key: &str| metadata.opt_u32(&format!("{architecture}.{key}")).ok().flatten();
    let stated = Stated {
        layers: count("block_count"),
        hidden: count("embedding_length"),
        context_length: count("context_length"),
    };
    let (tokenizer, tokenizer_error) = match TokenizerSpec::from_metadata(metadata).and_then(Tokenizer::new) {
        Ok(tokenizer) => (Some(tokenizer_report(&tokenizer)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    Report {
        file: path.display().to_string(),
        name: text("general.name"),
        supported: unsupported_reason.is_none(),
        unsupported_reason,
        parameters: file.tensors().iter().fold(0, |n, t| n.saturating_add(t.elements() as u64)),
        stated,
        architecture,
        tensors: file.tensors().len(),
        types,
        overlay: file.overlay().map(OverlayJson::from),
        model,
        chat_template: text("tokenizer.chat_template").is_some(),
        tokenizer,
        tokenizer_error,
        arithmetic_id: backend.info().arithmetic_id.clone(),
        backend: backend.info().detail.clone(),
    }
}

fn tokenizer_report(tokenizer: &Tokenizer) -> TokenizerReport {
    let spec = tokenizer.spec();
    let name = |id: u32| tokenizer.token(id).map_or_else(|| id.to_string(), str::to_owned);
    TokenizerReport {
        model: spec.model.clone(),
        pre: spec.pre.clone(),
        tokens: tokenizer.vocab_size(),
        bos: spec.bos.filter(|_| spec.add_bos).map(name),
        end_of_text: tokenizer.eog().iter().copied().map(name).collect(),
    }
}

/// A metadata value in full. JSON has no infinities and no NaN: they become `null`.
fn json(value: &Value) -> serde_json::Value {
    match value {
        Value::U8(v) => (*v).into(),
        Value::I8(v) => (*v).into(),
        Value::U16(v) => (*v).into(),
        Value::I16(v) => (*v).into(),
        Value::U32(v) => (*v).into(),
        Value::I32(v) => (*v).into(),
        Value::U64(v) => (*v).into(),
        Value::I64(v) => (*v).into(),
        Value::F32(v) => (*v).into(),
        Value::F64(v) => (*v).into(),
        Value::Bool(v) => (*v).into(),
        Value::String(v) => v.as_str().into(),
        Value::Array(array) => match array {
            Array::U8(v) => v.as_slice().into(),
            Array::I8(v) => v.as_slice().into(),
            Array::U16(v) => v.as_slice().into(),
            Array::I16(v) => v.as_slice().into(),
            Array::U32(v) => v.as_slice().into(),
            Array::I32(v) => v.as_slice().into(),
            Array::U64(v) => v.as_slice().into(),
            Array::I64(v) => v.as_slice().into(),
            Array::F32(v) => v.as_slice().into(),
            Array::F64(v) => v.as_slice().into(),
            Array::Bool(v) => v.as_slice().into(),
            Array::String(v) => v.as_slice().into(),
        },
    }
}

fn model_report(
    spec: &ModelSpec,
    options: &LoadOptions,
    backend: &dyn forerun_tensor::Backend,
    metadata: &Metadata,
) -> Result<ModelReport> {
    let sampling = SamplingParams::from_metadata(metadata)?;
    let caches = options.caches(spec);
    let need: MemoryNeed = spec.memory(backend, &caches)?;
    Ok(ModelReport {
        parameters: spec.parameters(),
        context_length: spec.context_length(),
        layers: spec.layers(),
        attention_layers: spec.attention_layers(),
        sliding_layers: spec.sliding_layers(),
        window: spec.window(),
        hidden: spec.hidden(),
        vocabulary: spec.vocabulary(),
        experts_per_row: spec.experts_per_row(),
        mtp_parameters: spec.mtp.as_ref().map(|m| m.parameters()),
        context: caches.context,
        weights_bytes: need.weights.max(spec.file_bytes()),
        kv_bytes: need.kv,
        state_bytes: need.states,
        activation_bytes: need.activations,
        sampling,
    })
}
