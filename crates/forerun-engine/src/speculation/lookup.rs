//! Drafting from the request's own text: code, tables, names and quotations come again, and where the last few tokens
//! stood before, what followed them there is a good guess. It costs no pass of any model.
//!
//! Only verified tokens are searched. A guess copied from guesses would repeat their mistakes.

use super::grams::{Grams, agreement};

/// Places looked at in the chain of long n-grams, and then in that of short ones. A common n-gram has thousands of places;
/// only its newest ones are compared, so a draft touches at most 96 places however long the context is.
const LONG_WALK: usize = 32;
const SHORT_WALK: usize = 64;

/// A drafter that continues the newest earlier occurrence of the longest repeated suffix.
///
/// The suffix has between `shortest` and `longest` tokens. Among the places that are looked at (the newest 32 whose last
/// `(shortest + longest) / 2` tokens agree, then the newest 64 whose last `shortest` agree) the longest agreement wins, and
/// the newest among equals. Memory is linear in the tokens; a push is amortised constant time.
#[derive(Debug, Clone)]
pub struct Lookup {
    longest: usize,
    tokens: Vec<u32>,
    /// Long n-grams are rarer, so that a bounded walk reaches further back.
    long: Grams,
    short: Grams,
}

impl Default for Lookup {
    /// Suffixes of 3 to 16 tokens.
    fn default() -> Self {
        Self::new(16, 3)
    }
}

impl Lookup {
    /// An empty history in which suffixes of `shortest` (at least 1) to `longest` (at least `shortest`) tokens count.
    pub fn new(longest: usize, shortest: usize) -> Self {
        let shortest = shortest.max(1);
        let longest = longest.max(shortest);
        let long = Grams::new(shortest.midpoint(longest));
        Self { longest, tokens: Vec::new(), long, short: Grams::new(shortest) }
    }

    /// Number of tokens in the history.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the history holds nothing.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a verified token, of the prompt or generated.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.long.push(&self.tokens);
        self.short.push(&self.tokens);
    }

    /// Keeps the first `len` tokens, as when a session goes on from an earlier prefix. Costs what it removes.
    pub fn truncate(&mut self, len: usize) {
        self.long.truncate(&self.tokens, len);
        self.short.truncate(&self.tokens, len);
        self.tokens.truncate(len);
    }

    /// Appends up to `depth` guesses for the tokens after the history to `out` and returns how many. None when no suffix
    /// of at least the shortest length occurred before.
    ///
    /// The copied run may reach into its own copy: a periodic text goes on periodically, so a match always gives `depth`
    /// guesses.
    pub fn draft(&self, depth: usize, out: &mut Vec<u32>) -> usize {
        let Some(place) = self.place() else { return 0 };
        let copied = out.len();
        for from in place..place + depth {
            let token = match self.tokens.get(from) {
                Some(&token) => token,
                None => out[copied + from - self.tokens.len()],
            };
            out.push(token);
        }
        depth
    }

    /// Index of the token that followed the best earlier occurrence of the history's suffix.
    fn place(&self) -> Option<usize> {
        self.best(&self.long, LONG_WALK).or_else(|| self.best(&self.short, SHORT_WALK))
    }

    fn best(&self, grams: &Grams, walk: usize) -> Option<usize> {
        let mut best = None;
        // Another n-gram in the bucket may agree by less.
        let mut length = grams.gram() - 1;
        // The newest place is the suffix itself.
        for end in grams.places(&self.tokens).skip(1).take(walk) {
            let agreed = agreement(&self.tokens[..end], &self.tokens, self.longest);
            if agreed > length {
                (best, length) = (Some(end), agreed);
            }
            if length == self.longest {
                break;
            }
        }
        best
    }
}

