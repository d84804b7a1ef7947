//! Engines of any model, and what requests give, to the bit.

use std::path::Path;

use forerun_engine::{
    Completion, DraftOptions, DrafterKind, Engine, FinishReason, LoadOptions, MtpChoice, Prompt, Request,
    SamplingParams, Scripted, Session, SpecStats, Speculation,
};
use forerun_files::{Array, Metadata, Value};
use forerun_models::{ModelSpec, Source, SourceTensor, TensorHeader};

/// A model with other metadata and weights.
struct Changed {
    source: Box<dyn Source>,
    metadata: Metadata,
    spoil: Spoil,
}

/// Changes the bytes of the tensor of a name.
pub(crate) type Spoil = Box<dyn Fn(&str, &mut [u8]) + Send + Sync>;

impl Source for Changed {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }
    fn tensors(&self) -> &[TensorHeader] {
        self.source.tensors()
    }
    fn tensor(&self, name: &str) -> Option<SourceTensor> {
        let tensor = self.source.tensor(name)?;
        let mut bytes = tensor.bytes.to_vec();
        (self.spoil)(name, &mut bytes);
        Some(if bytes == *tensor.bytes { tensor } else { SourceTensor { bytes: bytes.into(), ..tensor } })
    }
    fn release(&self, name: &str) {
        self.source.release(name);
    }
}

/// GPT-2's alphabet: a printable character for every byte.
fn alphabet() -> impl Iterator<Item = char> {
    let mut next = 0x100_u32;
    (0..=255_u8).map(move |byte| match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).expect("a character")
        }
    })
}

/// The fixtures have no tokenizer: theirs are two that end a text, the bytes, and pairs of bytes.
fn add_tokenizer(metadata: &mut Metadata, vocabulary: usize) {
    let mut tokens: Vec<String> = ["<|endoftext|>", "<|im_end|>"].map(String::from).into();
    tokens.extend(alphabet().map(String::from));
    tokens.extend(alphabet().flat_map(|a| alphabet().map(move |b| format!("{a}{b}"))));
    tokens.truncate(vocabulary);
    // None of them steers, so that a prompt has no place that its snapshot prefers.
    let kinds = vec![1; tokens.len()];
    let merges = vec![format!("{0} {0}", alphabet().next().expect("a character"))];
    metadata.set("tokenizer.ggml.model", Value::String("gpt2".into()));
    metadata.set("tokenizer.ggml.pre", Value::String("qwen35".into()));
    metadata.set("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.set("tokenizer.ggml.token_type", Value::Array(Array::I32(kinds)));
    metadata.set("tokenizer.ggml.merges", Value::Array(Array::String(merges)));
    metadata.set("tokenizer.ggml.eos_token_id", Value::U32(1));
    metadata.set("tokenizer.ggml.bos_token_id", Value::U32(0));
    metadata.set("tokenizer.ggml.padding_token_id", Value::U32(0));
}

/// Loads a model; `end` is made the token that ends a text.
pub(crate) fn engine_that_ends(path: &Path, options: &LoadOptions, end: Option<u32>) -> Engine {
    changed_engine(path, options, end, Box::new(|_, _| {}))
}

/// Loads a model with weights that are spoilt.
pub(crate) fn spoilt_engine(
    path: &Path,
    options: &LoadOptions,
    spoil: impl Fn(&str, &mut [u8]) + Send + Sync + 'static,
) -> Engine {
    changed_engine(path, options, None, Box::new(spoil))
}

fn changed_engine(path: &Path, options: &LoadOptions, end: Option<u32>, spoil: Spoil) -> Engine {
    let source = forerun_models::open(path).unwrap_or_else(|e| panic!("{e}"));
    let mut metadata = source.metadata().clone();
    if metadata.get("tokenizer.ggml.tokens").is_none() {
        let spec = ModelSpec::read(&*source).unwrap_or_else(|e| panic!("{e}"));
        add_tokenizer(&mut metadata, spec.vocabulary());
    }
    if let Some(end) = end {
        metadata.set("tokenizer.ggml.eos_token_id", Value::U32(end));
    }
    Engine::from_source(&Changed { source, metadata, spoil }, path, options, &mut |_| true)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Loads a model.
pub(crate) fn engine(path: &Path, options: &LoadOptions) -> Engine {
    engine_that_ends(path, options, None)
}

/// The options without an MTP block.
pub(crate) fn without_mtp(options: &LoadOptions) -> LoadOptions {
    LoadOptions { draft: DraftOptions { mtp: MtpChoice::Off, ..DraftOptions::default() }, ..options.clone() }
}

/// A token as given out: its id, bits of its logprob, of the likeliest tokens' logprobs, and its text.
pub(crate) type GivenToken = (u32, u32, Vec<(u32, u32)>, String);

/// What a request gives. Nothing of it may depend on speculation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) tokens: Vec<GivenToken>,
    pub(crate) text: String,
    pub(crate) reason: FinishReason,
    pub(crate) fingerprint: String,
}

impl Given {
    pub(crate) fn new(c: &Completion) -> Self {
        Self {
            tokens: c.tokens.iter().map(token).collect(),
            text: c.text.clone(),
            reason: c.summary.reason.clone(),
            fingerprint: c.summary.fingerprint.clone(),
        }
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.0).collect()
    }
}

/// A token to the bit.
pub(crate) fn token(t: &forerun_engine::Token) -> GivenToken {
    let top = t.top.iter().map(|(id, logprob)| (*id, logprob.to_bits())).collect();
    (t.id, t.logprob.to_bits(), top, t.text.clone())
}

/// Runs a request to its end.
pub(crate) fn complete(session: &mut Session, request: &Request) -> Completion {
    session.complete(request).unwrap_or_else(|e| panic!("{e}"))
}

/// Plain decoding in a session without a history.
pub(crate) fn plain(session: &mut Session, request: &Request) -> Given {
    session.clear();
    Given::new(&complete(session, &request.clone().speculation(Speculation::off())))
}

/// What drafting did, without its times.
pub(crate) fn counts(stats: &SpecStats) -> (u64, u64, u64, Vec<(u64, u64)>) {
    let positions = stats.used_positions().iter().map(|p| (p.drafted, p.accepted)).collect();
    (stats.rounds, stats.drafted, stats.accepted, positions)
}

/// A request with noise alone, of tokens that look random, that does not end by itself.
pub(crate) fn noisy(prompt: Vec<u32>, max_tokens: usize) -> Request {
    let mut request =
        Request::new(Prompt::Tokens(prompt), SamplingParams::plain(0.8, 11)).max_tokens(max_tokens);
    request.ignore_eos = true;
    request
}

/// Speculation with the scripted drafter at any depth.
pub(crate) fn scripted() -> Speculation {
    Speculation::fixed(forerun_engine::MAX_DRAFT).with(&[DrafterKind::Scripted])
}

/// Scripts the first slot of an engine.
pub(crate) fn script(engine: &Engine, text: &[u32], rounds: &[(usize, usize)]) {
    let mut drafter = Scripted::default();
    drafter.script(0, text.to_vec(), rounds.to_vec(), engine.spec().vocabulary() as u32);
    engine.set_drafter(Box::new(drafter)).unwrap_or_else(|e| panic!("{e}"));
}
