//! The command line through the real program: every subcommand with the demo model, and what it answers to nonsense.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value as Json;

mod broken;
mod calibrate;
mod drafting;
mod hostile;
mod hub_server;
mod overlay;
mod pull;
mod quantize;
mod signals;

const BIN: &str = env!("CARGO_BIN_EXE_forerun");
const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-Q4_K_M.gguf");
/// A Hugging Face folder without a tokenizer.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/qwen35-dense");
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
fn the_readme_shows_what_its_first_command_prints() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(path).expect("the README");
    let prompt = "def load_config(path, encoding=\"utf-8\"):";
    assert!(readme.contains(&format!("-- run --echo --temp 0 -n 100 '{prompt}'")), "the command");
    let shown = readme.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    let printed = good(&["run", "--echo", "--temp", "0", "-n", "100", prompt]);
    assert_eq!(Some(printed.trim_end()), shown.map(str::trim_end));
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
    let lines = "/temp -1\n/draft 3\ndef f(x):\n/seed 8\n/stats\n";
    let out = with_input(&["chat", "-n", "24", "--temp", "0", "--seed", "3"], lines.as_bytes());
    let stderr = text(&out.stderr);
    for expected in
        ["option --temperature: found -1", "tokens drafted", "tokens a round", "\nseed 3  arithmetic"]
    {
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
    let expected = [("prompt", 32), ("step", 1), ("step", 2), ("draft", 3), ("round", 4)];
    assert_eq!(kinds, expected.map(|(kind, rows)| (Some(kind), Some(rows))));
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
