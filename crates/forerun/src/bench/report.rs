//! The result of `forerun bench spec`: figures, table, JSON.

use std::io::Write;
use std::path::Path;

use forerun_engine::{Engine, SpecStats};
use serde::Serialize;

use super::args::{SpecArgs, depth_name};
use super::coupling::{Reach, Sums};
use super::median;
use super::requests::Decoding;
use super::spec::{Cell, Sample};
use crate::chart::Panel;
use crate::error::Result;

/// Everything that was measured.
#[derive(Serialize)]
pub(super) struct Report {
    model: String,
    backend: String,
    arithmetic_id: String,
    prompts: usize,
    max_tokens: usize,
    repeat: usize,
    draft_vocab: Option<usize>,
    confidence: f32,
    cells: Vec<CellReport>,
}

/// One combination of settings.
#[derive(Serialize)]
pub(super) struct CellReport {
    drafter: String,
    depth: String,
    temperature: f32,
    /// By kind of prompt; all of them together at the end.
    rows: Vec<Row>,
    #[serde(skip)]
    name: String,
}

/// One combination of settings on some prompts.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    kind: String,
    prompts: usize,
    acceptance: Option<f64>,
    tokens_per_round: Option<f64>,
    /// Medians over the repeats.
    plain_tokens_per_second: f64,
    tokens_per_second: f64,
    /// Median of the ratios of each repeat.
    ratio: f64,
    /// Requests whose tokens were equal every time.
    equal: usize,
    /// Of all repeats.
    speculation: SpecStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    coupling: Option<Reach>,
}

impl CellReport {
    /// `groups` name prompts by index; `reach` has one entry per prompt.
    pub(super) fn new(
        cell: &Cell,
        groups: &[(String, Vec<usize>)],
        samples: &[Sample],
        reach: Option<&[Sums]>,
        repeat: usize,
    ) -> Self {
        let row = |(kind, members): &(String, Vec<usize>)| {
            let samples: Vec<&Sample> = samples.iter().filter(|s| members.contains(&s.prompt)).collect();
            let coupling = reach.and_then(|reach| {
                let mut sums = Sums::default();
                members.iter().filter_map(|&m| reach.get(m)).for_each(|s| sums.merge(s));
                sums.reach()
            });
            Row { coupling, ..Row::new(kind, members, &samples, repeat) }
        };
        Self {
            drafter: cell.drafters.to_string(),
            depth: depth_name(cell.depth),
            temperature: cell.temperature,
            rows: groups.iter().map(row).collect(),
            name: cell.to_string(),
        }
    }

    /// Its part of the chart: all prompts together.
    pub(super) fn panel(&self) -> Panel {
        let stats = self.rows.last().map(|row| row.speculation.clone()).unwrap_or_default();
        Panel { name: self.name.clone(), stats }
    }
}

impl Row {
    fn new(kind: &str, members: &[usize], samples: &[&Sample], repeat: usize) -> Self {
        let speed = |of: fn(&Sample) -> Decoding, repeat: usize| {
            let runs = samples.iter().filter(|s| s.repeat == repeat).map(|s| of(s));
            let (tokens, seconds) =
                runs.fold((0, 0.0), |(tokens, seconds), run| (tokens + run.tokens, seconds + run.seconds));
            tokens as f64 / seconds
        };
        let mut plain: Vec<f64> = (0..repeat).map(|r| speed(|s| s.plain, r)).collect();
        let mut drafted: Vec<f64> = (0..repeat).map(|r| speed(|s| s.drafted, r)).collect();
        let mut ratios: Vec<f64> = drafted.iter().zip(&plain).map(|(d, p)| d / p).collect();
        let mut stats = SpecStats::default();
        samples.iter().for_each(|s| stats.merge(&s.stats));
        let always_equal = |m: &&usize| samples.iter().all(|s| s.prompt != **m || s.equal);
        Self {
            kind: kind.into(),
            prompts: members.len(),
            acceptance: stats.acceptance(),
            tokens_per_round: stats.tokens_per_round(),
            plain_tokens_per_second: median(&mut plain),
            tokens_per_second: median(&mut drafted),
            ratio: median(&mut ratios),
            equal: members.iter().filter(always_equal).count(),
            speculation: stats,
            coupling: None,
        }
    }
}

impl Report {
    pub(super) fn new(args: &SpecArgs, engine: &Engine, prompts: usize, cells: Vec<CellReport>) -> Self {
        Self {
            model: engine.path().display().to_string(),
            backend: engine.backend().detail.clone(),
            arithmetic_id: engine.backend().arithmetic_id.clone(),
            prompts,
            max_tokens: args.max_tokens,
            repeat: args.repeat,
            draft_vocab: args.draft_vocab,
            confidence: args.draft_confidence,
            cells,
        }
    }

