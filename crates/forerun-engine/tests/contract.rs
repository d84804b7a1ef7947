//! The promise: what a row gives is a function of the model and of the tokens before it, and of nothing else. Every
//! comparison is of bits: token, logprob and all logits.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use common::{
    Part, Row, cpu, every_model, isas, load, open, plain, run, step, text, tiny, vocabulary, weight_types,
};
use forerun_engine::{CpuConfig, Isa, KvType, Runner};
use forerun_models::{CacheConfig, Source};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

fn caches(slots: usize) -> CacheConfig {
    CacheConfig { slots, snapshots: 1, context: 200, chunk: 200, ..CacheConfig::default() }
}

/// A text and what plain decoding makes of it on the plainest backend.
struct Known {
    text: Vec<u32>,
    rows: Vec<Row>,
}

impl Known {
    fn new(source: &dyn Source, caches: &CacheConfig, len: usize) -> Self {
        let mut runner = load(source, &cpu(Isa::detect(), 1), caches);
        let text = text(vocabulary(&runner), len, 3);
        let rows = plain(&mut runner, 0, &text);
        Self { text, rows }
    }

    /// Runs `from..to` as one step of certain rows and compares.
    #[track_caller]
    fn check(&self, runner: &mut Runner, slot: u32, from: usize, to: usize, what: &str) {
        let rows = run(runner, slot, from, &self.text[from..to]);
        assert_eq!(rows, self.rows[to - rows.len()..to], "{what}: rows {from}..{to}");
    }

    /// The whole text in steps of these many rows, again and again.
    #[track_caller]
    fn check_in(&self, runner: &mut Runner, slot: u32, sizes: &[usize], what: &str) {
        let mut pos = 0;
        for n in sizes.iter().cycle() {
            if pos == self.text.len() {
                return;
            }
            let to = (pos + n).min(self.text.len());
            self.check(runner, slot, pos, to, what);
            pos = to;
        }
    }
}

/// Steps of every kernel's size.
const SIZES: [usize; 9] = [1, 2, 3, 17, 8, 1, 33, 9, 64];

#[test]
fn instruction_sets_and_threads() {
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), 148);
        for isa in isas() {
            for threads in 1..=3 {
                let mut runner = load(&source, &cpu(isa, threads), &caches(1));
                known.check_in(&mut runner, 0, &SIZES, &format!("{name} on {isa}, {threads} threads"));
            }
        }
    }
}

/// Keeps the calling thread, and those it starts, on one core.
#[cfg(target_os = "linux")]
fn pin() {
    // SAFETY: the set is plain bits of this frame; the calls read and write it only.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        let core = (0..libc::CPU_SETSIZE as usize).find(|c| libc::CPU_ISSET(*c, &set)).unwrap_or(0);
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(done, 0, "sched_setaffinity");
}

#[cfg(not(target_os = "linux"))]
fn pin() {}

#[test]
fn pinned_to_one_core_and_beside_busy_threads() {
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for (name, path) in every_model() {
            let source = open(&path);
            let known = Known::new(&source, &caches(1), 80);
            scope.spawn(move || {
                pin();
                let mut runner = load(&source, &cpu(Isa::detect(), 2), &caches(1));
                known.check_in(&mut runner, 0, &SIZES, &format!("{name}, pinned"));
            });
        }
    });
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let checked = std::panic::catch_unwind(|| {
            for (name, path) in every_model() {
                let source = open(&path);
                let known = Known::new(&source, &caches(1), 80);
                let mut runner = load(&source, &cpu(Isa::detect(), 2), &caches(1));
                known.check_in(&mut runner, 0, &SIZES, &format!("{name}, beside busy threads"));
            }
        });
        busy.store(false, Ordering::Relaxed);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Runs a property that keeps a loaded model from case to case.
fn property<S: Strategy>(cases: u32, strategy: S, mut f: impl FnMut(S::Value)) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let f = std::cell::RefCell::new(&mut f);
    TestRunner::new(config)
        .run(&strategy, |value| {
            (f.borrow_mut())(value);
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn any_split_of_a_prompt_and_any_step() {
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), 190);
        let mut runner = load(&source, &CpuConfig::default(), &caches(1));
        for rows in 1..=64 {
            known.check_in(&mut runner, 0, &[rows], &format!("{name}, steps of {rows}"));
        }
        known.check_in(&mut runner, 0, &[190], &format!("{name}, one chunk"));
        property(24, prop::collection::vec(prop_oneof![1..=64_usize, 1..=190_usize], 1..12), |sizes| {
            known.check_in(&mut runner, 0, &sizes, &format!("{name}, steps of {sizes:?}"));
        });
    }
}

