//! `forerun bench spec`: what speculation gains, setting by setting, beside plain decoding of the same requests.

use std::collections::HashMap;

use forerun_engine::{
    CancelToken, Completion, Depth, DraftOptions, DrafterKind, Engine, LoadOptions, MtpChoice, Prompt,
    SamplingParams, Session, SpecStats,
};

use super::args::{SpecArgs, depth_name};
use super::coupling;
use super::progress::Countdown;
use super::prompts::{self, BenchPrompt};
use super::report::{self, CellReport, Report};
use super::requests::{Decoding, Runs, first_difference};
use crate::chart::{self, Panel};
use crate::demo::model_or_demo;
use crate::draft_args::{dflash_file, mtp_choice};
use crate::drafter_list::Asked;
use crate::error::{CliError, Result};
use crate::progress::{cancel_on_interrupt, load};

/// Kinds of the own prompts that are measured unless others are asked for.
const KINDS: [&str; 2] = ["code", "chat"];

/// One combination of settings.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) drafters: Asked,
    pub(super) depth: Depth,
    pub(super) temperature: f32,
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, depth {}, temperature {}", self.drafters, depth_name(self.depth), self.temperature)
    }
}

/// One request of a cell, plain and drafted.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// Index of its prompt.
    pub(super) prompt: usize,
    pub(super) repeat: usize,
    pub(super) plain: Decoding,
    pub(super) drafted: Decoding,
    pub(super) stats: SpecStats,
    /// Whether both gave the tokens that plain decoding gave the first time.
    pub(super) equal: bool,
}

/// The tokens of the first plain run, by prompt and temperature.
type References = HashMap<(usize, u32), Completion>;

pub(super) fn spec(args: &SpecArgs) -> Result<()> {
    check(args)?;
    let mut kinds = args.kind.clone();
    if args.prompts.is_none() && kinds.is_empty() {
        kinds.extend(KINDS.map(String::from));
    }
    let mut prompts = prompts::of_kinds(prompts::read(args.prompts.as_deref())?, &kinds)?;
    prompts.iter_mut().for_each(|p| p.seed = p.seed.wrapping_add(args.seed));
    let cancel = cancel_on_interrupt();
    let engine = load(&model_or_demo(args.model.as_deref())?, &options(args)?, &cancel)?;
    let cells = cells(args, &engine)?;
    if args.drafter.iter().any(|d| d.names(DrafterKind::Mtp)) && !engine.has_mtp()? {
        return Err(CliError::Option {
            option: "--drafter",
            found: "mtp".into(),
            expected: "other drafters, a model with an MTP block, or --mtp FILE".into(),
        });
    }
    let mut bench = Bench {
        args,
        prompts: &prompts,
        engine: &engine,
        session: engine.session()?,
        cancel: &cancel,
        references: References::new(),
    };
    let reports = bench.run(&cells)?;
    if let Some(path) = &args.chart {
        let panels: Vec<Panel> = reports.iter().map(CellReport::panel).collect();
        let title = format!("Drafted tokens that the model confirmed ({})", report::name(engine.path()));
        std::fs::write(path, chart::svg(&title, &panels))
            .map_err(|error| CliError::Input { path: path.clone(), error })?;
    }
    let report = Report::new(args, &engine, prompts.len(), reports);
    report.print(args.json)?;
    let (different, all) = report.differences();
    if different > 0 { Err(CliError::Differs(different, all)) } else { Ok(()) }
}

fn check(args: &SpecArgs) -> Result<()> {
    let bad = |option, found: usize, expected: &str| {
        Err(CliError::Option { option, found: found.to_string(), expected: expected.into() })
    };
    if args.repeat == 0 || args.repeat > 1000 {
        return bad("--repeat", args.repeat, "1 to 1000");
    }
    if args.max_tokens < 2 {
        return bad("--max-tokens", args.max_tokens, "at least 2");
    }
    Ok(())
}

fn options(args: &SpecArgs) -> Result<LoadOptions> {
    let mtp = match &args.mtp {
        _ if !args.drafter.iter().any(|d| d.may_use(DrafterKind::Mtp)) => MtpChoice::Off,
        named => mtp_choice(named.as_deref())?,
    };
    let mut files = args.drafter.iter().filter_map(|d| d.file().transpose()).collect::<Result<Vec<_>>>()?;
    files.dedup();
    if let [first, other, ..] = &files[..] {
        return Err(CliError::Option {
            option: "--drafter",
            found: format!("{} and {}", first.display(), other.display()),
            expected: "one DFlash drafter at most".into(),
        });
    }
    let dflash = dflash_file(files.pop(), args.drafter_type, args.drafter_passes)?;
    Ok(LoadOptions {
        backend: args.device.choice(),
        kv: args.kv.into(),
        draft: DraftOptions { mtp, vocabulary: args.draft_vocab, dflash },
        overlay: args.overlay.overlay.clone(),
        ..LoadOptions::default()
    })
}