    /// Requests that differ, and all of them, over the cells.
    pub(super) fn differences(&self) -> (usize, usize) {
        let totals = self.cells.iter().filter_map(|c| c.rows.last());
        totals.fold((0, 0), |(different, all), row| (different + row.prompts - row.equal, all + row.prompts))
    }

    pub(super) fn print(&self, json: bool) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(
            out,
            "{}: {} prompts, {} tokens each; {} [{}]; medians of {} interleaved runs\n",
            self.model, self.prompts, self.max_tokens, self.backend, self.arithmetic_id, self.repeat
        )?;
        self.print_table(&mut out)?;
        self.print_coupling(&mut out)?;
        Ok(())
    }

    fn print_table(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(
            out,
            "{:<16} {:>5} {:>5} {:<6} {:>10} {:>8} {:>9} {:>9} {:>6}  {:>9}",
            "drafter", "depth", "T", "kind", "acceptance", "tok/rnd", "plain t/s", "tok/s", "ratio", "equal"
        )?;
        for (cell, row) in self.rows() {
            writeln!(
                out,
                "{:<16} {:>5} {:>5} {:<6} {:>10} {:>8} {:>9.1} {:>9.1} {:>5.2}x  {:>9}",
                cell.drafter,
                cell.depth,
                cell.temperature,
                row.kind,
                number(row.acceptance, 3),
                number(row.tokens_per_round, 2),
                row.plain_tokens_per_second,
                row.tokens_per_second,
                row.ratio,
                format!("{} of {}", row.equal, row.prompts),
            )?;
        }
        Ok(())
    }

    fn print_coupling(&self, out: &mut impl Write) -> std::io::Result<()> {
        if self.rows().all(|(_, row)| row.coupling.is_none()) {
            return Ok(());
        }
        writeln!(
            out,
            "\nWhat coupling could reach: acceptance (a row counts only if every draft before it is accepted), and by row"
        )?;
        writeln!(
            out,
            "{:<16} {:>5} {:>5} {:<6} {:>10} {:>8} {:>8}   {:>10} {:>10}",
            "drafter", "depth", "T", "kind", "acceptance", "best", "Gumbel", "row: 1-TV", "row: Gumbel"
        )?;
        for (cell, row) in self.rows() {
            let Some(c) = &row.coupling else { continue };
            writeln!(
                out,
                "{:<16} {:>5} {:>5} {:<6} {:>10.3} {:>8.3} {:>8.3}   {:>10.3} {:>11.3}",
                cell.drafter,
                cell.depth,
                cell.temperature,
                row.kind,
                c.acceptance,
                c.rounds.best,
                c.rounds.gumbel,
                c.rows.best,
                c.rows.gumbel
            )?;
        }
        Ok(())
    }

    fn rows(&self) -> impl Iterator<Item = (&CellReport, &Row)> {
        self.cells.iter().flat_map(|cell| cell.rows.iter().map(move |row| (cell, row)))
    }
}

/// A number, or a dash where there is none.
fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"))
}

/// The last part of a path.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_engine::DrafterKind;

    fn sample(prompt: usize, repeat: usize, plain: f64, drafted: f64, equal: bool) -> Sample {
        let mut stats = SpecStats::default();
        stats.record(&[(DrafterKind::Mtp, 3)], 1, 2);
        let decoding = |seconds| Decoding { tokens: 10, seconds };
        Sample { prompt, repeat, plain: decoding(plain), drafted: decoding(drafted), stats, equal }
    }

    #[test]
    fn figures_are_medians_over_repeats() {
        let samples = [
            sample(0, 0, 2.0, 1.0, true),
            sample(1, 0, 2.0, 1.0, true),
            sample(0, 1, 1.0, 1.0, true),
            sample(1, 1, 1.0, 1.0, false),
            sample(0, 2, 4.0, 1.0, true),
            sample(1, 2, 4.0, 1.0, true),
        ];
        let all: Vec<&Sample> = samples.iter().collect();
        let row = Row::new("total", &[0, 1], &all, 3);
        assert_eq!((row.plain_tokens_per_second, row.tokens_per_second, row.ratio), (5.0, 10.0, 2.0));
        assert_eq!((row.equal, row.prompts), (1, 2), "a request that differed once is not equal");
        assert_eq!((row.acceptance, row.tokens_per_round), (Some(1.0 / 3.0), Some(2.0)));
        let first: Vec<&Sample> = samples.iter().filter(|s| s.prompt == 0).collect();
        assert_eq!(Row::new("code", &[0], &first, 3).equal, 1);
    }
}
