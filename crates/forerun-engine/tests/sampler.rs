//! Token choice: its distribution, its extremes, and its filters against a naive form of each.

mod common;

use std::collections::BTreeMap;

use common::{cpu, load, tiny, vocabulary};
use forerun_cpu::CpuBackend;
use forerun_engine::{Candidate, Isa, Sampler, SamplingParams, choose};
use forerun_files::{Metadata, Value};
use forerun_models::CacheConfig;
use forerun_quant::TensorType;
use forerun_tensor::noise::{NOISE_MAX, gumbel, gumbel_of_word, word};
use forerun_tensor::{
    Backend, Ids, OutRow, Pick, PlanBuilder, SeqRows, SharedBytes, StepOut, StepRows, Weight, WeightData,
    WeightUse,
};
use proptest::prelude::*;

fn candidates(logits: &[f32]) -> Vec<Candidate> {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { logit, id }).collect()
}

/// The value of chi-square with k degrees of freedom that one in a million draws exceeds (Wilson and Hilferty).
fn limit(k: f64) -> f64 {
    let z = 4.753;
    k * (1.0 - 2.0 / (9.0 * k) + z * (2.0 / (9.0 * k)).sqrt()).powi(3)
}

/// Draws at many positions and seeds against the softmax in float64.
fn chi_square(logits: &[f32], temperature: f32, draws: u32, first_seed: u64) {
    let all = candidates(logits);
    let mut counts = vec![0_u32; logits.len()];
    const POSITIONS: u32 = 1_000;
    for draw in 0..draws {
        let seed = first_seed + u64::from(draw / POSITIONS) * 0x1_0000_0001;
        let id = choose(&all, temperature, seed, draw % POSITIONS).expect("a token");
        counts[id as usize] += 1;
    }
    let weights: Vec<f64> = logits.iter().map(|l| (f64::from(*l) / f64::from(temperature)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let terms = counts.iter().zip(&weights).map(|(n, w)| {
        let expected = f64::from(draws) * w / sum;
        assert!(expected >= 5.0 || *w == 0.0, "too few draws for {w}");
        if *w == 0.0 { f64::from(*n) * 1e9 } else { (f64::from(*n) - expected).powi(2) / expected }
    });
    let statistic: f64 = terms.sum();
    let degrees = weights.iter().filter(|w| **w > 0.0).count() as f64 - 1.0;
    assert!(
        statistic < limit(degrees),
        "chi-square {statistic:.1} of {degrees} at {temperature}: {counts:?}"
    );
}

#[test]
fn ten_million_draws_have_the_exact_distribution() {
    std::thread::scope(|scope| {
        // Likely and unlikely tokens together: the last has 1.6 in a million.
        scope.spawn(|| {
            chi_square(&[0.0, -1.0, 2.5, -4.0, 2.5, f32::NEG_INFINITY, 1.0, -10.0], 1.0, 5_000_000, 1)
        });
        scope.spawn(|| chi_square(&[1.0, 0.9, 0.8, 0.7, -0.5, 3.0], 0.8, 3_000_000, 9_000_000_000));
    });
    let flat: Vec<f32> = (0..16).map(|i| i as f32 * 0.01).collect();
    chi_square(&flat, 2.0, 2_000_000, 77);
}

#[test]
fn the_largest_word_loses_and_the_smallest_wins() {
    assert_eq!(gumbel_of_word(u32::MAX), f32::NEG_INFINITY);
    assert!((0..=u32::MAX).rev().take(100).all(|x| gumbel_of_word(x) == f32::NEG_INFINITY));
    assert!((0..1000).all(|x| gumbel_of_word(x) < NOISE_MAX && gumbel_of_word(x) > gumbel_of_word(x + 300)));
    // Words above this round to u = 1. A seed and position at which token 0 has one: it must not win, however likely.
    let lost = |(seed, position): &(u64, u32)| gumbel(*seed, *position, 0) == f32::NEG_INFINITY;
    let all = (0..64_u64).flat_map(|seed| (0..2_000_000).map(move |position| (seed, position)));
    let (seed, position) = all.into_iter().find(lost).expect("one word in 2^25 is that large");
    assert!(word(seed, position, 0) > u32::MAX - 200);
    assert_eq!(choose(&candidates(&[50.0, 0.0]), 1.0, seed, position), Some(1));
    // Alone, it is still the only choice.
    assert_eq!(choose(&candidates(&[50.0]), 1.0, seed, position), Some(0));
    for isa in common::isas() {
        let picked = device(isa, &[50.0, 0.0], Pick::Noise { temperature: 1.0, seed, position });
        assert_eq!(picked.0, 1, "{isa}");
        assert_eq!(device(isa, &[50.0], Pick::Noise { temperature: 1.0, seed, position }).0, 0, "{isa}");
    }
}

#[test]
fn ties_go_to_the_lower_id() {
    let mut sampler = Sampler::default();
    let greedy = SamplingParams::greedy();
    for (logits, wanted) in [
        (vec![1.0, 3.0, 3.0, 2.0], Some(1)),
        (vec![0.0; 9], Some(0)),
        (vec![f32::NEG_INFINITY, -0.0, 0.0], Some(1)),
        (vec![f32::NEG_INFINITY; 3], None),
        (vec![], None),
    ] {
        assert_eq!(sampler.pick(&logits, &greedy, &[], 1), wanted, "{logits:?}");
        if wanted.is_some() {
            for isa in common::isas() {
                assert_eq!(Some(device(isa, &logits, Pick::Greedy).0), wanted, "{logits:?} on {isa}");
            }
        }
    }
    // Equal logits across the edge of the filter: the lower ids stay.
    let two = SamplingParams { top_k: 2, ..SamplingParams::greedy() };
    let ids = |s: &mut Sampler, p: &SamplingParams| {
        s.allowed(&[1.0, 5.0, 5.0, 5.0], p, &[]).iter().map(|c| c.id).collect()
    };
    let mut kept: Vec<u32> = ids(&mut sampler, &two);
    kept.sort_unstable();
    assert_eq!(kept, [1, 2]);
}

/// The filters, one after the other, as their definitions say, over float64.
fn naive(logits: &[f32], p: &SamplingParams, before: &[u32]) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = logits.iter().zip(0..).map(|(l, id)| (id, *l)).collect();
    for (id, l) in &mut all {
        *l += p.logit_bias.get(id).copied().unwrap_or(0.0);
        let window = &before[before.len() - before.len().min(p.penalty_window as usize)..];
        let count = window.iter().filter(|t| *t == id).count();
        if count > 0 {
            *l = if *l > 0.0 { *l / p.repetition_penalty } else { *l * p.repetition_penalty };
            *l -= count as f32 * p.frequency_penalty;
            *l -= p.presence_penalty;
        }
    }
    all.retain(|(_, l)| *l > f32::NEG_INFINITY);
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if p.top_k > 0 {
        all.truncate(p.top_k as usize);
    }
    let masses = |all: &[(u32, f32)]| -> Vec<f64> {
        let e: Vec<f64> = all.iter().map(|(_, l)| (f64::from(*l) - f64::from(all[0].1)).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|e| e / sum).collect()
    };
    if p.typical_p < 1.0 && !all.is_empty() {
        let m = masses(&all);
        let entropy: f64 = -m.iter().map(|m| m * m.ln()).sum::<f64>();
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|a, b| {
            (-m[*a].ln() - entropy).abs().total_cmp(&(-m[*b].ln() - entropy).abs()).then(a.cmp(b))
        });
        let mut keep = until(order.iter().map(|i| m[*i]), p.typical_p);
        keep = keep.min(order.len());
        order.truncate(keep);
        order.sort_unstable();
        all = order.into_iter().map(|i| all[i]).collect();
    }
    if p.top_p < 1.0 && !all.is_empty() {
        let keep = until(masses(&all).into_iter(), p.top_p);
        all.truncate(keep);
    }
    if p.min_p > 0.0 && !all.is_empty() {
        let floor = f64::from(all[0].1) + f64::from(p.min_p).ln();
        all.retain(|(_, l)| f64::from(*l) >= floor);
    }
    all
}

