//! What speculation did, per request and added up: the figures behind `run --stats`, `--json` and the acceptance chart.

use std::time::Duration;

use serde::{Serialize, Serializer};

/// The most tokens that a round drafts: with the row before them they fill a step of 16 rows.
pub const MAX_DRAFT: usize = 15;

/// Who wrote a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum DrafterKind {
    /// The model's own multi-token prediction block.
    Mtp,
    /// The request's own text.
    Lookup,
    /// Text that the caller predicts.
    Prediction,
    /// A list of tokens, for tests and measurements.
    Scripted,
    /// A DFlash drafter.
    Dflash,
}

impl DrafterKind {
    /// Every kind, in the order of [`DrafterKind::index`].
    pub const ALL: [Self; 5] = [Self::Mtp, Self::Lookup, Self::Prediction, Self::Scripted, Self::Dflash];

    /// Place in [`DrafterKind::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name in `--json` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mtp => "mtp",
            Self::Lookup => "lookup",
            Self::Prediction => "prediction",
            Self::Scripted => "scripted",
            Self::Dflash => "dflash",
        }
    }
}

/// Drafts at one position of the round, counted from 1 as the first drafted token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PositionStats {
    /// Tokens drafted there.
    pub drafted: u64,
    /// Of these, tokens that the model confirmed.
    pub accepted: u64,
}

/// The share of one drafter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct DrafterStats {
    /// Rounds to which it gave at least one token.
    pub rounds: u64,
    /// Tokens it drafted.
    pub drafted: u64,
    /// Of these, tokens that the model confirmed.
    pub accepted: u64,
    /// Verified tokens that it made keys and values of: each once, when a draft first needs them.
    pub context: u64,
}

/// Counts and times of rounds.
///
/// Serialises to stable names: `rounds`, `tokens`, `drafted`, `accepted`, `acceptance`, `tokens_per_round`, `draft_seconds`,
/// `verify_seconds`, `commit_seconds`, `positions` (a list, up to the deepest position that was drafted) and `drafters` (by
/// name, those that drafted).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecStats {
    /// Rounds, those without drafts included.
    pub rounds: u64,
    /// Tokens that rounds gave: the accepted ones and the model's own after them.
    pub tokens: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of these, tokens that the model confirmed.
    pub accepted: u64,
    /// By position of the draft; index 0 is the first drafted token.
    pub positions: [PositionStats; MAX_DRAFT],
    /// By drafter, in the order of [`DrafterKind::ALL`].
    pub drafters: [DrafterStats; DrafterKind::ALL.len()],
    /// Time spent drafting.
    pub draft_time: Duration,
    /// Time spent in steps of the model that verify drafts, or decode where there is none.
    pub verify_time: Duration,
    /// Time spent taking over what was accepted.
    pub commit_time: Duration,
}

impl SpecStats {
    /// Counts a round that gave `tokens` tokens. `runs` says who drafted its tokens, in order, and how many each; the first
    /// `accepted` of all of them were confirmed.
    pub fn record(&mut self, runs: &[(DrafterKind, usize)], accepted: usize, tokens: usize) {
        self.rounds += 1;
        self.tokens += tokens as u64;
        let mut position = 0;
        for &(kind, drafted) in runs.iter().filter(|run| run.1 > 0) {
            let confirmed = accepted.saturating_sub(position).min(drafted);
            let drafter = &mut self.drafters[kind.index()];
            drafter.rounds += 1;
            drafter.drafted += drafted as u64;
            drafter.accepted += confirmed as u64;
            self.drafted += drafted as u64;
            self.accepted += confirmed as u64;
            position += drafted;
        }
        for (index, stats) in self.positions.iter_mut().take(position).enumerate() {
            stats.drafted += 1;
            stats.accepted += u64::from(index < accepted);
        }
    }

    /// Adds the times of a round.
    pub fn record_times(&mut self, draft: Duration, verify: Duration, commit: Duration) {
        self.draft_time = self.draft_time.saturating_add(draft);
        self.verify_time = self.verify_time.saturating_add(verify);
        self.commit_time = self.commit_time.saturating_add(commit);
    }

    /// Adds the figures of other rounds.
    pub fn merge(&mut self, other: &Self) {
        self.rounds += other.rounds;
        self.tokens += other.tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        for (mine, theirs) in self.positions.iter_mut().zip(&other.positions) {
            mine.drafted += theirs.drafted;
            mine.accepted += theirs.accepted;
        }
        for (mine, theirs) in self.drafters.iter_mut().zip(&other.drafters) {
            mine.rounds += theirs.rounds;
            mine.drafted += theirs.drafted;
            mine.accepted += theirs.accepted;
            mine.context += theirs.context;
        }
        self.record_times(other.draft_time, other.verify_time, other.commit_time);
    }

