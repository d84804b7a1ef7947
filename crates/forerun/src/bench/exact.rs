//! `forerun bench exact`: whether drafted requests give plain decoding's tokens, to the last bit.

use std::io::Write;
use std::time::Instant;

use forerun_engine::{CancelToken, Completion, DFlashFile, DraftOptions, Engine, LoadOptions, Session};
use serde::Serialize;

use super::args::{ExactArgs, depth_name};
use super::matrix::{Comparison, Models, Setting, comparisons};
use super::progress::{Countdown, words};
use super::prompts::{self, BenchPrompt};
use super::requests::{Runs, first_difference};
use crate::args::DeviceArgs;
use crate::demo::{self, model_or_demo};
use crate::error::{CliError, Result};
use crate::hub;
use crate::progress::{cancel_on_interrupt, load};

#[derive(Serialize)]
struct Report {
    model: String,
    arithmetic_id: String,
    full: bool,
    prompts: usize,
    max_tokens: usize,
    threads: Vec<u16>,
    comparisons: usize,
    differences: Vec<Difference>,
    drafted: u64,
    accepted: u64,
    seconds: f64,
}

/// A request that gave something else.
#[derive(Clone, Debug, Serialize)]
struct Difference {
    /// The prompt's place in its file, from 1.
    prompt: usize,
    temperature: f32,
    threads: u16,
    /// What was compared with plain decoding.
    setting: String,
    /// Index of the first generated token that differs.
    token: usize,
    /// Its id and logprob plainly and otherwise, where there is one.
    expected: Option<(u32, f32)>,
    found: Option<(u32, f32)>,
}

pub(super) fn exact(args: &ExactArgs) -> Result<()> {
    let prompts = prompts::read(args.prompts.as_deref())?;
    let max_tokens = args.max_tokens.unwrap_or(if args.full { 200 } else { 48 });
    if max_tokens == 0 {
        return Err(CliError::Option {
            option: "--max-tokens",
            found: "0".into(),
            expected: "at least 1".into(),
        });
    }
    let mut threads = args.threads.clone();
    threads.sort_unstable();
    threads.dedup();
    let path = model_or_demo(args.model.as_deref())?;
    let cancel = cancel_on_interrupt();
    let started = Instant::now();
    let mut check: Option<Check> = None;
    let mut arithmetic_id = String::new();
    for &threads_now in &threads {
        let engine = load(&path, &options(args, threads_now)?, &cancel)?;
        arithmetic_id.clone_from(&engine.backend().arithmetic_id);
        let check = match &mut check {
            Some(check) => check,
            none => {
                let models = Models { mtp: engine.has_mtp()?, dflash: engine.has_dflash()? };
                none.insert(Check::new(args.full, &prompts, models, threads.len(), max_tokens))
            }
        };
        check.run(&engine, threads_now, &cancel)?;
    }
    let Some(check) = check else { return Ok(()) };
    let report = Report {
        model: path.display().to_string(),
        arithmetic_id,
        full: args.full,
        prompts: check.requests.iter().map(|c| c.prompt).collect::<std::collections::BTreeSet<_>>().len(),
        max_tokens,
        threads,
        comparisons: check.compared,
        differences: check.differences,
        drafted: check.drafted,
        accepted: check.accepted,
        seconds: started.elapsed().as_secs_f64(),
    };
    report.print(args.json)?;
    match report.differences.len() {
        0 => Ok(()),
        different => Err(CliError::Differs(different, report.comparisons)),
    }
}

fn options(args: &ExactArgs, threads: u16) -> Result<LoadOptions> {
    let device = DeviceArgs { threads: Some(threads), isa: args.isa, backend: args.backend };
    let path = match (&args.drafter, &args.model) {
        (Some(name), _) => Some(hub::locate(name)?),
        (None, None) => Some(demo::drafter()?),
        (None, Some(_)) => None,
    };
    let dflash = path.map(|path| DFlashFile { path, ty: None, passes: 1 });
    Ok(LoadOptions {
        backend: device.choice(),
        kv: args.kv.into(),
        draft: DraftOptions { dflash, ..DraftOptions::default() },
        overlay: args.overlay.overlay.clone(),
        ..LoadOptions::default()
    })
}

/// Comparisons and what came of them.
struct Check<'a> {
    prompts: &'a [BenchPrompt],
    requests: Vec<Comparison>,
    max_tokens: usize,
    /// What plain decoding gave under the first number of threads, request by request.
    first: Vec<Completion>,
    compared: usize,
    differences: Vec<Difference>,
    drafted: u64,
    accepted: u64,
    countdown: Countdown,
}

impl<'a> Check<'a> {
    fn new(
        full: bool,
        prompts: &'a [BenchPrompt],
        models: Models,
        threads: usize,
        max_tokens: usize,
    ) -> Self {
        let requests = comparisons(prompts.len(), models, full);
        let drafted: usize = requests.iter().map(|c| c.settings.len()).sum();
        if !models.mtp {
            say!("note: the model has no MTP block; lookup and predictions are compared");
        }
        Self {
            prompts,
            countdown: Countdown::new("bench exact", (drafted + requests.len()) * threads),
            requests,
            max_tokens,
            first: Vec::new(),
            compared: 0,
            differences: Vec::new(),
            drafted: 0,
            accepted: 0,
        }
    }