/// How many masses reach `p`.
fn until(masses: impl Iterator<Item = f64>, p: f32) -> usize {
    let mut sum = 0.0;
    let mut count = 0;
    for m in masses {
        sum += m;
        count += 1;
        if sum >= f64::from(p) {
            break;
        }
    }
    count
}

prop_compose! {
    fn params()(
        top_k in prop_oneof![Just(0_u32), 1..30_u32],
        top_p in prop_oneof![Just(1.0_f32), 0.05..0.99_f32],
        min_p in prop_oneof![Just(0.0_f32), 0.001..0.9_f32],
        typical_p in prop_oneof![Just(1.0_f32), 0.05..0.99_f32],
        repetition_penalty in prop_oneof![Just(1.0_f32), 0.5..2.0_f32],
        frequency_penalty in prop_oneof![Just(0.0_f32), -1.0..1.0_f32],
        presence_penalty in prop_oneof![Just(0.0_f32), -1.0..1.0_f32],
        penalty_window in 0..20_u32,
        logit_bias in prop::collection::btree_map(0..40_u32, prop_oneof![Just(f32::NEG_INFINITY), -3.0..3.0_f32], 0..4),
        temperature in prop_oneof![Just(0.0_f32), 0.1..3.0_f32],
        seed in any::<u64>(),
    ) -> SamplingParams {
        SamplingParams {
            temperature, top_k, top_p, min_p, typical_p, repetition_penalty, frequency_penalty, presence_penalty,
            penalty_window, logit_bias, seed,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn filters_equal_their_definitions(
        p in params(),
        logits in prop::collection::vec(-6.0..6.0_f32, 40),
        before in prop::collection::vec(0..40_u32, 0..30),
        position in any::<u32>(),
    ) {
        p.validate(40).expect("valid parameters");
        let mut sampler = Sampler::default();
        let sorted = |mut all: Vec<(u32, u32)>| { all.sort_unstable(); all };
        let got = sorted(sampler.allowed(&logits, &p, &before).iter().map(|c| (c.id, c.logit.to_bits())).collect());
        let want = naive(&logits, &p, &before);
        prop_assert_eq!(&got, &sorted(want.iter().map(|(id, l)| (*id, l.to_bits())).collect()));
        // The choice is the arg max over them, nothing skipped.
        let value = |(id, l): &(u32, f32)| if p.temperature == 0.0 { *l } else { l / p.temperature + gumbel(p.seed, position, *id) };
        let mut by_id = want;
        by_id.sort_unstable_by_key(|c| c.0);
        let best = by_id.iter().map(|c| (value(c), c.0)).reduce(|a, b| if b.0 > a.0 { b } else { a });
        prop_assert_eq!(sampler.pick(&logits, &p, &before, position), best.map(|b| b.1));
    }

    #[test]
    fn filters_leave_a_greedy_choice_as_it_is(
        p in params(),
        logits in prop::collection::vec(prop_oneof![-6.0..6.0_f32, Just(6.0_f32), Just(-1e30_f32)], 40),
        position in any::<u32>(),
    ) {
        let p = SamplingParams { logit_bias: BTreeMap::new(), penalty_window: 0, typical_p: 1.0, ..p };
        let p = if p.top_k == 1 { p } else { SamplingParams { temperature: 0.0, ..p } };
        prop_assert!(p.is_plain());
        let mut largest = 0;
        (1..logits.len()).for_each(|i| if logits[i] > logits[largest] { largest = i });
        prop_assert_eq!(Sampler::default().pick(&logits, &p, &[], position), Some(largest as u32));
    }

    #[test]
    fn the_largest_of_many_are_the_first_when_all_are_sorted(
        many in prop::collection::vec(prop_oneof![-9.0..9.0_f32, Just(8.5_f32), Just(0.0_f32), Just(-0.0_f32), Just(f32::NEG_INFINITY)], 1..1500),
        top_k in prop_oneof![1..60_u32, 1..2000_u32],
    ) {
        let p = SamplingParams { top_k, ..SamplingParams::plain(1.0, 1) };
        let mut sampler = Sampler::default();
        let mut got: Vec<u32> = sampler.allowed(&many, &p, &[]).iter().map(|c| c.id).collect();
        got.sort_unstable();
        let mut ids: Vec<u32> = (0..many.len() as u32).filter(|i| many[*i as usize] > f32::NEG_INFINITY).collect();
        ids.sort_by(|a, b| many[*b as usize].total_cmp(&many[*a as usize]));
        ids.truncate(top_k as usize);
        ids.sort_unstable();
        prop_assert_eq!(got, ids);
    }

    #[test]
    fn the_device_chooses_as_the_host(
        logits in prop::collection::vec(prop_oneof![-30.0..30.0_f32, Just(1.0_f32), Just(f32::NEG_INFINITY)], 1..200),
        temperature in 0.01..3.0_f32,
        seed in any::<u64>(),
        position in any::<u32>(),
    ) {
        prop_assume!(logits.iter().any(|l| *l > f32::NEG_INFINITY));
        let mut sampler = Sampler::default();
        let host = |s: &mut Sampler, t: f32| s.pick(&logits, &SamplingParams::plain(t, seed), &[], position);
        let isa = Isa::detect();
        prop_assert_eq!(Some(device(isa, &logits, Pick::Noise { temperature, seed, position }).0), host(&mut sampler, temperature));
        prop_assert_eq!(Some(device(isa, &logits, Pick::Greedy).0), host(&mut sampler, 0.0));
    }
}

/// Runs the sampling operator of the CPU backend on these logits: the token, and whether one was NaN.
fn device(isa: Isa, logits: &[f32], pick: Pick) -> (u32, bool) {
    let mut backend = CpuBackend::new(&cpu(isa, 1)).unwrap_or_else(|e| panic!("{e}"));
    let bytes: Vec<u8> = logits.iter().flat_map(|l| l.to_le_bytes()).collect();
    let data = WeightData {
        name: "logits".into(),
        ty: TensorType::F32,
        rows: 1,
        cols: logits.len(),
        experts: 1,
        expert_stride: bytes.len(),
        bytes: SharedBytes::from(bytes),
        usage: WeightUse::Table,
    };
    let table = Weight { id: backend.load(&data).expect("load").id, rows: 1, cols: logits.len(), experts: 1 };
    let mut plan = PlanBuilder::new(1, 1);
    let x = plan.embed(&table, Ids::Step, 1.0).and_then(|x| plan.select(x)).expect("select");
    plan.sample(x, None, true).expect("sample");
    let plan = backend.prepare(plan.finish()).expect("prepare");
    let step = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: 0, rows: 1, replay: 0, commit: true }],
        tokens: vec![0],
        out: vec![OutRow { row: 0, pick, logits: false }],
    };
    let mut out = StepOut::default();
    let ticket = backend.submit(plan, &step).expect("submit");
    backend.wait(ticket, &mut out).expect("wait");
    (out.picked[0].token, out.picked[0].nan)
}

