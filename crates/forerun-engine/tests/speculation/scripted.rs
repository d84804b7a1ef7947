//! Speculation by a drafter that knows the text: whatever part of a round is accepted and wherever the text ends in it, a
//! request gives what plain decoding gives, to the bit.

use std::ops::ControlFlow;
use std::path::Path;

use crate::common::requests::{
    Given, GivenToken, complete, counts, engine, engine_that_ends, noisy, plain, script, scripted, token,
    without_mtp,
};
use crate::common::{every_model, text};
use forerun_engine::{
    BackendChoice, CancelToken, CpuConfig, Engine, Event, FinishReason, LoadOptions, MAX_DRAFT, Prompt,
    Request, Session, Speculation,
};

const PROMPT: usize = 9;

fn options(context: usize) -> LoadOptions {
    // Tests run beside each other.
    let backend = BackendChoice::Cpu(CpuConfig { threads: 1.try_into().ok(), isa: None, profile: false });
    // The smallest steps that bring 15 drafts: sliding layers keep a ring of 32 positions.
    let (context, chunk, kv_block) = (Some(context), MAX_DRAFT + 1, 8);
    without_mtp(&LoadOptions { context, chunk, kv_block, backend, ..LoadOptions::default() })
}

/// A model with a text that plain decoding gave.
struct Known {
    engine: Engine,
    session: Session,
    request: Request,
    given: Given,
    /// Prompt and text.
    all: Vec<u32>,
}

impl Known {
    fn new(engine: Engine, len: usize) -> Self {
        let mut session = engine.session().expect("a session");
        let request = noisy(text(engine.spec().vocabulary(), PROMPT, 8), len);
        let given = plain(&mut session, &request);
        let Prompt::Tokens(mut all) = request.prompt.clone() else { panic!("a prompt of tokens") };
        all.extend(given.ids());
        Self { engine, session, request, given, all }
    }

    fn load(path: &Path, len: usize) -> Self {
        Self::new(engine(path, &options(PROMPT + len)), len)
    }

    /// The request under a script, in a session without a history.
    fn run(&mut self, request: &Request, rounds: &[(usize, usize)]) -> forerun_engine::Completion {
        script(&self.engine, &self.all, rounds);
        self.session.clear();
        complete(&mut self.session, &request.clone().speculation(scripted()))
    }
}

/// A cycle of 0 to k in which every ordered pair comes once (a de Bruijn sequence).
fn pairs(k: usize) -> Vec<usize> {
    (0..=k).flat_map(|a| std::iter::once(a).chain((a + 1..=k).flat_map(move |b| [a, b]))).collect()
}

#[test]
fn every_accept_count_after_every_other() {
    let tokens = |counts: &[usize]| counts.iter().map(|a| a + 1).sum::<usize>();
    for (name, path) in every_model() {
        let longest = tokens(&pairs(MAX_DRAFT)) + 1 + MAX_DRAFT;
        let mut known = Known::load(&path, longest);
        for k in 0..=MAX_DRAFT {
            let counts = pairs(k);
            let rounds: Vec<_> = counts.iter().map(|a| (k, *a)).collect();
            // Once around, the first again, and as many tokens as keep that one from being cut.
            let request = known.request.clone().max_tokens(tokens(&counts) + 1 + k);
            let completion = known.run(&request, &rounds);
            let given = Given::new(&completion);
            assert!(
                given.tokens == known.given.tokens[..given.tokens.len()],
                "{name}: rounds of {k}, {} tokens",
                given.tokens.len()
            );
            assert_eq!(given.tokens.len(), tokens(&counts) + 1 + k);
            let stats = completion.summary.speculation;
            assert!(stats.accepted as usize >= counts.iter().sum(), "{name}: rounds of {k}: {stats:?}");
            assert!(stats.drafted as usize >= k * (counts.len() + 1), "{name}: rounds of {k}: {stats:?}");
        }
    }
}

/// Rounds that reach token `end` of the text with their draft or row number `index`, in three ways: it is one of more
/// drafts, the model's own instead of a wrong one, and the model's own after all drafts.
fn rounds_to(end: usize, index: usize) -> [Vec<(usize, usize)>; 3] {
    [(MAX_DRAFT, MAX_DRAFT), (MAX_DRAFT, index), (index, index)].map(|last| {
        // One round up to there; its own tokens are the row before it and its drafts.
        let before = (end - index).min(MAX_DRAFT + 1) - 1;
        let mut rounds = vec![(0, 0); end - index - before - 1];
        rounds.extend([(before, before), last]);
        rounds
    })
}