fn cells(args: &SpecArgs, engine: &Engine) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    for list in &args.drafter {
        let drafters = list.asked(engine, false)?;
        for &depth in &args.depth {
            for &temperature in &args.temperature {
                cells.push(Cell { drafters: drafters.clone(), depth, temperature });
            }
        }
    }
    Ok(cells)
}

struct Bench<'a> {
    args: &'a SpecArgs,
    prompts: &'a [BenchPrompt],
    engine: &'a Engine,
    session: Session,
    cancel: &'a CancelToken,
    references: References,
}

impl Bench<'_> {
    fn run(&mut self, cells: &[Cell]) -> Result<Vec<CellReport>> {
        let runs = cells.len() * self.prompts.len() * self.args.repeat;
        let mut countdown = Countdown::new("bench spec", runs);
        // Plans are prepared and memory is touched for the first time outside what is measured.
        for cell in cells {
            self.sample(cell, 0, None)?;
        }
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); cells.len()];
        for repeat in 0..self.args.repeat {
            for (cell, samples) in cells.iter().zip(&mut samples) {
                for prompt in 0..self.prompts.len() {
                    samples.extend(self.sample(cell, prompt, Some(repeat))?);
                    countdown.step();
                }
            }
        }
        drop(countdown);
        cells.iter().zip(samples).map(|(cell, samples)| self.report(cell, &samples)).collect()
    }

    /// A request of a cell, plain and then drafted; without a `repeat`, one that only warms up.
    fn sample(&mut self, cell: &Cell, prompt: usize, repeat: Option<usize>) -> Result<Option<Sample>> {
        let mut runs = Runs {
            session: &mut self.session,
            prompt: &self.prompts[prompt],
            temperature: cell.temperature,
            max_tokens: if repeat.is_some() { self.args.max_tokens } else { self.args.max_tokens.min(32) },
            cancel: self.cancel,
        };
        // Neither finds anything of the other's in the caches.
        runs.session.clear();
        let plain = runs.plain()?;
        runs.session.clear();
        let drafters = &cell.drafters;
        let drafted = runs.drafted(drafters, cell.depth, self.args.draft_confidence, &plain.completion)?;
        let Some(repeat) = repeat else { return Ok(None) };
        let key = (prompt, cell.temperature.to_bits());
        let first = self.references.entry(key).or_insert_with(|| plain.completion.clone());
        let equal = [&plain, &drafted]
            .iter()
            .all(|run| first_difference(&first.tokens, &run.completion.tokens).is_none());
        let stats = drafted.completion.summary.speculation;
        let (plain, drafted) = (plain.decoding, drafted.decoding);
        Ok(Some(Sample { prompt, repeat, plain, drafted, stats, equal }))
    }

    fn report(&mut self, cell: &Cell, samples: &[Sample]) -> Result<CellReport> {
        let reach = self.reach(cell)?;
        let mut groups: Vec<(String, Vec<usize>)> = Vec::new();
        for kind in prompts::kinds(self.prompts) {
            let members = (0..self.prompts.len()).filter(|&i| self.prompts[i].kind == kind).collect();
            groups.push((kind, members));
        }
        if groups.len() > 1 {
            groups.push(("total".into(), (0..self.prompts.len()).collect()));
        }
        Ok(CellReport::new(cell, &groups, samples, reach.as_deref(), self.args.repeat))
    }

    /// What couplings could reach, prompt by prompt, where that was asked for and the cell is one of MTP chains alone.
    fn reach(&mut self, cell: &Cell) -> Result<Option<Vec<coupling::Sums>>> {
        let Depth::Fixed(depth @ 1..) = cell.depth else { return Ok(None) };
        if !self.args.coupling || cell.drafters.kinds != [DrafterKind::Mtp] {
            return Ok(None);
        }
        let mut countdown = Countdown::new("coupling", self.prompts.len());
        let mut reach = Vec::with_capacity(self.prompts.len());
        for (index, prompt) in self.prompts.iter().enumerate() {
            if self.cancel.is_cancelled() {
                return Err(CliError::Interrupted);
            }
            let mut tokens = self.engine.encode(&Prompt::Text(prompt.prompt.clone()))?;
            let length = tokens.len();
            if let Some(plain) = self.references.get(&(index, cell.temperature.to_bits())) {
                tokens.extend(plain.tokens.iter().map(|t| t.id));
            }
            let sampling = SamplingParams::plain(cell.temperature, prompt.seed);
            let measured = self.engine.with_runner(|runner| {
                coupling::measure(runner, &tokens, length, &sampling, depth, self.args.draft_confidence)
            });
            // The rounds ran in the session's slot.
            self.session.clear();
            reach.push(measured?);
            countdown.step();
        }
        Ok(Some(reach))
    }
}
