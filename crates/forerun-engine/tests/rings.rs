//! Sliding layers keep a ring of the newest keys and values. What a row gives does not depend on it: not on its length, and
//! not on what was in it before.

mod common;

use common::requests::{Given, complete, engine, noisy, plain, script, scripted};
use common::{Row, cpu, every_model, gemmas, load, open, run, text, vocabulary};
use forerun_engine::{Engine, Isa, LoadOptions, MAX_DRAFT, Prompt, Speculation};
use forerun_models::CacheConfig;

/// Window of the fixtures' sliding layers.
const WINDOW: usize = 16;
/// Positions of a ring for steps of 16 rows.
const RING: usize = 32;

#[test]
fn rings_equal_whole_caches() {
    for (name, path) in gemmas() {
        let source = open(&path);
        let caches = |chunk| CacheConfig { context: 200, chunk, kv_block: 8, ..CacheConfig::default() };
        let mut whole = load(&source, &cpu(Isa::detect(), 1), &caches(200));
        let text = text(vocabulary(&whole), 200, 3);
        let wanted: Vec<Row> =
            text.chunks(50).enumerate().flat_map(|(i, t)| run(&mut whole, 0, 50 * i, t)).collect();
        for (chunk, sizes) in [(16, vec![1]), (16, vec![16, 3, 1, 9]), (64, vec![64, 17]), (24, vec![24])] {
            let mut ring = load(&source, &cpu(Isa::detect(), 2), &caches(chunk));
            let mut pos = 0;
            for rows in sizes.iter().cycle() {
                let to = (pos + rows).min(text.len());
                let got = run(&mut ring, 0, pos, &text[pos..to]);
                assert_eq!(got, wanted[pos..to], "{name}, steps of {sizes:?}: rows {pos}..{to}");
                pos = to;
                if pos == text.len() {
                    break;
                }
            }
        }
    }
}

fn small(path: &std::path::Path) -> Engine {
    let (context, chunk, kv_block) = (Some(200), MAX_DRAFT + 1, 8);
    engine(path, &LoadOptions { context, chunk, kv_block, ..LoadOptions::default() })
}

/// A prompt parts from the text anywhere: nearby what the caches hold is used, further back it is made again, and further
/// back than rejected drafts have left it, too.
#[test]
fn prompts_that_part_anywhere() {
    for (name, path) in gemmas() {
        let engine = small(&path);
        let other = small(&path);
        let (mut used, mut fresh) =
            (engine.session().expect("a session"), other.session().expect("a session"));
        let vocabulary = engine.spec().vocabulary() as u32;
        for (drafts, back) in
            [0, MAX_DRAFT].into_iter().flat_map(|d| [1, 2, 9, 15, 16, 17, 18, 19, 40].map(|b| (d, b)))
        {
            let what = format!("{name}, {drafts} wrong drafts, {back} back");
            used.clear();
            let first = noisy(text(vocabulary as usize, 70, 4), 30);
            let mut all = text(vocabulary as usize, 70, 4);
            all.extend(plain(&mut fresh, &first).ids());
            script(&engine, &all, &[(drafts, 0)]);
            complete(&mut used, &first.speculation(scripted()));
            // The last token has not been run; wrong drafts were written behind the one before it.
            let kept = all.len() - 1 - back;
            let written = all.len() - 1 + if drafts > 0 { drafts.min(200 - all.len() + 1) } else { 0 };
            let mut prompt = all[..kept].to_vec();
            prompt.extend(text(vocabulary as usize, 5, 90));
            prompt[kept] = (all[kept] + 7) % vocabulary;
            let next = noisy(prompt, 12);
            let wanted = plain(&mut fresh, &next);
            let given = complete(&mut used, &next.clone().speculation(Speculation::off()));
            assert_eq!(Given::new(&given), wanted, "{what}");
            let held = kept + 1 - WINDOW >= written.saturating_sub(RING);
            let reused = given.summary.reused_tokens;
            if drafts == 0 {
                assert_eq!(reused, if held { kept } else { 0 }, "{what}");
            } else {
                // The drafts of the last round are cut at the request's end.
                assert!(reused == 0 || reused == kept, "{what}: {reused}");
            }
        }
    }
}

/// Where no ring has lost anything and no layer carries a state, any prefix is used again.
#[test]
fn any_prefix_of_a_whole_cache_is_used_again() {
    for (name, path) in every_model() {
        let options = LoadOptions { context: Some(128), ..LoadOptions::default() };
        let engine = engine(&path, &options);
        let mut session = engine.session().expect("a session");
        let all = text(engine.spec().vocabulary(), 60, 4);
        for kept in [1, 2, 30, 59] {
            session.clear();
            complete(&mut session, &noisy(all.clone(), 20));
            let mut prompt = all[..kept].to_vec();
            prompt.push((all[kept] + 1) % engine.spec().vocabulary() as u32);
            let next = noisy(prompt, 8);
            let given = complete(&mut session, &next);
            if engine.spec().window().is_some() {
                assert_eq!(given.summary.reused_tokens, kept, "{name}");
            }
            let Prompt::Tokens(_) = &next.prompt else { panic!("a prompt of tokens") };
            assert_eq!(Given::new(&given), plain(&mut session, &next), "{name}, {kept} kept");
        }
    }
}
