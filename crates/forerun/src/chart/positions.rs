//! Divergence by position in the window, drawn.

use std::fmt::Write;

use forerun_weights::compare::Tally;
use serde::Serialize;

use super::bar;
use super::svg::{self, ACCEPTED, DRAFTED, WIDTH};

/// Bars of a chart, at most.
const BINS: usize = 16;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 214.0;

/// Consecutive positions and the divergence there, in nats.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Bin {
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) mean: f64,
    pub(crate) max: f64,
}

impl Bin {
    fn label(&self) -> String {
        if self.first == self.last { self.first.to_string() } else { format!("{}-{}", self.first, self.last) }
    }
}

/// Bins of nearly equal width over positions from `first` on, each of which has a tally.
pub(crate) fn bins(first: usize, tallies: &[Tally]) -> Vec<Bin> {
    let size = tallies.len().div_ceil(BINS).max(1);
    let bin = |(i, part): (usize, &[Tally])| {
        let count: u64 = part.iter().map(Tally::count).sum();
        let sum: f64 = part.iter().map(|t| t.mean() * t.count() as f64).sum();
        Bin {
            first: first + i * size,
            last: first + i * size + part.len() - 1,
            mean: sum / count.max(1) as f64,
            max: part.iter().map(Tally::max).fold(0.0, f64::max),
        }
    };
    tallies.chunks(size).enumerate().map(bin).collect()
}

/// The largest of some numbers that is finite; 0 without any.
fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|v| v.is_finite()).fold(0.0, f64::max)
}

/// The chart as lines of text: means, as shares of the largest.
pub(crate) fn lines(bins: &[Bin]) -> Vec<String> {
    let most = largest(bins.iter().map(|b| b.mean));
    let share = |mean: f64| if most > 0.0 { mean / most } else { 0.0 };
    bins.iter().map(|b| format!("{:>12} {} {:.6}", b.label(), bar(share(b.mean)), b.mean)).collect()
}

/// The chart as a picture: a bar for the mean of every bin, and a line for its largest value on an axis of its own. No
/// background is drawn, and every colour stands out from a light page as from a dark one.
pub(crate) fn picture(title: &str, bins: &[Bin]) -> String {
    let mut out = String::new();
    svg::open(&mut out, title, HEIGHT);
    for (x, colour, name) in [(16.0, ACCEPTED, "mean"), (116.0, DRAFTED, "largest (scale at the right)")] {
        svg::rect(&mut out, "legend", colour, x, 40.0, 12.0, 12.0);
        svg::text(&mut out, x + 18.0, 50.0, "start", 12, name);
    }
    let [most, most_max] = [largest(bins.iter().map(|b| b.mean)), largest(bins.iter().map(|b| b.max))];
    svg::text(&mut out, LEFT - 8.0, TOP - 14.0, "end", 11, "nats");
    for tick in [0.0, 0.5, 1.0] {
        let y = BOTTOM - (BOTTOM - TOP) * tick;
        svg::line(&mut out, LEFT, y, RIGHT - 60.0, if tick == 0.0 { 1.0 } else { 0.3 });
        svg::text(&mut out, LEFT - 8.0, y + 4.0, "end", 11, &format!("{:.3e}", most * tick));
        svg::text(&mut out, RIGHT, y + 4.0, "end", 11, &format!("{:.1e}", most_max * tick));
    }
    let slot = (RIGHT - 60.0 - LEFT) / bins.len().max(1) as f64;
    for (i, b) in bins.iter().enumerate() {
        let height = |value: f64, most: f64| {
            if most > 0.0 { (BOTTOM - TOP) * (value / most).clamp(0.0, 1.0) } else { 0.0 }
        };
        let (x, mean) = (LEFT + slot * (i as f64 + 0.15), height(b.mean, most));
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "<g class=\"bar\"><title>positions {}: mean {:.6}, largest {:.6}</title>",
            svg::escape(&b.label()),
            b.mean,
            b.max
        );
        svg::rect(&mut out, "mean", ACCEPTED, x, BOTTOM - mean, slot * 0.7, mean);
        svg::rect(&mut out, "max", DRAFTED, x, BOTTOM - height(b.max, most_max) - 1.0, slot * 0.7, 2.0);
        svg::text(&mut out, x + slot * 0.35, BOTTOM + 16.0, "middle", 10, &b.first.to_string());
        out.push_str("</g>\n");
    }
    let middle = f64::midpoint(LEFT, RIGHT - 60.0);
    svg::text(&mut out, middle, BOTTOM + 34.0, "middle", 12, "position in the window");
    svg::text(&mut out, WIDTH - 20.0, TOP - 14.0, "end", 11, "nats");
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use roxmltree::Document;

    fn tallies(values: &[&[f64]]) -> Vec<Tally> {
        let tally = |values: &&[f64]| {
            let mut tally = Tally::default();
            values.iter().for_each(|v| tally.add(*v));
            tally
        };
        values.iter().map(tally).collect()
    }

    #[test]
    fn bins_hold_every_position() {
        let few = bins(2, &tallies(&[&[0.5, 1.5], &[3.0]]));
        let bin = |first, last, mean, max| Bin { first, last, mean, max };
        assert_eq!(few, [bin(2, 2, 1.0, 1.5), bin(3, 3, 3.0, 3.0)]);
        let many: Vec<&[f64]> = vec![&[1.0, 2.0]; 33];
        let many = bins(256, &tallies(&many));
        assert_eq!(many.len(), 11);
        assert_eq!(many[0], bin(256, 258, 1.5, 2.0));
        assert_eq!((many[10].first, many[10].last), (286, 288));
        assert!(bins(0, &[]).is_empty());
    }

    #[test]
    fn text_and_picture_hold_the_numbers() {
        for values in [[0.25, 0.5], [0.0, 0.0], [f64::INFINITY, 1.0]] {
            let bins = bins(4, &tallies(&[&[values[0]], &[values[1]]]));
            let text = lines(&bins);
            assert!(text.len() == 2 && text[1].ends_with(&format!("{:.6}", values[1])), "{text:?}");
            let drawn = picture("a < b", &bins);
            let document = Document::parse(&drawn).expect("well-formed");
            let bars = document.descendants().filter(|n| n.attribute("class") == Some("bar"));
            let titles: Vec<_> = bars.filter_map(|b| b.first_element_child()?.text()).collect();
            assert_eq!(titles.len(), 2);
            assert!(titles[1].starts_with(&format!("positions 5: mean {:.6}", values[1])), "{titles:?}");
            let number =
                |n: roxmltree::Node<'_, '_>, name| n.attribute(name).and_then(|v| v.parse::<f64>().ok());
            for rect in document.descendants().filter(|n| n.has_tag_name("rect")) {
                let [x, y, w, h] = ["x", "y", "width", "height"].map(|a| number(rect, a).expect("a number"));
                assert!(
                    x >= 0.0 && y >= 0.0 && x + w <= WIDTH && y + h <= HEIGHT && h >= 0.0,
                    "{x} {y} {w} {h}"
                );
            }
        }
    }
}