    /// Share of drafted tokens that were accepted, or `None` when nothing was drafted.
    pub fn acceptance(&self) -> Option<f64> {
        ratio(self.accepted, self.drafted)
    }

    /// Mean number of tokens that a round gave, or `None` when there was no round.
    pub fn tokens_per_round(&self) -> Option<f64> {
        ratio(self.tokens, self.rounds)
    }

    /// Positions up to the deepest one at which a token was drafted.
    pub fn used_positions(&self) -> &[PositionStats] {
        let used = self.positions.iter().rposition(|p| p.drafted > 0).map_or(0, |last| last + 1);
        &self.positions[..used]
    }

    /// The drafters that drafted anything.
    pub fn used_drafters(&self) -> impl Iterator<Item = (DrafterKind, &DrafterStats)> {
        DrafterKind::ALL.into_iter().zip(&self.drafters).filter(|(_, stats)| stats.drafted > 0)
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The form that `--json` shows, apart from the fields so that these can change without breaking its readers.
#[derive(Serialize)]
struct Shown<'a> {
    rounds: u64,
    tokens: u64,
    drafted: u64,
    accepted: u64,
    acceptance: Option<f64>,
    tokens_per_round: Option<f64>,
    draft_seconds: f64,
    verify_seconds: f64,
    commit_seconds: f64,
    positions: &'a [PositionStats],
    drafters: std::collections::BTreeMap<&'static str, &'a DrafterStats>,
}

impl Serialize for SpecStats {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Shown {
            rounds: self.rounds,
            tokens: self.tokens,
            drafted: self.drafted,
            accepted: self.accepted,
            acceptance: self.acceptance(),
            tokens_per_round: self.tokens_per_round(),
            draft_seconds: self.draft_time.as_secs_f64(),
            verify_seconds: self.verify_time.as_secs_f64(),
            commit_seconds: self.commit_time.as_secs_f64(),
            positions: self.used_positions(),
            drafters: self.used_drafters().map(|(kind, stats)| (kind.name(), stats)).collect(),
        }
        .serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn two_rounds() -> SpecStats {
        let mut stats = SpecStats::default();
        stats.record(&[(DrafterKind::Prediction, 2), (DrafterKind::Mtp, 2)], 3, 4);
        stats.record(&[(DrafterKind::Mtp, 0)], 0, 1);
        stats.drafters[DrafterKind::Mtp.index()].context = 9;
        stats.record_times(
            Duration::from_millis(500),
            Duration::from_millis(1500),
            Duration::from_millis(250),
        );
        stats
    }

    #[test]
    fn shows_stable_names() {
        let shown = serde_json::to_value(two_rounds()).expect("plain numbers");
        let expected = json!({
            "rounds": 2, "tokens": 5, "drafted": 4, "accepted": 3, "acceptance": 0.75, "tokens_per_round": 2.5,
            "draft_seconds": 0.5, "verify_seconds": 1.5, "commit_seconds": 0.25,
            "positions": [
                {"drafted": 1, "accepted": 1}, {"drafted": 1, "accepted": 1},
                {"drafted": 1, "accepted": 1}, {"drafted": 1, "accepted": 0},
            ],
            "drafters": {
                "mtp": {"rounds": 1, "drafted": 2, "accepted": 1, "context": 9},
                "prediction": {"rounds": 1, "drafted": 2, "accepted": 2, "context": 0},
            },
        });
        assert_eq!(shown, expected);
        let empty = serde_json::to_value(SpecStats::default()).expect("plain numbers");
        assert_eq!(empty["acceptance"], json!(null));
        assert_eq!(empty["positions"], json!([]));
    }

    #[test]
    fn merging_adds_everything() {
        let one = two_rounds();
        let mut merged = SpecStats::default();
        merged.merge(&one);
        assert_eq!(merged, one);
        merged.merge(&one);
        assert_eq!((merged.rounds, merged.tokens, merged.drafted, merged.accepted), (4, 10, 8, 6));
        assert_eq!(merged.positions[3], PositionStats { drafted: 2, accepted: 0 });
        assert_eq!(merged.drafters[0], DrafterStats { rounds: 2, drafted: 4, accepted: 2, context: 18 });
        assert_eq!(merged.commit_time, Duration::from_millis(500));
        assert_eq!(merged.acceptance(), Some(0.75));
        assert_eq!(merged.tokens_per_round(), Some(2.5));
    }

    #[test]
    fn names_are_the_serialised_ones() {
        for (index, kind) in DrafterKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.index(), index);
            assert_eq!(serde_json::to_value(kind).expect("a name"), json!(kind.name()));
        }
    }
}
