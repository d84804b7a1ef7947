//! The words of `forerun imatrix` and `forerun compare`.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::Args;

use crate::args::{DeviceArgs, Kv, whole};
use crate::overlay::OverlayArgs;

/// `forerun imatrix`.
#[derive(Args, Debug)]
pub(crate) struct ImatrixArgs {
    /// GGUF file [default: the demo model]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overlay: OverlayArgs,
    /// Text to read
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// File to write
    #[arg(short, long, visible_alias = "output-file", value_name = "FILE", default_value = "imatrix.gguf")]
    pub(crate) output: PathBuf,
    /// Add to what this earlier importance matrix knows
    #[arg(long, visible_alias = "in-file", value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// Tokens of a chunk; each is read by itself
    #[arg(short, long, visible_alias = "ctx-size", value_name = "TOKENS", default_value_t = 512, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) context: usize,
    /// Read at most so many chunks [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) chunks: Option<usize>,
    /// Begin with this chunk of the text, counted from 0
    #[arg(long, visible_alias = "from-chunk", value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) chunk: usize,
    /// Write the file after every N chunks too, so that little is lost; 0 writes it at the end only
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) output_frequency: usize,
    /// Collect for the output head too
    #[arg(long)]
    pub(crate) process_output: bool,
    /// Take names of control tokens in the text for control tokens
    #[arg(long)]
    pub(crate) parse_special: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `forerun compare`.
#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// GGUF file whose predictions are the measure
    pub(crate) first: PathBuf,
    /// GGUF file to compare with it
    pub(crate) second: PathBuf,
    /// Safetensors file of affine weights (mlx-affine-dwq-v1) that take the place of the second model's
    #[arg(long, value_name = "FILE")]
    pub(crate) overlay: Option<PathBuf>,
    /// Text to predict
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Tokens of a window; the second half of each is compared
    #[arg(long, value_name = "TOKENS", default_value_t = 512, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) window: usize,
    /// Compare at most so many windows [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) windows: Option<usize>,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Element type of the KV caches
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
    /// Draw the divergence by position to an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
