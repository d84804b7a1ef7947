//! The acceptance chart as SVG.

use std::fmt::Write;

use super::{Bar, Panel, by_drafter, by_position};

pub(super) const WIDTH: f64 = 760.0;
const HEADER: f64 = 64.0;
const PANEL: f64 = 210.0;
/// Height of the tallest bar.
const PLOT: f64 = 120.0;
/// Left and right edge of the bars by position, then by drafter.
const PLOTS: [(f64, f64); 2] = [(64.0, 470.0), (540.0, 740.0)];
/// Text that can be read on white and on black.
const TEXT: &str = "#747c86";
/// Colours told apart by lightness too.
pub(super) const DRAFTED: &str = "#9aa5b1";
pub(super) const ACCEPTED: &str = "#2f81c7";

/// A chart with a row for each panel: bars by position at the left, by drafter at the right. No background is drawn, and
/// every colour stands out from a light page as from a dark one.
pub(crate) fn svg(title: &str, panels: &[Panel]) -> String {
    let height = HEADER + PANEL * panels.len() as f64;
    let mut out = String::new();
    header(&mut out, title, height);
    for (i, panel) in panels.iter().enumerate() {
        let top = HEADER + PANEL * i as f64;
        text(&mut out, 16.0, top + 14.0, "start", 13, &panel.name);
        let parts =
            [("position in the round", by_position(&panel.stats)), ("drafter", by_drafter(&panel.stats))];
        for ((axis, bars), (left, right)) in parts.iter().zip(PLOTS) {
            plot(&mut out, axis, bars, left, right, top + 40.0 + PLOT);
        }
    }
    out.push_str("</svg>\n");
    out
}

/// The head of a picture, with its title.
pub(super) fn open(out: &mut String, title: &str, height: f64) {
    let escaped = escape(title);
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         role=\"img\" font-family=\"system-ui, sans-serif\">\n<title>{escaped}</title>\n"
    );
    text(out, 16.0, 26.0, "start", 16, title);
}

fn header(out: &mut String, title: &str, height: f64) {
    open(out, title, height);
    for (x, colour, name) in [(16.0, ACCEPTED, "accepted"), (116.0, DRAFTED, "drafted, not accepted")] {
        rect(out, "legend", colour, x, 40.0, 12.0, 12.0);
        text(out, x + 18.0, 50.0, "start", 12, name);
    }
}

/// Axes and bars; `bottom` is the height of the horizontal axis.
fn plot(out: &mut String, axis: &str, bars: &[Bar], left: f64, right: f64, bottom: f64) {
    let most = bars.iter().map(|b| b.drafted).max().unwrap_or(0).max(1);
    let middle = f64::midpoint(left, right);
    text(out, middle, bottom + 34.0, "middle", 12, axis);
    text(out, left - 8.0, bottom - PLOT - 18.0, "end", 11, "tokens");
    for (tick, value) in [(0.0, 0), (0.5, most / 2), (1.0, most)] {
        // An odd number of tokens has no whole half.
        if tick == 0.5 && most % 2 == 1 {
            continue;
        }
        let y = bottom - PLOT * tick;
        line(out, left, y, right, if value == 0 { 1.0 } else { 0.3 });
        text(out, left - 8.0, y + 4.0, "end", 11, &value.to_string());
    }
    if bars.is_empty() {
        text(out, middle, bottom - PLOT / 2.0, "middle", 12, "nothing drafted");
    }
    let slot = (right - left) / bars.len().max(1) as f64;
    let width = (slot * 0.7).min(60.0);
    for (i, bar) in bars.iter().enumerate() {
        let centre = left + slot * (i as f64 + 0.5);
        let height = |count: u64| PLOT * count as f64 / most as f64;
        let (drafted, accepted) = (height(bar.drafted), height(bar.accepted));
        let _ = writeln!(
            out,
            "<g class=\"bar\"><title>{} {}: {}</title>",
            escape(axis),
            escape(&bar.label),
            bar.words()
        );
        let x = centre - width / 2.0;
        rect(out, "drafted", DRAFTED, x, bottom - drafted, width, drafted - accepted);
        rect(out, "accepted", ACCEPTED, x, bottom - accepted, width, accepted);
        text(out, centre, bottom - drafted - 5.0, "middle", 10, &format!("{:.0}%", 100.0 * bar.share()));
        text(out, centre, bottom + 16.0, "middle", 11, &bar.label);
        out.push_str("</g>\n");
    }
}

pub(super) fn text(out: &mut String, x: f64, y: f64, anchor: &str, size: u32, text: &str) {
    let text = escape(text);
    let _ = writeln!(
        out,
        "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{TEXT}\">{text}</text>"
    );
}

