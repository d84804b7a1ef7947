//! Hostile options, prompts and files: each comes to one clear error or a right answer.

use super::*;

/// What a hostile case must come to.
pub(super) enum Expect {
    /// Success.
    Right,
    /// This exit code, and a message that contains this.
    Error(i32, String),
    /// Success, or exit code 1 and a message that contains this.
    Either(String),
}

pub(super) struct Case {
    args: Vec<String>,
    expect: Expect,
}

impl Case {
    pub(super) fn new(args: &[&str], expect: Expect) -> Self {
        Self { args: args.iter().map(ToString::to_string).collect(), expect }
    }

    /// What is wrong with the answer, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
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

/// A file that nobody has made, and that no case gets as far as writing.
const NEW: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/never-written.gguf");

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
        (1, "OWNER/NAME", &["pull", "name"]),
        (1, "OWNER/NAME", &["pull", "../name"]),
        (1, "OWNER/NAME", &["pull", "owner/name:../x"]),
        (1, "OWNER/NAME", &["pull", "owner/name@.."]),
        (2, "--check", &["pull", "--list", "--check", "owner/name"]),
        (1, "no/such.gguf", &["info", "no/such.gguf"]),
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
        (2, "option --draft-vocab: found 0", &["run", "--draft-vocab", "0", "x"]),
        (2, "--draft-confidence", &["run", "--draft-confidence", "likely", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "1.5", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "-0.1", "x"]),
        (2, "option --draft-confidence: found", &["run", "--draft-confidence", "nan", "x"]),
        (1, "no-such-file", &["run", "--mtp", "no-such-file", "x"]),
        (1, "no-such-file", &["run", "--prediction", "no-such-file", "x"]),
        (1, "demo-dflash", &["run", "--mtp", DRAFTER, "x"]),
        (2, "spec", &["bench", "--json", "spec"]),
        (2, "--drafter", &["bench", "spec", "--drafter", "oracle"]),
        (2, "--drafter-passes", &["bench", "spec", "--drafter-passes", "2"]),
        (2, "--drafter-type", &["run", "--drafter-type", "q8_0", "x"]),
        (2, "--out", &["convert", DEMO]),
        (1, "tokenizer.json", &["run", "-m", FOLDER, "x"]),
        (2, "--out", &["convert", DEMO, "-o", "."]),
        (2, "--type", &["convert", DEMO, "-o", "/nowhere/x.gguf", "--type", "q9"]),
        (1, "/nowhere", &["convert", DEMO, "-o", "/nowhere/x.gguf"]),
        (1, "no-such-file", &["convert", "no-such-file", "-o", "/nowhere/x.gguf"]),
        (2, "TYPE", &["quantize", DEMO, "/nowhere/x.gguf", "q9"]),
        (2, "OUT", &["quantize", DEMO, ".", "q8_0"]),
        (2, "--keep", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0", "--keep", "attn_v"]),
        (2, "--keep", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0", "--keep", "(=q8_0"]),
        (2, "--keep", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0", "--keep", "nothing=q8_0"]),
        (1, "no-such-file", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0", "--imatrix", "no-such-file"]),
        (1, "general.type", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0", "--imatrix", DEMO]),
        (1, "--allow-requantize", &["quantize", DEMO, "/nowhere/x.gguf", "q8_0"]),
        (1, "/nowhere", &["quantize", DEMO, "/nowhere/x.gguf", "f16"]),
        (2, "--threads", &["quantize", DEMO, "/nowhere/x.gguf", "f16", "-t", "0"]),
        (2, "--target", &["convert", DEMO, "-o", "/nowhere/x.gguf", "--target", "."]),
        (2, "--draft-vocab", &["run", "--drafter", "lookup", "--draft-vocab", "99", "x"]),
        (2, "--mtp", &["run", "--drafter", "lookup", "--mtp", DEMO, "x"]),
        (2, "--depth", &["bench", "spec", "--depth", "16"]),
        (2, "--kind", &["bench", "spec", "--kind", "poem"]),
        (2, "--repeat", &["bench", "spec", "--repeat", "0"]),
        (2, "--max-tokens", &["bench", "spec", "-n", "1"]),
        (2, "temperature", &["bench", "spec", "--temp", "nan"]),
        (2, "confidence", &["bench", "spec", "--confidence", "2"]),
        (1, "line 1", &["bench", "spec", "--prompts", DEMO_SOURCE]),
        (1, "/nowhere", &["bench", "exact", "--prompts", "/nowhere"]),
        (2, "--file", &["imatrix"]),
        (1, "no-such-file", &["imatrix", "-f", "no-such-file"]),
        (1, "Cargo.toml", &["imatrix", "-f", DEMO_SOURCE, "-c", "999999"]),
        (1, "no-such-file", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "-m", "no-such-file", "-o", NEW]),
        (2, "--context", &["imatrix", "-f", DEMO_SOURCE, "-c", "3"]),
        (2, "--context", &["imatrix", "-f", DEMO_SOURCE, "-c", "-1"]),
        (2, "--chunks", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "--chunks", "0"]),
        (2, "--chunk", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "--chunk", "99999", "-o", NEW]),
        (2, "--output", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "-o", "/nowhere/x.gguf"]),
        (2, "the model itself", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "-o", DEMO]),
        (2, "the text itself", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "-o", DEMO_SOURCE]),
        (2, "something else", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "-o", DRAFTER]),
        (1, "general.type", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "--from", DEMO]),
        (1, "no-such-file", &["imatrix", "-f", DEMO_SOURCE, "-c", "16", "--from", "no-such-file"]),
        (2, "--file", &["compare", DEMO, DEMO]),
        (2, "<SECOND>", &["compare", DEMO, "-f", DEMO_SOURCE]),
        (2, "--window", &["compare", DEMO, DEMO, "-f", DEMO_SOURCE, "--window", "3"]),
        (2, "--windows", &["compare", DEMO, DEMO, "-f", DEMO_SOURCE, "--windows", "0"]),
        (1, "Cargo.toml", &["compare", DEMO, DEMO, "-f", DEMO_SOURCE, "--window", "999999"]),
        (1, "no-such-file", &["compare", "no-such-file", DEMO, "-f", DEMO_SOURCE, "--window", "16"]),
        (1, "demo-dflash", &["compare", DEMO, DRAFTER, "-f", DEMO_SOURCE, "--window", "16"]),
        (1, "/nowhere", &["compare", DEMO, DEMO, "-f", DEMO_SOURCE, "--window", "16", "--svg", "/nowhere/x"]),
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
