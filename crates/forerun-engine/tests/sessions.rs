//! Sessions: whatever was in the caches before, and whoever shares the steps, a request has its own tokens and logprobs.

mod common;

use std::ops::ControlFlow;

use forerun_engine::{
    CpuConfig, Engine, Event, FinishReason, LoadOptions, MAX_DRAFT, Prompt, Request, SamplingParams, Session,
    run_together,
};

const PROMPTS: [&str; 6] = [
    "def fib(n):\n    ",
    "a",
    "Once upon a time there was a small",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "import os\nimport sys\n",
    "The capital of France is",
];

fn engine(sessions: usize) -> Engine {
    let options = LoadOptions { sessions, context: Some(256), chunk: 32, ..LoadOptions::default() };
    Engine::load(common::DEMO, &options).unwrap_or_else(|e| panic!("{e}"))
}

/// A request whose sampling changes with its number: greedy, noise alone, and every filter.
fn request(i: usize, prompt: impl Into<Prompt>) -> Request {
    let seed = i as u64;
    let sampling = match i % 3 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams::plain(0.8, seed),
        _ => SamplingParams { seed, typical_p: 0.97, repetition_penalty: 1.1, ..SamplingParams::default() },
    };
    let mut request = Request::new(prompt, sampling).max_tokens(10 + 5 * i);
    request.ignore_eos = true;
    request
}

/// What a request gives: ids and bits of the logprobs, the text and the fingerprint.
type Given = (Vec<(u32, u32)>, String, String);

fn complete(session: &mut Session, request: &Request) -> Given {
    let c = session.complete(request).unwrap_or_else(|e| panic!("{e}"));
    (c.tokens.iter().map(|t| (t.id, t.logprob.to_bits())).collect(), c.text, c.summary.fingerprint)
}

thread_local! {
    /// An engine that no other thread shares steps with.
    static ALONE: Engine = engine(1);
}

/// The same in a session of its own, on an engine that has no other.
fn alone(request: &Request) -> Given {
    ALONE.with(|engine| complete(&mut engine.session().expect("a session"), request))
}

fn requests() -> (Vec<Request>, Vec<Given>) {
    let requests: Vec<Request> = PROMPTS.iter().enumerate().map(|(i, p)| request(i, *p)).collect();
    let given = requests.iter().map(alone).collect();
    (requests, given)
}

#[test]
fn options_of_loading_change_nothing() {
    let (requests, given) = requests();
    for (sessions, chunk, threads) in [(1, 1, 1), (3, 7, 2), (2, 512, 3)] {
        let backend =
            forerun_engine::BackendChoice::Cpu(CpuConfig { threads: threads.try_into().ok(), isa: None });
        let options = LoadOptions { sessions, chunk, backend, context: Some(300), ..LoadOptions::default() };
        let engine = Engine::load(common::DEMO, &options).unwrap_or_else(|e| panic!("{e}"));
        let _others: Vec<Session> = (1..sessions).map(|_| engine.session().expect("a session")).collect();
        let mut session = engine.session().expect("a session");
        for (request, given) in requests.iter().zip(&given) {
            assert_eq!(complete(&mut session, request), *given, "{sessions} sessions, chunks of {chunk}");
        }
    }
}

/// Any history in front of a prompt: the same prompt, a longer one, a shorter one, one that parts in the middle.
#[test]
fn reuse_equals_a_fresh_session() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    let base = engine.encode(&PROMPTS[3].into()).expect("tokens");
    let longer = [&base[..], &engine.encode(&PROMPTS[0].into()).expect("tokens")].concat();
    let mut parted = longer.clone();
    let middle = parted.len() / 2;
    parted[middle] = base[0];
    let prompts = [base.clone(), longer.clone(), parted, base[..base.len() / 2].to_vec(), base[..1].to_vec()];
    let mut reused = 0;
    for (i, first) in prompts.iter().enumerate() {
        for (j, second) in prompts.iter().enumerate() {
            session.clear();
            let first = request(i, Prompt::Tokens(first.clone()));
            complete(&mut session, &first);
            let second = request(j, Prompt::Tokens(second.clone()));
            let completion = session.complete(&second).unwrap_or_else(|e| panic!("{e}"));
            reused += completion.summary.reused_tokens;
            assert_eq!(completion.summary.fingerprint, alone(&second).2, "prompt {j} after prompt {i}");
            // And the text so far, gone on from.
            let third = request(1, Prompt::Tokens(session.tokens().to_vec()));
            assert_eq!(
                complete(&mut session, &third),
                alone(&third),
                "going on, prompt {j} after prompt {i}"
            );
        }
    }
    assert!(reused > 100, "only {reused} tokens were reused");
}