    fn run(&mut self, engine: &Engine, threads: u16, cancel: &CancelToken) -> Result<()> {
        let mut session = engine.session()?;
        for index in 0..self.requests.len() {
            let request = self.requests[index].clone();
            let plain = self.runs(&mut session, &request, cancel).plain()?.completion;
            self.countdown.step();
            match self.first.get(index).cloned() {
                Some(first) => self.compare(&request, threads, "plain".into(), &first, &plain),
                None => self.first.push(plain.clone()),
            }
            for setting in &request.settings {
                // The session is not cleared: a request that finds its prompt in the caches must not differ either.
                let mut runs = self.runs(&mut session, &request, cancel);
                let drafted = runs.drafted(&setting.drafters, setting.depth, 0.0, &plain)?.completion;
                self.drafted += drafted.summary.speculation.drafted;
                self.accepted += drafted.summary.speculation.accepted;
                self.compare(&request, threads, name(setting), &plain, &drafted);
                self.countdown.step();
            }
            session.clear();
        }
        Ok(())
    }

    fn runs<'r>(&self, session: &'r mut Session, request: &Comparison, cancel: &'r CancelToken) -> Runs<'r>
    where
        'a: 'r,
    {
        Runs {
            session,
            prompt: &self.prompts[request.prompt],
            temperature: request.temperature,
            max_tokens: self.max_tokens,
            cancel,
        }
    }

    fn compare(
        &mut self,
        request: &Comparison,
        threads: u16,
        setting: String,
        plain: &Completion,
        other: &Completion,
    ) {
        self.compared += 1;
        let Some(token) = first_difference(&plain.tokens, &other.tokens) else { return };
        let shown = |c: &Completion| c.tokens.get(token).map(|t| (t.id, t.logprob));
        let difference = Difference {
            prompt: request.prompt + 1,
            temperature: request.temperature,
            threads,
            setting,
            token,
            expected: shown(plain),
            found: shown(other),
        };
        self.countdown.line(&difference.to_string());
        self.differences.push(difference);
    }
}

fn name(setting: &Setting) -> String {
    format!("{}, depth {}", setting.drafters, depth_name(setting.depth))
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = |token: Option<(u32, f32)>| match token {
            Some((id, logprob)) => format!("{id} ({logprob:.6})"),
            None => "none".into(),
        };
        write!(
            f,
            "prompt {}, temperature {}, {} threads, {}: token {} is {}, plain decoding gives {}",
            self.prompt,
            self.temperature,
            self.threads,
            self.setting,
            self.token,
            shown(self.found),
            shown(self.expected)
        )
    }
}

impl Report {
    fn print(&self, json: bool) -> Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer_pretty(&mut out, self)?;
            writeln!(out)?;
            return Ok(());
        }
        writeln!(
            out,
            "{} [{}]: {} prompts, {} tokens each, in {}",
            self.model,
            self.arithmetic_id,
            self.prompts,
            self.max_tokens,
            words(std::time::Duration::try_from_secs_f64(self.seconds).unwrap_or_default())
        )?;
        writeln!(
            out,
            "{} comparisons with plain decoding, {} differences; {} of {} drafted tokens accepted",
            self.comparisons,
            self.differences.len(),
            self.accepted,
            self.drafted
        )?;
        for difference in &self.differences {
            writeln!(out, "  {difference}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_engine::{FinishReason, SpecStats, Summary, Token};
    use std::time::Duration;

    fn completion(ids: &[u32]) -> Completion {
        let token =
            |id: &u32| Token { id: *id, logprob: -1.0, top: vec![], text: String::new(), drafted_by: None };
        let summary = Summary {
            reason: FinishReason::MaxTokens,
            rest: String::new(),
            prompt_tokens: 1,
            reused_tokens: 0,
            tokens: ids.len(),
            fingerprint: String::new(),
            time_to_first_token: Duration::ZERO,
            first_tokens: 1,
            decode_time: Duration::ZERO,
            speculation: SpecStats::default(),
        };
        Completion { text: String::new(), tokens: ids.iter().map(token).collect(), summary }
    }

    #[test]
    fn differences_are_counted() {
        let prompts = prompts::read(None).expect("prompts");
        let mut check = Check::new(false, &prompts, Models { mtp: true, dflash: false }, 1, 8);
        let request = check.requests[0].clone();
        let plain = completion(&[1, 2, 3]);
        for other in [&[1, 2, 3][..], &[1, 2, 4], &[1, 2]] {
            check.compare(&request, 2, "mtp, depth 3".into(), &plain, &completion(other));
        }
        assert_eq!(check.compared, 3);
        let shown: Vec<_> = check.differences.iter().map(|d| (d.token, d.expected, d.found)).collect();
        assert_eq!(shown, [(2, Some((3, -1.0)), Some((4, -1.0))), (2, Some((3, -1.0)), None)]);
    }

    #[test]
    fn differences_say_what_and_where() {
        let difference = Difference {
            prompt: 3,
            temperature: 0.6,
            threads: 2,
            setting: "lookup+mtp, depth 4".into(),
            token: 17,
            expected: Some((5, -0.5)),
            found: None,
        };
        assert_eq!(
            difference.to_string(),
            "prompt 3, temperature 0.6, 2 threads, lookup+mtp, depth 4: token 17 is none, plain decoding gives 5 (-0.500000)"
        );
    }
}