impl Extend<u32> for Lookup {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, tokens: I) {
        tokens.into_iter().for_each(|token| self.push(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lookup(tokens: &[u32]) -> Lookup {
        let mut lookup = Lookup::default();
        lookup.extend(tokens.iter().copied());
        lookup
    }

    fn draft(lookup: &Lookup, depth: usize) -> Vec<u32> {
        let mut out = Vec::new();
        assert_eq!(lookup.draft(depth, &mut out), out.len());
        out
    }

    /// The definition, by looking at every place.
    fn naive(tokens: &[u32], longest: usize, shortest: usize, depth: usize) -> Vec<u32> {
        let mut best = None;
        for end in 1..tokens.len() {
            let agreed = agreement(&tokens[..end], tokens, longest);
            if agreed >= shortest && best.is_none_or(|(length, _)| agreed >= length) {
                best = Some((agreed, end));
            }
        }
        let mut all = tokens.to_vec();
        if let Some((_, end)) = best {
            (0..depth).for_each(|i| all.push(all[end + i]));
        }
        all.split_off(tokens.len())
    }

    #[test]
    fn proposes_what_followed() {
        let cases: &[(&[u32], usize, &[u32])] = &[
            (&[], 4, &[]),
            (&[1, 2], 4, &[]),
            (&[1, 2, 3, 4, 5, 9, 2, 3], 2, &[]),
            (&[1, 2, 3, 4, 5, 9, 1, 2, 3], 0, &[]),
            (&[1, 2, 3, 4, 5, 9, 1, 2, 3], 2, &[4, 5]),
            (&[1, 2, 3, 4, 5, 9, 1, 2, 3], 8, &[4, 5, 9, 1, 2, 3, 4, 5]),
            (&[1, 2, 3, 4, 8, 1, 2, 3, 5, 8, 1, 2, 3], 1, &[5]),
            (&[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3], 1, &[4]),
            (&[6, 6, 6, 6], 3, &[6, 6, 6]),
            (&[1, 2, 1, 2, 1], 4, &[2, 1, 2, 1]),
        ];
        for &(tokens, depth, expected) in cases {
            assert_eq!(draft(&lookup(tokens), depth), expected, "{tokens:?} to depth {depth}");
        }
    }

    #[test]
    fn appends_after_what_another_drafter_wrote() {
        let mut out = vec![40, 41];
        assert_eq!(lookup(&[5, 5, 5, 5]).draft(3, &mut out), 3);
        assert_eq!(out, [40, 41, 5, 5, 5]);
    }

    #[test]
    fn stays_quick_where_every_place_looks_alike() {
        // Hundred thousand tokens in which the last three occur everywhere and never further.
        let mut tokens: Vec<u32> = (0..100_000u32).map(|i| if i % 4 == 3 { 10 + i } else { i % 4 }).collect();
        tokens.extend([0, 1, 2]);
        let lookup = lookup(&tokens);
        let visited = lookup.short.places(&lookup.tokens).count();
        assert!(visited > 20_000, "the chain is long: {visited}");
        // The fastest of many, because other work on the machine only ever adds time.
        let fastest = (0..200)
            .map(|_| {
                let start = std::time::Instant::now();
                assert_eq!(draft(&lookup, 15).len(), 15);
                start.elapsed()
            })
            .min();
        assert!(fastest < Some(std::time::Duration::from_micros(20)), "{fastest:?}");
    }

    proptest! {
        #[test]
        fn agrees_with_the_definition(
            tokens in prop::collection::vec(0u32..3, 0..60),
            longest in 1usize..8,
            shortest in 1usize..4,
            depth in 0usize..20,
        ) {
            let mut lookup = Lookup::new(longest, shortest);
            lookup.extend(tokens.iter().copied());
            let longest = longest.max(shortest);
            prop_assert_eq!(draft(&lookup, depth), naive(&tokens, longest, shortest, depth));
        }

        #[test]
        fn shrinks_to_what_it_was(
            kept in prop::collection::vec(0u32..4, 0..150),
            dropped in prop::collection::vec(0u32..4, 0..150),
            more in prop::collection::vec(0u32..4, 0..50),
        ) {
            let mut shrunk = lookup(&kept);
            shrunk.extend(dropped.iter().copied());
            shrunk.truncate(kept.len());
            shrunk.truncate(kept.len() + 9);
            let mut fresh = lookup(&kept);
            prop_assert_eq!(draft(&shrunk, 9), draft(&fresh, 9));
            for token in more {
                shrunk.push(token);
                fresh.push(token);
                prop_assert_eq!(draft(&shrunk, 9), draft(&fresh, 9));
            }
        }
    }
}
