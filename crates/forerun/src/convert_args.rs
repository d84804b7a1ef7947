//! The words of `forerun convert` and `forerun quantize`.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::path::PathBuf;

use clap::{Args, value_parser};

use crate::overlay::OverlayArgs;

/// How weights change their types.
#[derive(Args, Debug)]
pub(crate) struct EncodingArgs {
    /// Importance matrix of the model (`forerun imatrix`): errors are kept where they hurt least
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,
    /// Give matrices whose names contain this regular expression a type of their own, or `same` (may be repeated; the first that fits counts)
    #[arg(long, visible_alias = "tensor-type", value_name = "PATTERN=TYPE")]
    pub(crate) keep: Vec<String>,
    /// Quantise what is quantised already, which adds the errors of both
    #[arg(long)]
    pub(crate) allow_requantize: bool,
    /// Threads that encode [default: one per core available]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `forerun convert`.
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// Hugging Face folder, GGUF file, or OWNER/NAME on the Hugging Face hub
    #[arg(value_name = "DIR|FILE|REPO")]
    pub(crate) model: PathBuf,
    #[command(flatten)]
    pub(crate) overlay: OverlayArgs,
    /// GGUF file to write; it gets its name when it is complete
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Type of the file: same (every weight as it is), f32, f16, bf16, or one of `forerun quantize`
    #[arg(long = "type", value_name = "TYPE", default_value = "same")]
    pub(crate) to: String,
    /// For a drafter: folder of the model that it is for, whose tokenizer it takes
    #[arg(long, value_name = "DIR", conflicts_with = "overlay")]
    pub(crate) target: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) encoding: EncodingArgs,
}

/// `forerun quantize`.
#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// GGUF file, Hugging Face folder, or OWNER/NAME on the Hugging Face hub
    #[arg(value_name = "FILE|DIR|REPO")]
    pub(crate) model: PathBuf,
    /// GGUF file to write; it gets its name when it is complete
    pub(crate) out: PathBuf,
    /// Type of the file: q8_0, q6_k, q5_k_m, q5_k_s, q4_k_m, q4_k_s, q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s, iq4_nl, iq4_xs, iq3_s, q5_1, q5_0, q4_1, q4_0, f16, bf16 or f32
    #[arg(value_name = "TYPE")]
    pub(crate) to: String,
    #[command(flatten)]
    pub(crate) encoding: EncodingArgs,
}