#[test]
fn a_nan_anywhere_is_seen() {
    for isa in common::isas() {
        for n in [1, 15, 16, 17, 4096, 4097, 9000] {
            for at in [0, n / 2, n - 1] {
                let mut logits = vec![0.5; n];
                assert!(!device(isa, &logits, Pick::Greedy).1);
                logits[at] = f32::NAN;
                assert!(device(isa, &logits, Pick::Greedy).1, "{isa}: {at} of {n}");
            }
        }
    }
}

/// The vocabulary is cut into parts; the winner may be in any of them.
#[test]
fn large_vocabularies_choose_as_the_host() {
    let logits: Vec<f32> = (0..9_001).map(|i| word(4, 0, i) as f32 / 4e8).collect();
    let all = candidates(&logits);
    for isa in common::isas() {
        for position in 0..40 {
            let pick = Pick::Noise { temperature: 0.9, seed: 3, position };
            assert_eq!(Some(device(isa, &logits, pick).0), choose(&all, 0.9, 3, position), "{isa}");
        }
    }
}

/// Parameters out of range are refused by name.
#[test]
fn parameters_are_checked() {
    let good = SamplingParams::default;
    let bias = |id, b| BTreeMap::from([(id, b)]);
    for (params, option) in [
        (SamplingParams { temperature: f32::NAN, ..good() }, "temperature"),
        (SamplingParams { temperature: -0.1, ..good() }, "temperature"),
        (SamplingParams { temperature: 1e-5, ..good() }, "temperature"),
        (SamplingParams { top_p: 0.0, ..good() }, "top_p"),
        (SamplingParams { typical_p: 1.1, ..good() }, "typical_p"),
        (SamplingParams { min_p: f32::NAN, ..good() }, "min_p"),
        (SamplingParams { repetition_penalty: 0.0, ..good() }, "repetition_penalty"),
        (SamplingParams { frequency_penalty: f32::INFINITY, ..good() }, "frequency_penalty"),
        (SamplingParams { presence_penalty: f32::NAN, ..good() }, "presence_penalty"),
        (SamplingParams { logit_bias: bias(100, 1.0), ..good() }, "logit_bias"),
        (SamplingParams { logit_bias: bias(1, f32::NAN), ..good() }, "logit_bias"),
        (SamplingParams { logit_bias: bias(1, f32::INFINITY), ..good() }, "logit_bias"),
    ] {
        let message = params.validate(100).expect_err(option).to_string();
        assert!(message.contains(option), "{message}");
    }
    let banned = SamplingParams { logit_bias: bias(99, f32::NEG_INFINITY), ..good() };
    assert!(banned.validate(100).is_ok());
}

