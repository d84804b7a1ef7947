//! `forerun convert`: a model of any kind of file as a GGUF file.

use std::io::Write;
use std::path::Path;

use forerun_files::HubFolder;
use forerun_models::{HubModel, Source};
use forerun_weights::{Converted, FileType, WeightsError, convert as write};
use serde::Serialize;

use crate::args::ConvertArgs;
use crate::error::{CliError, Result};
use crate::hub::locate;
use crate::progress::{LateBar, cancel_on_interrupt};

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    tensors: usize,
    /// Tensors whose type changed.
    changed: usize,
    read_bytes: u64,
    written_bytes: u64,
}

pub(crate) fn convert(args: &ConvertArgs) -> Result<()> {
    let Some(ty) = FileType::from_name(&args.to) else {
        let expected = FileType::names().join(", ");
        return Err(CliError::Option { option: "--type", found: args.to.clone(), expected });
    };
    if args.out.is_dir() {
        let (found, expected) = (format!("the folder {}", args.out.display()), "a file to write".into());
        return Err(CliError::Option { option: "--out", found, expected });
    }
    let source = source(args)?;
    let cancel = cancel_on_interrupt();
    let bar = LateBar::new("converting", true);
    let converted = write(&*source, &args.out, ty, &mut |p| {
        bar.set(p.done_bytes, p.total_bytes);
        !cancel.is_cancelled()
    });
    drop(bar);
    let converted = converted.map_err(|e| match e {
        WeightsError::Cancelled => CliError::Interrupted,
        e => e.into(),
    })?;
    report(args, &converted)
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

fn report(args: &ConvertArgs, c: &Converted) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        let report = Report {
            file: &args.out,
            tensors: c.tensors,
            changed: c.changed,
            read_bytes: c.read_bytes,
            written_bytes: c.written_bytes,
        };
        serde_json::to_writer_pretty(&mut out, &report)?;
        return Ok(writeln!(out)?);
    }
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    writeln!(
        out,
        "{}: {} tensors, {:.1} MiB ({:.1} MiB read, {} tensors in another type)",
        args.out.display(),
        c.tensors,
        mib(c.written_bytes),
        mib(c.read_bytes),
        c.changed
    )?;
    Ok(())
}
