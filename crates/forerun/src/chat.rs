//! `forerun chat`: a conversation in the terminal.

use std::ops::ControlFlow;

use forerun_engine::{
    CancelToken, Completion, Engine, FinishReason, Message, Prompt, Request, SamplingParams, Session,
    Speculation,
};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::ChatArgs;
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};
use crate::progress::{cancel_on_interrupt, load};
use crate::run::{Printer, stream};
use crate::stats::{print_stats, reason};

const HELP: &str = "\
/help             this list
/clear            forget the conversation
/system TEXT      set the system message and start anew
/undo             take back the last question and its answer
/retry            answer the last question again, with a new seed
/temp T           set the temperature (0 takes the most likely token)
/seed N           set the seed
/stats            speed and fingerprint of the last answer
/quit             leave (Ctrl-D does it too); Ctrl-C stops an answer";

struct Chat<'a> {
    args: &'a ChatArgs,
    engine: &'a Engine,
    session: Session,
    messages: Vec<Message>,
    sampling: SamplingParams,
    speculation: Speculation,
    cancel: CancelToken,
    last: Option<Completion>,
}

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let path = model_or_demo(args.model.model.as_deref())?;
    let cancel = cancel_on_interrupt();
    let engine = load(&path, &args.model.options_with(&args.draft), &cancel)?;
    let mut chat = Chat {
        args,
        engine: &engine,
        session: engine.session()?,
        messages: args.system.iter().map(|s| Message::new("system", s)).collect(),
        sampling: args.sampling.params(engine.sampling_defaults()),
        speculation: args.draft.speculation(&engine)?,
        cancel,
        last: None,
    };
    say!(
        "{}, context {}, seed {}. /help lists commands; Ctrl-D leaves.",
        forerun_files::printable(engine.spec().name().unwrap_or("model")),
        engine.context(),
        chat.sampling.seed
    );
    let mut editor = DefaultEditor::new()?;
    loop {
        chat.cancel.reset();
        match editor.readline("> ") {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                // History only serves recall; a line that cannot be kept is no error.
                let _ = editor.add_history_entry(line.as_str());
                if chat.line(line.trim())?.is_break() {
                    return Ok(());
                }
            }
            Err(ReadlineError::Interrupted) => say!("(Ctrl-D leaves)"),
            Err(ReadlineError::Eof) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
}

impl Chat<'_> {
    fn line(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let Some(command) = line.strip_prefix('/') else {
            self.messages.push(Message::new("user", line));
            self.answer()?;
            return Ok(ControlFlow::Continue(()));
        };
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "quit" | "exit" | "q" => return Ok(ControlFlow::Break(())),
            "help" | "?" => say!("{HELP}"),
            "clear" => self.messages.retain(|m| m.role == "system"),
            "system" => {
                self.messages.clear();
                if !rest.is_empty() {
                    self.messages.push(Message::new("system", rest));
                }
            }
            "undo" => self.undo(),
            "retry" => {
                if self.messages.last().is_some_and(|m| m.role == "assistant") {
                    self.messages.pop();
                }
                if self.messages.last().is_some_and(|m| m.role == "user") {
                    self.sampling.seed = self.sampling.seed.wrapping_add(1);
                    self.answer()?;
                } else {
                    say!("nothing to answer yet");
                }
            }
            "temp" => match rest.parse::<f32>() {
                Ok(t) if t == 0.0 || (t.is_finite() && t >= 1e-4) => self.sampling.temperature = t,
                _ => say!("/temp: found {rest:?}, expected 0 or a positive number"),
            },
            "seed" => match rest.parse() {
                Ok(seed) => self.sampling.seed = seed,
                Err(_) => say!("/seed: found {rest:?}, expected a whole number"),
            },
            "stats" => match &self.last {
                Some(done) => print_stats(self.engine, &self.sampling, &done.summary),
                None => say!("no answer yet"),
            },
            other => say!("/{other} is no command; /help lists them"),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn undo(&mut self) {
        while self.messages.last().is_some_and(|m| m.role != "system") {
            if self.messages.pop().is_some_and(|m| m.role == "user") {
                return;
            }
        }
    }

    /// Generates the next answer. A question that fails is taken back, so that the conversation stays usable.
    fn answer(&mut self) -> Result<()> {
        let request = Request {
            prompt: Prompt::Chat {
                messages: self.messages.clone(),
                thinking: self.args.think.flag(),
                tools: None,
            },
            max_tokens: self.args.max_tokens,
            cancel: self.cancel.clone(),
            speculation: self.speculation.clone(),
            ..Request::new(Prompt::Tokens(Vec::new()), self.sampling.clone())
        };
        let printer = Printer::new(self.engine, &request, self.args.hide_thinking);
        match printer.and_then(|p| stream(self.engine, &mut self.session, &request, Some(p))) {
            Ok(done) => {
                let mut splitter = self.engine.think_splitter(&request.prompt)?;
                let mut answer = splitter.push(&done.text).answer;
                answer.push_str(&splitter.finish().answer);
                self.messages.push(Message::new("assistant", &answer));
                if !matches!(done.summary.reason, FinishReason::EndOfText) {
                    say!("({})", reason(&done.summary.reason));
                }
                self.last = Some(done);
                Ok(())
            }
            Err(CliError::Output(e)) => Err(CliError::Output(e)),
            Err(e) => {
                say!("error: {e}");
                self.messages.pop();
                Ok(())
            }
        }
    }
}
