//! `forerun info`: what a model file is, what it needs, and whether it runs.

use std::collections::BTreeMap;
use std::io::Write;

use forerun_engine::{LoadOptions, SamplingParams};
use forerun_files::{Checkpoint, Gguf, TensorInfo, TensorKind};
use forerun_models::{CheckpointSource, MemoryNeed, ModelSpec};
use forerun_text::{Tokenizer, TokenizerSpec};
use serde::Serialize;

use crate::args::InfoArgs;
use crate::demo::model_or_demo;
use crate::error::Result;

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
    /// Whether `run` accepts it; the reason when it does not.
    supported: Result<(), String>,
    tensors: usize,
    types: BTreeMap<String, TypeCount>,
    model: Option<ModelReport>,
    tokenizer: Result<String, String>,
    chat_template: bool,
    arithmetic_id: String,
    backend: String,
}

#[derive(Serialize)]
struct ModelReport {
    parameters: u64,
    context_length: usize,
    layers: usize,
    attention_layers: usize,
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

pub(crate) fn info(args: &InfoArgs) -> Result<()> {
    let path = model_or_demo(args.file.as_deref())?;
    let file = std::sync::Arc::new(Gguf::open(&path)?);
    let options = LoadOptions { context: args.context, kv: args.kv.into(), ..LoadOptions::default() };
    let backend = options.make_backend()?;
    let source = CheckpointSource::new(file.clone());
    let spec = ModelSpec::read(&source);
    let mut types = BTreeMap::<String, TypeCount>::new();
    for t in file.tensors() {
        let entry = types.entry(t.kind.name().to_string()).or_default();
        entry.tensors += 1;
        entry.bytes += t.range.len() as u64;
    }
    let metadata = file.metadata();
    let text = |key: &str| metadata.opt_str(key).ok().flatten().map(|s| s.to_string());
    let tokenizer = TokenizerSpec::from_metadata(metadata).and_then(Tokenizer::new);
    let model = match &spec {
        Ok(spec) => Some(model_report(spec, &options, &*backend, SamplingParams::from_metadata(metadata)?)?),
        Err(_) => None,
    };
    let report = Report {
        file: path.display().to_string(),
        architecture: text("general.architecture").unwrap_or_else(|| "not given".into()),
        name: text("general.name"),
        supported: spec.map(|_| ()).map_err(|e| e.to_string()),
        tensors: file.tensors().len(),
        types,
        model,
        chat_template: text("tokenizer.chat_template").is_some(),
        tokenizer: tokenizer.map(|t| format!("{:?}", t)).map_err(|e| e.to_string()),
        arithmetic_id: backend.info().arithmetic_id.clone(),
        backend: backend.info().detail.clone(),
    };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    print(&mut out, &report)?;
    if args.metadata {
        writeln!(out, "\nmetadata")?;
        for (key, value) in metadata.iter() {
            writeln!(out, "  {key}: {}", value.summary())?;
        }
    }
    if args.tensors {
        writeln!(out, "\ntensors")?;
        for t in file.tensors() {
            writeln!(out, "  {:<40} {:<8} {}", t.name, t.kind.name(), dims(t))?;
        }
    }
    Ok(())
}

fn dims(t: &TensorInfo) -> String {
    t.dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ")
}

fn model_report(
    spec: &ModelSpec,
    options: &LoadOptions,
    backend: &dyn forerun_tensor::Backend,
    sampling: SamplingParams,
) -> Result<ModelReport> {
    let caches = options.caches(spec);
    let need: MemoryNeed = spec.memory(backend, &caches)?;
    Ok(ModelReport {
        parameters: spec.parameters(),
        context_length: spec.context_length(),
        layers: spec.layers(),
        attention_layers: spec.attention_layers(),
        hidden: spec.hidden(),
        vocabulary: spec.vocabulary(),
        experts_per_row: spec.experts_per_row(),
        mtp_parameters: spec.mtp.as_ref().map(|m| m.parameters),
        context: caches.context,
        weights_bytes: need.weights.max(spec.file_bytes()),
        kv_bytes: need.kv,
        state_bytes: need.states,
        activation_bytes: need.activations,
        sampling,
    })
}

fn mb(bytes: u64) -> String {
    if bytes >= 1_000_000_000 { format!("{:.2} GB", bytes as f64 / 1e9) } else { format!("{:.1} MB", bytes as f64 / 1e6) }
}

fn print(out: &mut impl Write, r: &Report) -> std::io::Result<()> {
    writeln!(out, "{}", r.file)?;
    writeln!(out, "architecture  {}{}", r.architecture, r.name.as_ref().map_or(String::new(), |n| format!(" ({n})")))?;
    match &r.supported {
        Ok(()) => writeln!(out, "supported     yes")?,
        Err(reason) => writeln!(out, "supported     no: {reason}")?,
    }
    if let Some(m) = &r.model {
        writeln!(out, "parameters    {:.3} G", m.parameters as f64 / 1e9)?;
        writeln!(
            out,
            "shape         {} layers ({} of full attention), hidden {}, vocabulary {}{}",
            m.layers,
            m.attention_layers,
            m.hidden,
            m.vocabulary,
            if m.experts_per_row > 0 { format!(", {} experts a token", m.experts_per_row) } else { String::new() }
        )?;
        match m.mtp_parameters {
            Some(n) => writeln!(out, "MTP block     {:.1} M parameters; kept, not used by plain decoding", n as f64 / 1e6)?,
            None => writeln!(out, "MTP block     none")?,
        }
        writeln!(out, "trained for   {} tokens of context", m.context_length)?;
        let total = m.weights_bytes + m.kv_bytes + m.state_bytes + m.activation_bytes;
        writeln!(
            out,
            "memory        {} for a context of {}: weights {}, KV cache {}, states {}, activations {}",
            mb(total),
            m.context,
            mb(m.weights_bytes),
            mb(m.kv_bytes),
            mb(m.state_bytes),
            mb(m.activation_bytes)
        )?;
    }
    writeln!(out, "tensors       {}", r.tensors)?;
    for (name, count) in &r.types {
        let known = TensorKindName(name).note();
        writeln!(out, "  {name:<10} {:>5} tensors {:>10}{known}", count.tensors, mb(count.bytes))?;
    }
    match &r.tokenizer {
        Ok(t) => writeln!(out, "tokenizer     {t}, {} chat template", if r.chat_template { "with" } else { "without" })?,
        Err(e) => writeln!(out, "tokenizer     not usable: {e}")?,
    }
    writeln!(out, "arithmetic    {} ({})", r.arithmetic_id, r.backend)
}

/// What to say beside a tensor type.
struct TensorKindName<'a>(&'a str);

impl TensorKindName<'_> {
    fn note(&self) -> &'static str {
        match forerun_quant::TensorType::from_name(self.0).map(TensorKind::Known) {
            None => "  not supported",
            Some(TensorKind::Known(t)) if t.is_integer_dot() => "  fast kernels",
            Some(TensorKind::Known(t)) if !t.is_weight() => "  no weight type",
            Some(TensorKind::Known(t)) if t.block_elements() > 1 => "  runs by decoding, slower",
            Some(_) => "",
        }
    }
}
