//! Drafters of the engine's caller that break: the engine, its sessions and the other drafters go on.

use crate::common::requests::{Given, complete, engine, noisy, plain, script, scripted};
use crate::common::{DEMO, models, text};
use forerun_engine::{
    Ask, Drafter, DrafterKind, Engine, EngineError, LoadOptions, Runner, Speculation, View,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Break {
    PanicsAtTheStart,
    PanicsBeforeASnapshot,
    PanicsBeforeAStep,
    PanicsWhileDrafting,
    FailsBeforeASnapshot,
    FailsBeforeAStep,
}

struct Breaking(Break);

impl Breaking {
    fn at(&self, panics: Break, fails: Option<Break>) -> forerun_engine::Result<()> {
        assert_ne!(self.0, panics, "a drafter that panics on purpose");
        if Some(self.0) == fails { Err(EngineError::EmptyPrompt) } else { Ok(()) }
    }
}

impl Drafter for Breaking {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Dflash
    }
    fn begin(&mut self, _: View<'_>, _: usize) {
        assert_ne!(self.0, Break::PanicsAtTheStart, "a drafter that panics on purpose");
    }
    fn before_step(&mut self, _: &mut Runner, _: View<'_>, _: usize) -> forerun_engine::Result<()> {
        self.at(Break::PanicsBeforeAStep, Some(Break::FailsBeforeAStep))
    }
    fn before_snapshot(&mut self, _: &mut Runner, _: View<'_>) -> forerun_engine::Result<()> {
        self.at(Break::PanicsBeforeASnapshot, Some(Break::FailsBeforeASnapshot))
    }
    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> forerun_engine::Result<()> {
        asks.iter_mut().for_each(|ask| ask.drafts.push(7));
        self.at(Break::PanicsWhileDrafting, None)
    }
}

#[test]
fn drafters_that_break_are_left_out() {
    let options = LoadOptions { context: Some(60), sessions: 2, ..LoadOptions::default() };
    for (name, path) in models() {
        let engine = engine(&path, &options);
        let mut sessions = [engine.session(), engine.session()].map(|s| s.expect("a session"));
        let request = noisy(text(engine.spec().vocabulary(), 9, 8), 20);
        let wanted = plain(&mut sessions[0], &request);
        for fault in [
            Break::PanicsAtTheStart,
            Break::PanicsBeforeASnapshot,
            Break::PanicsBeforeAStep,
            Break::PanicsWhileDrafting,
            Break::FailsBeforeASnapshot,
            Break::FailsBeforeAStep,
        ] {
            engine.set_drafter(Box::new(Breaking(fault))).unwrap_or_else(|e| panic!("{e}"));
            for (i, session) in sessions.iter_mut().enumerate() {
                session.clear();
                let drafters = Speculation::fixed(3).with(&[DrafterKind::Dflash, DrafterKind::Mtp]);
                let done = complete(session, &request.clone().speculation(drafters));
                assert_eq!(Given::new(&done), wanted, "{name}, session {i}: {fault:?}");
                let by = |kind: DrafterKind| done.summary.speculation.drafters[kind.index()].drafted;
                assert_eq!(by(DrafterKind::Dflash), 0, "{name}, session {i}: {fault:?}: left out");
                assert!(by(DrafterKind::Mtp) > 0, "{name}, session {i}: {fault:?}: the next in the list");
            }
        }
    }
}

/// Drafts one token again and again.
struct Guess(u32);

impl Drafter for Guess {
    fn kind(&self) -> DrafterKind {
        DrafterKind::Dflash
    }
    fn begin(&mut self, _: View<'_>, _: usize) {}
    fn draft(&mut self, _: &mut Runner, asks: &mut [Ask<'_>]) -> forerun_engine::Result<()> {
        asks.iter_mut().for_each(|ask| ask.drafts.extend(std::iter::repeat_n(self.0, ask.depth)));
        Ok(())
    }
}

#[test]
fn drafters_of_several_kinds_stand_side_by_side() {
    let options = LoadOptions { context: Some(60), ..LoadOptions::default() };
    let engine: Engine = engine(DEMO.as_ref(), &options);
    let mut session = engine.session().expect("a session");
    let prompt = text(engine.spec().vocabulary(), 9, 8);
    let request = noisy(prompt.clone(), 20);
    let wanted = plain(&mut session, &request);
    let all: Vec<u32> = prompt.into_iter().chain(wanted.ids()).collect();
    script(&engine, &all, &[(3, 3)]);
    for guess in [7, 8] {
        engine.set_drafter(Box::new(Guess(guess))).unwrap_or_else(|e| panic!("{e}"));
        for (kind, all_right) in [(DrafterKind::Scripted, true), (DrafterKind::Dflash, false)] {
            session.clear();
            let done = complete(&mut session, &request.clone().speculation(scripted().with(&[kind])));
            assert_eq!(Given::new(&done), wanted, "{kind:?}");
            let by = done.summary.speculation.drafters[kind.index()];
            assert!(by.drafted > 0, "{kind:?} drafts");
            assert_eq!(by.accepted == by.drafted, all_right, "{kind:?}: {by:?}");
        }
    }
}