/// A chat: every turn repeats what came before, up to the last control token.
#[test]
fn turns_of_a_chat_equal_fresh_ones() {
    let engine = engine(2);
    let mut session = engine.session().expect("a session");
    let mut messages = Vec::new();
    for (turn, question) in ["Hello", "What is 2 + 2?", "And in words?"].into_iter().enumerate() {
        messages.push(forerun_engine::Message::new("user", question));
        let chat = Prompt::Chat { messages: messages.clone(), thinking: None, tools: None };
        let request = request(turn, chat);
        let given = complete(&mut session, &request);
        assert_eq!(given, alone(&request), "turn {turn}");
        messages.push(forerun_engine::Message::new("assistant", &given.1));
    }
}

#[test]
fn together_equals_alone() {
    let (requests, given) = requests();
    for order in [[0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]] {
        let engine = engine(6);
        let mut sessions: Vec<Session> = order.iter().map(|_| engine.session().expect("a session")).collect();
        let mut generations: Vec<_> = sessions
            .iter_mut()
            .zip(order)
            .map(|(s, i)| s.generate(&requests[i]).unwrap_or_else(|e| panic!("{e}")))
            .collect();
        let mut tokens = vec![Vec::new(); 6];
        let summaries = run_together(&mut generations, |i, event| {
            if let Event::Token(t) = event {
                tokens[i].push((t.id, t.logprob.to_bits()));
            }
            ControlFlow::Continue(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
        for (i, (summary, tokens)) in summaries.iter().zip(&tokens).enumerate() {
            let wanted = &given[order[i]];
            assert_eq!(*tokens, wanted.0, "request {}", order[i]);
            assert_eq!(summary.as_ref().map(|s| &s.fingerprint), Some(&wanted.2));
        }
    }
}

#[test]
fn threads_that_share_an_engine_equal_alone() {
    let (requests, given) = requests();
    let engine = engine(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (engine, requests, given) = (&engine, &requests, &given);
            scope.spawn(move || {
                let mut session = engine.session().expect("a session");
                for i in (0..6).map(|i| (i * (1 + thread % 2 * 4) + thread) % 6) {
                    assert_eq!(
                        complete(&mut session, &requests[i]),
                        given[i],
                        "request {i} on thread {thread}"
                    );
                }
            });
        }
    });
}

/// Stopped after every number of tokens, by a callback, by a cancel token or by dropping the generation, and gone on with.
#[test]
fn interrupted_and_continued_equals_uninterrupted() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    let prompt = engine.encode(&PROMPTS[0].into()).expect("tokens");
    for kind in 0..2 {
        let whole = Request { max_tokens: Some(24), ..request(kind, Prompt::Tokens(prompt.clone())) };
        let wanted = alone(&whole).0;
        for stop in 1..24 {
            session.clear();
            let mut tokens = Vec::new();
            let mut first = whole.clone();
            first.cancel = forerun_engine::CancelToken::default();
            if stop % 2 == 0 {
                let completion = session.generate_with(&first, |event| {
                    if let Event::Token(t) = event {
                        tokens.push((t.id, t.logprob.to_bits()));
                    }
                    if tokens.len() == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                });
                assert_eq!(
                    completion.unwrap_or_else(|e| panic!("{e}")).summary.reason,
                    FinishReason::Cancelled
                );
            } else {
                let given =
                    session.generate(&first).unwrap_or_else(|e| panic!("{e}")).map(|e| e.expect("an event"));
                let given = given.filter_map(|e| {
                    if let Event::Token(t) = e { Some((t.id, t.logprob.to_bits())) } else { None }
                });
                tokens.extend(given.take(stop));
            }
            assert_eq!(tokens, wanted[..stop], "before the stop");
            assert_eq!(
                session.tokens().len(),
                prompt.len() + stop,
                "the history ends with the last token given out"
            );
            let rest = Request { max_tokens: Some(24 - stop), ..whole.clone() };
            let rest = Request { prompt: Prompt::Tokens(session.tokens().to_vec()), ..rest };
            tokens.extend(complete(&mut session, &rest).0);
            assert_eq!(tokens, wanted, "stopped after {stop}");
        }
    }
}

/// A prompt that is interrupted between its chunks leaves a session that can go on.
#[test]
fn an_interrupted_prompt_can_be_taken_up() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    let prompt = common::text(engine.spec().vocabulary(), 150, 4);
    let whole = request(1, Prompt::Tokens(prompt));
    let wanted = alone(&whole);
    for events in 0..5 {
        session.clear();
        let seen = session.generate(&whole).unwrap_or_else(|e| panic!("{e}")).take(events).count();
        assert_eq!(seen, events);
        assert_eq!(complete(&mut session, &whole), wanted, "after {events} events");
    }
}

