//! The words of `forerun bench spec` and `forerun bench exact`.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, Subcommand, value_parser};
use forerun_engine::{Depth, TensorType};

use crate::args::{BackendArg, DeviceArgs, IsaArg, Kv, whole};
use crate::draft_args::{parse_depth, parse_type};
use crate::drafter_list::DrafterList;
use crate::overlay::OverlayArgs;

/// What `forerun bench` can measure besides speed.
#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// Measure what speculation gains: every setting beside plain decoding of the same requests
    Spec(SpecArgs),
    /// Check that speculation changes nothing: drafted requests against plain ones, token by token
    Exact(ExactArgs),
}

/// `forerun bench spec`.
#[derive(Args, Debug)]
pub(crate) struct SpecArgs {
    /// GGUF file, Hugging Face folder, or OWNER/NAME[:TYPE] on the Hugging Face hub [default: the demo model]
    #[arg(short, long, value_name = "FILE|REPO")]
    pub(super) model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) overlay: OverlayArgs,
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(super) kv: Kv,
    /// Prompts, one JSON object {"kind": ..., "prompt": ...} a line [default: 12 of code and 12 of chat]
    #[arg(long, value_name = "FILE")]
    pub(super) prompts: Option<PathBuf>,
    /// Only prompts of these kinds
    #[arg(long, value_name = "KIND,...", value_delimiter = ',')]
    pub(super) kind: Vec<String>,
    /// Who drafts, as in `forerun run` (may be repeated). prediction follows plain decoding's own text with a few edits
    #[arg(long, value_name = "NAMES|FILE", default_value = "mtp")]
    pub(super) drafter: Vec<DrafterList>,
    /// Quantise the matrices of the DFlash drafter to this type, as q8_0, q4_0 or q4_k [default: as they are]
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    pub(super) drafter_type: Option<TensorType>,
    /// Times that the DFlash drafter runs a block
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(super) drafter_passes: usize,
    /// Tokens to draft in a round: numbers up to 15, or auto
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "3", allow_negative_numbers = true, value_parser = parse_depth)]
    pub(super) depth: Vec<Depth>,
    /// Temperatures
    #[arg(
        long,
        visible_alias = "temp",
        value_name = "T,T,...",
        value_delimiter = ',',
        default_value = "0,0.8",
        allow_negative_numbers = true
    )]
    pub(super) temperature: Vec<f32>,
    /// Added to the seed of every prompt
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, value_parser = whole::<u64>)]
    pub(super) seed: u64,
    /// Tokens of a request; an end of text does not end it
    #[arg(short = 'n', long, value_name = "N", default_value_t = 200, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(super) max_tokens: usize,
    /// Runs of everything, interleaved; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(super) repeat: usize,
    /// Draft from the N most frequent tokens only [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(super) draft_vocab: Option<usize>,
    /// End a chain of drafts before a token that the drafter gives less than this probability
    #[arg(
        long,
        visible_alias = "confidence",
        value_name = "P",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub(super) draft_confidence: f32,
    /// Take the MTP block from this file instead of the model's own
    #[arg(long, value_name = "FILE")]
    pub(super) mtp: Option<PathBuf>,
    /// Also report what coupling the model's choices with the MTP block's could reach at best (fixed depths of mtp alone)
    #[arg(long)]
    pub(super) coupling: bool,
    /// Draw acceptance by position and by drafter into an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub(super) chart: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// `forerun bench exact`.
#[derive(Args, Debug)]
pub(crate) struct ExactArgs {
    /// GGUF file, Hugging Face folder, or OWNER/NAME[:TYPE] on the Hugging Face hub [default: the demo model]
    #[arg(short, long, value_name = "FILE|REPO")]
    pub(super) model: Option<PathBuf>,
    #[command(flatten)]
    pub(super) overlay: OverlayArgs,
    /// Every setting of every prompt, about an hour with the demo, instead of a sample of seconds
    #[arg(long)]
    pub(super) full: bool,
    /// A DFlash drafter to compare as well [default: the demo's with the demo model, else none]
    #[arg(long, value_name = "FILE")]
    pub(super) drafter: Option<PathBuf>,
    /// Numbers of threads to compare under
    #[arg(short, long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,2", allow_negative_numbers = true, value_parser = value_parser!(u16).range(1..=1024))]
    pub(super) threads: Vec<u16>,
    /// Instruction set to use [default: the best of this machine]
    #[arg(long, value_enum, value_name = "ISA")]
    pub(super) isa: Option<IsaArg>,
    /// What computes: the CPU backend, or plain float64 loops
    #[arg(long, value_enum, default_value_t = BackendArg::Cpu)]
    pub(super) backend: BackendArg,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(super) kv: Kv,
    /// Prompts, one JSON object {"kind": ..., "prompt": ...} a line [default: 40 that ship with Forerun]
    #[arg(long, value_name = "FILE")]
    pub(super) prompts: Option<PathBuf>,
    /// Tokens of a request; an end of text does not end it [default: 200 with --full, 48 without]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(super) max_tokens: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub(super) json: bool,
}

/// A depth as it is asked for.
pub(super) fn depth_name(depth: Depth) -> String {
    match depth {
        Depth::Auto => "auto".into(),
        Depth::Fixed(n) => n.to_string(),
    }
}
