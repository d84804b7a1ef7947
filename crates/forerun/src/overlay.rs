//! `--overlay`: another file's weights over a model's own.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::{Path, PathBuf};

use clap::Args;
use forerun_engine::OverlayReport;
use forerun_models::{Source, open_with};
use serde::Serialize;

use crate::error::Result;

/// What to lay over a model.
#[derive(Args, Debug, Clone)]
pub(crate) struct OverlayArgs {
    /// Safetensors file of affine weights (mlx-affine-dwq-v1) that take the place of the model's
    #[arg(long, value_name = "FILE")]
    pub(crate) overlay: Option<PathBuf>,
}

impl OverlayArgs {
    /// Opens a model with the overlay over it, and says what that changed.
    pub(crate) fn open(&self, model: &Path) -> Result<Box<dyn Source>> {
        let source = open_with(model, self.overlay.as_deref())?;
        announce(source.overlay());
        Ok(source)
    }
}

/// What an overlay changed, for JSON.
#[derive(Serialize)]
pub(crate) struct OverlayJson {
    file: PathBuf,
    /// Weights that are affine rows of the file.
    replaced: usize,
    /// Weights that were decoded to F32.
    decoded: usize,
    types: Vec<&'static str>,
    bytes: u64,
    /// Of the model's own weights in their place.
    replaced_bytes: u64,
}

impl From<&OverlayReport> for OverlayJson {
    fn from(r: &OverlayReport) -> Self {
        Self {
            file: r.file.clone(),
            replaced: r.replaced,
            decoded: r.decoded,
            types: r.types.iter().map(|t| t.name()).collect(),
            bytes: r.bytes,
            replaced_bytes: r.replaced_bytes,
        }
    }
}

/// What an overlay changed, in one line.
pub(crate) fn line(r: &OverlayReport) -> String {
    let types = r.types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ");
    let types = if types.is_empty() { types } else { format!(" ({types})") };
    let decoded = if r.decoded > 0 { format!(", {} decoded to F32", r.decoded) } else { String::new() };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (now, before) = (mib(r.bytes), mib(r.replaced_bytes));
    let weights = if r.replaced == 1 { "weight" } else { "weights" };
    format!("{} {weights} replaced{types}{decoded}; {now:.1} MiB in place of {before:.1}", r.replaced)
}

/// Says on standard error what an overlay changed.
pub(crate) fn announce(report: Option<&OverlayReport>) {
    if let Some(report) = report {
        say!("overlay: {}", line(report));
    }
}
