//! Importance matrices, and comparisons of models.

use forerun_files::{Checkpoint, Gguf};
use forerun_weights::Imatrix;

use super::*;

const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize/calibration.txt");

fn imatrix(output: &Path, more: &[&str]) -> Imatrix {
    let output = output.to_str().expect("a path");
    good(&[&["imatrix", "-f", TEXT, "-c", "64", "-o", output], more].concat());
    Imatrix::read(Path::new(output)).expect("an importance matrix")
}

#[test]
fn an_importance_matrix_of_the_demo() {
    let dir = folder();
    let [a, b] = ["a.gguf", "b.gguf"].map(|name| dir.path().join(name));
    let whole = imatrix(&a, &["--chunks", "3"]);
    assert_eq!((whole.chunks, whole.chunk_size), (3, 64));
    assert_eq!(whole.datasets, [TEXT]);
    for (name, cols, rows) in [
        ("blk.0.attn_qkv.weight", 512, 192.0),
        ("blk.0.ssm_alpha.weight", 512, 192.0),
        ("blk.3.attn_v.weight", 512, 192.0),
        ("blk.7.ffn_down.weight", 1024, 192.0),
        // The last token of a chunk makes no pair.
        ("blk.8.nextn.eh_proj.weight", 1024, 189.0),
        ("blk.8.attn_q.weight", 512, 189.0),
    ] {
        let stats = whole.get(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!((stats.cols(), stats.matrices(), stats.count(0)), (cols, 1, rows), "{name}");
        assert!(stats.sums(0).iter().all(|sum| *sum > 0.0), "{name}");
    }
    assert!(whole.iter().all(|(name, _)| name.starts_with("blk.") && !name.contains("norm")));
    let sums = |name: &str| whole.get(name).expect("a weight").sums(0).to_vec();
    assert_eq!(sums("blk.3.attn_q.weight"), sums("blk.3.attn_k.weight"));

    // Threads and instruction sets change nothing.
    imatrix(&b, &["--chunks", "3", "-t", "1", "--isa", "scalar", "--output-frequency", "1"]);
    assert!(fs::read(&a).expect("a file") == fs::read(&b).expect("a file"));
    // A text can be read in parts.
    imatrix(&b, &["--chunks", "1"]);
    let parts = imatrix(&b, &["--from", b.to_str().expect("a path"), "--chunk", "1", "--chunks", "2"]);
    assert_eq!((parts.chunks, parts.len(), &parts.datasets), (3, whole.len(), &whole.datasets));
    for ((name, x), (_, y)) in whole.iter().zip(parts.iter()) {
        assert_eq!(x.count(0), y.count(0), "{name}");
        let close = |(x, y): (&f64, &f64)| (x - y).abs() <= 2e-7 * x;
        assert!(x.sums(0).iter().zip(y.sums(0)).all(close), "{name}");
    }
}

#[test]
fn an_earlier_matrix_must_fit() {
    let dir = folder();
    let earlier = dir.path().join("earlier.gguf");
    let path = earlier.to_str().expect("a path");
    let output = dir.path().join("new.gguf");
    let refused = |context: &str| {
        let args = ["imatrix", "-f", TEXT, "-c", context, "--chunks", "1", "--from", path];
        let out = forerun(&[&args[..], &["-o", output.to_str().expect("a path")]].concat());
        assert_eq!(out.status.code(), Some(1));
        assert!(!output.exists());
        text(&out.stderr)
    };
    let mut other = Imatrix::new(&earlier, 64);
    other.entry("blk.0.attn_qkv.weight", 32, 1).expect("a weight").add_row(0, &[1.0; 32]);
    other.write(&earlier).expect("write");
    let message = refused("64");
    assert!(message.contains("earlier.gguf: tensor `blk.0.attn_qkv.weight`: found 32 columns"), "{message}");
    let message = refused("32");
    assert!(message.contains("earlier.gguf: key `imatrix.chunk_size`: found 64"), "{message}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_collected() {
    let dir = folder();
    let output = dir.path().join("i.gguf");
    let path = output.to_str().expect("a path");
    let mut child = start(&["imatrix", "-f", TEXT, "-c", "16", "-o", path, "--output-frequency", "2"]);
    drop(child.stdin.take());
    let started = Instant::now();
    while !output.exists() && started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = signals::interrupt(child);
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    let known = Imatrix::read(&output).expect("an importance matrix");
    let note = format!("note: {} chunks are in {path}", known.chunks);
    assert!(text(&out.stderr).contains(&note), "{}", text(&out.stderr));
    assert_eq!(known.get("blk.0.ffn_up.weight").map(|s| s.count(0)), Some(16.0 * f64::from(known.chunks)));
}

fn compare(first: &str, second: &str, more: &[&str]) -> Json {
    let args = ["compare", first, second, "-f", TEXT, "--window", "100", "--windows", "2", "--json"];
    json(&[&args[..], more].concat())
}

#[test]
fn a_file_compared_with_itself_does_not_differ() {
    let dir = folder();
    let svg = dir.path().join("kl.svg");
    let report = compare(DEMO, DEMO, &["--svg", svg.to_str().expect("a path")]);
    for figure in ["mean", "median", "p90", "p95", "p99", "p99_9", "max"] {
        assert_eq!(report["kl_divergence"][figure], 0.0, "{figure}");
    }
    assert_eq!((&report["top1_agreement"], &report["perplexity_ratio"]), (&1.0.into(), &1.0.into()));
    let layers = report["layers"].as_array().expect("layers");
    assert_eq!(layers.len(), 8);
    assert!(layers.iter().all(|l| l["mean_cosine"] == 1.0 && l["min_cosine"] == 1.0), "{layers:?}");
    assert_eq!((&report["compared_tokens"], &report["windows"]), (&98.into(), &2.into()));
    let drawn = fs::read_to_string(&svg).expect("a picture");
    let document = roxmltree::Document::parse(&drawn).expect("well-formed");
    let bars = document.descendants().filter(|n| n.attribute("class") == Some("bar")).count();
    assert_eq!(Some(bars), report["kl_by_position"].as_array().map(Vec::len));
    // The perplexity is that of the command of this name, over the same windows.
    let own = report["first"]["loss"].as_f64().expect("a loss");
    let prefix = dir.path().join("prefix.txt");
    let source = fs::read_to_string(TEXT).expect("a text");
    fs::write(&prefix, source.lines().take(20).collect::<Vec<_>>().join("\n")).expect("write");
    let prefix = prefix.to_str().expect("a path");
    let alone = json(&["perplexity", "-f", prefix, "--window", "100", "--json"]);
    let args = ["compare", DEMO, DEMO, "-f", prefix, "--window", "100", "--json"];
    let beside = json(&args);
    let (a, b) = (alone["loss"].as_f64().expect("a loss"), beside["first"]["loss"].as_f64().expect("a loss"));
    assert!((a - b).abs() < 1e-5 && own > 0.0, "{a} {b}");
    assert!(good(&args[..7]).contains("KL divergence of B from A"));
}

/// The demo with some bytes changed.
fn changed(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(DEMO).expect("the demo");
    change(&mut bytes);
    fs::write(path, bytes).expect("write");
}

#[test]
fn a_changed_norm_shows_in_the_predictions_and_not_in_the_layers() {
    let dir = folder();
    let other = dir.path().join("other.gguf");
    let norm = Gguf::open(Path::new(DEMO)).expect("the demo");
    let norm = norm.tensors().iter().find(|t| t.name == "output_norm.weight").expect("a norm").range.clone();
    changed(&other, |bytes| {
        for b in bytes[norm].as_chunks_mut::<4>().0 {
            *b = (f32::from_le_bytes(*b) * 0.5).to_le_bytes();
        }
    });
    let report = compare(DEMO, other.to_str().expect("a path"), &[]);
    let figure = |name: &str| report["kl_divergence"][name].as_f64().expect("a figure");
    assert!(figure("mean") > 0.01 && figure("median") <= figure("p90"));
    assert!(figure("p90") <= figure("p99") && figure("p99") <= figure("max"));
    // Logits of half the size keep their order.
    assert_eq!(report["top1_agreement"], 1.0);
    assert!(report["layers"].as_array().expect("layers").iter().all(|l| l["min_cosine"] == 1.0));
}

#[test]
fn models_of_other_vocabularies_are_refused() {
    let dir = folder();
    let other = dir.path().join("other.gguf");
    changed(&other, |bytes| {
        let name = b"<|im_end|>";
        let at = bytes.windows(name.len()).position(|w| w == name).expect("a token");
        bytes[at + 7] = b'X';
    });
    let out = forerun(&["compare", DEMO, other.to_str().expect("a path"), "-f", TEXT, "--window", "100"]);
    assert_eq!(out.status.code(), Some(1));
    let message = text(&out.stderr);
    let found = "found token 2 \"<|im_enX|>\", expected \"<|im_end|>\", as in";
    assert!(message.contains("other.gguf") && message.contains(found), "{message}");
}

#[test]
fn a_model_that_computes_no_numbers_is_named() {
    let dir = folder();
    let [other, output] = ["other.gguf", "i.gguf"].map(|name| dir.path().join(name));
    let demo = Gguf::open(Path::new(DEMO)).expect("the demo");
    let norm = demo.tensors().iter().find(|t| t.name == "blk.3.attn_norm.weight").expect("a norm");
    changed(&other, |bytes| bytes[norm.range.start..][..4].copy_from_slice(&f32::NAN.to_le_bytes()));
    let other = other.to_str().expect("a path");
    let args = ["imatrix", "-m", other, "-f", TEXT, "-c", "32", "--chunks", "1", "-o"];
    let out = forerun(&[&args[..], &[output.to_str().expect("a path")]].concat());
    let message = text(&out.stderr);
    assert!(out.status.code() == Some(1) && !output.exists(), "{message}");
    assert!(
        message.contains("other.gguf: tensor `blk.3.attn_q.weight`: found inputs whose squares"),
        "{message}"
    );
    let out = forerun(&["compare", DEMO, other, "-f", TEXT, "--window", "32", "--windows", "1"]);
    let message = text(&out.stderr);
    assert!(out.status.code() == Some(1) && message.contains("computed NaN at position 16"), "{message}");
}