/// Asking for more (top logprobs, text of stop strings) changes no token.
#[test]
fn what_is_reported_does_not_change_what_is_chosen() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    for (i, prompt) in PROMPTS.iter().enumerate() {
        let plain = request(i, *prompt);
        let wanted = alone(&plain);
        session.clear();
        let mut more = plain.clone();
        more.top_logprobs = 5;
        more.stop = vec!["\u{1}never\u{1}".into()];
        let completion = session.complete(&more).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(completion.summary.fingerprint, wanted.2);
        assert_eq!(completion.text, wanted.1);
        for t in &completion.tokens {
            assert_eq!(t.top.len(), 5);
            assert!(t.top.windows(2).all(|w| w[0].1 >= w[1].1), "{:?}", t.top);
            let best = t.top[0];
            assert!(i % 3 != 0 || (best.0, best.1.to_bits()) == (t.id, t.logprob.to_bits()), "{t:?}");
        }
    }
}

/// The context may be filled to its last position, no further, and ends the generation with that reason.
#[test]
fn a_full_context_ends_with_that_reason() {
    let options = LoadOptions { context: Some(40), ..LoadOptions::default() };
    let engine = Engine::load(common::DEMO, &options).unwrap_or_else(|e| panic!("{e}"));
    let mut session = engine.session().expect("a session");
    for len in [1, 20, 39, 40] {
        let prompt = common::text(engine.spec().vocabulary(), len, 8);
        let request = Request { max_tokens: None, ..request(1, Prompt::Tokens(prompt)) };
        session.clear();
        let completion = session.complete(&request).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(completion.summary.reason, FinishReason::ContextFull);
        assert_eq!(completion.tokens.len(), 41 - len, "a prompt of {len}");
        let limited = Request { max_tokens: Some(completion.tokens.len()), ..request.clone() };
        assert_eq!(complete(&mut session, &limited).0, alone(&limited).0, "the same within a larger context");
    }
    let too_long = request(0, Prompt::Tokens(vec![1; 41]));
    assert!(session.complete(&too_long).is_err());
}

/// A generation that was neither finished nor dropped leaves nothing wrong behind.
#[test]
fn a_leaked_generation_does_no_harm() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    let first = request(1, PROMPTS[0]);
    let second = request(0, PROMPTS[1]);
    let wanted = [alone(&second), alone(&first)];
    let mut generation = session.generate(&first).unwrap_or_else(|e| panic!("{e}"));
    for _ in 0..7 {
        generation.next().expect("an event").unwrap_or_else(|e| panic!("{e}"));
    }
    std::mem::forget(generation);
    assert_eq!(complete(&mut session, &second), wanted[0]);
    assert_eq!(complete(&mut session, &first), wanted[1]);
}

/// Every token banned: the error comes once, and then nothing more.
#[test]
fn after_an_error_nothing_follows() {
    let engine = engine(2);
    let [mut a, mut b] = [(); 2].map(|()| engine.session().expect("a session"));
    let mut banned = request(0, PROMPTS[0]);
    banned.sampling.logit_bias =
        (0..engine.spec().vocabulary() as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let good = request(0, PROMPTS[1]);
    let mut both =
        [&banned, &good].into_iter().zip([&mut a, &mut b]).map(|(r, s)| s.generate(r).expect("starts"));
    let mut both = [both.next().expect("one"), both.next().expect("two")];
    assert!(run_together(&mut both, |_, _| ControlFlow::Continue(())).is_err());
    assert!(both[0].next().is_none());
    let ended = run_together(&mut both, |_, _| ControlFlow::Continue(())).unwrap_or_else(|e| panic!("{e}"));
    assert!(ended[0].is_none() && ended[1].is_some());
}

/// Stopping one request by its callback does not stop others that share its token.
#[test]
fn a_callback_stops_its_own_generation_only() {
    let engine = engine(1);
    let mut session = engine.session().expect("a session");
    let shared = request(0, PROMPTS[0]);
    let stopped =
        session.generate_with(&shared, |_| ControlFlow::Break(())).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(stopped.summary.reason, FinishReason::Cancelled);
    assert_eq!(complete(&mut session, &shared), alone(&shared));
}

/// More sessions than a step has room for: all go on side by side.
#[test]
fn many_sessions_take_turns() {
    let count = 24;
    let engine = engine(count);
    let mut sessions: Vec<Session> = (0..count).map(|_| engine.session().expect("a session")).collect();
    let one = Request { max_tokens: Some(12), ..request(0, PROMPTS[0]) };
    let wanted = alone(&one);
    let mut generations: Vec<_> = sessions.iter_mut().map(|s| s.generate(&one).expect("starts")).collect();
    let mut given = vec![0_usize; count];
    run_together(&mut generations, |i, event| {
        if matches!(event, Event::Token(_)) {
            given[i] += 1;
            let (least, most) = (given.iter().min().expect("some"), given.iter().max().expect("some"));
            assert!(most - least <= 2 * (MAX_DRAFT + 1), "{given:?}");
        }
        ControlFlow::Continue(())
    })
    .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(given, vec![wanted.0.len(); count]);
}
