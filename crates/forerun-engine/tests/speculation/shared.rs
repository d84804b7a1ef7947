//! Speculation in sessions that share steps, go on from what earlier requests left, or have a drafter that fails: each
//! request gives what plain decoding gives, and drafts as well as in a fresh session.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::requests::{
    Given, complete, counts, engine, noisy, plain, script, scripted, token, without_mtp,
};
use crate::common::{DEMO, models, text};
use forerun_engine::{
    Ask, Depth, DraftOptions, Drafter, DrafterKind, Engine, EngineError, Event, LoadOptions, Message, Prompt,
    Request, Runner, SamplingParams, Session, Speculation, View, run_together,
};

fn demo(sessions: usize, chunk: usize) -> Engine {
    engine(DEMO.as_ref(), &LoadOptions { sessions, chunk, context: Some(700), ..LoadOptions::default() })
}

fn session(engine: &Engine) -> Session {
    engine.session().expect("a session")
}

/// How one of several requests speculates; every third does not.
fn speculation(i: usize) -> Speculation {
    use DrafterKind::{Lookup, Mtp};
    match i % 6 {
        0 => Speculation::fixed(3),
        1 | 4 => Speculation::off(),
        2 => Speculation::fixed(15).with(&[Lookup, Mtp]),
        3 => Speculation { depth: Depth::Auto, ..Speculation::default() },
        _ => Speculation::fixed(7),
    }
}

/// Requests with prompts of 1 to 141 tokens, some of which have to wait for several steps.
fn requests(engine: &Engine) -> Vec<Request> {
    let prompt = |i: usize| match i {
        0 => engine.encode(&"def fib(n):\n    ".into()).expect("tokens"),
        _ => text(engine.spec().vocabulary(), 1 + 35 * (i - 1), i as u64),
    };
    let request = |i: usize| {
        let mut request = noisy(prompt(i), 60 - 8 * i);
        request.sampling = match i % 3 {
            0 => SamplingParams::greedy(),
            1 => SamplingParams::plain(0.7, i as u64),
            _ => SamplingParams { seed: i as u64, repetition_penalty: 1.1, ..SamplingParams::default() },
        };
        request
    };
    (0..6).map(request).collect()
}

fn with_plain(engine: &Engine) -> Vec<(Request, Given)> {
    let mut session = session(engine);
    requests(engine).into_iter().map(|r| (r.clone(), plain(&mut session, &r))).collect()
}

#[test]
fn speculating_together_equals_alone() {
    let known = with_plain(&demo(1, 512));
    for (chunk, shift) in [(512, 0), (32, 1), (16, 2), (7, 3), (2, 4), (1, 5)] {
        let engine = demo(6, chunk);
        let mut sessions: Vec<Session> = (0..6).map(|_| session(&engine)).collect();
        let mut generations: Vec<_> = sessions
            .iter_mut()
            .enumerate()
            .map(|(i, s)| s.generate(&known[i].0.clone().speculation(speculation(i + shift))))
            .map(|g| g.unwrap_or_else(|e| panic!("{e}")))
            .collect();
        let mut tokens = vec![Vec::new(); 6];
        let summaries = run_together(&mut generations, |i, event| {
            tokens[i].extend(if let Event::Token(t) = event { Some(token(t)) } else { None });
            ControlFlow::Continue(())
        });
        let summaries = summaries.unwrap_or_else(|e| panic!("{e}"));
        for (i, (_, wanted)) in known.iter().enumerate() {
            assert_eq!(tokens[i], wanted.tokens, "request {i}, chunks of {chunk}");
            let fingerprint = summaries[i].as_ref().map(|s| &s.fingerprint);
            assert_eq!(fingerprint, Some(&wanted.fingerprint), "request {i}, chunks of {chunk}");
        }
    }
}

#[test]
fn threads_that_speculate_equal_alone() {
    let known = with_plain(&demo(1, 512));
    let engine = demo(3, 32);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (engine, known) = (&engine, &known);
            scope.spawn(move || {
                let mut session = session(engine);
                for i in (0..6).map(|i| (i * (1 + thread % 2 * 4) + 2 * thread) % 6) {
                    let (request, wanted) = &known[i];
                    let given = complete(&mut session, &request.clone().speculation(speculation(i + thread)));
                    assert_eq!(Given::new(&given), *wanted, "request {i} on thread {thread}");
                }
            });
        }
    });
}

