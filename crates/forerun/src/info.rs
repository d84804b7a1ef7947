//! `forerun info`: what a model file is, what it needs, and whether it runs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use forerun_engine::{LoadOptions, SamplingParams};
use forerun_files::{Checkpoint, Gguf, Metadata, TensorInfo, TensorKind, printable as line};
use forerun_models::{CheckpointSource, MemoryNeed, ModelSpec};
use forerun_text::{Tokenizer, TokenizerSpec};
use serde::Serialize;

use crate::args::InfoArgs;
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};

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
    let model = spec
        .map_err(CliError::from)
        .and_then(|spec| model_report(&spec, &options, &*backend, file.metadata()));
    let (model, unsupported_reason) = match model {
        Ok(model) => (Some(model), None),
        // The caller's option is at fault, not the file.
        Err(error) if args.context.is_some() && error.is_option() => return Err(error),
        Err(error) => (None, Some(error.to_string())),
    };
    let report = report(&path, &file, model, unsupported_reason, &*backend);
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
        return Ok(());
    }
    print(&mut out, &report)?;
    if args.metadata {
        writeln!(out, "\nmetadata")?;
        for (key, value) in file.metadata().iter() {
            writeln!(out, "  {}: {}", line(key), value.summary())?;
        }
    }
    if args.tensors {
        writeln!(out, "\ntensors")?;
        for t in file.tensors() {
            writeln!(out, "  {:<40} {:<8} {}", line(&t.name), t.kind.name(), dims(t))?;
        }
    }
    Ok(())
}

fn report(
    path: &Path,
    file: &Gguf,
    model: Option<ModelReport>,
    unsupported_reason: Option<String>,
    backend: &dyn forerun_tensor::Backend,
) -> Report {
    let mut types = BTreeMap::<String, TypeCount>::new();
    for t in file.tensors() {
        let entry = types.entry(t.kind.name()).or_default();
        entry.tensors += 1;
        entry.bytes += t.range.len() as u64;
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

fn dims(t: &TensorInfo) -> String {
    t.dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ")
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

fn mb(bytes: u64) -> String {
    if bytes >= 1_000_000_000 {
        format!("{:.2} GB", bytes as f64 / 1e9)
    } else {
        format!("{:.1} MB", bytes as f64 / 1e6)
    }
}

/// A count of parameters as models are named: 27.3 G, 28.0 M.
pub(crate) fn count(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.1} G", n as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", n as f64 / 1e6),
        _ => n.to_string(),
    }
}

fn print(out: &mut impl Write, r: &Report) -> std::io::Result<()> {
    writeln!(out, "{}", r.file)?;
    let name = r.name.as_ref().map_or(String::new(), |n| format!(" ({})", line(n)));
    writeln!(out, "architecture  {}{name}", line(&r.architecture))?;
    match &r.unsupported_reason {
        None => writeln!(out, "supported     yes")?,
        Some(reason) => writeln!(out, "supported     no: {reason}")?,
    }
    let mtp = r.model.as_ref().and_then(|m| m.mtp_parameters);
    let mtp = mtp.map_or(String::new(), |n| {
        format!(", {} of them in the MTP block, which plain decoding does not use", count(n))
    });
    writeln!(out, "parameters    {}{mtp}", count(r.parameters))?;
    if r.model.is_none() {
        let stated =
            [("layers", r.stated.layers), ("hidden", r.stated.hidden), ("context", r.stated.context_length)];
        let stated: Vec<String> =
            stated.iter().filter_map(|(what, n)| n.map(|n| format!("{what} {n}"))).collect();
        if !stated.is_empty() {
            writeln!(out, "stated        {}", stated.join(", "))?;
        }
    }
    if let Some(m) = &r.model {
        writeln!(
            out,
            "shape         {} layers ({} of full attention), hidden {}, vocabulary {}{}",
            m.layers,
            m.attention_layers,
            m.hidden,
            m.vocabulary,
            if m.experts_per_row > 0 {
                format!(", {} experts a token", m.experts_per_row)
            } else {
                String::new()
            }
        )?;
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
    match (&r.tokenizer, &r.tokenizer_error) {
        (Some(t), _) => {
            let quoted = |names: &[String]| names.iter().map(|n| line(n)).collect::<Vec<_>>().join(" ");
            let bos = t.bos.as_ref().map_or(String::new(), |b| format!("; prompts begin with {}", line(b)));
            let pre = if t.pre.is_empty() { String::new() } else { format!(", split as {}", line(&t.pre)) };
            writeln!(
                out,
                "tokenizer     {}{pre}, {} tokens{bos}; texts end with {}",
                line(&t.model),
                t.tokens,
                quoted(&t.end_of_text)
            )?;
        }
        (None, error) => writeln!(out, "tokenizer     not usable: {}", error.as_deref().unwrap_or("none"))?,
    }
    writeln!(out, "chat template {}", if r.chat_template { "yes" } else { "no" })?;
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
