//! The acceptance chart: how many of the drafted tokens the model confirmed, by position in the round and by drafter.

pub(crate) mod positions;
mod svg;

pub(crate) use svg::svg;

use forerun_engine::SpecStats;

/// Characters of a full bar on the terminal.
const WIDTH: usize = 32;

/// A group of requests that is drawn by itself.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) name: String,
    pub(crate) stats: SpecStats,
}

/// One bar: tokens drafted, and how many of them were accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) drafted: u64,
    pub(crate) accepted: u64,
}

impl Bar {
    /// Share of the drafted tokens that were accepted; 0 when there was none.
    pub(crate) fn share(&self) -> f64 {
        if self.drafted == 0 { 0.0 } else { self.accepted as f64 / self.drafted as f64 }
    }

    /// Its numbers in words.
    pub(crate) fn words(&self) -> String {
        format!("{} of {} accepted ({:.1} %)", self.accepted, self.drafted, 100.0 * self.share())
    }
}

/// A bar for every position that was drafted, from 1.
pub(crate) fn by_position(stats: &SpecStats) -> Vec<Bar> {
    let positions = stats.used_positions().iter().enumerate();
    positions
        .map(|(i, p)| Bar { label: (i + 1).to_string(), drafted: p.drafted, accepted: p.accepted })
        .collect()
}

/// A bar for every drafter that drafted.
pub(crate) fn by_drafter(stats: &SpecStats) -> Vec<Bar> {
    stats
        .used_drafters()
        .map(|(kind, d)| Bar { label: kind.name().into(), drafted: d.drafted, accepted: d.accepted })
        .collect()
}

/// The chart as lines of text.
pub(crate) fn lines(stats: &SpecStats) -> Vec<String> {
    let mut lines = Vec::new();
    for (title, bars) in [("by position", by_position(stats)), ("by drafter", by_drafter(stats))] {
        if bars.is_empty() {
            continue;
        }
        lines.push(format!("acceptance {title}"));
        lines.extend(bars.iter().map(|b| format!("{:>12} {} {}", b.label, bar(b.share()), b.words())));
    }
    lines
}

/// A bar of blocks, to an eighth of a character, on a track of [`WIDTH`] characters.
fn bar(share: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * (WIDTH * 8) as f64).round() as usize;
    let drawn = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let rest = WIDTH - eighths.div_ceil(8);
    drawn + &"░".repeat(rest)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forerun_engine::DrafterKind;

    pub(crate) fn stats() -> SpecStats {
        let mut stats = SpecStats::default();
        stats.record(&[(DrafterKind::Prediction, 3)], 3, 4);
        stats.record(&[(DrafterKind::Mtp, 2)], 1, 2);
        stats.record(&[(DrafterKind::Mtp, 2)], 0, 1);
        stats
    }

    #[test]
    fn bars_hold_the_numbers_of_the_stats() {
        let bar = |label: &str, drafted, accepted| Bar { label: label.into(), drafted, accepted };
        assert_eq!(by_position(&stats()), [bar("1", 3, 2), bar("2", 3, 1), bar("3", 1, 1)]);
        assert_eq!(by_drafter(&stats()), [bar("mtp", 4, 1), bar("prediction", 3, 3)]);
        assert!(by_position(&SpecStats::default()).is_empty());
    }

    #[test]
    fn text_bars_have_one_width() {
        for (share, full, first) in [(0.0, 0, '░'), (0.5, 16, '█'), (1.0, 32, '█'), (f64::NAN, 0, '░')]
        {
            let text = bar(share);
            assert_eq!(text.chars().count(), WIDTH, "{share}");
            assert_eq!(text.chars().filter(|c| *c == '█').count(), full);
            assert_eq!(text.chars().next(), Some(first));
        }
        assert_eq!(bar(0.5 / 32.0).chars().next(), Some('▌'));
        assert_eq!(bar(31.99 / 32.0).chars().count(), WIDTH);
    }

    #[test]
    fn lines_say_everything() {
        let lines = lines(&stats());
        assert_eq!(lines.len(), 7);
        assert!(lines[1].ends_with("2 of 3 accepted (66.7 %)"), "{}", lines[1]);
        assert!(lines[6].contains("prediction █"), "{}", lines[6]);
        assert!(super::lines(&SpecStats::default()).is_empty());
    }
}
