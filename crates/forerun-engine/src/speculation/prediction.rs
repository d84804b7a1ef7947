//! Drafting from text that the caller predicts: the file before an edit, the answer of an earlier run, a template. Most
//! of it comes out as predicted; the art is to find the place again after the parts that do not.

use super::grams::{Grams, agreement};

/// How many of the newest verified tokens decide between places.
const LONGEST: usize = 16;
/// Agreement that counts anywhere in the prediction. Shorter ones occur by chance.
const ANYWHERE: usize = 3;
/// Agreement that counts up to `NEAR` tokens ahead of the last place.
const AHEAD: usize = 2;
const NEAR: usize = 256;
/// A single token counts this far ahead: most edits insert, delete or replace a few tokens.
const CLOSE: usize = 8;
/// Agreement after which a far place is where the text is, rather than a chance likeness.
const SETTLED: usize = 8;
/// Far places looked at, newest first: bounds a search in a prediction that repeats itself.
const WALK: usize = 128;

/// A drafter that follows a predicted text.
///
/// While the verified tokens agree with the prediction, the next ones are proposed. After a disagreement nothing is
/// proposed until the newest verified tokens are found again: the place with the longest agreement (of at most 16 tokens)
/// wins; among equals the nearest at or after the place that was left, then the nearest before it. How much agreement is
/// needed grows with the distance: one token close ahead, two a little further, three anywhere.
#[derive(Debug, Clone)]
pub struct Prediction {
    tokens: Vec<u32>,
    grams: Grams,
    /// Index of the predicted token that comes next, while the place is known.
    cursor: Option<usize>,
    /// Where the place was last known for certain. A chance likeness far away does not move it.
    anchor: usize,
    /// Tokens in a row that agreed at the cursor.
    agreed: usize,
    /// The newest verified tokens, oldest first, at most [`LONGEST`].
    recent: Vec<u32>,
}

impl Prediction {
    /// Predicts that the next generation is `tokens`. Takes time and memory linear in them.
    pub fn new(tokens: Vec<u32>) -> Self {
        let mut grams = Grams::new(ANYWHERE);
        (1..=tokens.len()).for_each(|len| grams.push(&tokens[..len]));
        Self { tokens, grams, cursor: Some(0), anchor: 0, agreed: SETTLED, recent: Vec::new() }
    }

    /// Begins a generation: the prediction is expected from its first token on.
    pub fn start(&mut self) {
        self.cursor = Some(0);
        self.anchor = 0;
        self.agreed = SETTLED;
        self.recent.clear();
    }

    /// Follows one generated and verified token. The prompt is not pushed.
    pub fn push(&mut self, token: u32) {
        if self.recent.len() == LONGEST {
            self.recent.remove(0);
        }
        self.recent.push(token);
        self.cursor = match self.cursor {
            Some(cursor) if self.tokens.get(cursor) == Some(&token) => {
                self.agreed += 1;
                Some(cursor + 1)
            }
            _ => self.find(),
        };
        if let Some(cursor) = self.cursor
            && self.agreed >= SETTLED
        {
            self.anchor = cursor;
        }
    }

    /// Appends up to `depth` of the predicted tokens that come next to `out` and returns how many: none while the place is
    /// lost, fewer than `depth` at the prediction's end.
    pub fn draft(&self, depth: usize, out: &mut Vec<u32>) -> usize {
        let rest = self.cursor.and_then(|cursor| self.tokens.get(cursor..)).unwrap_or_default();
        let next = &rest[..depth.min(rest.len())];
        out.extend_from_slice(next);
        next.len()
    }

    /// Finds the place after a disagreement: the index that follows the newest verified tokens.
    fn find(&mut self) -> Option<usize> {
        let (near, near_agreed) = self.find_near();
        let (far, far_agreed) = self.find_far();
        if far_agreed > near_agreed {
            self.agreed = far_agreed;
            far
        } else {
            // What goes on close to the place that was left needs no further proof.
            self.agreed = SETTLED;
            near
        }
    }

    /// The best place a little ahead of the anchor and its agreement.
    fn find_near(&self) -> (Option<usize>, usize) {
        let mut best = (None, 0);
        let last = (self.anchor + NEAR).min(self.tokens.len());
        for end in self.anchor..=last {
            let agreed = agreement(&self.tokens[..end], &self.recent, LONGEST);
            let needed = if end - self.anchor <= CLOSE { 1 } else { AHEAD };
            if agreed >= needed && agreed > best.1 {
                best = (Some(end), agreed);
            }
        }
        best
    }

    /// The best place anywhere and its agreement.
    fn find_far(&self) -> (Option<usize>, usize) {
        let mut best = (None, ANYWHERE - 1);
        for end in self.grams.places(&self.recent).take(WALK) {
            let agreed = agreement(&self.tokens[..end], &self.recent, LONGEST);
            let nearer = best.0.is_none_or(|other| self.distance(end) < self.distance(other));
            if agreed > best.1 || (agreed == best.1 && agreed >= ANYWHERE && nearer) {
                best = (Some(end), agreed);
            }
        }
        if best.0.is_none() { (None, 0) } else { best }
    }

