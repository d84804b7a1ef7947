//! Thinking apart from the answer.

/// What a thinking block stands between.
#[derive(Debug)]
struct Tags {
    open: &'static str,
    close: &'static str,
}

/// Qwen's and many others'; Gemma 4's channel of thoughts.
const TAGS: [Tags; 2] =
    [Tags { open: "<think>", close: "</think>" }, Tags { open: "<|channel>thought", close: "<channel|>" }];

/// Text of a stream, by what it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Thinking, which comes first.
    pub thinking: String,
    /// The answer.
    pub answer: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing but blanks so far.
    Start,
    /// Inside the tags, nothing but blanks since.
    Opened,
    Thinking,
    /// Behind the closing tag, nothing but blanks since.
    Closed,
    Answer,
}

/// Separates `<think>…</think>`, or `<|channel>thought…<channel|>`, from the answer in text that arrives in pieces, tags
/// split across pieces included.
/// Only a block that the text starts with counts, so an answer may speak of the tags. Blanks around the thinking and
/// before the answer behind it are dropped; text without such a block comes back unchanged as the answer. How the
/// text is cut into pieces has no influence.
#[derive(Clone, Debug)]
pub struct ThinkSplitter {
    state: State,
    /// Those of the block.
    tags: &'static Tags,
    /// Blanks whose fate the text behind them decides.
    blanks: String,
    /// What may be the start of a tag.
    held: String,
}

impl ThinkSplitter {
    /// A splitter at the start of a stream; `open` when the prompt has opened a `<think>` block already.
    #[must_use]
    pub fn new(open: bool) -> Self {
        let state = if open { State::Opened } else { State::Start };
        Self { state, tags: &TAGS[0], blanks: String::new(), held: String::new() }
    }

    /// A splitter for the text that follows a rendered prompt.
    #[must_use]
    pub fn after_prompt(prompt: &str) -> Self {
        match TAGS.iter().find(|tags| prompt.trim_end().ends_with(tags.open)) {
            Some(tags) => Self { tags, ..Self::new(true) },
            None => Self::new(false),
        }
    }

