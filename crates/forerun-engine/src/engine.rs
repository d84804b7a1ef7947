//! Loading a model, and the sessions that run on it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use forerun_cpu::{CpuBackend, CpuConfig};
use forerun_files::Metadata;
use forerun_models::{
    CacheConfig, CheckpointSource, LoadProgress, Model, ModelError, ModelSpec, MtpSource, OverlayReport,
    QuantisedSource, Source,
};
use forerun_tensor::{Backend, BackendInfo, KvType};
use forerun_text::{ChatOptions, ChatTemplate, Decoded, ThinkSplitter, TokenKind, Tokenizer, TokenizerSpec};

use crate::active::Limits;
use crate::core::Core;
use crate::error::{EngineError, Result};
use crate::request::{Prompt, Request};
use crate::runner::{Profile, Runner};
use crate::sampling::SamplingParams;
use crate::session::Session;
use crate::speculation::{
    DFlashFile, DFlashSettings, Depth, DraftOptions, Drafter, DrafterKind, MAX_DRAFT, MtpChoice, SpecStats,
    frequent_ids,
};

/// Which backend runs the model.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum BackendChoice {
    /// The CPU backend.
    Cpu(CpuConfig),
    /// The reference backend: plain loops in float64, slow, for comparison.
    Reference,
}

impl Default for BackendChoice {
    fn default() -> Self {
        BackendChoice::Cpu(CpuConfig::default())
    }
}

/// How to load a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// The device.
    pub backend: BackendChoice,
    /// Positions per session; `None` for the model's own context length, at most 8,192.
    pub context: Option<usize>,
    /// Sessions that may exist at once.
    pub sessions: usize,
    /// Element type of the KV cache.
    pub kv: KvType,
    /// Positions per key block of the attention: part of the arithmetic.
    pub kv_block: usize,
    /// The most rows of a step.
    pub chunk: usize,
    /// What is loaded for drafting.
    pub draft: DraftOptions,
    /// A file of affine weights to lay over the model's ([`forerun_models::OverlaySource`]), where the model is a file too.
    pub overlay: Option<PathBuf>,
}

/// Default length of a context when the model allows more.
pub const DEFAULT_CONTEXT: usize = 8192;

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            backend: BackendChoice::default(),
            context: None,
            sessions: 1,
            kv: KvType::default(),
            kv_block: 64,
            chunk: 512,
            draft: DraftOptions::default(),
            overlay: None,
        }
    }
}

impl LoadOptions {
    fn validate(&self) -> Result<()> {
        let bad = |option, found: String, expected| Err(EngineError::Option { option, found, expected });
        if self.sessions == 0 || self.sessions > 1024 {
            return bad("sessions", self.sessions.to_string(), "1 to 1024");
        }
        if self.context == Some(0) {
            return bad("context", "0".into(), "at least 1");
        }
        if !(1..=4096).contains(&self.chunk) {
            return bad("chunk", self.chunk.to_string(), "1 to 4096");
        }
        if self.draft.vocabulary == Some(0) {
            return bad("draft head", "0 tokens".into(), "at least 1");
        }
        if self.kv_block == 0 || !self.kv_block.is_multiple_of(8) || self.kv_block > 4096 {
            return bad("kv_block", self.kv_block.to_string(), "a multiple of 8, at most 4096");
        }
        Ok(())
    }

    /// Makes the backend.
    ///
    /// # Errors
    /// When the machine lacks what was asked for.
    pub fn make_backend(&self) -> Result<Box<dyn Backend>> {
        Ok(match &self.backend {
            BackendChoice::Cpu(config) => Box::new(CpuBackend::new(config)?),
            BackendChoice::Reference => Box::new(forerun_tensor::reference::ReferenceBackend::new()),
        })
    }

    /// The caches for a model under these options.
    #[must_use]
    pub fn caches(&self, spec: &ModelSpec) -> CacheConfig {
        let own = spec.context_length();
        CacheConfig {
            slots: self.sessions,
            snapshots: self.sessions,
            context: self.context.unwrap_or(own.min(DEFAULT_CONTEXT)),
            kv: self.kv,
            kv_block: self.kv_block,
            chunk: self.chunk,
            ..CacheConfig::default()
        }
    }
}

