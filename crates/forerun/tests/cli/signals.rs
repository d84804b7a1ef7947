//! Signals, and readers that leave.

use super::*;

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
pub(super) fn interrupt(child: Child) -> Output {
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
    let mut child = start(&["run", "-c", "300000", "-f", file.to_str().expect("a path")]);
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