/// A request that ends with token `end` of the text ends there from every index of a round.
fn ends_at(known: &mut Known, request: &Request, end: usize, reason: &FinishReason, what: &str) {
    let wanted = plain(&mut known.session, request);
    assert_eq!((&wanted.reason, wanted.tokens.len()), (reason, end + 1), "{what}");
    for index in 0..=MAX_DRAFT {
        for rounds in rounds_to(end, index) {
            let given = Given::new(&known.run(request, &rounds));
            assert_eq!(given, wanted, "{what} at index {index}: {:?}", rounds.last());
            let all = known.session.tokens().to_vec();
            assert_eq!(all, known.all[..PROMPT + end + 1], "{what} at index {index}: the history");
            // What the session is left with is as good as plain decoding's.
            let more = noisy(all, 3).max_tokens(3).speculation(scripted());
            let went_on = complete(&mut known.session, &more);
            assert_eq!(went_on.summary.reused_tokens, PROMPT + end, "{what} at index {index}");
            let (ids, texts) = (Given::new(&went_on).tokens, &known.given.tokens[end + 1..end + 4]);
            assert!(ids.iter().zip(texts).all(|(a, b)| (a.0, a.1) == (b.0, b.1)), "{what} at {index}: after");
        }
    }
}

/// An index of the text, from 16 on, at which something comes for the first time.
fn first_time<T: PartialEq>(of: impl Fn(usize) -> T, len: usize) -> usize {
    (MAX_DRAFT + 1..len).find(|i| (0..*i).all(|j| of(j) != of(*i))).expect("a text that is not all the same")
}

#[test]
fn end_of_text_at_every_index() {
    for (name, path) in every_model() {
        let known = Known::load(&path, 80);
        let end = first_time(|i| known.given.tokens[i].0, 70);
        let id = known.given.tokens[end].0;
        let mut known = Known { engine: engine_that_ends(&path, &options(PROMPT + 80), Some(id)), ..known };
        known.session = known.engine.session().expect("a session");
        let request = Request { ignore_eos: false, ..known.request.clone() };
        ends_at(&mut known, &request, end, &FinishReason::EndOfText, name);
    }
}

#[test]
fn token_limits_at_every_index() {
    for (name, path) in every_model() {
        let mut known = Known::load(&path, 40);
        let request = known.request.clone().max_tokens(MAX_DRAFT + 2);
        ends_at(&mut known, &request, MAX_DRAFT + 1, &FinishReason::MaxTokens, name);
    }
}

#[test]
fn stop_strings_at_every_index() {
    for (name, path) in every_model() {
        let mut known = Known::load(&path, 80);
        let piece = |i: usize| -> String {
            known.given.tokens[i.saturating_sub(1)..=i].iter().map(|t| t.3.as_str()).collect()
        };
        let end = (MAX_DRAFT + 1..70).find(|i| {
            let before: String = known.given.tokens[..*i].iter().map(|t| t.3.as_str()).collect();
            let (stop, now) = (piece(*i), known.given.tokens[*i].3.as_str());
            !now.is_empty()
                && !now.contains('\u{fffd}')
                && !(before + now).trim_end_matches(&stop).contains(&stop)
        });
        let end = end.expect("a place");
        let stop = piece(end);
        let reason = FinishReason::StopString(stop.clone());
        let request = Request { stop: vec!["\u{1}never\u{1}".into(), stop], ..known.request.clone() };
        ends_at(&mut known, &request, end, &reason, name);
    }
}

#[test]
fn the_context_ends_at_every_index() {
    for (name, path) in every_model() {
        let known = Known::load(&path, 60);
        let mut known = Known { engine: engine(&path, &options(PROMPT + 19)), ..known };
        known.session = known.engine.session().expect("a session");
        let request = Request { max_tokens: None, ..known.request.clone() };
        let wanted = plain(&mut known.session, &request);
        assert_eq!((&wanted.reason, wanted.tokens.len()), (&FinishReason::ContextFull, 20), "{name}");
        for (before, index) in (0..16).flat_map(|b| [0, 3, 8, MAX_DRAFT].map(|i| (b, i))) {
            let mut rounds = vec![(before.min(MAX_DRAFT), before.min(MAX_DRAFT))];
            rounds.extend([(MAX_DRAFT, index); 30]);
            let given = Given::new(&known.run(&request, &rounds));
            assert_eq!(given, wanted, "{name}: {before} and a token, then {index} of {MAX_DRAFT}");
        }
    }
}