pub(crate) struct Shared {
    core: Mutex<Core>,
    /// Per slot: a session holds it.
    taken: Vec<AtomicBool>,
    /// Per slot: its thread waits for an event.
    pub(crate) waiting: Vec<AtomicBool>,
    pub(crate) tokenizer: Tokenizer,
    /// `None` when the file's template cannot be used: only chats need it, and they get the reason.
    template: Option<ChatTemplate>,
    metadata: Metadata,
    spec: ModelSpec,
    backend: BackendInfo,
    defaults: SamplingParams,
    context: usize,
    most_drafts: usize,
    path: PathBuf,
    overlay: Option<OverlayReport>,
}

impl Shared {
    pub(crate) fn core(&self) -> Result<MutexGuard<'_, Core>> {
        self.core.lock().map_err(|_| EngineError::Poisoned)
    }

    pub(crate) fn release(&self, slot: u32) {
        self.waiting[slot as usize].store(false, Ordering::Release);
        self.taken[slot as usize].store(false, Ordering::Release);
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            context: self.context,
            vocabulary: self.spec.vocabulary(),
            most_drafts: self.most_drafts,
            tokenizer: self.tokenizer.clone(),
            path: self.path.clone(),
        }
    }

    /// Whether a token steers the model rather than being text.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.tokenizer.kind(id) == Some(TokenKind::Control)
    }
}