/// Sequences of other texts come and go in other slots of the same steps.
#[test]
fn neighbours_and_slots() {
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), 120);
        let mut runner = load(&source, &CpuConfig::default(), &caches(5));
        let others = text(vocabulary(&runner), 200, 77);
        let parts =
            prop::collection::vec((1..=20_usize, prop::collection::vec((0..5_u32, 1..=9_usize), 0..4)), 1..8);
        property(16, (0..5_u32, parts), |(slot, steps)| {
            let mut at = [0_usize; 5];
            for (n, neighbours) in steps.iter().cycle() {
                let from = at[slot as usize];
                if from == known.text.len() {
                    break;
                }
                let to = (from + n).min(known.text.len());
                let mut batch = vec![Part::sure(slot, from, &known.text[from..to])];
                for &(other, rows) in neighbours {
                    if batch.iter().all(|p| p.slot != other) {
                        let pos = if at[other as usize] + rows > 190 { 0 } else { at[other as usize] };
                        at[other as usize] = pos + rows;
                        batch.push(Part::sure(other, pos, &others[pos..pos + rows]));
                    }
                }
                at[slot as usize] = to;
                // The known sequence is first, last or between.
                let turn = n % batch.len();
                batch.rotate_left(turn);
                let place = batch.iter().position(|p| p.slot == slot).expect("its part");
                assert_eq!(step(&mut runner, &batch)[place], known.rows[from..to], "{name}: {batch:?}");
            }
        });
    }
}

/// The last certain token and `k` drafts, of which the first `right` are those of the text.
fn round(known: &Known, pos: usize, k: usize, right: usize, vocabulary: usize) -> Vec<u32> {
    let wrong = |i: usize| (known.text[pos + i] + 1 + i as u32) % vocabulary as u32;
    (0..=k).map(|i| if i <= right { known.text[pos + i] } else { wrong(i) }).collect()
}

/// Two rounds of `k` drafts with `a` and `b` accepted, then one plain row.
fn two_rounds(known: &Known, runner: &mut Runner, start: usize, [k, a, b]: [usize; 3], what: &str) {
    let vocabulary = vocabulary(runner);
    runner.copy_state(1, 0).unwrap_or_else(|e| panic!("{e}"));
    let (mut pos, mut replay) = (start, 0);
    for accepted in [a, b] {
        let tokens = round(known, pos, k, accepted, vocabulary);
        let rows = step(runner, &[Part::drafted(0, pos, &tokens, replay)]).remove(0);
        let kept = accepted + 1;
        assert_eq!(
            rows[..kept],
            known.rows[pos..pos + kept],
            "{what}: {a} then {b} of {k} accepted, round at {pos}"
        );
        (pos, replay) = (pos + kept, kept);
    }
    let last = Part { commit: true, ..Part::drafted(0, pos, &known.text[pos..=pos], replay) };
    assert_eq!(step(runner, &[last])[0], known.rows[pos..=pos], "{what}: after {a} and {b} of {k} accepted");
}

#[test]
fn every_accept_count_after_every_other() {
    const START: usize = 21;
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), START + 34);
        let mut runner = load(&source, &CpuConfig::default(), &caches(1));
        known.check(&mut runner, 0, 0, START, name);
        runner.copy_state(0, 1).unwrap_or_else(|e| panic!("{e}"));
        let depths: Vec<usize> = if name == "demo" { vec![1, 2, 7, 15] } else { (1..=15).collect() };
        for k in depths {
            for (a, b) in (0..=k).flat_map(|a| (0..=k).map(move |b| (a, b))) {
                two_rounds(&known, &mut runner, START, [k, a, b], name);
            }
        }
    }
}

/// Rounds of any depth after each other, rounds of which nothing is kept, prompt chunks in between, beside a neighbour that
/// does the same.
#[test]
fn any_order_of_rounds() {
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), 150);
        let mut runner = load(&source, &CpuConfig::default(), &caches(2));
        let vocabulary = vocabulary(&runner);
        let one = || (0..=15_usize, 0..=16_usize, prop::bool::weighted(0.2));
        property(24, prop::collection::vec([one(), one()], 1..16), |rounds| {
            // Per sequence: where the next row stands, and rows on the tape that count.
            let mut at = [(0, 0); 2];
            for both in rounds.iter().cycle() {
                let mut batch = Vec::new();
                let mut kept = [0; 2];
                for (slot, &(k, accepted, sure)) in both.iter().enumerate() {
                    let (pos, replay) = at[slot];
                    let k = k.min(known.text.len() - 1 - pos);
                    let accepted = if sure { k + 1 } else { accepted.min(k + 1) };
                    let tokens = round(&known, pos, k, accepted.saturating_sub(1), vocabulary);
                    batch.push(Part { commit: sure, ..Part::drafted(slot as u32, pos, &tokens, replay) });
                    kept[slot] = accepted;
                }
                let rows = step(&mut runner, &batch);
                for (slot, part) in batch.iter().enumerate() {
                    let (pos, kept) = (part.pos, kept[slot]);
                    assert_eq!(
                        rows[slot][..kept],
                        known.rows[pos..pos + kept],
                        "{name}: {batch:?}, {kept} kept"
                    );
                    at[slot] = (pos + kept, if part.commit { 0 } else { kept });
                }
                if at.iter().any(|(pos, _)| *pos >= known.text.len()) {
                    return;
                }
                // A round that keeps nothing leaves the tape's base where it was; without progress there is no end.
                if rounds.iter().all(|r| r.iter().all(|(_, accepted, sure)| *accepted == 0 && !sure)) {
                    return;
                }
            }
        });
    }
}

