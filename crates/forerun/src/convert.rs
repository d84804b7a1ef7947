//! `forerun convert` and `forerun quantize`: a model of any kind of file as a GGUF file.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::Path;

use forerun_files::HubFolder;
use forerun_models::{HubModel, Source, open};
use forerun_weights::{ConvertOptions, Converted, FileType, Imatrix, Keep, WeightsError, convert as write};
use serde::Serialize;

use crate::convert_args::{ConvertArgs, EncodingArgs, QuantizeArgs};
use crate::error::{CliError, Result};
use crate::hub::locate;
use crate::progress::{LateBar, cancel_on_interrupt};

/// Tensors of one type.
#[derive(Serialize)]
struct TypeReport {
    #[serde(rename = "type")]
    ty: String,
    tensors: usize,
    bytes: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    /// Type of the file.
    file_type: String,
    tensors: usize,
    /// Tensors whose type changed.
    changed: usize,
    read_bytes: u64,
    written_bytes: u64,
    bits_per_weight: f64,
    types: Vec<TypeReport>,
    /// Quantised matrices for which the importance matrix has no entry.
    without_importance: &'a [String],
}

pub(crate) fn convert(args: &ConvertArgs) -> Result<()> {
    let ty = file_type("--type", &args.to)?;
    check_out("--out", &args.out)?;
    make(&*source(args)?, &args.out, ty, &args.encoding, "converting")
}

pub(crate) fn quantize(args: &QuantizeArgs) -> Result<()> {
    let ty = file_type("TYPE", &args.to)?;
    check_out("OUT", &args.out)?;
    make(&*open(&locate(&args.model)?)?, &args.out, ty, &args.encoding, "quantising")
}

fn file_type(option: &'static str, name: &str) -> Result<FileType> {
    FileType::from_name(name).ok_or_else(|| {
        let expected = FileType::names().join(", ");
        CliError::Option { option, found: name.to_owned(), expected }
    })
}

fn check_out(option: &'static str, out: &Path) -> Result<()> {
    if out.is_dir() {
        let (found, expected) = (format!("the folder {}", out.display()), "a file to write".into());
        return Err(CliError::Option { option, found, expected });
    }
    Ok(())
}

fn source(args: &ConvertArgs) -> Result<Box<dyn Source>> {
    let model = locate(&args.model)?;
    let Some(target) = &args.target else { return args.overlay.open(&model) };
    if !HubFolder::is_for(&model) {
        let (found, expected) =
            (target.display().to_string(), "the Hugging Face folder of a drafter to convert".into());
        return Err(CliError::Option { option: "--target", found, expected });
    }
    Ok(Box::new(HubModel::open_for(&model, Some(&locate(target)?))?))
}

/// Writes the file and says what it is.
fn make(
    source: &dyn Source,
    out: &Path,
    ty: FileType,
    args: &EncodingArgs,
    what: &'static str,
) -> Result<()> {
    let keep = args.keep.iter().map(|text| Keep::parse(text)).collect::<std::result::Result<Vec<_>, _>>()?;
    let imatrix = args.imatrix.as_deref().map(Imatrix::read).transpose()?;
    let options = ConvertOptions {
        ty,
        imatrix: imatrix.as_ref(),
        keep: &keep,
        allow_requantize: args.allow_requantize,
        threads: args.threads.and_then(|n| NonZeroUsize::new(n.into())),
    };
    let cancel = cancel_on_interrupt();
    let bar = LateBar::new(what, true);
    let converted = write(source, out, &options, &mut |p| {
        bar.set(p.done_bytes, p.total_bytes);
        !cancel.is_cancelled()
    });
    drop(bar);
    let converted = converted.map_err(|e| match e {
        WeightsError::Cancelled => CliError::Interrupted,
        e => e.into(),
    })?;
    warn(&converted.unweighed);
    report(out, ty, args.json, &converted)
}

/// Names some of the matrices that were quantised as if there were no importance matrix.
fn warn(unweighed: &[String]) {
    const NAMED: usize = 3;
    let names = unweighed.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match unweighed.len() {
        0 => {}
        n if n <= NAMED => say!("warning: the importance matrix has no entry for {names}"),
        n => say!("warning: the importance matrix has no entry for {n} matrices, as {names}"),
    }
}

fn report(file: &Path, ty: FileType, json: bool, c: &Converted) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        let types = c.types.iter().map(|(ty, share)| TypeReport {
            ty: ty.name().to_owned(),
            tensors: share.tensors,
            bytes: share.bytes,
        });
        let report = Report {
            file,
            file_type: ty.name(),
            tensors: c.tensors,
            changed: c.changed,
            read_bytes: c.read_bytes,
            written_bytes: c.written_bytes,
            bits_per_weight: c.bits_per_weight(),
            types: types.collect(),
            without_importance: &c.unweighed,
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        return Ok(writeln!(out)?);
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{}: {} tensors, {:.1} MiB, {:.2} bits a weight ({:.1} MiB read, {} tensors in another type)",
        file.display(),
        c.tensors,
        mib(c.written_bytes),
        c.bits_per_weight(),
        mib(c.read_bytes),
        c.changed
    )?;
    for (ty, share) in &c.types {
        writeln!(out, "  {:<8} {:>5} tensors {:>10.1} MiB", ty.name(), share.tensors, mib(share.bytes))?;
    }
    Ok(())
}
