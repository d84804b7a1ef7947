//! The command line's words.

// These docs are the texts of --help, where brackets are no links.
#![allow(rustdoc::broken_intra_doc_links)]

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};
use clap_complete::Shell;
use forerun_engine::{
    BackendChoice, CpuConfig, DraftOptions, Isa, KvType, LoadOptions, MtpChoice, SamplingParams,
};

use crate::bench::BenchCommand;
use crate::calibrate_args::{CompareArgs, ImatrixArgs};
use crate::convert_args::{ConvertArgs, QuantizeArgs};
use crate::draft_args::DraftArgs;
use crate::overlay::OverlayArgs;

/// Runs quantised Qwen3.5-family models (GGUF) on the CPU.
///
/// The tokens of a request are a function of the model file, the prompt, the sampling parameters and the seed, and of
/// nothing else: not of the number of threads, the processor's instruction set or what else is running. Every result
/// carries a fingerprint by which two runs can be compared.
///
/// Without -m, the small demo model that ships with Forerun is used: it writes Python.
#[derive(Parser, Debug)]
#[command(version, propagate_version = true, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Go on from a prompt and print the text
    Run(RunArgs),
    /// Talk with a model in the terminal
    Chat(ChatArgs),
    /// Say what a model file is and what it needs
    Info(InfoArgs),
    /// Measure speed, and how close it comes to what the memory allows; what speculation gains; whether it is exact
    Bench(BenchArgs),
    /// Score a text: how well the model predicts it
    Perplexity(PerplexityArgs),
    /// Write a model or a drafter, of a Hugging Face folder or a GGUF file, as GGUF
    Convert(ConvertArgs),
    /// Make a smaller file of a model: fewer bits for every weight, more for those that matter most
    Quantize(QuantizeArgs),
    /// Make an importance matrix: which columns of each weight matter, as a text shows it
    Imatrix(ImatrixArgs),
    /// Say how far the predictions of two models of one vocabulary lie apart
    Compare(CompareArgs),
    /// Download a model from the Hugging Face hub and print its path
    Pull(PullArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Which model, and how to run it.
#[derive(Args, Debug, Clone)]
pub(crate) struct ModelArgs {
    /// GGUF file (any part of a split file), Hugging Face folder, or OWNER/NAME[:TYPE] on the Hugging Face hub, downloaded where the cache does not
    /// hold it [default: the demo model]
    #[arg(short, long, value_name = "FILE|REPO")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overlay: OverlayArgs,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Positions the context can hold [default: the model's own, at most 8192]
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) context: Option<usize>,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
}

/// How to compute. None of it changes the text.
#[derive(Args, Debug, Clone)]
pub(crate) struct DeviceArgs {
    /// Threads [default: one per core available]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) threads: Option<u16>,
    /// Instruction set to use [default: the best of this machine]
    #[arg(long, value_enum, value_name = "ISA")]
    pub(crate) isa: Option<IsaArg>,
    /// What computes: the CPU backend, or plain float64 loops for comparison
    #[arg(long, value_enum, default_value_t = BackendArg::Cpu)]
    pub(crate) backend: BackendArg,
}

/// Instruction sets.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsaArg {
    Scalar,
    Avx2,
    Avx512,
    Amx,
}

/// Backends.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackendArg {
    Cpu,
    Reference,
}

/// KV cache types.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub(crate) enum Kv {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
}

impl From<Kv> for KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => KvType::F16,
            Kv::F32 => KvType::F32,
            Kv::Q8_0 => KvType::Q8_0,
        }
    }
}

impl DeviceArgs {
    pub(crate) fn threads(&self) -> Option<NonZeroUsize> {
        self.threads.and_then(|n| NonZeroUsize::new(n.into()))
    }

    pub(crate) fn choice(&self) -> BackendChoice {
        self.choice_with(false)
    }

    /// The same, taking the time of every operator.
    pub(crate) fn choice_with(&self, profile: bool) -> BackendChoice {
        match self.backend {
            BackendArg::Reference => BackendChoice::Reference,
            BackendArg::Cpu => BackendChoice::Cpu(CpuConfig {
                threads: self.threads(),
                isa: self.isa.map(|isa| match isa {
                    IsaArg::Scalar => Isa::Scalar,
                    IsaArg::Avx2 => Isa::Avx2,
                    IsaArg::Avx512 => Isa::Avx512,
                    IsaArg::Amx => Isa::Amx,
                }),
                profile,
            }),
        }
    }
}

impl ModelArgs {
    /// Options to load the model without drafters.
    pub(crate) fn options(&self) -> LoadOptions {
        LoadOptions {
            backend: self.device.choice(),
            context: self.context,
            overlay: self.overlay.overlay.clone(),
            kv: self.kv.into(),
            draft: DraftOptions { mtp: MtpChoice::Off, ..DraftOptions::default() },
            ..LoadOptions::default()
        }
    }

