//! Pulling from a hub on this machine.

use super::hub_server::{COMMIT, Hub, Manners, Served, etag};
use super::*;

/// The program with a hub and an empty home of its own.
struct Bench {
    hub: Hub,
    home: tempfile::TempDir,
}

impl Bench {
    fn new(files: &[(&str, &[u8], bool)]) -> Self {
        Self { hub: Hub::start(files), home: folder() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BIN);
        for name in [
            "HF_TOKEN",
            "HF_HUB_CACHE",
            "HUGGINGFACE_HUB_CACHE",
            "HF_HUB_OFFLINE",
            "http_proxy",
            "HTTP_PROXY",
        ] {
            command.env_remove(name);
        }
        command.args(args).env("HF_HOME", self.home.path()).env("HF_ENDPOINT", &self.hub.endpoint);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program runs")
    }

    /// Standard output, less the end of the line, of a run that says nothing else.
    fn good(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success() && out.stderr.is_empty(), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout).trim_end().to_owned()
    }

    /// The one line of a run that is refused.
    fn refused(&self, args: &[&str]) -> String {
        let out = self.run(args);
        let stderr = text(&out.stderr);
        assert_eq!((out.status.code(), stderr.lines().count()), (Some(1), 1), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        stderr
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join("hub/models--owner--name")
    }

    /// Blobs that are whole or on their way.
    fn blobs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.repo().join("blobs")).into_iter().flatten().flatten();
        entries
            .map(|e| e.file_name().into_string().expect("a name"))
            .filter(|n| !n.ends_with(".lock"))
            .collect()
    }
}

fn etag_of(bytes: &[u8]) -> String {
    etag(&Served { name: String::new(), bytes: bytes.to_vec(), large: true })
}

/// Bytes that do not compress and differ everywhere.
fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn a_pull_brings_a_file_once() {
    let bytes = noise(300_000);
    let bench = Bench::new(&[
        ("README.md", b"hi", false),
        ("m-Q4_K_M.gguf", &bytes, true),
        ("m-Q8_0.gguf", b"x", true),
    ]);
    let path = bench.good(&["pull", "owner/name"]);
    let expected = bench.repo().join("snapshots").join(COMMIT).join("m-Q4_K_M.gguf");
    assert_eq!(Path::new(&path), expected);
    assert_eq!(fs::read(&path).expect("the file"), bytes);
    assert_eq!(fs::read_to_string(bench.repo().join("refs/main")).expect("a ref"), COMMIT);
    assert_eq!(
        bench.hub.bodies(),
        [format!("/owner/name/resolve/{COMMIT}/m-Q4_K_M.gguf"), "/content/m-Q4_K_M.gguf".into()]
    );
    assert_eq!(bench.good(&["pull", "owner/name:q4_k_m"]), path);
    assert_eq!(bench.hub.requests(), ["/api/models/owner/name/revision/main?blobs=true"]);
    // A small file is named by Git's checksum.
    let json = bench.good(&["pull", "owner/name:README.md", "--json"]);
    let json: Json = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["files"][0]["fetched_bytes"], &json["commit"]), (&Json::from(2), &Json::from(COMMIT)));
    let list = bench.good(&["pull", "--list", "owner/name"]);
    assert!(list.contains("Q4_K_M, Q8_0") && list.contains("README.md"), "{list}");
}

#[test]
fn a_broken_connection_is_taken_up_where_it_broke() {
    let bytes = noise(100_000);
    let bench = Bench::new(&[("m.gguf", &bytes, true)]);
    bench.hub.behave(Manners { cuts: 1, ..Manners::default() });
    let path = bench.good(&["pull", "owner/name"]);
    assert_eq!(fs::read(&path).expect("the file"), bytes);
    assert_eq!(bench.hub.bodies().last().map(String::as_str), Some("/content/m.gguf bytes=50000-"));
}

