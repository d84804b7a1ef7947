//! Tokens that match before BPE.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

use crate::{TextError, TokenKind, TokenizerSpec};

/// Bytes that a special token may have.
const LONGEST: usize = 1 << 10;

/// Control and user-defined tokens; at one place in a text the longest wins.
pub(crate) struct Specials {
    /// Control and user-defined tokens.
    all: Matcher,
    /// User-defined tokens only.
    user: Matcher,
    by_text: HashMap<String, u32>,
}

struct Matcher {
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Specials {
    pub(super) fn new(spec: &TokenizerSpec) -> Result<Self, TextError> {
        let of = |kinds: &'static [TokenKind]| {
            (0u32..).zip(spec.tokens.iter().zip(&spec.kinds)).filter_map(move |(id, (text, kind))| {
                (kinds.contains(kind) && !text.is_empty()).then_some((id, text.as_str()))
            })
        };
        const ALL: &[TokenKind] = &[TokenKind::Control, TokenKind::UserDefined];
        let mut by_text = HashMap::new();
        for (id, text) in of(ALL) {
            if text.len() > LONGEST {
                let found = format!("{} bytes in token {id}", text.len());
                let expected = format!("at most {LONGEST} in a control or user-defined token");
                return Err(spec.error("tokenizer.ggml.tokens", found, expected));
            }
            by_text.entry(text.to_owned()).or_insert(id);
        }
        Ok(Self {
            all: Matcher::new(spec, of(ALL))?,
            user: Matcher::new(spec, of(&[TokenKind::UserDefined]))?,
            by_text,
        })
    }

    pub(super) fn id(&self, text: &str) -> Option<u32> {
        self.by_text.get(text).copied()
    }

    /// Where special tokens stand, in order and without overlap.
    pub(crate) fn find<'t>(
        &'t self,
        text: &'t str,
        control: bool,
    ) -> impl Iterator<Item = (Range<usize>, u32)> + 't {
        let matcher = if control { &self.all } else { &self.user };
        matcher
            .automaton
            .find_iter(text)
            .map(|found| (found.range(), matcher.ids[found.pattern().as_usize()]))
    }
}

impl Matcher {
    fn new<'t>(
        spec: &TokenizerSpec,
        tokens: impl Iterator<Item = (u32, &'t str)>,
    ) -> Result<Self, TextError> {
        let (ids, texts): (Vec<u32>, Vec<&str>) = tokens.unzip();
        // A DFA would take time quadratic in the length of a token to build.
        let built = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .match_kind(MatchKind::LeftmostLongest)
            .build(texts);
        let failed = |e: aho_corasick::BuildError| TextError::Bpe {
            origin: spec.origin.clone(),
            message: e.to_string(),
        };
        Ok(Self { automaton: built.map_err(failed)?, ids })
    }
}