/// A file's own parameters are refused with the file and the key.
#[test]
fn parameters_of_files_name_the_key() {
    for (key, value, found) in [
        ("general.sampling.temp", Value::F32(f32::NAN), "NaN"),
        ("general.sampling.temp", Value::F32(1e-30), "0.000"),
        ("general.sampling.top_p", Value::F32(0.0), "0"),
        ("general.sampling.penalty_repeat", Value::F32(-1.0), "-1"),
        ("general.sampling.top_k", Value::String("many".into()), "many"),
    ] {
        let mut metadata = Metadata::default();
        metadata.set(key, value);
        let message = SamplingParams::from_metadata(&metadata).expect_err(key).to_string();
        assert!(message.contains(&format!("key `{key}`: found ")) && message.contains(found), "{message}");
    }
}

/// At the least temperature the noise decides between equals only, and below it there is none.
#[test]
fn low_temperatures_take_the_largest_logit() {
    for temperature in [0.0, f32::MIN_POSITIVE, 1e-30, 9e-5, 1e-4] {
        for (logits, id) in [([1.0, 1.1, 0.9], 1), ([1e30, 2e30, 3e30], 2), ([-3e30, -2e30, -1e30], 2)] {
            assert_eq!(choose(&candidates(&logits), temperature, 1, 2), Some(id), "{temperature} {logits:?}");
        }
    }
}