pub(super) fn rect(out: &mut String, class: &str, colour: &str, x: f64, y: f64, width: f64, height: f64) {
    let _ = writeln!(
        out,
        "<rect class=\"{class}\" x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" fill=\"{colour}\"/>"
    );
}

pub(super) fn line(out: &mut String, left: f64, y: f64, right: f64, opacity: f64) {
    let _ = writeln!(
        out,
        "<line x1=\"{left:.2}\" y1=\"{y:.2}\" x2=\"{right:.2}\" y2=\"{y:.2}\" stroke=\"{TEXT}\" stroke-opacity=\"{opacity}\"/>"
    );
}

/// Text as XML holds it. Characters that XML has no form for become U+FFFD.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..' ' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::tests::stats;
    use super::*;
    use forerun_engine::SpecStats;
    use roxmltree::{Document, Node};

    fn number(node: Node<'_, '_>, name: &str) -> f64 {
        node.attribute(name).and_then(|v| v.parse().ok()).expect("a number")
    }

    fn all<'a>(document: &'a Document<'_>, name: &str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", name))).collect()
    }

    #[test]
    fn bars_are_those_of_the_stats() {
        let panels = [Panel { name: "mtp".into(), stats: stats() }];
        let drawn = svg("title", &panels);
        let document = Document::parse(&drawn).expect("well-formed");
        let groups: Vec<_> =
            all(&document, "g").into_iter().filter(|g| g.attribute("class") == Some("bar")).collect();
        let bars =
            [("position in the round", by_position(&stats()), 3), ("drafter", by_drafter(&stats()), 4)];
        let expected: Vec<(&str, Bar, u64)> = bars
            .into_iter()
            .flat_map(|(axis, bars, most)| bars.into_iter().map(move |b| (axis, b, most)))
            .collect();
        assert_eq!(groups.len(), expected.len());
        for (group, (axis, bar, most)) in groups.iter().zip(expected) {
            let title = group.first_element_child().and_then(|t| t.text()).expect("a title");
            assert_eq!(title, format!("{axis} {}: {}", bar.label, bar.words()));
            let height = |class: &str| {
                let rect = group.children().find(|r| r.attribute("class") == Some(class)).expect("a bar");
                number(rect, "height")
            };
            let unit = PLOT / most as f64;
            assert!((height("accepted") - unit * bar.accepted as f64).abs() < 0.01, "{title}");
            assert!((height("drafted") - unit * (bar.drafted - bar.accepted) as f64).abs() < 0.01, "{title}");
        }
    }

    #[test]
    fn has_title_legend_and_axes_inside_the_picture() {
        let panels = ["first", "second"].map(|name| Panel { name: name.into(), stats: stats() });
        let drawn = svg("Acceptance", &panels);
        let document = Document::parse(&drawn).expect("well-formed");
        let texts: Vec<&str> = all(&document, "text").iter().filter_map(|t| t.text()).collect();
        for wanted in
            ["Acceptance", "first", "second", "accepted", "position in the round", "drafter", "tokens", "67%"]
        {
            assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
        }
        let height = number(document.root_element(), "height");
        for rect in all(&document, "rect") {
            let (x, y) = (number(rect, "x"), number(rect, "y"));
            assert!(x >= 0.0 && x + number(rect, "width") <= WIDTH);
            assert!(y >= 0.0 && y + number(rect, "height") <= height && number(rect, "height") >= 0.0);
        }
        assert!(all(&document, "text").iter().all(|t| number(*t, "y") < height));
    }

    #[test]
    fn any_text_is_escaped() {
        let name = "a<b> & \"c\" 'd' \u{1}\u{ffff} é\n";
        let drawn = svg(name, &[Panel { name: name.into(), stats: SpecStats::default() }]);
        let document = Document::parse(&drawn).expect("well-formed");
        let texts: Vec<&str> = all(&document, "text").iter().filter_map(|t| t.text()).collect();
        let shown = "a<b> & \"c\" 'd' \u{fffd}\u{fffd} é ";
        assert_eq!(texts.iter().filter(|t| **t == shown).count(), 2, "{texts:?}");
        assert!(texts.contains(&"nothing drafted"));
    }

    /// Relative luminance of a colour, WCAG 2.
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("a colour");
            let c = f64::from(value) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    #[test]
    fn colours_stand_out_on_light_and_dark() {
        let contrast = |a: f64, b: f64| (a.max(b) + 0.05) / (a.min(b) + 0.05);
        for (colour, least) in [(TEXT, 4.0), (ACCEPTED, 3.0), (DRAFTED, 2.0)] {
            let own = luminance(colour);
            for page in ["#ffffff", "#0d1117"] {
                let found = contrast(own, luminance(page));
                assert!(found >= least, "{colour} on {page}: {found:.2}");
            }
        }
    }
}