    /// Whether the stream is inside the block.
    #[must_use]
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Opened | State::Thinking)
    }

    /// Adds a piece; returns the text that is now certain.
    pub fn push(&mut self, piece: &str) -> Split {
        self.held.push_str(piece);
        let mut split = Split::default();
        while self.step(&mut split) {}
        split
    }

    /// Ends the stream: the text that was held back.
    #[must_use]
    pub fn finish(self) -> Split {
        match self.state {
            // A tag that never became whole is text, and so are the blanks before it.
            State::Opened => Split { thinking: self.held, answer: String::new() },
            State::Thinking if self.held.is_empty() => Split::default(),
            State::Thinking => Split { thinking: self.blanks + &self.held, answer: String::new() },
            State::Closed => Split::default(),
            State::Start | State::Answer => {
                Split { thinking: String::new(), answer: self.blanks + &self.held }
            }
        }
    }

    /// One change of state; false when the held text allows none.
    fn step(&mut self, split: &mut Split) -> bool {
        match self.state {
            State::Start => self.start(),
            State::Opened | State::Thinking => self.think(&mut split.thinking),
            State::Closed => {
                self.held.drain(..self.held.len() - self.held.trim_start().len());
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Answer;
                true
            }
            State::Answer => {
                split.answer.push_str(&std::mem::take(&mut self.blanks));
                split.answer.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn start(&mut self) -> bool {
        let blank = self.held.len() - self.held.trim_start().len();
        self.blanks.extend(self.held.drain(..blank));
        if let Some(tags) = TAGS.iter().find(|tags| self.held.starts_with(tags.open)) {
            self.held.drain(..tags.open.len());
            self.blanks.clear();
            self.tags = tags;
            self.state = State::Opened;
        } else if TAGS.iter().any(|tags| tags.open.starts_with(self.held.as_str())) {
            return false;
        } else {
            self.state = State::Answer;
        }
        true
    }

    fn think(&mut self, thinking: &mut String) -> bool {
        let tag = self.tags.close;
        let close = self.held.find(tag);
        let begun = || (1..tag.len()).rev().find(|&n| self.held.ends_with(&tag[..n])).unwrap_or(0);
        let inside = close.unwrap_or_else(|| self.held.len() - begun());
        let rest = self.held.split_off(inside);
        let body = std::mem::replace(&mut self.held, rest);
        let text = body.trim_end();
        if !text.is_empty() {
            let text = if self.state == State::Opened { text.trim_start() } else { text };
            thinking.push_str(&std::mem::take(&mut self.blanks));
            thinking.push_str(text);
            self.state = State::Thinking;
        }
        if self.state == State::Thinking {
            self.blanks.push_str(&body[text.len()..]);
        }
        if close.is_some() {
            self.held.drain(..tag.len());
            self.blanks.clear();
            self.state = State::Closed;
        }
        close.is_some()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<S: AsRef<str>>(open: bool, pieces: &[S]) -> (String, String) {
        let mut splitter = ThinkSplitter::new(open);
        let mut out: Vec<Split> = pieces.iter().map(|piece| splitter.push(piece.as_ref())).collect();
        out.push(splitter.finish());
        (out.iter().map(|s| s.thinking.as_str()).collect(), out.iter().map(|s| s.answer.as_str()).collect())
    }

    #[test]
    fn splits() {
        for (open, text, thinking, answer) in [
            (false, "<think>\nhm\n</think>\n\nyes", "hm", "yes"),
            (false, "\n<think>a </thin b</think>c </think> <think>", "a </thin b", "c </think> <think>"),
            (true, "\nhm\n\nwell\n</think>\n\nyes\n", "hm\n\nwell", "yes\n"),
            (true, "never closed </th", "never closed </th", ""),
            (false, " <thin", "", " <thin"),
            (false, "plain <think>x</think>", "", "plain <think>x</think>"),
            (false, "<think>\n\n</think>\n\nok", "", "ok"),
            (false, " \n plain", "", " \n plain"),
            (true, "</think>ok", "", "ok"),
            (false, "", "", ""),
            (
                false,
                "<|channel>thought\nhm</think>\n<channel|>yes <|channel>",
                "hm</think>",
                "yes <|channel>",
            ),
            (false, "<|channel>thought\n<channel|>yes", "", "yes"),
            (false, "<|channel>though", "", "<|channel>though"),
            (false, "<|channel>final\nyes", "", "<|channel>final\nyes"),
            (true, "hm <channel|> </think>yes", "hm <channel|>", "yes"),
        ] {
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let expected = (thinking.to_owned(), answer.to_owned());
            assert_eq!(run(open, &[text]), expected, "{text:?} whole");
            assert_eq!(run(open, &chars), expected, "{text:?} by character");
        }
    }

    #[test]
    fn prompt_opens_the_block() {
        assert!(ThinkSplitter::after_prompt("<|im_start|>assistant\n<think>\n").is_thinking());
        assert!(!ThinkSplitter::after_prompt("<|im_start|>assistant\n<think>\n\n</think>\n\n").is_thinking());
        assert!(!ThinkSplitter::after_prompt("<|turn>model\n<|channel>thought\n<channel|>").is_thinking());
        let mut gemma = ThinkSplitter::after_prompt("<|turn>model\n<|channel>thought\n");
        assert!(gemma.is_thinking());
        let split = Split { thinking: "hm</think>".into(), answer: "yes".into() };
        assert_eq!(gemma.push("hm</think>\n<channel|>yes"), split);
    }

    proptest! {
        #[test]
        fn pieces_have_no_influence(
            open: bool,
            pieces in prop::collection::vec(
                "(<think>|</think>|<|/think>|<\\|channel>thought|<channel\\|>|[ \n]|é|a){0,3}",
                0..8,
            ),
        ) {
            prop_assert_eq!(run(open, &pieces), run(open, &[pieces.concat()]));
        }

        #[test]
        fn text_without_a_block_is_unchanged(pieces in prop::collection::vec("[ a<thik>é\n]{0,5}", 0..8)) {
            let whole = pieces.concat();
            prop_assume!(TAGS.iter().all(|tags| !whole.trim_start().starts_with(tags.open)));
            prop_assert_eq!(run(false, &pieces), (String::new(), whole));
        }
    }
}