    /// Orders places of equal agreement: those at or after the anchor first, then by nearness.
    fn distance(&self, end: usize) -> (bool, usize) {
        (end < self.anchor, end.abs_diff(self.anchor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(prediction: &Prediction, depth: usize) -> Vec<u32> {
        let mut out = Vec::new();
        assert_eq!(prediction.draft(depth, &mut out), out.len());
        out
    }

    fn after(tokens: &[u32], pushed: &[u32]) -> Prediction {
        let mut prediction = Prediction::new(tokens.to_vec());
        pushed.iter().for_each(|&token| prediction.push(token));
        prediction
    }

    #[test]
    fn follows_and_finds_its_place() {
        let text: Vec<u32> = (100..150).collect();
        let cases: &[(&str, &[u32], &[u32])] = &[
            ("nothing yet", &[], &[100, 101, 102]),
            ("agreement", &[100, 101], &[102, 103, 104]),
            ("the first token differs", &[7], &[]),
            ("an inserted first token", &[7, 100], &[101, 102, 103]),
            ("a replaced token", &[100, 101, 7], &[]),
            ("after a replaced token", &[100, 101, 7, 103], &[104, 105, 106]),
            ("after two inserted tokens", &[100, 7, 8, 101], &[102, 103, 104]),
            ("after deleted tokens", &[100, 101, 105], &[106, 107, 108]),
            ("one token far ahead proves nothing", &[100, 130], &[]),
            ("two tokens ahead do", &[100, 130, 131], &[132, 133, 134]),
            ("back to an earlier place", &[100, 101, 102, 103, 104, 105, 101, 102, 103], &[104, 105, 106]),
            ("two tokens back prove nothing", &[100, 101, 102, 103, 104, 105, 101, 102], &[]),
        ];
        for &(what, pushed, expected) in cases {
            assert_eq!(next(&after(&text, pushed), 3), expected, "{what}");
        }
    }

    #[test]
    fn prefers_the_nearest_of_equal_places_ahead() {
        // The same row three times; the second one is left by an edit and found again, neither the first nor the third.
        let row = [1, 2, 3, 4, 5];
        let text: Vec<u32> = (0..3).flat_map(|i| row.into_iter().chain([50 + i])).collect();
        let edited = [1, 2, 3, 4, 5, 50, 1, 9, 3, 4, 5];
        assert_eq!(next(&after(&text, &edited), 1), [51]);
    }

    #[test]
    fn a_chance_likeness_far_away_does_not_lose_the_place() {
        let mut text: Vec<u32> = (100..120).collect();
        text.extend(1000..1400);
        text.extend([7, 8, 9, 10]);
        let mut prediction = after(&text, &[100, 101, 102, 7, 8, 9]);
        assert_eq!(next(&prediction, 1), [10], "the likeness");
        prediction.push(103);
        assert_eq!(next(&prediction, 2), [104, 105], "the place");
    }

    #[test]
    fn ends_with_the_prediction_and_starts_again() {
        let mut prediction = after(&[1, 2], &[1]);
        assert_eq!(next(&prediction, 5), [2]);
        prediction.push(2);
        prediction.push(3);
        assert!(next(&prediction, 5).is_empty());
        prediction.start();
        assert_eq!(next(&prediction, 5), [1, 2]);
        assert!(next(&Prediction::new(Vec::new()), 5).is_empty());
    }

    proptest! {
        /// An edit costs at most the edited tokens and one more, in a text whose tokens are all different.
        #[test]
        fn an_edit_costs_little(
            length in 40usize..120,
            at in 0usize..30,
            deleted in 0usize..7,
            inserted in 0usize..12,
        ) {
            let text: Vec<u32> = (0..length as u32).collect();
            let mut real = text.clone();
            real.splice(at..at + deleted, (0..inserted as u32).map(|i| 10_000 + i));
            let mut prediction = Prediction::new(text);
            let mut missed = 0;
            for &token in &real {
                missed += usize::from(next(&prediction, 1) != [token]);
                prediction.push(token);
            }
            prop_assert!(missed <= inserted + 1, "{missed} of {}", real.len());
        }

        #[test]
        fn proposes_a_piece_of_the_prediction(
            text in prop::collection::vec(0u32..4, 0..80),
            pushed in prop::collection::vec(0u32..4, 0..80),
            depth in 0usize..20,
        ) {
            let mut prediction = Prediction::new(text.clone());
            for token in pushed {
                prediction.push(token);
                let next = next(&prediction, depth);
                prop_assert!(next.len() <= depth);
                prop_assert!(next.is_empty() || text.windows(next.len()).any(|w| w == next));
            }
        }
    }
}
