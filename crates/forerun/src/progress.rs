//! Progress of long work: a bar on a terminal, nothing in a pipe. And the end of work, when the user asks for it.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forerun_engine::{CancelToken, Engine, EngineError, LoadOptions, LoadProgress};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::error::{CliError, Result};
use crate::overlay;

/// How long work may take without a bar, or go on after Ctrl-C without a word.
const PATIENCE: Duration = Duration::from_millis(500);

/// A bar that is drawn only when the work takes a while, and only where standard error is a terminal.
pub(crate) struct LateBar {
    bar: ProgressBar,
    /// Draws the bar later, unless the sender goes first.
    drawing: Option<(Sender<()>, JoinHandle<()>)>,
}

impl LateBar {
    /// A bar that counts in tokens or bytes.
    pub(crate) fn new(what: &'static str, bytes: bool) -> Self {
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::hidden()).with_message(what);
        if !std::io::stderr().is_terminal() {
            return Self { bar, drawing: None };
        }
        let template = if bytes {
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}"
        } else {
            "{msg} {wide_bar} {pos}/{len} tokens"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let (sender, receiver) = channel();
        let shown = bar.clone();
        let thread = std::thread::spawn(move || {
            if receiver.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(200));
            }
        });
        Self { bar, drawing: Some((sender, thread)) }
    }

    pub(crate) fn set(&self, done: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.drawing.take() {
            drop(sender);
            // A thread that failed has drawn nothing that could stay.
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}

/// Runs `load` with a progress callback that draws a bar and stops on `cancel`.
pub(crate) fn with_load_bar<T>(
    cancel: &CancelToken,
    load: impl FnOnce(&mut dyn FnMut(LoadProgress) -> bool) -> forerun_engine::Result<T>,
) -> Result<T> {
    let bar = LateBar::new("loading", true);
    let loaded = load(&mut |p| {
        bar.set(p.done_bytes, p.total_bytes);
        !cancel.is_cancelled()
    });
    loaded.map_err(|e| if matches!(e, EngineError::Cancelled) { CliError::Interrupted } else { e.into() })
}

/// Loads a model with a bar; Ctrl-C stops it.
pub(crate) fn load(path: &Path, options: &LoadOptions, cancel: &CancelToken) -> Result<Engine> {
    let engine = with_load_bar(cancel, |progress| Engine::load_with(path, options, progress))?;
    overlay::announce(engine.overlay());
    let trained = engine.spec().context_length();
    if engine.context() > trained {
        say!("note: a context of {} tokens; the model was trained for {trained}", engine.context());
    }
    Ok(engine)
}

/// Progress of a prompt or a text, drawn only when it takes a while.
pub(crate) struct TokenBar(Option<LateBar>);

impl TokenBar {
    pub(crate) fn new(what: &'static str) -> Self {
        Self(Some(LateBar::new(what, false)))
    }

    pub(crate) fn set(&mut self, done: usize, total: usize) {
        if let Some(bar) = &self.0 {
            bar.set(done as u64, total as u64);
        }
    }

    /// Takes the bar away for good.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

/// Whether a signal ends the program at once. There is one handler in a process.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// What Ctrl-C and termination signals do: they stop the work at hand, or the program where there is none.
pub(crate) struct Interrupts {
    /// Cancelled by the first signal that arrives during work.
    pub(crate) token: CancelToken,
}

impl Interrupts {
    /// Installs the handler. The second signal ends the process.
    pub(crate) fn install() -> Self {
        let token = CancelToken::default();
        let (handler, terminal) = (token.clone(), terminal::State::now());
        let set = ctrlc::set_handler(move || {
            if handler.is_cancelled() || AT_ONCE.load(Ordering::Acquire) {
                terminal.restore();
                std::process::exit(130);
            }
            handler.cancel();
            // Most steps end before anybody wonders; a long prompt's may not.
            std::thread::sleep(PATIENCE);
            if handler.is_cancelled() && !AT_ONCE.load(Ordering::Acquire) {
                say!("(stopping after this step; Ctrl-C again ends at once)");
            }
        });
        if let Err(e) = set {
            say!("note: Ctrl-C cannot be handled ({e}); it will end the program at once");
        }
        Self { token }
    }

    /// Waits for the user: a signal meanwhile ends the program. The work that follows starts with a fresh token.
    pub(crate) fn waiting<T>(&self, wait: impl FnOnce() -> T) -> T {
        let result = ends_at_once(wait);
        self.token.reset();
        result
    }
}

/// Work that a signal ends together with the program, since nothing of it must be brought to an end.
pub(crate) fn ends_at_once<T>(work: impl FnOnce() -> T) -> T {
    let before = AT_ONCE.swap(true, Ordering::AcqRel);
    let result = work();
    AT_ONCE.store(before, Ordering::Release);
    result
}

/// A cancel token that the first Ctrl-C (or termination signal) uses; the second ends the process.
pub(crate) fn cancel_on_interrupt() -> CancelToken {
    Interrupts::install().token
}

/// The terminal's mode, which a line editor changes while it reads.
#[cfg(unix)]
mod terminal {
    use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

    /// Nothing where standard input is no terminal.
    pub(super) struct State(Option<Termios>);

    impl State {
        pub(super) fn now() -> Self {
            Self(tcgetattr(std::io::stdin()).ok())
        }

        pub(super) fn restore(&self) {
            if let Some(mode) = &self.0 {
                // The program ends: nothing is left to do about a terminal that is gone.
                let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, mode);
            }
        }
    }
}

/// Consoles restore their mode by themselves.
#[cfg(not(unix))]
mod terminal {
    pub(super) struct State;

    impl State {
        pub(super) fn now() -> Self {
            Self
        }

        pub(super) fn restore(&self) {}
    }
}
