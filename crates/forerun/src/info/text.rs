//! The report as text.

use std::io::Write;

use forerun_files::{TensorKind, printable as line};
use forerun_models::Source;

use super::{ModelReport, Report, TokenizerReport};

type Result = std::io::Result<()>;

/// The report in lines.
pub(super) fn print(out: &mut impl Write, r: &Report) -> Result {
    head(out, r)?;
    match &r.model {
        Some(model) => shape(out, model)?,
        None => stated(out, r)?,
    }
    writeln!(out, "tensors       {}", r.tensors)?;
    for (name, count) in &r.types {
        let size = size(count.bytes);
        writeln!(out, "  {name:<10} {:>5} tensors {size:>10}{}", count.tensors, type_note(name))?;
    }
    match (&r.tokenizer, &r.tokenizer_error) {
        (Some(t), _) => tokenizer(out, t)?,
        (None, error) => writeln!(out, "tokenizer     not usable: {}", error.as_deref().unwrap_or("none"))?,
    }
    writeln!(out, "chat template {}", if r.chat_template { "yes" } else { "no" })?;
    writeln!(out, "arithmetic    {} ({})", r.arithmetic_id, r.backend)
}

fn head(out: &mut impl Write, r: &Report) -> Result {
    writeln!(out, "{}", r.file)?;
    let name = r.name.as_ref().map_or(String::new(), |n| format!(" ({})", line(n)));
    writeln!(out, "architecture  {}{name}", line(&r.architecture))?;
    match &r.unsupported_reason {
        None => writeln!(out, "supported     yes")?,
        // The file stands in the first line.
        Some(reason) => {
            let reason =
                reason.strip_prefix(&r.file).map_or(&reason[..], |rest| rest.trim_start_matches(": "));
            writeln!(out, "supported     no: {reason}")?;
        }
    }
    let mtp = r.model.as_ref().and_then(|m| m.mtp_parameters);
    let mtp = mtp.map_or(String::new(), |n| format!(", {} of them in the MTP block, which drafts", count(n)));
    writeln!(out, "parameters    {}{mtp}", count(r.parameters))
}

/// What the metadata of a model that cannot be run says.
fn stated(out: &mut impl Write, r: &Report) -> Result {
    let stated =
        [("layers", r.stated.layers), ("hidden", r.stated.hidden), ("context", r.stated.context_length)];
    let stated: Vec<String> =
        stated.iter().filter_map(|(what, n)| n.map(|n| format!("{what} {n}"))).collect();
    if stated.is_empty() { Ok(()) } else { writeln!(out, "stated        {}", stated.join(", ")) }
}

fn shape(out: &mut impl Write, m: &ModelReport) -> Result {
    let experts = match m.experts_per_row {
        0 => String::new(),
        n => format!(", {n} experts a token"),
    };
    let sliding =
        m.window.map_or(String::new(), |w| format!(", {} over the last {w} tokens", m.sliding_layers));
    writeln!(
        out,
        "shape         {} layers ({} of full attention{sliding}), hidden {}, vocabulary {}{experts}",
        m.layers, m.attention_layers, m.hidden, m.vocabulary
    )?;
    writeln!(out, "trained for   {} tokens of context", m.context_length)?;
    let total = m.weights_bytes + m.kv_bytes + m.state_bytes + m.activation_bytes;
    writeln!(
        out,
        "memory        {} for a context of {}: weights {}, KV cache {}, states {}, activations {}",
        size(total),
        m.context,
        size(m.weights_bytes),
        size(m.kv_bytes),
        size(m.state_bytes),
        size(m.activation_bytes)
    )
}

fn tokenizer(out: &mut impl Write, t: &TokenizerReport) -> Result {
    let ends = t.end_of_text.iter().map(|n| line(n)).collect::<Vec<_>>().join(" ");
    let bos = t.bos.as_ref().map_or(String::new(), |b| format!("; prompts begin with {}", line(b)));
    let pre = if t.pre.is_empty() { String::new() } else { format!(", split as {}", line(&t.pre)) };
    let (model, tokens) = (line(&t.model), t.tokens);
    writeln!(out, "tokenizer     {model}{pre}, {tokens} tokens{bos}; texts end with {ends}")
}

/// What an overlay changed.
pub(super) fn overlay(out: &mut impl Write, file: &dyn Source) -> Result {
    file.overlay().map_or(Ok(()), |r| {
        writeln!(out, "overlay       {}: {}", line(&r.file.display().to_string()), crate::overlay::line(r))
    })
}

/// A line for every key; long values are cut.
pub(super) fn metadata(out: &mut impl Write, file: &dyn Source) -> Result {
    writeln!(out, "\nmetadata")?;
    file.metadata().iter().try_for_each(|(key, value)| writeln!(out, "  {}: {}", line(key), value.summary()))
}

/// A line for every tensor.
pub(super) fn tensors(out: &mut impl Write, file: &dyn Source) -> Result {
    writeln!(out, "\ntensors")?;
    file.tensors().iter().try_for_each(|t| {
        let dims = t.dims.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ");
        writeln!(out, "  {:<40} {:<8} {dims}", line(&t.name), t.kind.name())
    })
}

fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

/// A count of parameters as models are named: 27.3 G, 28.0 M.
pub(crate) fn count(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.1} G", n as f64 / 1e9),
        1_000_000.. => format!("{:.1} M", n as f64 / 1e6),
        _ => n.to_string(),
    }
}

/// What to say beside a tensor type.
fn type_note(name: &str) -> &'static str {
    match forerun_quant::TensorType::from_name(name).map(TensorKind::Known) {
        None => "  not supported",
        Some(TensorKind::Known(t)) if t.is_integer_dot() => "  fast kernels",
        Some(TensorKind::Known(t)) if !t.is_weight() => "  no weight type",
        Some(TensorKind::Known(t)) if t.block_elements() > 1 => "  runs by decoding, slower",
        Some(_) => "",
    }
}