    /// Options to load the model and what drafts for it.
    ///
    /// # Errors
    /// When what is asked for cannot be.
    pub(crate) fn options_with(&self, draft: &DraftArgs) -> crate::error::Result<LoadOptions> {
        Ok(LoadOptions { draft: draft.options()?, ..self.options() })
    }
}

/// How to choose tokens. What is not given comes from the file, else from the defaults named here.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// 0 takes the most likely token each time [default: 0.8]
    #[arg(long, visible_alias = "temp", value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = whole::<u32>)]
    pub(crate) top_k: Option<u32>,
    /// Keep the most likely tokens up to this mass [default: 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens below this share of the most likely one [default: 0.05]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Locally typical sampling; 1 is off [default: 1]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) typical_p: Option<f32>,
    /// Divide the logits of recent tokens; 1 is off [default: 1]
    #[arg(long, visible_alias = "repeat-penalty", value_name = "X", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Subtract per occurrence of a recent token [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Subtract once for a recent token [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// How many of the newest tokens the penalties look at [default: 64]
    #[arg(long, visible_alias = "repeat-last-n", value_name = "N", allow_negative_numbers = true, value_parser = whole::<u32>)]
    pub(crate) penalty_window: Option<u32>,
    /// Add X to a token's logit; -inf bans it (may be repeated)
    #[arg(long, value_name = "ID=X", value_parser = parse_bias, allow_hyphen_values = true)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Seed of the sampling noise [default: random, and printed]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<u64>)]
    pub(crate) seed: Option<u64>,
}

pub(crate) fn whole<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    let text = text.trim();
    text.parse().map_err(|_| match text.parse::<u128>() {
        Ok(_) => "too large",
        Err(_) => "expected a whole number of at least 0",
    })
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let parse = |(id, bias): (&str, &str)| Some((id.trim().parse().ok()?, bias.trim().parse().ok()?));
    text.split_once('=')
        .and_then(parse)
        .ok_or_else(|| format!("found {text:?}, expected ID=NUMBER, as in 42=-1.5"))
}

impl SamplingArgs {
    /// The parameters, starting from a file's defaults. A seed is drawn when none was given.
    pub(crate) fn params(&self, defaults: &SamplingParams) -> SamplingParams {
        let d = defaults;
        SamplingParams {
            temperature: self.temperature.unwrap_or(d.temperature),
            top_k: self.top_k.unwrap_or(d.top_k),
            top_p: self.top_p.unwrap_or(d.top_p),
            min_p: self.min_p.unwrap_or(d.min_p),
            typical_p: self.typical_p.unwrap_or(d.typical_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(d.repetition_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(d.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(d.presence_penalty),
            penalty_window: self.penalty_window.unwrap_or(d.penalty_window),
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

/// A seed from the operating system's randomness, short enough to type.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    u64::from(RandomState::new().hash_one(std::process::id()) as u32)
}

/// Whether a thinking model should think.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Think {
    /// As the chat template does by default
    Auto,
    On,
    Off,
}

impl Think {
    pub(crate) fn flag(self) -> Option<bool> {
        match self {
            Think::Auto => None,
            Think::On => Some(true),
            Think::Off => Some(false),
        }
    }
}

/// `forerun run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The prompt; `-` reads it from standard input
    pub(crate) prompt: Option<String>,
    /// The prompt again, under the name that other programs give it.
    #[arg(short = 'p', long = "prompt", hide = true, value_name = "TEXT", conflicts_with_all = ["prompt", "file"])]
    pub(crate) prompt_option: Option<String>,
    /// Read the prompt from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message; the prompt is then a chat message
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Treat the prompt as a chat message [default for models other than the demo that have a chat template]
    #[arg(long, conflicts_with = "raw")]
    pub(crate) chat: bool,
    /// Go on from the prompt as it is, without a chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Whether a thinking model should think
    #[arg(long, value_enum, default_value_t = Think::Auto, conflicts_with = "raw")]
    pub(crate) think: Think,
    /// Do not print what the model thinks
    #[arg(long, conflicts_with = "raw")]
    pub(crate) hide_thinking: bool,
    /// Print the prompt before the text
    #[arg(long, conflicts_with = "json")]
    pub(crate) echo: bool,
    /// Colour tokens by who wrote them: the model or a drafter
    #[arg(long, visible_alias = "color", conflicts_with = "json")]
    pub(crate) colour: bool,
    /// Stop after so many tokens [default: until the text or the context ends]
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: Option<usize>,
    /// Stop before this text (may be repeated)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after an end-of-text token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json, also report the N most likely tokens of each position
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true, requires = "json", value_parser = whole::<usize>)]
    pub(crate) top_logprobs: usize,
    /// Print speed and fingerprint to standard error at the end
    #[arg(long)]
    pub(crate) stats: bool,
    /// With --stats or --json, also report where the time went
    #[arg(long)]
    pub(crate) profile: bool,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
}

/// `forerun chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Whether a thinking model should think
    #[arg(long, value_enum, default_value_t = Think::Auto)]
    pub(crate) think: Think,
    /// Do not print what the model thinks
    #[arg(long)]
    pub(crate) hide_thinking: bool,
    /// Colour tokens by who wrote them: the model or a drafter
    #[arg(long, visible_alias = "color")]
    pub(crate) colour: bool,
    /// Stop each answer after so many tokens
    #[arg(short = 'n', long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) max_tokens: Option<usize>,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
}

