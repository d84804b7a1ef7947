//! The drafters that requests use: whoever drafts, how deep, from how reduced a head, on how many threads and in what
//! chunks, a request gives what plain decoding gives, to the bit.

use std::path::Path;

use crate::common::requests::{Given, complete, engine, plain, without_mtp};
use crate::common::{DEMO, DEMO_DRAFTER, models, text};
use crate::folder::fixture;
use crate::pack::{converted, quantised, write_with_block};
use forerun_engine::{
    BackendChoice, Choice, CpuConfig, DFlashFile, Depth, DraftOptions, DrafterKind, Engine, KvType,
    LoadOptions, Prompt, Request, SamplingParams, Session, SpecStats, Speculation, TensorType,
};

const CODE: &str = concat!(
    "def push(self, item):\n    self.items.append(item)\n\n",
    "def pop(self, item):\n    self.items.remove(item)\n\n",
    "def push(self, item):\n",
);
const PROMPTS: [&str; 4] = ["def fib(n):\n    ", CODE, "Once upon a time there was a small", "a"];

/// How a combination samples: every filter, alone and together, at every temperature.
fn sampling(i: usize) -> SamplingParams {
    let plain = SamplingParams::plain([0.0, 0.6, 1.0][i % 3], i as u64);
    match i / 3 % 7 {
        0 | 1 => plain,
        2 => SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.05, ..plain },
        3 => SamplingParams { typical_p: 0.9, ..plain },
        4 => SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.1, penalty_window: 20, ..plain },
        5 => SamplingParams { presence_penalty: 0.5, logit_bias: [(3, 2.0), (5, -4.0)].into(), ..plain },
        _ => SamplingParams {
            top_p: 0.9,
            typical_p: 0.95,
            repetition_penalty: 1.1,
            logit_bias: [(4, f32::NEG_INFINITY)].into(),
            ..plain
        },
    }
}

/// A request, without speculation.
fn request(i: usize, prompt: impl Into<Prompt>) -> Request {
    let mut request = Request::new(prompt, sampling(i)).max_tokens(32);
    request.ignore_eos = !i.is_multiple_of(5);
    request.top_logprobs = if i % 4 == 1 { 3 } else { 0 };
    if i % 6 == 2 {
        request.stop = vec!["self".into(), "\n\n\n".into(), "ing".into()];
    }
    request
}

