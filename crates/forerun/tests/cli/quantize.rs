//! Files of other types, made by `quantize` and `convert`.

use super::*;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize/source-f16.gguf");
const IMATRIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize/imatrix.gguf");

/// The text of standard output, and of standard error.
fn made(args: &[&str]) -> [String; 2] {
    let output = forerun(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    [output.stdout, output.stderr].map(|bytes| text(&bytes))
}

#[test]
fn quantize_and_convert_make_the_same_file() {
    let dir = folder();
    let [a, b] = ["a.gguf", "b.gguf"].map(|name| dir.path().join(name));
    let [a, b] = [&a, &b].map(|path| path.to_str().expect("a path"));
    let [out, warning] = made(&["quantize", SOURCE, a, "Q4_K_M", "--imatrix", IMATRIX]);
    assert!(out.contains("71 tensors") && out.contains("bits a weight") && out.contains("Q4_K"), "{out}");
    assert!(warning.contains("warning: ") && warning.contains("nextn.eh_proj"), "{warning}");
    let [json, _] =
        made(&["convert", SOURCE, "-o", b, "--type", "q4_k_m", "--imatrix", IMATRIX, "-t", "1", "--json"]);
    assert!(fs::read(a).expect("a file") == fs::read(b).expect("a file"), "two ways, two files");
    let json: Json = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["file_type"], &json["tensors"]), (&"q4_k_m".into(), &71.into()));
    let types = json["types"].as_array().expect("a list");
    let sum: u64 = types.iter().map(|t| t["bytes"].as_u64().expect("bytes")).sum();
    assert_eq!(json["written_bytes"], sum);

    let [out, _] = made(&["quantize", SOURCE, a, "q4_0", "--keep", "attn_.*=q8_0", "--keep", "ffn_up=same"]);
    for ty in ["Q4_0", "Q8_0", "F16"] {
        assert!(out.contains(ty), "{out}");
    }
}

/// What was made of the demo runs, with its MTP block, and gives the text of plain decoding.
#[test]
fn a_quantised_model_runs() {
    let dir = folder();
    let out = dir.path().join("out.gguf");
    let out = out.to_str().expect("a path");
    made(&["quantize", DEMO, out, "q3_k_m", "--allow-requantize"]);
    let drafted =
        |draft: &str| made(&["run", "-m", out, "--temp", "0", "-n", "24", "--draft", draft, "def f(x):"]);
    assert_eq!(drafted("0")[0], drafted("3")[0]);
    let refused = forerun(&["quantize", DEMO, out, "q5_0"]);
    let error = text(&refused.stderr);
    assert!(error.contains("--allow-requantize"), "{error}");
    made(&["info", out]);
}