/// A loaded model. Cheap to clone; clones share the model, its device and its steps.
///
/// ```no_run
/// use forerun_engine::{Engine, LoadOptions, Request, SamplingParams};
///
/// let engine = Engine::load("model.gguf", &LoadOptions::default())?;
/// let mut session = engine.session()?;
/// let request = Request::new("def fib(n):", SamplingParams::greedy()).max_tokens(64);
/// let completion = session.complete(&request)?;
/// println!("{} [{}]", completion.text, completion.summary.fingerprint);
/// # Ok::<(), forerun_engine::EngineError>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Loads a GGUF file (for split files: any part).
    ///
    /// # Errors
    /// When the file is broken or not supported, or the device or memory does not suffice.
    pub fn load(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        Self::load_with(path, options, &mut |_| true)
    }

    /// Like [`Engine::load`], reporting progress; loading stops when `progress` returns false.
    ///
    /// # Errors
    /// As [`Engine::load`], and [`EngineError::Cancelled`].
    pub fn load_with(
        path: impl AsRef<Path>,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<Self> {
        let path = path.as_ref();
        let source = forerun_models::open_with(path, options.overlay.as_deref())?;
        Self::from_source(&*source, path, options, progress)
    }

    /// Loads from any source of tensors and metadata, which brings its overlay with it.
    ///
    /// # Errors
    /// As [`Engine::load_with`].
    pub fn from_source(
        source: &dyn Source,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress) -> bool,
    ) -> Result<Self> {
        options.validate()?;
        let spec = ModelSpec::read(source)?;
        let metadata = source.metadata().clone();
        let tokenizer = Tokenizer::new(TokenizerSpec::from_metadata(&metadata)?)?;
        let template = ChatTemplate::for_tokenizer(&tokenizer).ok();
        let defaults = SamplingParams::from_metadata(&metadata)?;
        let caches = options.caches(&spec);
        let context = caches.context;
        let most_drafts = MAX_DRAFT.min(caches.tape - 1).min(options.chunk - 1);
        let mut backend = options.make_backend()?;
        let mut model = Model::load(source, spec.clone(), &mut *backend, &caches, progress)?;
        load_mtp(source, &mut model, &mut *backend, &options.draft, &tokenizer, progress)?;
        let dflash = load_dflash(&metadata, &mut model, &mut *backend, &options.draft, progress)?;
        let info = backend.info().clone();
        let mut runner = Runner::new(backend, model, options.chunk);
        runner.prepare_drafts()?;
        let mut core = Core::new(runner, options.sessions, dflash);
        crate::speculation::measure(&mut core.runner, &mut core.speculator.costs)?;
        let slots = options.sessions;
        let flags = || (0..slots).map(|_| AtomicBool::new(false)).collect::<Vec<_>>();
        Ok(Self {
            shared: Arc::new(Shared {
                core: Mutex::new(core),
                taken: flags(),
                waiting: flags(),
                tokenizer,
                template,
                metadata,
                spec,
                backend: info,
                defaults,
                context,
                most_drafts,
                path: path.to_path_buf(),
                overlay: source.overlay().cloned(),
            }),
        })
    }

    /// Adds a drafter of the caller's; requests choose it by its kind. It takes the place of one of the same kind, be it
    /// the engine's own.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn set_drafter(&self, drafter: Box<dyn Drafter>) -> Result<()> {
        self.shared.core()?.speculator.set_custom(drafter);
        Ok(())
    }

    /// What speculation did for the requests that have ended.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn speculation_totals(&self) -> Result<SpecStats> {
        Ok(self.shared.core()?.speculator.totals.clone())
    }

    /// Where the time of all steps so far went, when the backend was asked to take it.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn profile(&self) -> Result<Profile> {
        Ok(self.shared.core()?.runner.profile())
    }

    /// Whether an MTP block is loaded.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn has_mtp(&self) -> Result<bool> {
        Ok(self.shared.core()?.runner.model().mtp().is_some())
    }

    /// Whether a DFlash drafter is loaded.
    ///
    /// # Errors
    /// When the engine stopped after a failure.
    pub fn has_dflash(&self) -> Result<bool> {
        Ok(self.shared.core()?.runner.model().dflash().is_some())
    }

    /// Tokens of the text that a request expects, where anybody drafts from it.
    pub(crate) fn encode_prediction(&self, request: &Request) -> Result<Option<Vec<u32>>> {
        let speculation = &request.speculation;
        let wanted =
            speculation.depth != Depth::Fixed(0) && speculation.drafters.contains(&DrafterKind::Prediction);
        let text = speculation.prediction.as_deref().filter(|_| wanted);
        Ok(text.map(|t| self.shared.tokenizer.encode_prompt(t, false)).transpose()?)
    }

    /// A new session with an empty history.
    ///
    /// # Errors
    /// When as many exist as were asked for at loading.
    pub fn session(&self) -> Result<Session> {
        let free = self
            .shared
            .taken
            .iter()
            .position(|t| t.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok());
        free.map(|slot| Session::new(self.shared.clone(), slot as u32))
            .ok_or(EngineError::NoFreeSession(self.shared.taken.len()))
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// The model's shapes.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.shared.spec
    }

    /// The file's metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.shared.metadata
    }

    /// The backend and its arithmetic id.
    #[must_use]
    pub fn backend(&self) -> &BackendInfo {
        &self.shared.backend
    }

    /// Sampling defaults of the file.
    #[must_use]
    pub fn sampling_defaults(&self) -> &SamplingParams {
        &self.shared.defaults
    }

    /// Positions per session.
    #[must_use]
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// The file that was loaded.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// What an overlay changed, where there is one.
    #[must_use]
    pub fn overlay(&self) -> Option<&OverlayReport> {
        self.shared.overlay.as_ref()
    }

    /// Tokens of a prompt.
    ///
    /// # Errors
    /// When the chat template fails, or the file has none and is no ChatML model.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        match prompt {
            Prompt::Tokens(ids) => Ok(ids.clone()),
            Prompt::Text(text) => Ok(self.shared.tokenizer.encode_prompt(text, true)?),
            Prompt::Chat { messages, thinking, tools } => {
                let options = ChatOptions {
                    enable_thinking: *thinking,
                    tools: tools.clone(),
                    add_generation_prompt: true,
                    ..ChatOptions::default()
                };
                let tokenizer = &self.shared.tokenizer;
                match &self.shared.template {
                    Some(template) => Ok(template.encode(tokenizer, messages, &options)?),
                    None => {
                        Ok(ChatTemplate::for_tokenizer(tokenizer)?.encode(tokenizer, messages, &options)?)
                    }
                }
            }
        }
    }

    /// Whether the file brings a chat template of its own.
    #[must_use]
    pub fn has_chat_template(&self) -> bool {
        self.shared.tokenizer.spec().chat_template.is_some()
    }

    /// A splitter for the text that follows a prompt: it knows whether the prompt has opened a thinking block already.
    ///
    /// # Errors
    /// As [`Engine::encode`].
    pub fn think_splitter(&self, prompt: &Prompt) -> Result<ThinkSplitter> {
        let ids = self.encode(prompt)?;
        let tail = &ids[ids.len().saturating_sub(8)..];
        Ok(ThinkSplitter::after_prompt(&self.shared.tokenizer.decode(tail, Decoded::WithControl)))
    }

    /// Runs a closure with the low-level runner, between steps of the sessions: measuring, perplexity, tests.
    ///
    /// # Errors
    /// When the engine stopped after a failure, and whatever the closure returns.
    pub fn with_runner<T>(&self, f: impl FnOnce(&mut Runner) -> Result<T>) -> Result<T> {
        f(&mut self.shared.core()?.runner)
    }
}