#[test]
fn the_next_pull_goes_on_from_what_is_left() {
    let bytes = noise(100_000);
    let bench = Bench::new(&[("m.gguf", &bytes, true)]);
    bench.hub.behave(Manners { cuts: 99, ..Manners::default() });
    let error = bench.refused(&["pull", "owner/name"]);
    assert!(error.contains("87500 of 100000 bytes"), "{error}");
    assert!(matches!(&bench.blobs()[..], [part] if part.ends_with(".part")));
    bench.hub.behave(Manners::default());
    bench.hub.requests();
    let path = bench.good(&["pull", "owner/name"]);
    assert_eq!(fs::read(&path).expect("the file"), bytes);
    assert_eq!(bench.hub.bodies().last().map(String::as_str), Some("/content/m.gguf bytes=87500-"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_what_has_arrived() {
    let bytes = noise(100_000);
    let bench = Bench::new(&[("m.gguf", &bytes, true)]);
    bench.hub.behave(Manners { stall: true, ..Manners::default() });
    let child = bench.command(&["pull", "owner/name"]).spawn().expect("the program starts");
    let part = bench.repo().join("blobs").join(format!("{}.part", etag_of(&bytes)));
    let asked = Instant::now();
    while fs::metadata(&part).map_or(0, |m| m.len()) < 1_000 {
        assert!(asked.elapsed() < Duration::from_secs(20), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = signals::interrupt(child);
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    let have = fs::metadata(&part).expect("the part").len();
    bench.hub.behave(Manners::default());
    let path = bench.good(&["pull", "owner/name"]);
    assert_eq!(fs::read(&path).expect("the file"), bytes);
    let range = format!("/content/m.gguf bytes={have}-");
    assert_eq!(bench.hub.bodies().last(), Some(&range));
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let bytes = noise(100_000);
    let bench = Bench::new(&[("m.gguf", &bytes, true)]);
    bench.hub.behave(Manners { cuts: 1, no_ranges: true, ..Manners::default() });
    let path = bench.good(&["pull", "owner/name"]);
    assert_eq!(fs::read(&path).expect("the file"), bytes);
}

#[test]
fn wrong_bytes_do_not_stay() {
    for large in [true, false] {
        let bytes = noise(10_000);
        let bench = Bench::new(&[("m.gguf", &bytes, large)]);
        bench.hub.behave(Manners { spoil: true, ..Manners::default() });
        let error = bench.refused(&["pull", "owner/name"]);
        assert!(error.contains("found") && error.contains("expected") && error.contains("m.gguf"), "{error}");
        assert!(bench.blobs().is_empty(), "{:?}", bench.blobs());
        bench.hub.behave(Manners::default());
        let path = bench.good(&["pull", "owner/name"]);
        assert_eq!(fs::read(&path).expect("the file"), bytes);
        // A blob that goes bad in the cache is found by --check alone, and fetched again.
        fs::write(fs::canonicalize(&path).expect("a blob"), noise(9_999)).expect("write");
        assert!(bench.refused(&["pull", "--check", "owner/name"]).contains("m.gguf"));
        assert_eq!(bench.good(&["pull", "--check", "owner/name"]), path);
        assert_eq!(fs::read(&path).expect("the file"), bytes);
    }
}

#[test]
fn refusals_name_what_helps() {
    let bench = Bench::new(&[("m-BF16.gguf", b"x", true), ("m-Q6_K.gguf", b"y", true)]);
    assert!(bench.refused(&["pull", "owner/name"]).contains("BF16, Q6_K"));
    assert!(bench.refused(&["pull", "owner/name:q2_k"]).contains("BF16, Q6_K"));
    assert!(bench.refused(&["pull", "owner/other"]).contains("no repository owner/other"));
    assert!(bench.refused(&["pull", "owner"]).contains("OWNER/NAME"));
    let neither = bench.refused(&["info", "owner/other"]);
    assert!(neither.contains("no such file or folder") && neither.contains("404"), "{neither}");
    bench.hub.behave(Manners { token: Some("hf_secret"), ..Manners::default() });
    let gated = bench.refused(&["pull", "owner/name:bf16"]);
    assert!(gated.contains("gated") && gated.contains("HF_TOKEN") && gated.contains("401"), "{gated}");
    let with_token =
        |token| bench.command(&["pull", "owner/name:bf16"]).env("HF_TOKEN", token).output().expect("runs");
    assert!(with_token("hf_secret").status.success());
    let other = text(&with_token("hf_other").stderr);
    assert!(other.contains("does not open it") && !other.contains("hf_other"), "{other}");
    bench.hub.behave(Manners { refuse: Some((403, "GatedRepo")), ..Manners::default() });
    assert!(bench.refused(&["pull", "owner/name:q6_k"]).contains("403"));
    bench.hub.behave(Manners { size: Some(1 << 60), ..Manners::default() });
    let full = bench.refused(&["pull", "owner/name:q6_k"]);
    assert!(
        full.contains("no room") && full.contains(&(1u64 << 60).to_string()) && full.contains("free"),
        "{full}"
    );
    let nobody = bench
        .command(&["pull", "owner/name:q6_k"])
        .env("HF_ENDPOINT", "http://127.0.0.1:1")
        .output()
        .expect("runs");
    assert!(text(&nobody.stderr).contains("cannot reach http://127.0.0.1:1"), "{}", text(&nobody.stderr));
}

#[test]
fn hostile_answers_come_to_one_error_each() {
    let bench = Bench::new(&[("m.gguf", b"0123456789", true)]);
    let listing = |sha: &str, name: &str| {
        let listing =
            serde_json::json!({ "sha": sha, "siblings": [{ "rfilename": name }, { "rfilename": "m.gguf" }] });
        Manners { listing: Some(listing.to_string()), ..Manners::default() }
    };
    let said = |text: &str| Manners { listing: Some(text.into()), ..Manners::default() };
    let to = |place: String| Manners { location: Some(place), ..Manners::default() };
    let mut cases = vec![
        (said(""), "broken list"),
        (said("[]"), "broken list"),
        (said("{\"sha\":\"x\"}"), "broken list"),
        (said(&"[".repeat(100_000)), "broken list"),
        (listing("../../x", "a"), "sha"),
        (Manners { etag: Some("../../../x".into()), ..Manners::default() }, "etag"),
        (Manners { etag: Some("0123".into()), ..Manners::default() }, "etag"),
        (Manners { size: Some(11), ..Manners::default() }, "after 10 of 11"),
        (Manners { size: Some(9), ..Manners::default() }, "more than 9 bytes"),
        (Manners { size: Some(u64::MAX), ..Manners::default() }, "no room"),
        (to(format!("/owner/name/resolve/{COMMIT}/m.gguf")), "redirects"),
        (to("file:///etc/passwd".into()), "302"),
        (to(String::new()), "302"),
    ];
    let names = ["../x", "/etc/x", "a/../x", "a//x", "", ".", "a\\x", "C:x", "a\nx"];
    cases.extend(names.into_iter().map(|name| (listing(COMMIT, name), "broken list")));
    for (manners, culprit) in cases {
        bench.hub.behave(manners);
        let error = bench.refused(&["pull", "owner/name"]);
        assert!(error.contains(culprit), "{culprit:?}: {error}");
    }
    assert!(!bench.repo().join("refs").exists(), "nothing was pulled");
}

#[test]
fn all_parts_and_whole_folders() {
    let index = br#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    let bench = Bench::new(&[
        ("q8/m-Q8_0-00001-of-00002.gguf", b"one", true),
        ("q8/m-Q8_0-00002-of-00002.gguf", b"two", true),
        ("config.json", b"{}", false),
        ("model.safetensors.index.json", index, false),
        ("model-1.safetensors", b"1", true),
        ("model-2.safetensors", b"2", true),
        ("model-3.safetensors", b"3", true),
        ("tokenizer.json", b"", false),
    ]);
    let first = bench.good(&["pull", "owner/name:Q8_0"]);
    assert!(first.ends_with("q8/m-Q8_0-00001-of-00002.gguf"), "{first}");
    assert_eq!(fs::read(first.replace("00001-of", "00002-of")).expect("the second part"), b"two");
    bench.hub.requests();
    let path = PathBuf::from(bench.good(&["pull", "owner/name:safetensors"]));
    assert_eq!(fs::read(path.join("config.json")).expect("the configuration"), b"{}");
    assert_eq!(fs::read(path.join("model-2.safetensors")).expect("a shard"), b"2");
    assert!(path.join("tokenizer.json").exists() && !path.join("model-3.safetensors").exists());
    assert_eq!(bench.good(&["pull", "owner/name:safetensors"]), path.display().to_string());
}

#[test]
fn a_repository_is_a_model_wherever_one_is_named() {
    let (model, drafter) = (fs::read(DEMO).expect("the demo"), fs::read(DRAFTER).expect("its drafter"));
    let bench = Bench::new(&[("demo-Q4_K_M.gguf", &model, true), ("dflash-Q8_0.gguf", &drafter, true)]);
    let request = ["run", "--temp", "0", "-n", "8", "--raw", "def fib(n):", "-m"];
    let expected = good(&[&request[..], &[DEMO]].concat());
    let by_name = [&request[..], &["owner/name:q4_k_m", "--drafter", "owner/name:q8_0"]].concat();
    let first = bench.run(&by_name);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert_eq!(text(&first.stdout), expected);
    bench.hub.requests();
    let again = bench.run(&by_name);
    assert_eq!(text(&again.stdout), expected);
    assert!(bench.hub.requests().is_empty(), "the cache needs no network");
    let offline = |args: &[&str]| bench.command(args).env("HF_HUB_OFFLINE", "1").output().expect("runs");
    assert_eq!(text(&offline(&by_name).stdout), expected);
    assert!(offline(&["pull", "owner/name:q8_0"]).status.success());
    let missing = text(&offline(&["pull", "owner/name:bf16"]).stderr);
    assert!(missing.contains("HF_HUB_OFFLINE") && missing.contains("owner/name:bf16"), "{missing}");
}