/// No bias and no penalty takes a logit where it would divide to infinity; a ban stays one.
#[test]
fn extreme_penalties_leave_logits_finite() {
    let base = SamplingParams::plain(1e-4, 0);
    let bias = |b: f32| BTreeMap::from([(1, b), (2, f32::NEG_INFINITY)]);
    let huge = f32::MAX;
    for params in [
        SamplingParams { logit_bias: bias(huge), ..base.clone() },
        SamplingParams { logit_bias: bias(-huge), ..base.clone() },
        SamplingParams {
            repetition_penalty: 1e-38,
            frequency_penalty: huge,
            logit_bias: bias(1.0),
            ..base.clone()
        },
        SamplingParams {
            repetition_penalty: huge,
            frequency_penalty: -huge,
            logit_bias: bias(-9.0),
            ..base.clone()
        },
        SamplingParams { presence_penalty: -huge, logit_bias: bias(huge), ..base.clone() },
    ] {
        let mut sampler = Sampler::default();
        let left = sampler.allowed(&[1.0, 2.0, 3.0], &params, &[1, 1, 2]);
        assert!(left.iter().map(|c| c.id).eq([0, 1]), "{params:?}: {left:?}");
        assert!(left.iter().all(|c| (c.logit / params.temperature).is_finite()), "{params:?}: {left:?}");
    }
}

/// The model's own vocabulary through a whole step: device and host agree there too.
#[test]
fn a_model_s_step_chooses_as_the_host() {
    let caches = CacheConfig { context: 32, chunk: 32, ..CacheConfig::default() };
    let mut runner = load(&tiny(TensorType::Q8_0, false), &cpu(Isa::detect(), 2), &caches);
    let vocabulary = vocabulary(&runner) as u32;
    for position in 1..20 {
        let pick = Pick::Noise { temperature: 0.8, seed: 6, position };
        let seqs = vec![SeqRows { slot: 0, pos: position - 1, rows: 1, replay: 0, commit: true }];
        let out = vec![OutRow { row: 0, pick, logits: true }];
        let mut result = StepOut::default();
        runner
            .step(&StepRows { seqs, tokens: vec![position * 3 % vocabulary], out }, &mut result)
            .expect("step");
        assert_eq!(Some(result.picked[0].token), choose(&candidates(&result.logits), 0.8, 6, position));
    }
}
