//! `forerun run`: one prompt, one text.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;

use forerun_engine::{
    Completion, Engine, Event, FinishReason, LoadOptions, Message, Profile, Prompt, Request, SamplingParams,
    Session, SpecStats,
};
use serde::Serialize;

use crate::args::{RunArgs, Think};
use crate::demo::model_or_demo;
use crate::error::{CliError, Result};
use crate::input;
use crate::overlay::OverlayJson;
use crate::printer::{Look, Printer, colours, echo};
use crate::progress::{TokenBar, cancel_on_interrupt, load};
use crate::stats::{print_profile, print_stats};

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let text = read_prompt(args)?;
    let path = model_or_demo(args.model.model.as_deref())?;
    let options = args.model.options_with(&args.draft)?;
    let cancel = cancel_on_interrupt();
    let options = LoadOptions { backend: args.model.device.choice_with(args.profile), ..options };
    let engine = load(&path, &options, &cancel)?;
    let sampling = args.sampling.params(engine.sampling_defaults());
    let prompt = make_prompt(args, &engine, &text);
    let request = Request {
        prompt,
        sampling: sampling.clone(),
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        top_logprobs: if args.json { args.top_logprobs } else { 0 },
        ignore_eos: args.ignore_eos,
        cancel,
        speculation: args.draft.speculation(&engine)?,
    };
    let completion = {
        let look = Look { hide_thinking: args.hide_thinking, colour: args.colour && colours() };
        let printer = if args.json { None } else { Some(Printer::new(&engine, &request, look)?) };
        if args.echo {
            let gap = if matches!(request.prompt, Prompt::Chat { .. }) { "\n\n" } else { "" };
            echo(&(text + gap))?;
        }
        stream(&mut engine.session()?, &request, printer)?
    };
    if args.json {
        let profile = args.profile.then(|| engine.profile()).transpose()?;
        print_json(&engine, &sampling, &request, &completion, profile)?;
    } else if args.stats {
        print_stats(&engine, &sampling, &completion.summary);
        if args.profile {
            print_profile(&engine.profile()?);
        }
    } else if args.sampling.seed.is_none() && sampling.temperature > 0.0 {
        say!("seed {}", sampling.seed);
    }
    if completion.summary.reason == FinishReason::Cancelled { Err(CliError::Interrupted) } else { Ok(()) }
}

/// The prompt from the argument, a file, or standard input. Bytes that are no UTF-8 are an error of the input.
fn read_prompt(args: &RunArgs) -> Result<String> {
    let text = match (args.prompt.as_ref().or(args.prompt_option.as_ref()), &args.file) {
        (_, Some(path)) if path.as_os_str() != "-" => input::file(path)?,
        (Some(prompt), _) if prompt != "-" => prompt.clone(),
        (None, None) if std::io::stdin().is_terminal() => return Err(CliError::NoPrompt),
        _ => input::text(std::io::stdin().lock(), "standard input".as_ref())?,
    };
    if text.is_empty() { Err(CliError::EmptyPrompt) } else { Ok(text) }
}

/// Raw text for the demo (a completion model) and for files without a template; a chat message otherwise.
fn make_prompt(args: &RunArgs, engine: &Engine, text: &str) -> Prompt {
    let by_default = args.model.model.is_some() && engine.has_chat_template();
    let chat = args.chat || args.system.is_some() || (by_default && !args.raw);
    if !chat {
        if args.hide_thinking || args.think != Think::Auto {
            say!(
                "note: --think and --hide-thinking do nothing for a raw prompt; --chat makes it a chat message"
            );
        }
        return text.into();
    }
    let system = args.system.iter().map(|s| Message::new("system", s));
    let messages = system.chain([Message::new("user", text)]).collect();
    Prompt::Chat { messages, thinking: args.think.flag(), tools: None }
}

/// Generates, printing text as it becomes certain where there is a printer. An output that fails ends the generation.
pub(crate) fn stream(
    session: &mut Session,
    request: &Request,
    mut printer: Option<Printer>,
) -> Result<Completion> {
    let mut bar = TokenBar::new("prompt");
    let mut failure = None;
    let completion = session.generate_with(request, |event| {
        let printed = match (event, &mut printer) {
            (Event::Prompt { done, total }, _) => {
                bar.set(*done, *total);
                Ok(())
            }
            (Event::Token(token), printer) => {
                bar.clear();
                printer.as_mut().map_or(Ok(()), |p| p.print(token))
            }
            (Event::Finished(summary), printer) => {
                bar.clear();
                printer.as_mut().map_or(Ok(()), |p| p.finish(&summary.rest))
            }
        };
        match printed {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                failure = Some(e);
                ControlFlow::Break(())
            }
        }
    })?;
    failure.map_or(Ok(completion), |e| Err(CliError::Output(e)))
}

#[derive(Serialize)]
struct JsonResult<'a> {
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<OverlayJson>,
    arithmetic_id: &'a str,
    backend: &'a str,
    sampling: &'a SamplingParams,
    text: &'a str,
    #[serde(skip_serializing_if = "String::is_empty")]
    thinking: String,
    answer: String,
    tokens: &'a [forerun_engine::Token],
    finish_reason: &'a FinishReason,
    prompt_tokens: usize,
    generated_tokens: usize,
    time_to_first_token_ms: f64,
    decode_ms: f64,
    tokens_per_second: Option<f64>,
    fingerprint: &'a str,
    speculation: &'a SpecStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

fn print_json(
    engine: &Engine,
    sampling: &SamplingParams,
    request: &Request,
    done: &Completion,
    profile: Option<Profile>,
) -> Result<()> {
    let (thinking, answer) = match request.prompt {
        Prompt::Chat { .. } => {
            let mut splitter = engine.think_splitter(&request.prompt)?;
            let (first, last) = (splitter.push(&done.text), splitter.finish());
            (first.thinking + &last.thinking, first.answer + &last.answer)
        }
        _ => (String::new(), done.text.clone()),
    };
    let s = &done.summary;
    let result = JsonResult {
        model: engine.path().display().to_string(),
        overlay: engine.overlay().map(OverlayJson::from),
        arithmetic_id: &engine.backend().arithmetic_id,
        backend: &engine.backend().detail,
        sampling,
        text: &done.text,
        thinking,
        answer,
        tokens: &done.tokens,
        finish_reason: &s.reason,
        prompt_tokens: s.prompt_tokens,
        generated_tokens: s.tokens,
        time_to_first_token_ms: s.time_to_first_token.as_secs_f64() * 1e3,
        decode_ms: s.decode_time.as_secs_f64() * 1e3,
        tokens_per_second: s.tokens_per_second(),
        fingerprint: &s.fingerprint,
        speculation: &s.speculation,
        profile,
    };
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &result)?;
    writeln!(out)?;
    Ok(())
}