/// Who drafts, and what is predicted of a text.
type Who = (&'static [DrafterKind], Option<fn(&str) -> String>);

const WHO: [Who; 11] = {
    use DrafterKind::{Dflash, Lookup, Mtp, Prediction};
    [
        (&[Mtp], None),
        (&[Lookup], None),
        (&[Prediction], Some(|text| text.to_owned())),
        (&[Prediction], Some(spoilt)),
        (&[Prediction], Some(|_| String::new())),
        (&[Prediction, Mtp], Some(|_| CODE.repeat(2))),
        (&[Lookup, Mtp], None),
        (&[Prediction, Mtp], Some(spoilt)),
        (&[Prediction, Lookup, Mtp], Some(|text| text.to_owned())),
        (&[Dflash], None),
        (&[Lookup, Mtp, Dflash], None),
    ]
};

/// The text with its second half again in the middle and some characters replaced.
fn spoilt(text: &str) -> String {
    let half: String = text.chars().skip(text.chars().count() / 2).collect();
    text.chars().take(9).collect::<String>() + &half.replace('e', "q") + text
}

fn depth(i: usize) -> Depth {
    match i % 10 {
        0 => Depth::Auto,
        9 => Depth::Fixed(15),
        depth => Depth::Fixed(depth),
    }
}

/// Every request by every drafter, at depths that take turns. Returns what drafting did.
fn compare(engine: &Engine, requests: &[(Request, Given)], turn: &mut usize, what: &str) -> SpecStats {
    let mut session = engine.session().expect("a session");
    let mut stats = SpecStats::default();
    for (n, (request, wanted)) in requests.iter().enumerate() {
        for (drafters, prediction) in WHO {
            *turn += 1;
            let speculation = Speculation {
                depth: depth(*turn),
                drafters: drafters.to_vec(),
                choice: if drafters.len() > 2 { Choice::Best } else { Choice::InOrder },
                prediction: prediction.map(|f| f(&wanted.text)),
                confidence: [0.0, 0.0, 0.4, 0.9][*turn / 3 % 4],
            };
            let what = format!("{what}, request {n}, {speculation:?}");
            // Every other one goes on from what the one before left behind.
            if turn.is_multiple_of(2) {
                session.clear();
            }
            let completion = complete(&mut session, &request.clone().speculation(speculation));
            assert_eq!(Given::new(&completion), *wanted, "{what}");
            stats.merge(&completion.summary.speculation);
        }
    }
    stats
}

fn threads(n: usize) -> BackendChoice {
    BackendChoice::Cpu(CpuConfig { threads: n.try_into().ok(), isa: None, profile: false })
}

/// The given requests with what plain decoding makes of them, on an engine without an MTP block.
fn known(
    path: &Path,
    options: &LoadOptions,
    requests: impl Iterator<Item = Request>,
) -> Vec<(Request, Given)> {
    let engine = engine(path, &LoadOptions { backend: threads(2), chunk: 512, ..without_mtp(options) });
    let mut session: Session = engine.session().expect("a session");
    requests.map(|r| (r.clone(), plain(&mut session, &r))).collect()
}

#[test]
fn every_drafter_on_the_demo() {
    let mut turn = 0;
    let mut stats = SpecStats::default();
    for (kv, engines) in [
        (KvType::F16, [(1, 512, None), (2, 16, Some(2000))]),
        (KvType::F32, [(2, 512, Some(64)), (1, 5, None)]),
        (KvType::Q8_0, [(2, 16, None), (1, 1, Some(2000))]),
    ] {
        let options = LoadOptions { context: Some(256), kv, ..LoadOptions::default() };
        for (n, chunk, vocabulary) in engines {
            // Other requests for every engine; 21 kinds of sampling among them.
            let requests = (0..4).map(|i| request(turn / 11 + i, PROMPTS[(i + turn / 44) % 4]));
            let requests = known(DEMO.as_ref(), &options, requests);
            let dflash = Some(DFlashFile { path: DEMO_DRAFTER.into(), ty: None, passes: n });
            let draft = DraftOptions { vocabulary, dflash, ..DraftOptions::default() };
            let options = LoadOptions { backend: threads(n), chunk, draft, ..options.clone() };
            let what = format!("{kv:?}, {n} threads, chunks of {chunk}, head of {vocabulary:?}");
            let engine = engine(DEMO.as_ref(), &options);
            let done = compare(&engine, &requests, &mut turn, &what);
            assert_eq!(done.drafted == 0, chunk == 1, "{what}: {done:?}");
            stats.merge(&done);
        }
    }
    for kind in [DrafterKind::Mtp, DrafterKind::Lookup, DrafterKind::Prediction, DrafterKind::Dflash] {
        let by = stats.drafters[kind.index()];
        assert!(by.accepted > 50 && by.accepted < by.drafted, "{kind:?}: {by:?}");
    }
}

/// Every drafter on a model of the fixtures, at every type of cache.
fn on_a_fixture(path: &Path, dflash: &Path, turn: &mut usize, name: &str) {
    let mut stats = SpecStats::default();
    for (kv, n, chunk, vocabulary) in
        [(KvType::F16, 1, 16, None), (KvType::F32, 2, 512, Some(100)), (KvType::Q8_0, 2, 5, None)]
    {
        let options = LoadOptions { context: Some(128), kv, ..LoadOptions::default() };
        let prompt = |i: usize| text(512, 1 + 7 * i, i as u64);
        let requests = (0..4).map(|i| request(*turn / 11 + i, Prompt::Tokens(prompt(i))));
        let requests = known(path, &options, requests);
        let ty = (n == 1).then_some(TensorType::Q8_0);
        let dflash = dflash.is_dir().then(|| DFlashFile { path: dflash.into(), ty, passes: n });
        let draft = DraftOptions { vocabulary, dflash, ..DraftOptions::default() };
        let options = LoadOptions { backend: threads(n), chunk, draft, ..options.clone() };
        let what = format!("{name}, {kv:?}, {n} threads, chunks of {chunk}");
        stats.merge(&compare(&engine(path, &options), &requests, turn, &what));
    }
    assert!(stats.accepted > 50 && stats.accepted < stats.drafted, "{name}: {stats:?}");
}

#[test]
fn every_drafter_on_the_fixtures() {
    let mut turn = 0;
    for (name, path) in models().into_iter().skip(1) {
        let dflash = path.with_file_name("").with_file_name(format!("qwen35-{name}-dflash"));
        on_a_fixture(&path, &dflash, &mut turn, name);
    }
}

/// Targets that MLX quantised, with MTP blocks in files beside them.
#[test]
fn every_drafter_on_affine_targets() {
    let mut turn = 0;
    for (name, bits, group) in [("qwen35-dense", 4, 32), ("qwen35-moe", 4, 64), ("qwen35-dense", 3, 64)] {
        let dir = tempfile::tempdir().expect("a folder");
        let (folder, block) = converted(name);
        let [packed, _] = quantised(&folder, |_| Some((bits, group)));
        write_with_block(&packed, &block, dir.path());
        let what = format!("{name}, {bits} bits, groups of {group}");
        on_a_fixture(dir.path(), &fixture(&format!("{name}-dflash")), &mut turn, &what);
    }
}

/// Drafters make keys and values of a token when a draft first needs them, and never again: not for the next rounds, and not
/// for a request that goes on from there.
#[test]
fn context_is_made_once() {
    let dflash = Some(DFlashFile { path: DEMO_DRAFTER.into(), ty: None, passes: 1 });
    let draft = DraftOptions { dflash, ..DraftOptions::default() };
    let options = LoadOptions { backend: threads(2), context: Some(4500), draft, ..LoadOptions::default() };
    let engine = engine(DEMO.as_ref(), &options);
    for kind in [DrafterKind::Dflash, DrafterKind::Mtp] {
        let mut session = engine.session().expect("a session");
        let mut tokens = text(engine.spec().vocabulary(), 4096, 5);
        let mut made = 0;
        for turn in 0..3 {
            let mut request = Request::new(tokens.clone(), SamplingParams::plain(0.0, 1)).max_tokens(40);
            request.ignore_eos = true;
            let speculation = Speculation { drafters: vec![kind], ..Speculation::fixed(5) };
            let stats = complete(&mut session, &request.speculation(speculation)).summary.speculation;
            made += stats.drafters[kind.index()].context as usize;
            // All but those that the last round gave, and its draft did not need.
            let all = session.tokens().len();
            assert!((all - 7..all).contains(&made), "{kind:?}, turn {turn}: {made} of {all} tokens");
            tokens = session.tokens().to_vec();
        }
    }
}
