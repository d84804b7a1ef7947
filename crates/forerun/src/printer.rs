//! Text as it is generated: thinking dimmed or left out, and on request every token in the colour of who wrote it.

use std::io::{IsTerminal, Write};

use forerun_engine::{DrafterKind, Engine, Prompt, Request, Split, ThinkSplitter, Token};

use crate::error::Result;

/// What of an answer is shown, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Leave out what the model thinks.
    pub(crate) hide_thinking: bool,
    /// Colour tokens by who wrote them, where there is a terminal.
    pub(crate) colour: bool,
}

/// How text stands on the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Style {
    dim: bool,
    by: Option<DrafterKind>,
}

/// Prints a stream of text.
pub(crate) struct Printer {
    splitter: Option<ThinkSplitter>,
    look: Look,
    terminal: bool,
    style: Style,
    /// Thinking was printed, and no answer yet.
    thought: bool,
}

impl Printer {
    /// A printer for the answer to a request. Raw completions are printed as they come.
    pub(crate) fn new(engine: &Engine, request: &Request, look: Look) -> Result<Self> {
        let chat = matches!(request.prompt, Prompt::Chat { .. });
        let splitter = if chat { Some(engine.think_splitter(&request.prompt)?) } else { None };
        let terminal = std::io::stdout().is_terminal();
        Ok(Self { splitter, look, terminal, style: Style::default(), thought: false })
    }

    /// A token. Text that was held back takes the colour of the token that made it certain.
    pub(crate) fn print(&mut self, token: &Token) -> std::io::Result<()> {
        let split = self.split(&token.text);
        self.write(&split, token.drafted_by.filter(|_| self.look.colour), &mut std::io::stdout().lock())
    }

    /// The end, with text that was held back.
    pub(crate) fn finish(&mut self, rest: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        let split = self.split(rest);
        self.write(&split, None, &mut out)?;
        if let Some(splitter) = self.splitter.take() {
            self.write(&splitter.finish(), None, &mut out)?;
        }
        self.set(Style::default(), &mut out)?;
        writeln!(out)?;
        out.flush()
    }

    fn split(&mut self, text: &str) -> Split {
        match &mut self.splitter {
            Some(splitter) => splitter.push(text),
            None => Split { thinking: String::new(), answer: text.to_owned() },
        }
    }

    fn write(&mut self, split: &Split, by: Option<DrafterKind>, out: &mut impl Write) -> std::io::Result<()> {
        if !split.thinking.is_empty() && !self.look.hide_thinking {
            self.set(Style { dim: true, by }, out)?;
            self.thought = true;
            write!(out, "{}", split.thinking)?;
        }
        if !split.answer.is_empty() {
            if std::mem::take(&mut self.thought) {
                self.set(Style::default(), out)?;
                write!(out, "\n\n")?;
            }
            self.set(Style { dim: false, by }, out)?;
            write!(out, "{}", split.answer)?;
        }
        out.flush()
    }

    fn set(&mut self, style: Style, out: &mut impl Write) -> std::io::Result<()> {
        if !self.terminal || style == self.style {
            return Ok(());
        }
        self.style = style;
        let dim = if style.dim { "\x1b[2m" } else { "" };
        write!(out, "\x1b[0m{dim}{}", style.by.map_or("", code))
    }
}

/// The escape sequence of a drafter's colour.
fn code(kind: DrafterKind) -> &'static str {
    match kind {
        DrafterKind::Mtp => "\x1b[32m",
        DrafterKind::Lookup => "\x1b[36m",
        DrafterKind::Prediction => "\x1b[35m",
        _ => "\x1b[33m",
    }
}

/// Whether colours can be shown. Says why not, or what they mean.
pub(crate) fn colours() -> bool {
    if std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty()) {
        say!("note: no colours, for NO_COLOR is set");
        return false;
    }
    if !std::io::stdout().is_terminal() {
        say!("note: no colours, for the output is no terminal");
        return false;
    }
    say!("{}", legend(std::io::stderr().is_terminal()));
    true
}

fn legend(terminal: bool) -> String {
    let named = [DrafterKind::Mtp, DrafterKind::Lookup, DrafterKind::Prediction].map(|kind| {
        if terminal { format!("{}{}\x1b[0m", code(kind), kind.name()) } else { kind.name().to_owned() }
    });
    format!("written by: the model alone, {}", named.join(", "))
}

/// Prints a prompt in front of its text: dim on a terminal.
pub(crate) fn echo(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let (dim, plain) = if out.is_terminal() { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
    write!(out, "{dim}{text}{plain}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(terminal: bool, hide_thinking: bool, splitter: Option<ThinkSplitter>) -> String {
        let look = Look { hide_thinking, colour: true };
        let mut printer = Printer { splitter, look, terminal, style: Style::default(), thought: false };
        let mut out = Vec::new();
        let mtp = Some(DrafterKind::Mtp);
        for (text, by) in [("<think>a", None), ("b", mtp), ("</think>c", mtp), ("d", mtp), ("e", None)] {
            let split = printer.split(text);
            printer.write(&split, by, &mut out).expect("memory");
        }
        printer.set(Style::default(), &mut out).expect("memory");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn colours_stand_on_terminals_alone_and_change_no_text() {
        let thinking = || Some(ThinkSplitter::new(false));
        assert_eq!(shown(false, false, thinking()), "ab\n\ncde");
        assert_eq!(shown(false, true, thinking()), "cde");
        assert_eq!(shown(false, false, None), "<think>ab</think>cde");
        let coloured = "\x1b[0m\x1b[2ma\x1b[0m\x1b[2m\x1b[32mb\x1b[0m\n\n\x1b[0m\x1b[32mcd\x1b[0me";
        assert_eq!(shown(true, false, thinking()), coloured);
        assert_eq!(shown(true, true, thinking()), "\x1b[0m\x1b[32mcd\x1b[0me");
    }

    #[test]
    fn the_legend_names_who_writes() {
        assert_eq!(legend(false), "written by: the model alone, mtp, lookup, prediction");
        assert!(legend(true).contains("\x1b[36mlookup\x1b[0m"));
    }
}