/// Steps that begin and end at, before and after every edge of key blocks and tiles.
#[test]
fn edges_of_blocks_in_every_cache_type() {
    for (name, path) in every_model() {
        let source = open(&path);
        let types =
            if name == "demo" { vec![KvType::F16] } else { vec![KvType::F16, KvType::F32, KvType::Q8_0] };
        for (kv, kv_block) in types.iter().flat_map(|t| [8, 16, 64].map(|b| (*t, b))) {
            let caches = CacheConfig { kv, kv_block, ..caches(1) };
            let known = Known::new(&source, &caches, 140);
            let mut runner = load(&source, &CpuConfig::default(), &caches);
            let edges = [8, 16, 24, 64, 128].into_iter().flat_map(|e| [e - 1, e, e + 1]);
            for edge in edges {
                let what = format!("{name}, {kv:?} in blocks of {kv_block}, edge {edge}");
                known.check(&mut runner, 0, 0, edge, &what);
                known.check(&mut runner, 0, edge, edge + 1, &what);
                for next in [edge + 2, (edge + 8).min(140)] {
                    // The same again from one row before the edge: a shorter prompt, then a step across it.
                    known.check(&mut runner, 0, 0, edge - 1, &what);
                    known.check(&mut runner, 0, edge - 1, next, &what);
                }
            }
        }
    }
}

/// Chunks whose edges are those of blocks ± 1.
#[test]
fn edges_of_chunks() {
    for (name, path) in every_model() {
        let source = open(&path);
        let known = Known::new(&source, &caches(1), 190);
        let mut runner = load(&source, &CpuConfig::default(), &caches(1));
        for chunk in [8, 16, 64, 128].into_iter().flat_map(|c| [c - 1, c, c + 1]) {
            known.check_in(&mut runner, 0, &[chunk], &format!("{name}, chunks of {chunk}"));
        }
    }
}

#[test]
fn a_context_of_4096_tokens() {
    let source = open(common::DEMO.as_ref());
    let caches = CacheConfig { context: 4096, chunk: 512, ..CacheConfig::default() };
    let known = Known::new(&source, &caches, 4096);
    let mut runner = load(&source, &CpuConfig::default(), &caches);
    known.check_in(&mut runner, 0, &[512], "chunks of 512");
    known.check_in(&mut runner, 0, &[64], "steps of 64");
    known.check_in(&mut runner, 0, &[511, 1, 300, 13], "uneven chunks");
    // A verification at the very end.
    known.check(&mut runner, 0, 0, 500, "a prefix");
    known.check_in(&mut runner, 0, &[512, 512, 512, 512, 512, 512, 512, 496, 16], "a last step of 16");
}

/// Every weight type, dense and with experts.
#[test]
fn every_weight_type() {
    for ty in weight_types() {
        for experts in [false, true] {
            let source = tiny(ty, experts);
            let caches = CacheConfig { context: 64, chunk: 64, snapshots: 1, ..CacheConfig::default() };
            let known = Known::new(&source, &caches, 44);
            for (isa, threads) in isas().zip([2, 1].into_iter().cycle()) {
                let what = format!("{ty}, experts: {experts}, {isa}, {threads} threads");
                let mut runner = load(&source, &cpu(isa, threads), &caches);
                known.check_in(&mut runner, 0, &[1, 2, 5, 16, 20], &what);
                if isa == Isa::detect() {
                    known.check_in(&mut runner, 0, &[44], &what);
                    known.check(&mut runner, 0, 0, 9, &what);
                    runner.copy_state(0, 1).unwrap_or_else(|e| panic!("{e}"));
                    for [k, a, b] in [[3, 0, 3], [3, 2, 1], [15, 7, 15], [15, 15, 0]] {
                        two_rounds(&known, &mut runner, 9, [k, a, b], &what);
                    }
                }
            }
        }
    }
}
