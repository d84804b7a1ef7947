//! `--overlay` of every command that takes a model.

use super::*;

#[path = "../../../forerun-models/tests/overlay/writer.rs"]
mod writer;

use writer::{Matrix, Overlay};

const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize/calibration.txt");

/// A file of two weights of the demo, one of them transposed; the values are random.
fn overlay(dir: &tempfile::TempDir, spoil: impl Fn(&mut Overlay)) -> String {
    let mut overlay = Overlay::new("4", "64");
    overlay.add("blk.3.attn_output", &Matrix::random(512, 512, (4, 64, "BF16"), 1));
    overlay.add("blk.5.ffn_down", &Matrix::random(1024, 512, (4, 64, "BF16"), 2));
    spoil(&mut overlay);
    let path = dir.path().join("over.safetensors");
    overlay.write(&path);
    path.to_str().expect("a path").to_owned()
}

/// 0.14 and 2.0 MiB of the overlay; 0.14 and 0.28 MiB of Q4_K.
const REPORT: &str = "1 weight replaced (affine4g64/bf16), 1 decoded to F32; 2.1 MiB in place of 0.4";

#[test]
fn every_command_says_what_an_overlay_changed() {
    let dir = folder();
    let overlay = overlay(&dir, |_| {});
    let at = |args: &[&str]| {
        let out = forerun(&[args, &["--overlay", &overlay]].concat());
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        let stderr = text(&out.stderr);
        assert!(stderr.contains(&format!("overlay: {REPORT}\n")), "{args:?}: {stderr}");
        text(&out.stdout)
    };
    let run = ["run", "--temp", "0", "-n", "8", "def fib(n):"];
    assert_ne!(at(&run), good(&run));
    let plain = at(&["run", "--json", "--temp", "0", "-n", "8", "--draft", "0", "def fib(n):"]);
    let drafted = at(&["run", "--json", "--temp", "0", "-n", "8", "--draft", "3", "def fib(n):"]);
    let [plain, drafted]: [Json; 2] = [plain, drafted].map(|t| serde_json::from_str(&t).expect("JSON"));
    assert_eq!(plain["fingerprint"], drafted["fingerprint"]);
    assert_eq!(plain["overlay"]["replaced"], 1);
    assert_eq!(plain["overlay"]["decoded"], 1);
    assert_eq!(plain["overlay"]["types"], serde_json::json!(["affine4g64/bf16"]));
    assert_eq!(plain["overlay"]["bytes"], 512 * 512 / 64 * 36 + 4 * 512 * 1024);
    let short = dir.path().join("short.txt");
    fs::write(&short, &fs::read_to_string(TEXT).expect("a text")[..1500]).expect("write");
    let short = short.to_str().expect("a path");
    at(&["perplexity", "-f", short, "--window", "64"]);
    at(&["compare", DEMO, DEMO, "-f", short, "--window", "64", "--windows", "1"]);
    let matrix = dir.path().join("imatrix.gguf");
    at(&["imatrix", "-f", short, "-c", "64", "--chunks", "1", "-o", matrix.to_str().expect("a path")]);
    at(&["bench", "--prompt", "0", "--rows", "1", "--repeat", "1", "--draft", "0"]);
    at(&["bench", "exact", "-n", "4", "-t", "1"]);
}

#[test]
fn info_shows_an_overlay() {
    let dir = folder();
    let overlay = overlay(&dir, |_| {});
    let shown = good(&["info", "--tensors", "--overlay", &overlay]);
    assert!(shown.contains(&format!("over.safetensors: {REPORT}\n")), "{shown}");
    assert!(
        shown.lines().any(|l| l.contains("blk.3.attn_output") && l.contains("affine4g64/bf16")),
        "{shown}"
    );
    assert!(shown.lines().any(|l| l.contains("blk.5.ffn_down") && l.contains(" F32 ")), "{shown}");
    let j = json(&["info", "--json", "--overlay", &overlay]);
    assert_eq!((&j["supported"], &j["overlay"]["replaced"]), (&Json::from(true), &Json::from(1)));
    assert!(json(&["info", "--json"]).get("overlay").is_none());
}

/// GGUF has no affine types: an overlaid model is written in another type or not at all.
#[test]
fn conversion_of_a_model_with_an_overlay() {
    let dir = folder();
    let overlay = overlay(&dir, |_| {});
    let out = dir.path().join("out.gguf");
    let out = out.to_str().expect("a path");
    let refused = forerun(&["convert", DEMO, "-o", out, "--overlay", &overlay]);
    let message = text(&refused.stderr);
    assert!(!refused.status.success() && !Path::new(out).exists(), "{message}");
    assert!(message.contains("blk.3.attn_output.weight") && message.contains("affine4g64/bf16"), "{message}");
    good(&["convert", DEMO, "-o", out, "--type", "f32", "--overlay", &overlay]);
    let shown = good(&["info", "--tensors", out]);
    assert!(shown.lines().any(|l| l.contains("blk.3.attn_output") && l.contains(" F32 ")), "{shown}");
}

#[test]
fn overlays_that_do_not_fit_are_named() {
    let dir = folder();
    let refused = |path: &str, wanted: &[&str]| {
        let out = forerun(&["run", "-n", "1", "--overlay", path, "x"]);
        let message = text(&out.stderr);
        assert!(!out.status.success() && out.stdout.is_empty(), "{message}");
        for part in wanted {
            assert!(message.contains(part), "{message:?} does not say {part:?}");
        }
    };
    let spoilt = |spoil: fn(&mut Overlay)| overlay(&dir, spoil);
    let path = spoilt(|o| o.remove("blk.3.attn_output.scales"));
    refused(&path, &["over.safetensors", "blk.3.attn_output.scales", "missing"]);
    let path = spoilt(|o| o.add("blk.0.attn_q", &Matrix::random(64, 64, (4, 64, "F16"), 1)));
    refused(&path, &["over.safetensors", "blk.0.attn_q.weight", "block 0", "linear attention"]);
    let path = spoilt(|o| o.strings[1].1 = "many");
    refused(&path, &["over.safetensors", "`bits`", "`many`", "expected 2"]);
    refused(DEMO, &["demo-Q4_K_M.gguf", "safetensors"]);
    refused("no-such-file", &["no-such-file"]);
    let twice = forerun(&["run", "-n", "1", "--overlay", &path, "--overlay", &path, "x"]);
    assert_eq!(twice.status.code(), Some(2), "{}", text(&twice.stderr));
}
