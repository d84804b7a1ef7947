//! `forerun chat`: a conversation in the terminal.

use std::ops::ControlFlow;

use forerun_engine::{
    Completion, Depth, DrafterKind, Engine, FinishReason, Message, Prompt, Request, SamplingParams, Session,
    Speculation,
};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::args::ChatArgs;
use crate::demo::model_or_demo;
use crate::draft_args::parse_depth;
use crate::error::{CliError, Result};
use crate::printer::{Look, Printer, colours};
use crate::progress::{Interrupts, load};
use crate::run::stream;
use crate::stats::{print_stats, reason};

const HELP: &str = "\
/help             this list
/clear            forget the conversation
/system TEXT      set the system message and start anew
/undo             take back the last question and its answer
/retry            answer the last question again, with a new seed
/temp T           set the temperature (0 takes the most likely token)
/seed N           set the seed
/draft N|auto     draft so many tokens in a round (0 for none); the text stays the same
/colour           colour tokens by who wrote them, or no longer
/stats            speed, fingerprint and drafts of the last answer
/quit             leave (Ctrl-D and Ctrl-C do it too); Ctrl-C stops an answer";

struct Chat<'a> {
    args: &'a ChatArgs,
    engine: &'a Engine,
    session: Session,
    messages: Vec<Message>,
    sampling: SamplingParams,
    speculation: Speculation,
    interrupts: &'a Interrupts,
    look: Look,
    /// The newest answer and how it was sampled.
    last: Option<(SamplingParams, Completion)>,
}

pub(crate) fn chat(args: &ChatArgs) -> Result<()> {
    let path = model_or_demo(args.model.model.as_deref())?;
    let interrupts = Interrupts::install();
    let engine = load(&path, &args.model.options_with(&args.draft)?, &interrupts.token)?;
    let mut chat = Chat {
        args,
        engine: &engine,
        session: engine.session()?,
        messages: args.system.iter().map(|s| Message::new("system", s)).collect(),
        sampling: args.sampling.params(engine.sampling_defaults()),
        speculation: args.draft.speculation(&engine)?,
        interrupts: &interrupts,
        look: Look { hide_thinking: args.hide_thinking, colour: args.colour && colours() },
        last: None,
    };
    chat.sampling.validate(engine.spec().vocabulary() as u32)?;
    say!(
        "{}, context {}, seed {}. /help lists commands; Ctrl-D leaves.",
        forerun_files::printable(engine.spec().name().unwrap_or("model")),
        engine.context(),
        chat.sampling.seed
    );
    let mut editor = DefaultEditor::new()?;
    loop {
        match interrupts.waiting(|| editor.readline("> ")) {
            Ok(line) if line.trim().is_empty() => {}
            Ok(line) => {
                // History only serves recall; a line that cannot be kept is no error.
                let _ = editor.add_history_entry(line.as_str());
                if chat.line(line.trim())?.is_break() {
                    return Ok(());
                }
            }
            Err(ReadlineError::Interrupted) => return Err(CliError::Interrupted),
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
            "clear" => {
                self.messages.retain(|m| m.role == "system");
                say!("the conversation is forgotten");
            }
            "system" => self.system(rest),
            "undo" => self.undo(),
            "retry" => self.retry()?,
            "temp" => self.temperature(rest),
            "seed" => match rest.parse() {
                Ok(seed) => {
                    self.sampling.seed = seed;
                    say!("seed {seed}");
                }
                Err(_) => say!("/seed: found {rest:?}, expected a whole number"),
            },
            "draft" => self.draft(rest)?,
            "colour" | "color" if self.look.colour => {
                self.look.colour = false;
                say!("no colours");
            }
            "colour" | "color" => self.look.colour = colours(),
            "stats" => self.stats(),
            other => say!("/{other} is no command; /help lists them"),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn system(&mut self, message: &str) {
        self.messages.clear();
        if message.is_empty() {
            say!("no system message; the conversation starts anew");
        } else {
            self.messages.push(Message::new("system", message));
            say!("the system message is set; the conversation starts anew");
        }
    }

    fn undo(&mut self) {
        while self.messages.last().is_some_and(|m| m.role != "system") {
            if self.messages.pop().is_some_and(|m| m.role == "user") {
                let questions = self.messages.iter().filter(|m| m.role == "user").count();
                say!("taken back; {questions} before it");
                return;
            }
        }
        say!("nothing to take back");
    }

    fn retry(&mut self) -> Result<()> {
        if self.messages.last().is_some_and(|m| m.role == "assistant") {
            self.messages.pop();
        }
        if self.messages.last().is_some_and(|m| m.role == "user") {
            self.sampling.seed = self.sampling.seed.wrapping_add(1);
            return self.answer();
        }
        say!("nothing to answer yet");
        Ok(())
    }

    fn temperature(&mut self, text: &str) {
        let Ok(temperature) = text.parse() else {
            return say!("/temp: found {text:?}, expected a number");
        };
        let sampling = SamplingParams { temperature, ..self.sampling.clone() };
        match sampling.validate(self.engine.spec().vocabulary() as u32) {
            Ok(()) => {
                self.sampling = sampling;
                say!("temperature {temperature}");
            }
            Err(e) => say!("/temp: {}", CliError::from(e)),
        }
    }

    fn draft(&mut self, text: &str) -> Result<()> {
        match parse_depth(text) {
            Ok(depth) => {
                self.speculation.depth = depth;
                let shown = match depth {
                    Depth::Fixed(depth) => depth.to_string(),
                    _ => "auto".into(),
                };
                say!("draft {shown}");
                if depth != Depth::Fixed(0)
                    && self.speculation.drafters == [DrafterKind::Mtp]
                    && !self.engine.has_mtp()?
                {
                    say!("note: nobody drafts: the model has no MTP block, or chat began with --draft 0");
                }
            }
            Err(e) => say!("/draft: {e}"),
        }
        Ok(())
    }

    fn stats(&self) {
        let Some((sampling, done)) = &self.last else { return say!("no answer yet") };
        print_stats(self.engine, sampling, &done.summary);
        if done.summary.speculation.drafted == 0 {
            say!("nothing was drafted");
        }
    }

    /// Generates the next answer. A question that fails is taken back, so that the conversation stays usable.
    fn answer(&mut self) -> Result<()> {
        let (messages, thinking) = (self.messages.clone(), self.args.think.flag());
        let prompt = Prompt::Chat { messages, thinking, tools: None };
        let request = Request {
            max_tokens: self.args.max_tokens,
            cancel: self.interrupts.token.clone(),
            speculation: self.speculation.clone(),
            ..Request::new(prompt, self.sampling.clone())
        };
        let printer = Printer::new(self.engine, &request, self.look);
        match printer.and_then(|p| stream(&mut self.session, &request, Some(p))) {
            Ok(done) => {
                let mut splitter = self.engine.think_splitter(&request.prompt)?;
                let mut answer = splitter.push(&done.text).answer;
                answer.push_str(&splitter.finish().answer);
                self.messages.push(Message::new("assistant", &answer));
                if !matches!(done.summary.reason, FinishReason::EndOfText) {
                    say!("({})", reason(&done.summary.reason));
                }
                self.last = Some((request.sampling, done));
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