/// However much others draft, nobody waits until they have ended: neither a request that decodes nor a new prompt.
#[test]
fn drafts_leave_room_for_others() {
    for (chunk, others) in [(16, 2), (32, 3), (512, 5), (512, 1), (3, 2)] {
        let engine = demo(others + 1, chunk);
        let kind = &[DrafterKind::Scripted];
        engine.set_drafter(Box::new(Guess(1))).unwrap_or_else(|e| panic!("{e}"));
        let mut sessions: Vec<Session> = (0..=others).map(|_| session(&engine)).collect();
        let mut generations: Vec<_> = sessions
            .iter_mut()
            .enumerate()
            .map(|(i, s)| {
                // The last one has a prompt of several chunks, or of a part of one.
                let (prompt, limit) = if i == others { (40, 8) } else { (2, 100) };
                let request = noisy(text(engine.spec().vocabulary(), prompt, i as u64), limit);
                s.generate(&request.speculation(Speculation::fixed(15).with(kind)))
            })
            .map(|g| g.unwrap_or_else(|e| panic!("{e}")))
            .collect();
        let mut tokens = vec![0; others + 1];
        let done = run_together(&mut generations, |i, event| {
            tokens[i] += usize::from(matches!(event, Event::Token(_)));
            if matches!(event, Event::Finished(_)) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        let first = done.unwrap_or_else(|e| panic!("{e}")).iter().position(Option::is_some);
        assert_eq!(first, Some(others), "chunks of {chunk}: tokens by session {tokens:?}");
        assert!(tokens.iter().all(|t| *t > 0), "chunks of {chunk}: tokens by session {tokens:?}");
    }
}

/// Drafts the same token again and again.
struct Guess(u32);

impl Drafter for Guess {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Scripted
    }
    fn begin(&mut self, _: View<'_>, _: usize) {}
    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> forerun_engine::Result<()> {
        asks.iter_mut().for_each(|ask| ask.drafts.extend(std::iter::repeat_n(self.0, ask.depth)));
        Ok(())
    }
}

/// The same request in a used and in a new session: equal text, equal drafts.
#[track_caller]
fn same_in_a_fresh_session(
    used: &mut Session,
    fresh: &mut Session,
    request: &Request,
    reused: impl Fn(usize) -> bool,
    what: &str,
) -> Given {
    fresh.clear();
    let wanted = plain(fresh, request);
    fresh.clear();
    let alone = complete(fresh, request);
    let given = complete(used, request);
    assert_eq!(Given::new(&alone), wanted, "{what}, fresh");
    assert_eq!(Given::new(&given), wanted, "{what}");
    assert!(reused(given.summary.reused_tokens), "{what}: reused {}", given.summary.reused_tokens);
    let (mine, others) = (&given.summary.speculation, &alone.summary.speculation);
    assert_eq!(counts(mine), counts(others), "{what}: rounds, drafted, accepted, by position");
    wanted
}

#[test]
fn turns_of_a_chat_draft_as_well_as_fresh_ones() {
    let (engine, other) = (demo(1, 32), demo(1, 512));
    let (mut used, mut fresh) = (session(&engine), session(&other));
    for (depth, temperature) in [(3, 0.0), (1, 0.7), (15, 0.0), (4, 0.7)] {
        used.clear();
        let mut messages = Vec::new();
        for (turn, question) in ["Hello", "What is 2 + 2?", "And in words?", "Why?"].into_iter().enumerate() {
            messages.push(Message::new("user", question));
            let chat = Prompt::Chat { messages: messages.clone(), thinking: None, tools: None };
            let sampling = SamplingParams::plain(temperature, turn as u64);
            let request = Request::new(chat, sampling).max_tokens(40).speculation(Speculation::fixed(depth));
            let what = format!("turn {turn}, depth {depth}, temperature {temperature}");
            let reused = |n: usize| (n > 0) == (turn > 0);
            let given = same_in_a_fresh_session(&mut used, &mut fresh, &request, reused, &what);
            messages.push(Message::new("assistant", &given.text));
        }
    }
}

/// Prompts that share all but their last tokens with the text, which parts on the tape.
#[test]
fn rolling_back_onto_the_tape() {
    for (name, path) in models() {
        let options = LoadOptions { chunk: 24, context: Some(200), ..LoadOptions::default() };
        let (engine, other) = (engine(&path, &options), engine(&path, &options));
        let (mut used, mut fresh) = (session(&engine), session(&other));
        let vocabulary = engine.spec().vocabulary();
        let first = noisy(text(vocabulary, 12, 4), 30);
        let mut all = text(vocabulary, 12, 4);
        all.extend(plain(&mut fresh, &first).ids());
        for back in 1..=15 {
            used.clear();
            // The last round has 16 rows of which all count.
            script(&engine, &all, &[(14, 13), (15, 15)]);
            complete(&mut used, &first.clone().speculation(scripted()));
            let kept = all.len() - 1 - back;
            let mut prompt = all[..kept].to_vec();
            prompt.extend(text(vocabulary, 1 + back % 4, 90));
            prompt[kept] = (all[kept] + 7) % vocabulary as u32;
            let next = noisy(prompt, 24).speculation(Speculation::fixed(3));
            let reused = |n: usize| n == kept;
            same_in_a_fresh_session(&mut used, &mut fresh, &next, reused, &format!("{name}, {back} back"));
        }
    }
}

/// Prompts and stretches of plain decoding that are longer than the ring of hidden states.
#[test]
fn long_stretches_without_drafts() {
    for (name, path) in models() {
        let load =
            |chunk| engine(&path, &LoadOptions { chunk, context: Some(500), ..LoadOptions::default() });
        let (wide, vocabulary) = (load(512), load(512).spec().vocabulary());
        let mut fresh = session(&wide);
        for chunk in if name == "demo" { [2, 40] } else { [3, 16] } {
            let engine = load(chunk);
            let mut used = session(&engine);
            let depth = Speculation::fixed(3.min(chunk - 1));
            let prompt = noisy(text(vocabulary, 190, 6), 30).speculation(depth.clone());
            let what = format!("{name}, chunks of {chunk}");
            same_in_a_fresh_session(&mut used, &mut fresh, &prompt, |n| n == 0, &what);
            // Plain decoding twice around the ring, then drafts again.
            let more = noisy(used.tokens().to_vec(), 150);
            complete(&mut used, &more.speculation(Speculation::off()));
            let next = noisy(used.tokens().to_vec(), 30).speculation(depth);
            same_in_a_fresh_session(&mut used, &mut fresh, &next, |n| n > 300, &format!("{what}, going on"));
        }
    }
}

/// What a drafter of the caller's may do wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// Fails at the call of this number, after it has drafted for some.
    Fails(usize),
    /// Ids that no vocabulary has, from this index on.
    Unknown(usize),
    /// More drafts than asked for.
    TooMany,
    /// Nothing.
    Nothing,
}

struct Faulty {
    fault: Fault,
    text: Vec<u32>,
    calls: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl Drafter for Faulty {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Dflash
    }
    fn begin(&mut self, _: View<'_>, _: usize) {}
    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> forerun_engine::Result<()> {
        let call = self.calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        for ask in asks {
            let known = self.text.iter().skip(ask.request.tokens.len()).copied();
            match self.fault {
                Fault::Fails(at) => {
                    ask.drafts.extend(known.take(2));
                    if at == call {
                        return Err(EngineError::Poisoned);
                    }
                }
                Fault::Unknown(at) => {
                    ask.drafts.extend(known.take(ask.depth.min(at)));
                    ask.drafts.extend([u32::MAX, u32::MAX - 1, 1 << 20]);
                }
                Fault::TooMany => ask.drafts.extend(known.chain(std::iter::repeat_n(0, 1000))),
                Fault::Nothing => {}
            }
        }
        Ok(())
    }
}

fn faults(path: &Path, name: &str) {
    let options = LoadOptions { context: Some(60), ..LoadOptions::default() };
    let engine = engine(path, &options);
    let mut session = session(&engine);
    let request = noisy(text(engine.spec().vocabulary(), 9, 8), 52);
    let wanted = plain(&mut session, &request);
    let mut all = text(engine.spec().vocabulary(), 9, 8);
    all.extend(wanted.ids());
    let faults = [Fault::Fails(0), Fault::Fails(3), Fault::Unknown(0), Fault::Unknown(2), Fault::TooMany];
    for fault in faults.into_iter().chain([Fault::Nothing]) {
        for (drafters, depth) in [
            (vec![DrafterKind::Dflash], Depth::Fixed(4)),
            (vec![DrafterKind::Dflash, DrafterKind::Mtp], Depth::Fixed(15)),
            (vec![DrafterKind::Lookup, DrafterKind::Dflash], Depth::Auto),
        ] {
            let calls = std::sync::Arc::default();
            let faulty = Faulty { fault, text: all.clone(), calls: std::sync::Arc::clone(&calls) };
            engine.set_drafter(Box::new(faulty)).unwrap_or_else(|e| panic!("{e}"));
            session.clear();
            let what = format!("{name}, {fault:?}, {drafters:?}, {depth:?}");
            let speculation = Speculation { depth, ..Speculation::off().with(&drafters) };
            let completion = complete(&mut session, &request.clone().speculation(speculation));
            assert_eq!(Given::new(&completion), wanted, "{what}");
            let stats = &completion.summary.speculation;
            let calls = calls.load(std::sync::atomic::Ordering::Relaxed);
            let by = stats.drafters[DrafterKind::Dflash.index()];
            if let (Fault::Fails(at), Depth::Fixed(_)) = (fault, depth) {
                assert_eq!((calls, by.rounds), (at + 1, at as u64), "{what}: left out once it has failed");
            }
            if fault == Fault::TooMany && depth == Depth::Fixed(4) {
                assert_eq!(by.accepted, by.drafted, "{what}");
                assert_eq!(stats.used_positions().len(), 4, "{what}");
            }
            if drafters.contains(&DrafterKind::Mtp) && matches!(fault, Fault::Fails(_) | Fault::Nothing) {
                assert!(stats.drafters[DrafterKind::Mtp.index()].drafted > 0, "{what}: the next in the list");
            }
        }
    }
}

#[test]
fn drafters_that_fail_or_lie() {
    for (name, path) in models() {
        faults(&path, name);
    }
}

/// A drafter that fails for one request is asked again by the next, and one that an engine lacks is passed over.
#[test]
fn missing_drafters_are_passed_over() {
    let options = LoadOptions { context: Some(100), ..LoadOptions::default() };
    let engine = engine(DEMO.as_ref(), &without_mtp(&options));
    let mut session = session(&engine);
    let request = noisy(text(engine.spec().vocabulary(), 9, 8), 30);
    let wanted = plain(&mut session, &request);
    for drafters in [vec![], vec![DrafterKind::Mtp], vec![DrafterKind::Dflash, DrafterKind::Scripted]] {
        session.clear();
        let given =
            complete(&mut session, &request.clone().speculation(Speculation::fixed(5).with(&drafters)));
        assert_eq!(Given::new(&given), wanted, "{drafters:?}");
        assert_eq!(given.summary.speculation.drafted, 0, "{drafters:?}");
    }
}

/// Many requests at once: more than a step of the MTP block has output rows.
#[test]
fn more_requests_than_output_rows() {
    let draft = DraftOptions { vocabulary: Some(500), ..DraftOptions::default() };
    let options = LoadOptions { sessions: 20, chunk: 80, context: Some(64), draft, ..LoadOptions::default() };
    for (name, path) in models() {
        let engine = engine(&path, &options);
        let request = |i: usize| noisy(text(engine.spec().vocabulary(), 2 + i % 5, i as u64), 20);
        let mut sessions: Vec<Session> = (0..20).map(|_| session(&engine)).collect();
        let wanted: Vec<Given> = (0..20).map(|i| plain(&mut sessions[0], &request(i))).collect();
        sessions[0].clear();
        let mut generations: Vec<_> = sessions
            .iter_mut()
            .enumerate()
            .map(|(i, s)| s.generate(&request(i).speculation(Speculation::fixed(3))))
            .map(|g| g.unwrap_or_else(|e| panic!("{e}")))
            .collect();
        let summaries = run_together(&mut generations, |_, _| ControlFlow::Continue(()));
        let summaries = summaries.unwrap_or_else(|e| panic!("{e}"));
        for (i, (summary, wanted)) in summaries.iter().zip(&wanted).enumerate() {
            let summary = summary.as_ref().expect("a summary");
            assert_eq!(summary.fingerprint, wanted.fingerprint, "{name}, request {i}");
            assert!(summary.speculation.drafted > 0, "{name}, request {i}: {:?}", summary.speculation);
        }
    }
}