/// Loads the MTP block that the options ask for, where there is one.
fn load_mtp(
    source: &dyn Source,
    model: &mut Model,
    backend: &mut dyn Backend,
    options: &DraftOptions,
    tokenizer: &Tokenizer,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<()> {
    let other;
    let (from, block): (&dyn Source, _) = match &options.mtp {
        MtpChoice::Off => return Ok(()),
        MtpChoice::Own => match model.spec().mtp.clone() {
            Some(block) => (source, block),
            None => return Ok(()),
        },
        MtpChoice::File(path) => {
            other = forerun_models::open(path)?;
            (&*other, model.spec().read_mtp(&*other)?)
        }
    };
    let vocabulary = model.spec().vocabulary();
    let ids: Option<Arc<[u32]>> = options
        .vocabulary
        .filter(|n| *n < vocabulary)
        .map(|n| frequent_ids(n, vocabulary, |id| tokenizer.is_eog(id)).into());
    let mtp = MtpSource { source: from, block: &block, model: source, head_ids: ids.as_ref() };
    Ok(model.load_mtp(mtp, backend, progress)?)
}

/// Loads the DFlash drafter that the options ask for.
fn load_dflash(
    metadata: &Metadata,
    model: &mut Model,
    backend: &mut dyn Backend,
    options: &DraftOptions,
    progress: &mut dyn FnMut(LoadProgress) -> bool,
) -> Result<Option<DFlashSettings>> {
    const MASK: &str = "tokenizer.ggml.mask_token_id";
    let Some(DFlashFile { path, ty, passes }) = &options.dflash else { return Ok(None) };
    if !(1..=MAX_DRAFT).contains(passes) {
        let (found, expected) = (passes.to_string(), "1 to 15");
        return Err(EngineError::Option { option: "drafter passes", found, expected });
    }
    let file = CheckpointSource::open_any(path)?;
    let quantised;
    let source: &dyn Source = match ty {
        Some(ty) => {
            quantised = QuantisedSource::new(&file, *ty)?;
            &quantised
        }
        None => &file,
    };
    let drafter = model.spec().read_dflash(source)?;
    let mask = match drafter.params.mask {
        Some(mask) => mask,
        None => match metadata.opt_u32(MASK)? {
            Some(mask) if (mask as usize) < model.spec().vocabulary() => mask,
            found => {
                return Err(ModelError::Key {
                    path: path.clone(),
                    key: MASK.into(),
                    found: found.map_or("nothing, here or in the model".into(), |m| m.to_string()),
                    expected: "the mask token of the drafter".into(),
                }
                .into());
            }
        },
    };
    model.load_dflash(source, &drafter, backend, progress)?;
    Ok(Some(DFlashSettings { mask, block: drafter.params.block.min(1 + MAX_DRAFT), passes: *passes }))
}
