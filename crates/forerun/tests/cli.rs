//! The command line through the real program: every subcommand with the demo model, and what it answers to nonsense.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

mod broken;

const BIN: &str = env!("CARGO_BIN_EXE_forerun");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-Q4_K_M.gguf");
const DRAFTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-dflash-Q8_0.gguf");

fn start(args: &[&str]) -> Child {
    Command::new(BIN)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

fn with_input(args: &[&str], input: &[u8]) -> Output {
    let mut child = start(args);
    // A program that refuses its arguments does not read its input.
    let _ = child.stdin.take().expect("a pipe").write_all(input);
    child.wait_with_output().expect("the program ends")
}

fn forerun(args: &[&str]) -> Output {
    with_input(args, b"")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Standard output of a run that must succeed.
fn good(args: &[&str]) -> String {
    let out = forerun(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn json(args: &[&str]) -> Json {
    serde_json::from_str(&good(args)).expect("JSON")
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn run_prints_the_same_text_however_it_gets_its_prompt() {
    let options = ["--temp", "0", "-n", "12"];
    let run = |more: &[&str], input: &str| {
        let args = [&["run"], more, &options].concat();
        let out = with_input(&args, input.as_bytes());
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    };
    let dir = folder();
    let file = dir.path().join("prompt.txt");
    fs::write(&file, "def fib(n):").expect("write");
    let file = file.to_str().expect("a path");
    let first = run(&["def fib(n):"], "");
    assert!(first.len() > 8 && first.ends_with('\n'), "{first:?}");
    for (more, input) in [
        (vec!["-"], "def fib(n):"),
        (vec![], "def fib(n):"),
        (vec!["-f", file], ""),
        (vec!["-f", "-"], "def fib(n):"),
        (vec!["--raw", "def fib(n):", "-m", DEMO], ""),
    ] {
        assert_eq!(run(&more, input), first, "{more:?}");
    }
}

#[test]
fn json_holds_every_field() {
    let args =
        ["run", "--json", "--temp", "0", "-n", "6", "--top-logprobs", "2", "--seed", "3", "def fib(n):"];
    let j = json(&args);
    let tokens = j["tokens"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 6);
    let pieces: String = tokens.iter().filter_map(|t| t["text"].as_str()).collect();
    assert!(j["text"].as_str().is_some_and(|t| t.starts_with(&pieces)), "{j}");
    for token in tokens {
        let logprob = token["logprob"].as_f64().expect("logprob");
        assert!(token["id"].is_u64() && logprob <= 0.0, "{token}");
        let top = token["top"].as_array().expect("top");
        assert_eq!(top.len(), 2);
        // At temperature 0 the chosen token is the likeliest.
        assert_eq!(top[0], serde_json::json!([token["id"], token["logprob"]]));
    }
    for (key, expected) in [
        ("finish_reason", Json::from("max_tokens")),
        ("generated_tokens", Json::from(6)),
        ("prompt_tokens", Json::from(5)),
        ("arithmetic_id", Json::from("cpu-1")),
    ] {
        assert_eq!(j[key], expected, "{key}");
    }
    assert_eq!(j["sampling"]["seed"], 3);
    assert!(j["time_to_first_token_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    assert!(j["tokens_per_second"].as_f64().is_some_and(|v| v > 0.0));
    assert_eq!(j["fingerprint"].as_str().map(str::len), Some(32));
    assert!(j["model"].is_string() && j["backend"].is_string() && j["answer"].is_string());
}

#[test]
fn finish_reasons() {
    let run = |more: &[&str]| json(&[&["run", "--json", "--temp", "0", "def f(x):"], more].concat());
    let whole = run(&["-n", "40", "--ignore-eos"]);
    let text = whole["text"].as_str().expect("text").to_owned();
    let stop: String = text.chars().skip(10).take(4).collect();
    let stopped = run(&["-n", "40", "--ignore-eos", "--stop", &stop]);
    assert_eq!(stopped["finish_reason"], serde_json::json!({ "stop_string": stop }));
    assert_eq!(stopped["text"].as_str(), text.split(&stop).next());
    assert_eq!(run(&["--ignore-eos", "-c", "16"])["finish_reason"], "context_full");
    assert_eq!(run(&["-n", "0"])["generated_tokens"], 0);
    let first = whole["tokens"][0]["id"].as_u64().expect("id");
    let eos = run(&["--logit-bias", "0=1000", "-n", "9"]);
    assert_eq!(eos["finish_reason"], "end_of_text", "token 0 of the demo ends a text");
    let banned = run(&["--logit-bias", &format!("{first}=-inf"), "-n", "1"]);
    assert_ne!(banned["tokens"][0]["id"].as_u64(), Some(first));
}

#[test]
fn fingerprints_depend_on_the_request_alone() {
    let run = |more: &[&str]| {
        let base = ["run", "--json", "-n", "24", "--ignore-eos", "class Stack:", "--temp", "0.9"];
        json(&[&base, more].concat())["fingerprint"].as_str().expect("fingerprint").to_owned()
    };
    let first = run(&["--seed", "1"]);
    for same in [
        vec!["--seed", "1"],
        vec!["--seed", "1", "-t", "1"],
        vec!["--seed", "1", "-t", "3"],
        vec!["--seed", "1", "--isa", "scalar"],
        vec!["--seed", "1", "-c", "1000"],
        vec!["--seed", "1", "-m", DEMO, "--raw"],
        vec!["--seed", "1", "--top-logprobs", "3"],
    ] {
        assert_eq!(run(&same), first, "{same:?}");
    }
    for other in [
        vec!["--seed", "2"],
        vec!["--seed", "1", "--repetition-penalty", "5"],
        vec!["--seed", "1", "--kv", "q8_0"],
    ] {
        assert_ne!(run(&other), first, "{other:?}");
    }
}

#[test]
fn a_seed_that_was_not_given_is_printed_and_repeats_the_text() {
    let out = forerun(&["run", "-n", "12", "import"]);
    let message = text(&out.stderr);
    let seed = message.trim().strip_prefix("seed ").expect("the seed");
    assert_eq!(good(&["run", "-n", "12", "import", "--seed", seed]), text(&out.stdout));
}

#[test]
fn chat_talks_through_a_pipe() {
    let lines = "say hi\n/stats\n/temp x\n/temp 0\n/seed 5\n/retry\n/undo\n/undo\n/undo\n/clear\n/system be brief\n\
                 /draft 3\n/draft 99\n/colour\n/nope\n/help\n\nprint\n/quit\nnever read\n";
    let out = with_input(&["chat", "-n", "6", "--seed", "1"], lines.as_bytes());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert!(!stdout.trim().is_empty() && !stdout.contains("never"), "{stdout:?}");
    for expected in [
        "/help lists commands",
        "fingerprint",
        "/temp: found \"x\"",
        "temperature 0",
        "seed 5",
        "taken back; 0 before it",
        "nothing to take back",
        "the conversation is forgotten",
        "the system message is set",
        "draft 3",
        "/draft: found \"99\"",
        "no colours",
        "/nope is no command",
        "/quit",
    ] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn chat_checks_a_temperature_as_run_does_and_counts_drafts() {
    let lines = "/temp -1\n/draft 3\ndef f(x):\n/stats\n";
    let out = with_input(&["chat", "-n", "24", "--temp", "0"], lines.as_bytes());
    let stderr = text(&out.stderr);
    for expected in ["option --temperature: found -1", "tokens drafted", "tokens a round"] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
}

#[test]
fn chat_survives_a_question_that_does_not_fit() {
    let question = format!("{}\nhi\n", "word ".repeat(400));
    let out = with_input(&["chat", "-n", "4", "-c", "64", "--seed", "1"], question.as_bytes());
    assert!(out.status.success());
    assert!(text(&out.stderr).contains("error: the prompt has"), "{}", text(&out.stderr));
    assert!(!out.stdout.is_empty());
}

#[test]
fn echo_prints_the_prompt_first() {
    let base = ["run", "--temp", "0", "-n", "6"];
    let plain = good(&[&base[..], &["def f(x):"]].concat());
    assert_eq!(good(&[&base[..], &["--echo", "-p", "def f(x):"]].concat()), format!("def f(x):{plain}"));
    let chat = good(&[&base[..], &["--echo", "--chat", "hello"]].concat());
    assert!(chat.starts_with("hello\n\n"), "{chat:?}");
}

#[test]
fn options_that_do_nothing_for_a_prompt_are_named() {
    let out = forerun(&["run", "--think", "off", "--colour", "-n", "1", "--temp", "0", "x"]);
    let stderr = text(&out.stderr);
    assert!(stderr.contains("--think and --hide-thinking do nothing"), "{stderr}");
    assert!(stderr.contains("no colours"), "{stderr}");
    assert!(!text(&out.stdout).contains('\u{1b}'));
}

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
        (false, &["--draft", "3", "--draft-vocab", "0"]),
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

#[test]
fn info_reads_like_the_model() {
    let shown = good(&["info"]);
    for expected in
        ["qwen35", "28.0 M", "8 layers", "Q4_K", "cpu-1", "8192 tokens", "chat template yes", "4096"]
    {
        assert!(shown.contains(expected), "{expected}: {shown}");
    }
    let j = json(&["info", "--json", DEMO]);
    assert_eq!((&j["supported"], &j["tensors"]), (&Json::from(true), &Json::from(123)));
    assert_eq!(j["model"]["layers"], 8);
    let larger = json(&["info", "--json", "-c", "8192"]);
    let kv = |j: &Json| j["model"]["kv_bytes"].as_u64().expect("bytes");
    assert_eq!(kv(&larger), 2 * kv(&j));
    let all = good(&["info", "--tensors", "--metadata"]);
    assert!(all.contains("output_norm.weight") && all.contains("tokenizer.ggml.model"));
    let listed = json(&["info", "--json", "--tensors", "--metadata"]);
    let tensors = listed["tensor_list"].as_array().expect("tensors");
    assert_eq!(tensors.len(), 123);
    assert!(tensors.iter().all(|t| t["name"].is_string() && t["type"].is_string() && t["dims"].is_array()));
    assert_eq!(listed["metadata"]["general.architecture"], "qwen35");
    assert_eq!(listed["metadata"]["tokenizer.ggml.tokens"].as_array().map(Vec::len), Some(8192));
    assert!(j.get("tensor_list").is_none() && j.get("metadata").is_none());
    // An architecture that `run` refuses is still described.
    let drafter = good(&["info", DRAFTER]);
    assert_eq!(drafter.matches("demo-dflash").count(), 1, "{drafter}");
    for expected in ["dflash", "supported     no", "5.8 M", "layers 2", "Q8_0"] {
        assert!(drafter.contains(expected), "{expected}: {drafter}");
    }
}

#[test]
fn bench_and_perplexity_report() {
    let j = json(&["bench", "--json", "--prompt", "32", "--rows", "1,2", "--repeat", "1", "--depth", "8"]);
    let lines = j["lines"].as_array().expect("lines");
    let kinds: Vec<_> = lines.iter().map(|l| (l["kind"].as_str(), l["rows"].as_u64())).collect();
    assert_eq!(kinds, [(Some("prompt"), Some(32)), (Some("step"), Some(1)), (Some("step"), Some(2))]);
    for line in lines {
        for key in ["ms", "tokens_per_second", "bytes", "floor_share", "operators"] {
            assert!(line[key].as_f64().is_some_and(|v| v > 0.0), "{key}: {line}");
        }
    }
    let dir = folder();
    let file = dir.path().join("text.py");
    fs::write(&file, "def add(a, b):\n    return a + b\n\n".repeat(40)).expect("write");
    let file = file.to_str().expect("a path");
    let j = json(&["perplexity", "--json", "-f", file, "--window", "64"]);
    let perplexity = j["perplexity"].as_f64().expect("a number");
    assert!(perplexity > 1.0 && perplexity < 20.0, "a repeated text is easy: {perplexity}");
    assert!((j["loss"].as_f64().expect("a number").exp() - perplexity).abs() < 1e-9);
    assert!(good(&["perplexity", "-f", file, "--window", "64"]).starts_with("perplexity "));
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

#[test]
fn help_and_completions() {
    for command in ["spec", "exact"] {
        assert!(good(&["bench", command, "--help"]).contains("Usage: forerun bench "), "{command}");
    }
    for command in ["run", "chat", "info", "bench", "perplexity", "completions"] {
        let help = good(&[command, "--help"]);
        assert!(help.contains("Usage: forerun") && help.len() > 200, "{command}: {help}");
        assert!(good(&["--help"]).contains(command));
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(good(&["completions", shell]).contains("perplexity"), "{shell}");
    }
    assert!(good(&["--version"]).starts_with("forerun "));
    let bare = forerun(&[]);
    assert!(bare.status.code() == Some(2) && text(&bare.stderr).contains("Usage: forerun"));
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    for args in
        [&["run", "--ignore-eos", "--seed", "1", "x"][..], &["info", "--metadata"], &["completions", "zsh"]]
    {
        let mut child = start(args);
        drop(child.stdin.take());
        let mut pipe = child.stdout.take().expect("a pipe");
        pipe.read_exact(&mut [0]).expect("a byte");
        drop(pipe);
        let out = child.wait_with_output().expect("the program ends");
        let stderr = text(&out.stderr);
        assert!(
            out.status.success() && !stderr.contains("panicked") && !stderr.contains("error"),
            "{args:?}: {stderr}"
        );
    }
}

/// Sends Ctrl-C's signal and waits for the end.
#[cfg(unix)]
fn interrupt(child: Child) -> Output {
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().expect("sh");
    assert!(sent.success());
    child.wait_with_output().expect("the program ends")
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_text_and_keeps_what_was_written() {
    let base = ["run", "--ignore-eos", "--seed", "4", "def f("];
    let mut child = start(&base);
    drop(child.stdin.take());
    let mut first = [0];
    let mut pipe = child.stdout.take().expect("a pipe");
    pipe.read_exact(&mut first).expect("a byte");
    child.stdout = Some(pipe);
    let out = interrupt(child);
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    let partial = text(&[&first, &out.stdout[..]].concat());
    let whole = good(&[&base[..], &["-n", "3000"]].concat());
    assert!(whole.starts_with(partial.strip_suffix('\n').expect("a whole line")), "{partial:?}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_long_prompt() {
    let dir = folder();
    let file = dir.path().join("long.txt");
    fs::write(&file, "x = 1\n".repeat(40_000)).expect("write");
    let mut child = start(&["run", "-c", "300000", "--isa", "scalar", "-f", file.to_str().expect("a path")]);
    drop(child.stdin.take());
    std::thread::sleep(Duration::from_millis(800));
    let asked = Instant::now();
    let out = interrupt(child);
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    assert!(asked.elapsed() < Duration::from_secs(20), "{:?}", asked.elapsed());
}

#[cfg(unix)]
#[test]
fn a_chat_that_waits_ends_at_a_signal() {
    for signal in ["INT", "TERM"] {
        let mut child = start(&["chat", "-n", "4"]);
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(b"hi\n").expect("write");
        // The answer's first byte shows that the chat is under way; its few tokens are done long before the signal.
        child.stdout.as_mut().expect("a pipe").read_exact(&mut [0]).expect("a byte");
        std::thread::sleep(Duration::from_millis(600));
        let kill = format!("kill -{signal} {}", child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("sh").success());
        let out = child.wait_with_output().expect("the program ends");
        assert_eq!(out.status.code(), Some(130), "{signal}: {}", text(&out.stderr));
        assert!(!text(&out.stderr).contains("stopping"), "{}", text(&out.stderr));
        drop(stdin);
    }
}

/// What a hostile case must come to.
enum Expect {
    /// Success.
    Right,
    /// This exit code, and a message that contains this.
    Error(i32, String),
    /// Success, or exit code 1 and a message that contains this.
    Either(String),
}

struct Case {
    args: Vec<String>,
    expect: Expect,
}

impl Case {
    fn new(args: &[&str], expect: Expect) -> Self {
        Self { args: args.iter().map(ToString::to_string).collect(), expect }
    }

    /// What is wrong with the answer, if anything is.
    fn fault(&self) -> Option<String> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let out = forerun(&args);
        let stderr = text(&out.stderr);
        let errors: Vec<&str> =
            stderr.lines().filter(|l| !l.starts_with("note:") && !l.starts_with("seed ")).collect();
        let refused = |code: i32, culprit: &str| {
            out.status.code() == Some(code)
                && errors.first().is_some_and(|line| line.starts_with("error: "))
                && stderr.contains(culprit)
                // Usage errors add a hint; all others are one line.
                && (code == 2 || errors.len() == 1)
        };
        let (right, expected) = match &self.expect {
            Expect::Right => (out.status.success(), "success"),
            Expect::Error(code, culprit) => (refused(*code, culprit), culprit.as_str()),
            Expect::Either(culprit) => (out.status.success() || refused(1, culprit), culprit.as_str()),
        };
        let shown: Vec<String> = args.iter().map(|a| a.chars().take(80).collect()).collect();
        let code = out.status.code();
        (!right || stderr.contains("panicked"))
            .then(|| format!("{shown:?}: expected {expected:?}, code {code:?}, {stderr}"))
    }
}

fn usage_cases() -> Vec<Case> {
    let table: &[(i32, &str, &[&str])] = &[
        (2, "frob", &["frob"]),
        (2, "--frob", &["run", "--frob", "x"]),
        (2, "two", &["run", "one", "two"]),
        (2, "--file", &["run", "-f", "x", "prompt"]),
        (2, "--raw", &["run", "--raw", "--chat", "x"]),
        (2, "--raw", &["run", "--raw", "--system", "s", "x"]),
        (2, "--json", &["run", "--top-logprobs", "3", "x"]),
        (2, "--shape", &["bench", "--shape", "qwen35-2b", "-m", DEMO]),
        (2, "--file", &["perplexity"]),
        (2, "tcsh", &["completions", "tcsh"]),
        (2, "--isa", &["run", "--isa", "mmx", "x"]),
        (2, "--backend", &["run", "--backend", "abacus", "x"]),
        (2, "--kv", &["run", "--kv", "q9", "x"]),
        (2, "--think", &["run", "--think", "hard", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "5", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "-5=1", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "5=one", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "99999999999=1", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "8192=1", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "5=nan", "x"]),
        (2, "--logit-bias", &["run", "--logit-bias", "5=inf", "x"]),
        (2, "--stop", &["run", "--stop", "", "x"]),
        (1, "empty", &["run", ""]),
        (1, "empty", &["run"]),
        (1, "empty", &["run", "-"]),
        (1, "the context holds 2", &["run", "-c", "2", "def f(x): return x"]),
        (2, "--context", &["run", "-c", "0", "x"]),
        (2, "--context", &["run", "-c", "99999999999", "x"]),
        (1, "needs", &["run", "-c", "1000000000", "x"]),
        (2, "--context", &["info", "-c", "0"]),
        (2, "--rows", &["bench", "--rows", "0"]),
        (2, "--rows", &["bench", "--rows", "1,513"]),
        (2, "--repeat", &["bench", "--repeat", "0"]),
        (2, "--depth", &["bench", "--depth", "0"]),
        (2, "--prompt", &["bench", "--prompt", "99999999"]),
        (2, "--shape", &["bench", "--shape", "qwen35-1t"]),
        (2, "--type", &["bench", "--shape", "qwen35-2b", "--type", "q3_z"]),
        (2, "--window", &["perplexity", "-f", DEMO_SOURCE, "--window", "3"]),
        (1, "Cargo.toml", &["perplexity", "-f", DEMO_SOURCE, "--window", "999999999"]),
        (2, "--think", &["run", "--raw", "--think", "on", "x"]),
        (2, "--hide-thinking", &["run", "--raw", "--hide-thinking", "x"]),
        (2, "--echo", &["run", "--json", "--echo", "x"]),
        (2, "--prompt", &["run", "-p", "x", "y"]),
        (2, "--draft", &["run", "--draft", "16", "x"]),
        (2, "--draft", &["run", "--draft", "-1", "x"]),
        (2, "--draft", &["run", "--draft", "some", "x"]),
        (2, "--draft", &["chat", "--draft", "1.5"]),
        (2, "--drafter", &["run", "--drafter", "oracle", "x"]),
        (2, "--drafter", &["run", "--drafter", "mtp,oracle", "x"]),
        (2, "--drafter", &["run", "--drafter", "prediction", "x"]),
        (2, "--draft-vocab", &["run", "--draft-vocab", "-1", "x"]),
        (2, "--draft-vocab", &["run", "--draft-vocab", "most", "x"]),
        (2, "--draft-confidence", &["run", "--draft-confidence", "likely", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "1.5", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "-0.1", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "nan", "x"]),
        (1, "no-such-file", &["run", "--mtp", "no-such-file", "x"]),
        (1, "no-such-file", &["run", "--prediction", "no-such-file", "x"]),
        (1, "demo-dflash", &["run", "--mtp", DRAFTER, "x"]),
        (2, "spec", &["bench", "--json", "spec"]),
        (2, "--drafter", &["bench", "spec", "--drafter", "oracle"]),
        (2, "--depth", &["bench", "spec", "--depth", "16"]),
        (2, "--kind", &["bench", "spec", "--kind", "poem"]),
        (2, "--repeat", &["bench", "spec", "--repeat", "0"]),
        (2, "--max-tokens", &["bench", "spec", "-n", "1"]),
        (2, "temperature", &["bench", "spec", "--temp", "nan"]),
        (2, "confidence", &["bench", "spec", "--confidence", "2"]),
        (1, "line 1", &["bench", "spec", "--prompts", DEMO_SOURCE]),
        (1, "/nowhere", &["bench", "exact", "--prompts", "/nowhere"]),
        (2, "--threads", &["bench", "exact", "-t", "0"]),
        (2, "--max-tokens", &["bench", "exact", "-n", "0"]),
    ];
    let mut cases: Vec<Case> = table
        .iter()
        .map(|(code, what, args)| Case::new(args, Expect::Error(*code, (*what).to_owned())))
        .collect();
    // Numbers out of range or no numbers at all.
    for option in ["--threads", "--context", "--top-k", "--penalty-window", "--seed", "--max-tokens"] {
        for value in ["-1", "1.5", "x", "", "99999999999999999999999"] {
            cases.push(Case::new(&["run", option, value, "x"], Expect::Error(2, option.into())));
        }
    }
    cases.push(Case::new(&["run", "--threads", "0", "x"], Expect::Error(2, "--threads".into())));
    cases.push(Case::new(&["run", "--threads", "1025", "x"], Expect::Error(2, "--threads".into())));
    for (option, values) in [
        ("--temperature", &["-1", "nan", "inf", "1e-30"][..]),
        ("--top-p", &["0", "-0.5", "1.5", "nan"]),
        ("--min-p", &["-0.5", "1.5", "nan"]),
        ("--typical-p", &["0", "2", "nan"]),
        ("--repetition-penalty", &["0", "-1", "inf", "nan"]),
        ("--frequency-penalty", &["inf", "nan"]),
        ("--presence-penalty", &["-inf", "nan"]),
    ] {
        for value in values {
            let args = ["run", "x", &format!("{option}={value}")];
            cases.push(Case::new(&args, Expect::Error(2, format!("option {option}: found"))));
        }
        cases.push(Case::new(&["run", "x", &format!("{option}=warm")], Expect::Error(2, option.into())));
    }
    cases
}

/// A text file that is always there.
const DEMO_SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");

/// Extreme values that are still right.
fn extreme_cases() -> Vec<Case> {
    let table: &[&[&str]] = &[
        &["--temp", "1e30"],
        &["--temp", "0.0001"],
        &["--top-k", "4294967295"],
        &["--top-k", "1"],
        &["--top-p", "1e-30"],
        &["--min-p", "1"],
        &["--typical-p", "1e-30"],
        &["--repetition-penalty", "1e30"],
        &["--frequency-penalty", "-1e30"],
        &["--presence-penalty", "1e38"],
        &["--penalty-window", "4294967295", "--repetition-penalty", "1.1"],
        &["--logit-bias", "8191=-inf"],
        &["--logit-bias", "7=1e38", "--logit-bias", "8=-1e38"],
        &["--seed", "18446744073709551615"],
        &["--stop", "\u{1f600}", "--stop", "\n\n\n\n"],
        &["--json", "--top-logprobs", "100000"],
        &["-c", "8", "--ignore-eos"],
        &["--threads", "64"],
        &["--kv", "f32"],
        &["--chat", "--hide-thinking", "--think", "off"],
        &["--system", "be brief"],
        &["--stats"],
    ];
    let limit = ["-n", "3"];
    table.iter().map(|more| Case::new(&[&["run", "x = 1"], *more, &limit].concat(), Expect::Right)).collect()
}

fn prompt_cases(dir: &Path) -> Vec<Case> {
    let too_long = || Expect::Error(1, "the prompt has".into());
    let table: Vec<(&str, Vec<u8>, Expect)> = vec![
        ("empty", vec![], Expect::Error(1, "empty".into())),
        ("nul", b"a\0b\0\0c".to_vec(), Expect::Right),
        ("only-nul", vec![0; 64], Expect::Right),
        ("newline", b"\n".to_vec(), Expect::Right),
        ("spaces", vec![b' '; 1000], Expect::Right),
        ("crlf", b"a\r\nb\r\n".to_vec(), Expect::Right),
        ("controls", (1..32).collect(), Expect::Right),
        ("escape", b"\x1b[2J\x1b]0;x\x07".to_vec(), Expect::Right),
        ("bom", "\u{feff}def".into(), Expect::Right),
        ("emoji", "👩‍👩‍👧‍👦🏳️‍🌈".into(), Expect::Right),
        ("combining", format!("e{}", "\u{301}".repeat(300)).into(), Expect::Right),
        ("right-to-left", "\u{202e}שלום عليكم".into(), Expect::Right),
        ("noncharacters", "\u{ffff}\u{10ffff}\u{fffd}".into(), Expect::Right),
        ("cjk", "汉字".repeat(100).into(), Expect::Right),
        ("only-special", "<|im_end|>".into(), Expect::Right),
        ("only-specials", "<|im_start|><|im_end|><|endoftext|>".repeat(20).into(), Expect::Right),
        ("broken-special", "<|im_start".into(), Expect::Right),
        ("nested-special", "<|im_<|im_end|>end|>".into(), Expect::Right),
        ("template", "{{ 1/0 }}{% for %}{{ raise_exception('x') }}".into(), Expect::Right),
        ("latin1", b"caf\xe9".to_vec(), Expect::Error(1, "latin1".into())),
        ("half-character", b"ab\xf0\x9f\x98".to_vec(), Expect::Error(1, "byte 2".into())),
        ("surrogate", b"\xed\xa0\x80".to_vec(), Expect::Error(1, "UTF-8".into())),
        ("overlong", b"\xc0\x80".to_vec(), Expect::Error(1, "UTF-8".into())),
        ("random", (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(), {
            Expect::Error(1, "random".into())
        }),
        ("megabyte", "def f(x):\n    return x\n".repeat(45_000).into(), too_long()),
        ("megabyte-of-a", vec![b'a'; 1_000_000], too_long()),
        ("megabyte-of-spaces", vec![b' '; 1_000_000], too_long()),
        ("megabyte-of-nul", vec![0; 1_000_000], too_long()),
        ("megabyte-of-emoji", "😀".repeat(250_000).into(), too_long()),
        ("megabyte-of-specials", "<|im_end|>".repeat(100_000).into(), too_long()),
    ];
    let mut cases = Vec::new();
    for (name, bytes, expect) in table {
        let file = dir.join(name);
        fs::write(&file, bytes).expect("write");
        let file = file.to_str().expect("a path");
        // As a chat message every right prompt is right too; an error names the same culprit.
        let chat = match &expect {
            Expect::Error(code, what) => Expect::Error(*code, what.clone()),
            _ => Expect::Right,
        };
        cases.push(Case::new(&["run", "-n", "2", "-f", file], expect));
        cases.push(Case::new(&["run", "-n", "2", "--chat", "-f", file], chat));
    }
    let missing = dir.join("missing");
    for path in [missing.to_str().expect("a path"), dir.to_str().expect("a path")] {
        let named = || Expect::Error(1, path.to_owned());
        cases.push(Case::new(&["run", "-f", path], named()));
        cases.push(Case::new(&["perplexity", "-f", path], named()));
        cases.push(Case::new(&["run", "-m", path, "x"], named()));
        cases.push(Case::new(&["info", path], named()));
        cases.push(Case::new(&["bench", "-m", path], named()));
        cases.push(Case::new(&["chat", "-m", path], named()));
    }
    if cfg!(unix) {
        cases.push(Case::new(&["run", "-f", "/dev/zero"], Expect::Error(1, "64 MiB".into())));
        cases.push(Case::new(&["run", "-m", "/dev/null", "x"], Expect::Error(1, "/dev/null".into())));
        cases.push(Case::new(&["info", "/dev/zero"], Expect::Error(1, "/dev/zero".into())));
    }
    cases.push(Case::new(&["run", "-m", DRAFTER, "x"], Expect::Error(1, "`dflash`".into())));
    cases.push(Case::new(&["run", "-m", DEMO_SOURCE, "x"], Expect::Error(1, "magic".into())));
    cases
}

fn file_cases(dir: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |path: PathBuf, run: Expect| {
        let path = path.to_str().expect("a path");
        // `info` describes what it can, and otherwise names the file.
        cases.push(Case::new(&["info", path], Expect::Either(path.to_owned())));
        cases.push(Case::new(&["run", "-m", path, "--temp", "0", "-n", "1", "--raw", "x"], run));
    };
    for file in broken::files(dir) {
        let expect = match file.culprit {
            Some(culprit) if culprit.is_empty() => Expect::Right,
            Some(culprit) => Expect::Error(1, culprit),
            None => Expect::Either(file.path.to_str().expect("a path").to_owned()),
        };
        add(file.path, expect);
    }
    cases
}

#[test]
fn hostile_options_prompts_and_files_give_one_clear_error_or_a_right_answer() {
    let dir = folder();
    let mut cases = usage_cases();
    cases.extend(extreme_cases());
    cases.extend(prompt_cases(dir.path()));
    cases.extend(file_cases(dir.path()));
    assert!(cases.len() >= 200, "{}", cases.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut faults = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            faults.extend(case.fault());
        }
        faults
    };
    let faults = std::thread::scope(|scope| {
        let other = scope.spawn(work);
        let mut faults = work();
        faults.extend(other.join().expect("no panic"));
        faults
    });
    assert!(faults.is_empty(), "{} of {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
}
