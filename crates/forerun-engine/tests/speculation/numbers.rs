//! Rows that are no numbers: as drafts that are rejected they leave nothing behind, and as text they fail where plain
//! decoding fails, for whoever still wants them.

use std::path::Path;

use crate::common::requests::{
    Given, GivenToken, complete, engine, noisy, plain, script, scripted, spoilt_engine, token, without_mtp,
};
use crate::common::{models, text};
use forerun_engine::{
    Ask, Drafter, DrafterKind, Engine, EngineError, Event, KvType, LoadOptions, MAX_DRAFT, Request, Runner,
    Session, Speculation, View,
};

const PROMPT: usize = 9;

/// In BF16, the type of the fixtures' weights.
const NAN: [u8; 2] = 0x7FC0_u16.to_le_bytes();

/// Drafts some tokens of a text and then one that is not in it.
struct Poison {
    text: Vec<u32>,
    right: usize,
    id: u32,
}

impl Drafter for Poison {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Scripted
    }
    fn begin(&mut self, _: View<'_>, _: usize) {}
    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> forerun_engine::Result<()> {
        for ask in asks {
            let right = self.text.iter().skip(ask.request.tokens.len()).take(self.right).copied();
            ask.drafts.extend(right.chain(std::iter::repeat(self.id)).take(ask.depth));
        }
        Ok(())
    }
}

/// An engine whose model embeds a token as NaN.
fn broken_at(path: &Path, options: &LoadOptions, id: u32, hidden: usize) -> Engine {
    spoilt_engine(path, options, move |name, bytes| {
        if name == "token_embd.weight" {
            let row = &mut bytes[2 * hidden * id as usize..][..2 * hidden];
            row.chunks_exact_mut(2).for_each(|v| v.copy_from_slice(&NAN));
        }
    })
}

/// The fixtures under every type of the KV cache.
fn fixtures() -> impl Iterator<Item = (String, std::path::PathBuf, LoadOptions)> {
    models().into_iter().skip(1).flat_map(|(name, path)| {
        [KvType::F16, KvType::F32, KvType::Q8_0].map(|kv| {
            let options = LoadOptions { kv, context: Some(60), ..LoadOptions::default() };
            (format!("{name}, {kv:?}"), path.clone(), without_mtp(&options))
        })
    })
}

#[test]
fn rejected_drafts_that_are_no_numbers() {
    for (what, path, options) in fixtures() {
        let whole = engine(&path, &options);
        let vocabulary = whole.spec().vocabulary();
        let prompt = text(vocabulary, PROMPT, 8);
        let request = noisy(prompt.clone(), 45);
        let wanted = plain(&mut whole.session().expect("a session"), &request);
        let all: Vec<u32> = prompt.into_iter().chain(wanted.ids()).collect();
        let id =
            (0..vocabulary as u32).find(|id| !all.contains(id)).expect("a token that is not in the text");
        let broken = broken_at(&path, &options, id, whole.spec().hidden());
        let mut session = broken.session().expect("a session");
        for right in 0..MAX_DRAFT {
            // What comes after the right drafts is the token that breaks everything.
            let drafts = Poison { text: all.clone(), right, id };
            broken.set_drafter(Box::new(drafts)).unwrap_or_else(|e| panic!("{e}"));
            session.clear();
            let done = complete(&mut session, &request.clone().speculation(scripted()));
            assert_eq!(Given::new(&done), wanted, "{what}, after {right} right drafts");
            let stats = &done.summary.speculation;
            assert!(stats.accepted < stats.drafted, "{what}, after {right} right drafts: {stats:?}");
        }
    }
}

/// Tokens up to number `stop`, after which the request is stopped, and how it ended.
fn until(session: &mut Session, request: &Request, stop: usize) -> (Vec<GivenToken>, Result<String, u32>) {
    session.clear();
    let mut tokens = Vec::new();
    let mut generation = session.generate(request).unwrap_or_else(|e| panic!("{e}"));
    while let Some(event) = generation.next() {
        match event {
            Ok(Event::Token(t)) => tokens.push(token(&t)),
            Ok(Event::Finished(s)) => return (tokens, Ok(format!("{:?} {}", s.reason, s.fingerprint))),
            Err(EngineError::NotANumber { position, .. }) => return (tokens, Err(position)),
            Err(e) => panic!("{e}"),
            Ok(_) => {}
        }
        if tokens.len() == stop {
            generation.stop().unwrap_or_else(|e| panic!("{e}"));
        }
    }
    panic!("no end");
}

#[test]
fn text_that_is_no_number_fails_where_it_is_reached() {
    for (what, path, options) in fixtures() {
        let whole = engine(&path, &options);
        let prompt = text(whole.spec().vocabulary(), PROMPT, 8);
        let request = noisy(prompt.clone(), 40);
        let given = plain(&mut whole.session().expect("a session"), &request);
        let all: Vec<u32> = prompt.into_iter().chain(given.ids()).collect();
        let bad =
            (4..MAX_DRAFT).find(|i| !all[..PROMPT + i].contains(&all[PROMPT + i])).expect("a new token");
        let broken = broken_at(&path, &options, all[PROMPT + bad], whole.spec().hidden());
        let mut session = broken.session().expect("a session");
        script(&broken, &all, &[(MAX_DRAFT, MAX_DRAFT)]);
        for stop in 1..=bad + 2 {
            let wanted = until(&mut session, &request.clone().speculation(Speculation::off()), stop);
            let found = until(&mut session, &request.clone().speculation(scripted()), stop);
            assert_eq!(found, wanted, "{what}, stopped after {stop} of {} good tokens", bad + 1);
            assert_eq!(wanted.1.is_err(), stop > bad + 1, "{what}: {wanted:?}");
        }
    }
}