/// `forerun info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// GGUF file, Hugging Face folder, or OWNER/NAME[:TYPE] on the Hugging Face hub [default: the demo model]
    pub(crate) file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overlay: OverlayArgs,
    /// Context length to give the memory for [default: the model's own, at most 8192]
    #[arg(short, long, value_name = "TOKENS", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) context: Option<usize>,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,
    /// List the metadata; text cuts long values, --json does not
    #[arg(long)]
    pub(crate) metadata: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `forerun bench`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    /// What to measure instead of speed.
    #[command(subcommand)]
    pub(crate) what: Option<BenchCommand>,
    /// GGUF file, Hugging Face folder, or OWNER/NAME[:TYPE] on the Hugging Face hub [default: the demo model]
    #[arg(short, long, value_name = "FILE|REPO", conflicts_with = "shape")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) overlay: OverlayArgs,
    /// Random weights of a real model's shapes instead of a file: qwen35-2b, qwen35-4b, qwen35-9b, qwen35-27b,
    /// qwen35-35b-a3b, gemma4-26b-a4b, gemma4-31b
    #[arg(long, value_name = "NAME", conflicts_with = "overlay")]
    pub(crate) shape: Option<String>,
    /// Weight type of --shape: q4_k_m (the usual mix), or one type for every matrix (q8_0, q6_k, bf16,
    /// affine4g64, affine4g32/f16, ...)
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m")]
    pub(crate) weight_type: String,
    #[command(flatten)]
    pub(crate) device: DeviceArgs,
    /// Element type of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub(crate) kv: Kv,
    /// Length of the prompt to time; 0 leaves it out
    #[arg(long, value_name = "TOKENS", default_value_t = 512, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) prompt: usize,
    /// Rows of the steps to time
    #[arg(long, value_name = "N,N,...", value_delimiter = ',', default_value = "1,2,4,8,16")]
    pub(crate) rows: Vec<usize>,
    /// Also time a round of so many MTP drafts and the step that verifies them all; 0 leaves it out [default: 3 where the
    /// model has an MTP block]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) draft: Option<usize>,
    /// Draft from a head of N rows [default: all]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) draft_vocab: Option<usize>,
    /// Also time a block of 15 drafts of a DFlash drafter: a file or folder, OWNER/NAME, demo, or random for random weights (5 layers, 32
    /// heads of 128, FFN 6144)
    #[arg(long, value_name = "FILE|random")]
    pub(crate) drafter: Option<PathBuf>,
    /// Type of the random drafter's matrices [default: q8_0]
    #[arg(long, value_name = "TYPE", value_parser = crate::draft_args::parse_type)]
    pub(crate) drafter_type: Option<forerun_engine::TensorType>,
    /// Tokens already in the context when steps are timed
    #[arg(long, value_name = "TOKENS", default_value_t = 32, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) depth: usize,
    /// Runs of everything, interleaved; medians are reported
    #[arg(long, value_name = "N", default_value_t = 7, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) repeat: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `forerun perplexity`.
#[derive(Args, Debug)]
pub(crate) struct PerplexityArgs {
    /// Text file to score
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Tokens of a window; the second half of each is scored
    #[arg(long, value_name = "TOKENS", default_value_t = 512, allow_negative_numbers = true, value_parser = whole::<usize>)]
    pub(crate) window: usize,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `forerun pull`.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// OWNER/NAME[@REVISION], and after a colon a weight type (q4_k_m), a file, or safetensors for the folder of a repository
    /// that has GGUF files too [default: Q4_K_M, else Q4_K_S, else Q8_0, else the only model there is]
    #[arg(value_name = "REPO[:TYPE|:FILE]")]
    pub(crate) name: String,
    /// Say what the repository has; download nothing
    #[arg(long, conflicts_with = "check")]
    pub(crate) list: bool,
    /// Also compare files that were in the cache already with their checksums
    #[arg(long)]
    pub(crate) check: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
