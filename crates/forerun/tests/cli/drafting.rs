//! Speculation from the command line.

use super::hostile::{Case, Expect};
use super::*;

#[test]
fn drafting_changes_no_text() {
    let dir = folder();
    let file = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("write");
        path.to_str().expect("a path").to_owned()
    };
    let base = ["run", "--json", "-n", "40", "--ignore-eos", "--seed", "2", "--temp", "0.7", "class Stack:"];
    let run = |more: &[&str]| json(&[&base, more].concat());
    let plain = run(&["--draft", "0"]);
    assert_eq!(plain["speculation"]["drafted"], 0);
    let right = file("right", plain["text"].as_str().expect("text").as_bytes());
    let wrong = file("wrong", b"def something_else(): pass\n");
    for (drafts, more) in [
        (false, &["--draft", "auto"][..]),
        (false, &["--draft", "off"]),
        (true, &["--draft", "1"]),
        (true, &["--draft", "15"]),
        (true, &["--draft", "3", "--draft-vocab", "2000"]),
        (true, &["--draft", "3", "--draft-vocab", "1"]),
        (true, &["--draft", "4", "--draft-confidence", "0.5"]),
        (false, &["--draft", "4", "--drafter", "lookup"]),
        (true, &["--draft", "4", "--drafter", "lookup,mtp"]),
        (true, &["--draft", "4", "--prediction", &right]),
        (false, &["--draft", "4", "--drafter", "prediction", "--prediction", &wrong]),
        (true, &["--draft", "2", "--mtp", DEMO]),
    ] {
        let drafted = run(more);
        assert_eq!(drafted["fingerprint"], plain["fingerprint"], "{more:?}");
        let count = drafted["speculation"]["drafted"].as_u64().expect("a count");
        assert!(count > 0 || !drafts, "{more:?}: nothing drafted");
    }
    let predicted = run(&["--draft", "4", "--drafter", "prediction", "--prediction", &right]);
    let share = &predicted["speculation"]["drafters"]["prediction"];
    assert!(share["accepted"].as_u64() > Some(20), "{share}");
    let latin = file("latin1", b"caf\xe9");
    let cases =
        [Case::new(&["run", "--prediction", &latin, "x"], Expect::Error(1, "no UTF-8 at byte 3".into()))];
    assert_eq!(cases.iter().filter_map(Case::fault).collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn a_model_without_mtp_is_not_asked_to_draft_with_it() {
    let dir = folder();
    let model = broken::without_mtp(dir.path());
    let model = model.to_str().expect("a path");
    let base = ["run", "-m", model, "--raw", "-n", "4", "--temp", "0", "x"];
    let refused = |more: &[&str], code: i32, what: &str| {
        Case::new(&[&base[..], more].concat(), Expect::Error(code, what.to_owned())).fault()
    };
    let faults = [
        refused(&["--drafter", "mtp"], 2, "--drafter"),
        refused(&["--draft", "3"], 2, "--draft"),
        refused(&["--mtp", model], 1, "no-mtp.gguf"),
        Case::new(&[&base[..], &["--drafter", "mtp", "--draft", "0"]].concat(), Expect::Right).fault(),
        Case::new(&[&base[..], &["--draft", "3", "--drafter", "lookup"]].concat(), Expect::Right).fault(),
        Case::new(&base, Expect::Right).fault(),
    ];
    assert_eq!(faults.iter().flatten().collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Two prompts of different kinds.
fn prompts_file(dir: &Path) -> String {
    let file = dir.join("prompts.jsonl");
    let lines = ["def fib(n):", "class Stack:\n"]
        .map(|p| serde_json::json!({ "kind": &p[..3], "prompt": p }).to_string());
    fs::write(&file, lines.join("\n")).expect("write");
    file.to_str().expect("a path").to_owned()
}

#[test]
fn bench_spec_compares_every_setting_with_plain_decoding() {
    let dir = folder();
    let (prompts, chart) = (prompts_file(dir.path()), dir.path().join("chart.svg"));
    let chart = chart.to_str().expect("a path");
    let base = ["bench", "spec", "--prompts", &prompts, "-n", "12", "--repeat", "1"];
    let more = [
        "--drafter",
        "mtp",
        "--drafter",
        "lookup,mtp",
        "--depth",
        "2,auto",
        "--coupling",
        "--json",
        "--chart",
    ];
    let j = json(&[&base[..], &more, &[chart]].concat());
    let cells = j["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 2 * 2 * 2, "drafters, depths, temperatures");
    for cell in cells {
        let rows = cell["rows"].as_array().expect("rows");
        let kinds: Vec<_> = rows.iter().map(|r| (r["kind"].as_str(), r["equal"].as_u64())).collect();
        assert_eq!(kinds, [(Some("def"), Some(1)), (Some("cla"), Some(1)), (Some("total"), Some(2))]);
        for row in rows {
            for key in ["plain_tokens_per_second", "tokens_per_second", "ratio"] {
                assert!(row[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {row}");
            }
        }
        let coupled = cell["drafter"] == "mtp" && cell["depth"] == "2";
        assert_eq!(rows[2]["coupling"].is_object(), coupled, "{cell}");
        if coupled {
            let reach = |of: &str, by: &str| rows[2]["coupling"][of][by].as_f64().expect("a share");
            assert!(
                reach("rows", "gumbel") <= reach("rows", "best") + 1e-9
                    && reach("rows", "best") <= 1.0 + 1e-9
            );
            // Without noise nothing is left to chance: what the couplings reach is what was accepted.
            let acceptance = rows[2]["coupling"]["acceptance"].as_f64().expect("a share");
            assert!(
                cell["temperature"] != 0.0 || (reach("rounds", "best") - acceptance).abs() < 1e-9,
                "{cell}"
            );
        }
    }
    let drawn = fs::read_to_string(chart).expect("a chart");
    let document = roxmltree::Document::parse(&drawn).expect("well-formed");
    let positions = cells[0]["rows"][2]["speculation"]["positions"].as_array().expect("positions");
    let first = format!("{} of {} accepted", positions[0]["accepted"], positions[0]["drafted"]);
    let titles: Vec<&str> =
        document.descendants().filter(|n| n.has_tag_name("title")).filter_map(|n| n.text()).collect();
    assert!(titles.iter().any(|t| t.contains("round 1: ") && t.contains(&first)), "{first}: {titles:?}");
    let table = good(&[&base[..], &["--kind", "def", "--depth", "1", "--temp", "0"]].concat());
    assert!(table.contains("acceptance") && table.contains("1 of 1") && !table.contains("cla"), "{table}");
}

#[test]
fn bench_exact_finds_no_difference() {
    let dir = folder();
    let args = ["bench", "exact", "--prompts", &prompts_file(dir.path()), "-n", "8", "--json"];
    let j = json(&args);
    let compared = j["comparisons"].as_u64().expect("a number");
    assert!(compared > 20 && j["drafted"].as_u64().is_some_and(|n| n > 100), "{j}");
    assert_eq!((&j["differences"], &j["prompts"]), (&serde_json::json!([]), &Json::from(1)));
    let shown = good(&args[..args.len() - 1]);
    assert!(shown.contains(&format!("{compared} comparisons with plain decoding, 0 differences")), "{shown}");
}

#[test]
fn run_stats_show_what_drafting_did() {
    let run = |draft: &str| {
        text(
            &forerun(&[
                "run",
                "--stats",
                "--temp",
                "0",
                "-n",
                "24",
                "--ignore-eos",
                "--draft",
                draft,
                "def fib(n):",
            ])
            .stderr,
        )
    };
    let stats = run("3");
    for wanted in ["tokens drafted", "tokens a round", "time: draft", "mtp: ", "acceptance by position", "█"]
    {
        assert!(stats.contains(wanted), "{wanted}: {stats}");
    }
    assert!(!run("0").contains("draft"), "nothing to say of plain decoding");
}
