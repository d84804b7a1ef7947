//! What a drafter makes of verified tokens (keys and values), late and once each.

use std::collections::HashMap;

/// How far each slot has come.
#[derive(Debug, Default)]
pub(crate) struct Late(HashMap<u32, Made>);

#[derive(Clone, Copy, Debug, Default)]
struct Made {
    /// Tokens before it have keys and values.
    end: usize,
    /// Tokens whose keys and values the slot's request had made.
    rows: usize,
}

impl Late {
    /// A request begins whose first `kept` tokens are as the slot's last one left them.
    pub(crate) fn begin(&mut self, slot: u32, kept: usize) {
        let made = self.0.entry(slot).or_default();
        *made = Made { end: made.end.min(kept), rows: 0 };
    }

    /// Tokens of a slot before it have keys and values.
    pub(crate) fn end(&self, slot: u32) -> usize {
        self.0.get(&slot).map_or(0, |made| made.end)
    }

    /// The tokens of a slot up to `end` have been made.
    pub(crate) fn reach(&mut self, slot: u32, end: usize) {
        let made = self.0.entry(slot).or_default();
        if end > made.end {
            *made = Made { end, rows: made.rows + end - made.end };
        }
    }

    /// Tokens made since the slot's request began.
    pub(crate) fn rows(&self, slot: u32) -> u64 {
        self.0.get(&slot).map_or(0, |made| made.rows as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_a_request_makes() {
        let mut late = Late::default();
        assert_eq!((late.end(3), late.rows(3)), (0, 0));
        late.reach(3, 10);
        late.reach(3, 4);
        late.reach(3, 12);
        assert_eq!((late.end(3), late.rows(3)), (12, 12));
        late.begin(3, 7);
        late.reach(3, 9);
        assert_eq!((late.end(3), late.rows(3)), (9, 2));
        late.begin(3, 20);
        assert_eq!((late.end(3), late.rows(3), late.end(4)), (9, 0, 0));
    }
}
