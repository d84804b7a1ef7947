//! Fingerprints of the demo and of tiny models of every weight type, checked in: they are the same on every machine.
//!
//! To accept new ones (a change of the arithmetic, and so of its id), copy the table that a failing run leaves in
//! `target/tmp/golden.txt` over `tests/golden.txt`.

mod common;

use std::fmt::Write;

use common::{cpu, load, plain, run, text, tiny, vocabulary, weight_types};
use forerun_engine::{Engine, Fingerprint, Isa, LoadOptions, Request, SamplingParams};
use forerun_models::CacheConfig;

const PROMPTS: [(&str, &str); 5] = [
    ("code", "def fib(n):\n    "),
    ("letter", "a"),
    ("prose", "Once upon a time there was a"),
    ("unicode", "Ünïcödé 漢字 🙂 and"),
    (
        "long",
        concat!("for i in range(10):\n    print(i)\n", "for j in range(20):\n    print(j * j)\n", "x = ["),
    ),
];

fn demo(table: &mut String) {
    let engine = Engine::load(common::DEMO, &LoadOptions { context: Some(512), ..LoadOptions::default() });
    let engine = engine.unwrap_or_else(|e| panic!("{e}"));
    let mut session = engine.session().expect("a session");
    for (name, prompt) in PROMPTS {
        for (temperature, seed) in [(0.0, 0), (0.8, 1), (0.8, 2), (0.8, u64::MAX)] {
            let mut request = Request::new(prompt, SamplingParams::plain(temperature, seed)).max_tokens(48);
            request.ignore_eos = true;
            session.clear();
            let completion = session.complete(&request).unwrap_or_else(|e| panic!("{e}"));
            let fingerprint = &completion.summary.fingerprint;
            writeln!(table, "demo {name} {temperature} {seed} {fingerprint}").expect("a string");
        }
    }
}

/// A prompt of 20 tokens, then 12 rows one by one.
fn synthetic(table: &mut String) {
    for ty in weight_types() {
        for (name, experts) in [("dense", false), ("moe", true)] {
            let caches = CacheConfig { context: 64, chunk: 64, ..CacheConfig::default() };
            let mut runner = load(&tiny(ty, experts), &cpu(Isa::detect(), 2), &caches);
            let tokens = text(vocabulary(&runner), 32, 9);
            let mut rows = run(&mut runner, 0, 0, &tokens[..20]);
            for pos in 20..32 {
                rows.extend(run(&mut runner, 0, pos, &tokens[pos..=pos]));
            }
            let mut fingerprint = Fingerprint::default();
            rows.iter().for_each(|r| fingerprint.push(r.token, r.logprob()));
            writeln!(table, "{name} {ty} {}", fingerprint.hex()).expect("a string");
            assert_eq!(rows[..2], plain(&mut runner, 0, &tokens[..2]), "{ty}");
        }
    }
}

#[test]
fn fingerprints_are_those_checked_in() {
    let mut table = String::new();
    demo(&mut table);
    synthetic(&mut table);
    let wanted =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden.txt")).unwrap_or_default();
    if table != wanted {
        let found = concat!(env!("CARGO_TARGET_TMPDIR"), "/golden.txt");
        std::fs::write(found, &table).expect("the target folder");
        let lines = table.lines().zip(wanted.lines()).filter(|(a, b)| a != b);
        let different: Vec<String> =
            lines.map(|(found, wanted)| format!("{found}, expected {wanted}")).collect();
        panic!("{} lines of {found} are not those of tests/golden.txt: {different:#?}", different.len());
    }
}
