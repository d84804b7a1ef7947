//! Stop strings in a stream of text.

/// Text that may be shown, and the stop string that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopOutput {
    /// Text before any stop string.
    pub text: String,
    /// The stop string that ended the stream, by its index.
    pub matched: Option<usize>,
}

/// Looks for stop strings in text that arrives in pieces, and holds back what might be the start of one. The stream
/// ends where the first of them is complete; of several complete at one place the longest counts. How the text is cut
/// into pieces has no influence.
#[derive(Clone, Debug)]
pub struct StopStrings {
    needles: Vec<Needle>,
    held: String,
    matched: Option<usize>,
}

/// One stop string, searched by Knuth, Morris and Pratt.
#[derive(Clone, Debug)]
struct Needle {
    bytes: Vec<u8>,
    /// Length of the longest proper border of each prefix.
    borders: Vec<usize>,
    /// How many bytes the text seen so far ends with.
    state: usize,
}

impl Needle {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        for i in 1..bytes.len() {
            borders[i] = advance(&bytes, &borders, borders[i - 1], bytes[i]);
        }
        Self { bytes, borders, state: 0 }
    }

    /// Whether the needle is complete with this byte.
    fn feed(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        self.state = advance(&self.bytes, &self.borders, self.state, byte);
        self.state == self.bytes.len()
    }
}

fn advance(bytes: &[u8], borders: &[usize], mut state: usize, byte: u8) -> usize {
    while state > 0 && bytes.get(state) != Some(&byte) {
        state = borders[state - 1];
    }
    if bytes[state] == byte { state + 1 } else { 0 }
}

impl StopStrings {
    /// A matcher at the start of a stream. An empty stop string never matches.
    #[must_use]
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let needles = stops.iter().map(|stop| Needle::new(stop.as_ref())).collect();
        Self { needles, held: String::new(), matched: None }
    }

    /// Adds a piece; returns the text that is now certain. After a match nothing more comes.
    pub fn push(&mut self, piece: &str) -> StopOutput {
        if self.matched.is_some() {
            return StopOutput { text: String::new(), matched: self.matched };
        }
        let before = self.held.len();
        self.held.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            // The order of the pairs makes the first of equals win.
            let complete = |(k, needle): (usize, &mut Needle)| {
                needle.feed(byte).then_some((needle.bytes.len(), usize::MAX - k))
            };
            if let Some((len, k)) = self.needles.iter_mut().enumerate().filter_map(complete).max() {
                self.held.truncate(before + i + 1 - len);
                self.matched = Some(usize::MAX - k);
                return StopOutput { text: std::mem::take(&mut self.held), matched: self.matched };
            }
        }
        // What a needle's state counts starts with the needle's first character, hence at a character of the text.
        let keep = self.needles.iter().map(|needle| needle.state).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        StopOutput { text: std::mem::replace(&mut self.held, rest), matched: None }
    }

    /// The stop string that ended the stream, by its index.
    #[must_use]
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// Ends the stream without a match: the text that was held back.
    #[must_use]
    pub fn finish(self) -> String {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
        let mut matcher = StopStrings::new(stops);
        let mut text: String = pieces.iter().map(|piece| matcher.push(piece).text).collect();
        let matched = matcher.matched();
        text.push_str(&matcher.finish());
        (text, matched)
    }

    #[test]
    fn cuts_where_the_first_stop_is_complete() {
        for (stops, pieces, text, matched) in [
            (&["END"][..], &["a E", "N", "Db"][..], "a ", Some(0)),
            (&["END"], &["a EN", "EN"], "a ENEN", None),
            (&["abcd", "bc"], &["xabcd"], "xa", Some(1)),
            (&["bc", "abc"], &["xa", "b", "c"], "x", Some(1)),
            (&["x", "x"], &["axb"], "a", Some(0)),
            (&[""], &["abc"], "abc", None),
            (&["aab"], &["aa", "aab"], "aa", Some(0)),
            (&["é\u{301}"], &["é", "é\u{301}"], "é", Some(0)),
            (&[], &["abc"], "abc", None),
            (&["\0"], &["a\0b"], "a", Some(0)),
        ] {
            assert_eq!(run(stops, pieces), (text.to_owned(), matched), "{stops:?} in {pieces:?}");
        }
    }

    #[test]
    fn holds_back_no_more_than_a_possible_start() {
        let mut matcher = StopStrings::new(&["\n\nUser:"]);
        assert_eq!(matcher.push("hello\n").text, "hello");
        assert_eq!(matcher.push("\nUs").text, "");
        assert_eq!(matcher.push("e it").text, "\n\nUse it");
    }

    proptest! {
        #[test]
        fn pieces_have_no_influence(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abé]{0,6}", 0..8),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            let ends = (0..stops.len()).filter_map(|k| whole.find(stops[k]).map(|at| (at + stops[k].len(), at, k)));
            let expected = match ends.min() {
                Some((_, at, k)) => (whole[..at].to_owned(), Some(k)),
                None => (whole.clone(), None),
            };
            prop_assert_eq!(run(&stops, &pieces), expected);
        }
    }
}