/// Reads `count` tokens of a generation and stops it there: drops it, or cancels it and takes its end too.
fn stopped(session: &mut Session, request: &Request, count: usize, cancel: bool) -> Vec<GivenToken> {
    let request = Request { cancel: CancelToken::default(), ..request.clone() };
    let mut tokens = Vec::new();
    if cancel {
        let completion = session.generate_with(&request, |event| {
            tokens.extend(if let Event::Token(t) = event { Some(token(t)) } else { None });
            if tokens.len() == count { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let completion = completion.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(completion.summary.reason, FinishReason::Cancelled);
        assert_eq!(completion.summary.tokens, count);
    } else {
        for event in session.generate(&request).unwrap_or_else(|e| panic!("{e}")) {
            let event = event.unwrap_or_else(|e| panic!("{e}"));
            tokens.extend(if let Event::Token(t) = &event { Some(token(t)) } else { None });
            if tokens.len() == count {
                break;
            }
        }
    }
    tokens
}

#[test]
fn stopped_at_every_index_and_gone_on() {
    for (name, path) in every_model() {
        let mut known = Known::load(&path, 60);
        let drafted = known.request.clone().speculation(scripted());
        for (rounds, count, cancel) in [vec![(15, 15)], vec![(4, 4)], vec![(7, 3), (15, 14)]]
            [..if name == "demo" { 2 } else { 3 }]
            .iter()
            .flat_map(|r| (1..=34).flat_map(move |count| [false, true].map(|cancel| (r, count, cancel))))
        {
            let what = format!("{name}, {rounds:?} stopped after {count}, cancel: {cancel}");
            script(&known.engine, &known.all, rounds);
            known.session.clear();
            let tokens = stopped(&mut known.session, &drafted, count, cancel);
            assert_eq!(tokens, known.given.tokens[..count], "{what}");
            assert_eq!(known.session.tokens(), &known.all[..PROMPT + count], "{what}");
            let speculation = if count % 2 == 0 { scripted() } else { Speculation::off() };
            let rest = noisy(known.all[..PROMPT + count].to_vec(), 6).speculation(speculation);
            let rest = complete(&mut known.session, &rest);
            assert_eq!(rest.summary.reused_tokens, PROMPT + count - 1, "{what}");
            let rest: Vec<_> = rest.tokens.iter().map(|t| (t.id, t.logprob.to_bits())).collect();
            let wanted: Vec<_> = known.given.tokens[count..count + 6].iter().map(|t| (t.0, t.1)).collect();
            assert_eq!(rest, wanted, "{what}, gone on");
        }
    }
}

/// A new prompt parts from the text within the last round, whose rows lie on the tape.
#[test]
fn prompts_that_part_on_the_tape() {
    for (name, path) in every_model() {
        let mut known = Known::load(&path, 60);
        let mut fresh = Known::load(&path, 60);
        // A row for the last prompt token, then rounds of 16: 33 tokens, of which the last has not been run.
        let first = known.request.clone().max_tokens(32);
        for back in 0..=MAX_DRAFT {
            let kept = PROMPT + 31 - back;
            for tail in [1, 3, 20] {
                let mut prompt = known.all[..kept].to_vec();
                prompt.extend(text(known.engine.spec().vocabulary(), tail, 50 + back as u64));
                prompt[kept] = (known.all[kept] + 1) % known.engine.spec().vocabulary() as u32;
                let next = noisy(prompt, 20);
                let wanted = plain(&mut fresh.session, &next);
                known.run(&first, &[(MAX_DRAFT, MAX_DRAFT)]);
                let mut all = match &next.prompt {
                    Prompt::Tokens(p) => p.clone(),
                    _ => Vec::new(),
                };
                all.extend(wanted.ids());
                script(&known.engine, &all, &[(7, 5), (3, 3), (15, 0)]);
                let given = complete(&mut known.session, &next.speculation(scripted()));
                assert_eq!(given.summary.reused_tokens, kept, "{name}: {back} back");
                assert_eq!(Given::new(&given), wanted, "{name}: {back} back, {tail} more");
                assert!(counts(&given.summary.speculation).2 > 5);
            }
        }
    }
}
