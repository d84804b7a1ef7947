//! Where a few tokens occurred before: chains of equal n-grams, newest first.
//!
//! A suffix automaton would find the longest match exactly, but it cannot forget its newest tokens, and a history has to:
//! a session may go on from an earlier prefix. Chains grow and shrink at the end only, in constant time a token, and take
//! eight to twelve bytes a token.

/// End of a chain.
const NONE: u32 = u32::MAX;

/// The places of every n-gram of one length in a list of tokens that the owner keeps.
///
/// A place is named by its end: `end` stands for `tokens[end - gram..end]`.
#[derive(Debug, Clone)]
pub(crate) struct Grams {
    gram: usize,
    /// Newest place by bucket; a power of two, at least as many as places.
    heads: Vec<u32>,
    /// `previous[end]`: the next older place in the bucket of `end`.
    previous: Vec<u32>,
}

impl Grams {
    /// Chains of `gram` tokens (at least one) for an empty list.
    pub(crate) fn new(gram: usize) -> Self {
        Self { gram: gram.max(1), heads: vec![NONE; 64], previous: vec![NONE] }
    }

    /// Tokens of an n-gram.
    pub(crate) fn gram(&self) -> usize {
        self.gram
    }

    /// Takes up the newest token of `tokens`, of which all but that one have been taken up.
    pub(crate) fn push(&mut self, tokens: &[u32]) {
        debug_assert_eq!(self.previous.len(), tokens.len());
        if tokens.len() >= self.heads.len() {
            self.grow(tokens);
        }
        self.previous.push(NONE);
        self.link(tokens, tokens.len());
    }

    /// Forgets the places that end after `len`; `tokens` still holds what is forgotten.
    pub(crate) fn truncate(&mut self, tokens: &[u32], len: usize) {
        while self.previous.len() > len + 1 {
            let end = self.previous.len() - 1;
            let older = self.previous.pop().unwrap_or(NONE);
            // The newest place of all is the newest of its own bucket.
            if let Some(bucket) = self.bucket(&tokens[..end]) {
                self.heads[bucket] = older;
            }
        }
    }

    /// The ends of places that may equal the last tokens of `suffix`, newest first. A bucket can hold other n-grams too:
    /// the caller compares.
    pub(crate) fn places(&self, suffix: &[u32]) -> impl Iterator<Item = usize> {
        let first = self.bucket(suffix).map_or(NONE, |bucket| self.heads[bucket]);
        std::iter::successors(Some(first), |&end| self.previous.get(end as usize).copied())
            .take_while(|&end| end != NONE)
            .map(|end| end as usize)
    }

    fn link(&mut self, tokens: &[u32], end: usize) {
        // A list longer than 2^32 - 2 tokens is searched only up to there.
        let Some(name) = u32::try_from(end).ok().filter(|&name| name != NONE) else { return };
        if let Some(bucket) = self.bucket(&tokens[..end]) {
            self.previous[end] = std::mem::replace(&mut self.heads[bucket], name);
        }
    }

    fn grow(&mut self, tokens: &[u32]) {
        let buckets = self.heads.len() * 2;
        self.heads.clear();
        self.heads.resize(buckets, NONE);
        for end in 0..self.previous.len() {
            self.link(tokens, end);
        }
    }

    /// The bucket of the last tokens of `suffix`, if it has enough.
    fn bucket(&self, suffix: &[u32]) -> Option<usize> {
        let gram = &suffix[suffix.len().checked_sub(self.gram)?..];
        // Multiplicative hashing: the golden ratio's odd 64-bit fraction, its high bits taken.
        let hash = gram
            .iter()
            .fold(0u64, |h, &t| (h.rotate_left(23) ^ u64::from(t)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Some((hash >> (64 - self.heads.len().trailing_zeros())) as usize)
    }
}

/// How many of the last tokens of `a` and `b` agree, counted up to `most`.
pub(crate) fn agreement(a: &[u32], b: &[u32], most: usize) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(most).take_while(|(x, y)| x == y).count()
}
