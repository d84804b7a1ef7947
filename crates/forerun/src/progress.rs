//! Progress of long work: a bar on a terminal, nothing in a pipe.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use forerun_engine::{CancelToken, Engine, EngineError, LoadOptions, LoadProgress, Prompt};
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::{CliError, Result};

/// How long a step may go on after Ctrl-C before that is said.
const PATIENCE: Duration = Duration::from_millis(500);
/// Prompts longer than this have a bar from their start.
const LONG_PROMPT: usize = 256;

/// A bar that counts in `unit` ("bytes" are shown as such); hidden unless standard error is a terminal.
fn bar(len: u64, what: &'static str, bytes: bool) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = if bytes {
        "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}"
    } else {
        "{msg} {wide_bar} {pos}/{len} tokens"
    };
    let bar = ProgressBar::new(len).with_message(what);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Runs `load` with a progress callback that draws a bar and stops on `cancel`.
pub(crate) fn with_load_bar<T>(
    cancel: &CancelToken,
    load: impl FnOnce(&mut dyn FnMut(LoadProgress) -> bool) -> forerun_engine::Result<T>,
) -> Result<T> {
    let bar = bar(0, "loading", true);
    let loaded = load(&mut |p| {
        bar.set_length(p.total_bytes);
        bar.set_position(p.done_bytes);
        !cancel.is_cancelled()
    });
    bar.finish_and_clear();
    loaded.map_err(|e| if matches!(e, EngineError::Cancelled) { CliError::Interrupted } else { e.into() })
}

/// Loads a model with a bar; Ctrl-C stops it.
pub(crate) fn load(path: &Path, options: &LoadOptions, cancel: &CancelToken) -> Result<Engine> {
    let engine = with_load_bar(cancel, |progress| Engine::load_with(path, options, progress))?;
    let trained = engine.spec().context_length();
    if engine.context() > trained {
        say!("note: a context of {} tokens; the model was trained for {trained}", engine.context());
    }
    Ok(engine)
}

/// Progress of a prompt or a text, drawn only when it takes a while.
pub(crate) struct TokenBar {
    what: &'static str,
    bar: Option<ProgressBar>,
}

impl TokenBar {
    pub(crate) fn new(what: &'static str) -> Self {
        Self { what, bar: None }
    }

    /// A bar for a prompt, drawn at once when it is a long one.
    pub(crate) fn for_prompt(engine: &Engine, prompt: &Prompt) -> Result<Self> {
        let mut bar = Self::new("prompt");
        if std::io::stderr().is_terminal() {
            let tokens = engine.encode(prompt)?.len();
            if (LONG_PROMPT..=engine.context()).contains(&tokens) {
                bar.set(0, tokens);
            }
        }
        Ok(bar)
    }

    pub(crate) fn set(&mut self, done: usize, total: usize) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = bar(total as u64, self.what, false);
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        bar.set_position(done as u64);
    }

    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for TokenBar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A cancel token that the first Ctrl-C (or termination signal) uses; the second ends the process.
pub(crate) fn cancel_on_interrupt() -> CancelToken {
    let token = CancelToken::default();
    let handler = token.clone();
    let set = ctrlc::set_handler(move || {
        if handler.is_cancelled() {
            std::process::exit(130);
        }
        handler.cancel();
        // Most steps end before anybody wonders; a long prompt's may not.
        std::thread::sleep(PATIENCE);
        if handler.is_cancelled() {
            say!("(stopping after this step; Ctrl-C again ends at once)");
        }
    });
    if let Err(e) = set {
        say!("note: Ctrl-C cannot be handled ({e}); it will end the program at once");
    }
    token
}
