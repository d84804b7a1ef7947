//! A tokenizer's files against the GGUF that llama.cpp's converter made of them: the demo's, turned back into files.

use std::path::Path;

use forerun_files::{Array, Checkpoint, Gguf, Metadata, Value};
use forerun_models::{HubModel, Source};
use serde_json::{Value as Json, json};

use crate::folder::Folder;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/demo/demo-Q4_K_M.gguf");
/// models.md, section 6.
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
);

fn strings(meta: &Metadata, key: &str) -> Vec<String> {
    match meta.get(key) {
        Some(Value::Array(Array::String(v))) => v.clone(),
        other => panic!("{key}: {other:?}"),
    }
}

fn kinds(meta: &Metadata) -> Vec<i32> {
    match meta.get("tokenizer.ggml.token_type") {
        Some(Value::Array(Array::I32(v))) => v.clone(),
        other => panic!("{other:?}"),
    }
}

/// `tokenizer.json` of a GGUF file's tokenizer.
fn tokenizer_json(meta: &Metadata, pairs: bool) -> Json {
    let (tokens, kinds) = (strings(meta, "tokenizer.ggml.tokens"), kinds(meta));
    let added: Vec<Json> = (0..tokens.len())
        .filter(|i| kinds[*i] != 1)
        .map(|i| json!({ "id": i, "content": tokens[i], "special": kinds[i] == 3 }))
        .collect();
    let vocab: serde_json::Map<String, Json> =
        (0..tokens.len()).filter(|i| kinds[*i] == 1).map(|i| (tokens[i].clone(), i.into())).collect();
    let merge = |m: String| match m.split_once(' ') {
        Some((a, b)) if pairs => json!([a, b]),
        _ => json!(m),
    };
    let merges: Vec<Json> = strings(meta, "tokenizer.ggml.merges").into_iter().map(merge).collect();
    json!({
        "added_tokens": added,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": QWEN35 }, "behavior": "Isolated", "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        ] },
        "model": { "type": "BPE", "byte_fallback": false, "vocab": vocab, "merges": merges },
    })
}

fn with_files(dir: &Path, tokenizer: &Json, config: &Json) -> Result<Metadata, String> {
    Folder::of_fixture("qwen35-dense").write(dir);
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).expect("written");
    HubModel::open(dir).map(|m| m.metadata().clone()).map_err(|e| e.to_string())
}

#[test]
fn the_files_give_the_tokenizer_back() {
    let demo = Gguf::open(Path::new(DEMO)).expect("the demo");
    let want = demo.metadata();
    let dir = tempfile::tempdir().expect("a folder");
    let template = want.str("tokenizer.chat_template").expect("a template");
    let token = |key: &str| {
        let id = want.u32(&format!("tokenizer.ggml.{key}_token_id")).expect("an id");
        strings(want, "tokenizer.ggml.tokens")[id as usize].clone()
    };
    let config = json!({ "eos_token": token("eos"), "chat_template": template });
    std::fs::write(dir.path().join("generation_config.json"), r#"{ "eos_token_id": [2, 3] }"#)
        .expect("written");
    for pairs in [true, false] {
        let got = with_files(dir.path(), &tokenizer_json(want, pairs), &config).expect("a model");
        for key in ["model", "pre", "tokens", "token_type", "merges", "eos_token_id"] {
            let key = format!("tokenizer.ggml.{key}");
            assert!(got.get(&key) == want.get(&key), "{key}");
        }
        assert_eq!(got.opt_u32s("tokenizer.ggml.eos_token_ids").expect("ids"), Some(vec![2, 3]));
        assert_eq!(got.str("tokenizer.chat_template").expect("a template"), template);
    }
}

#[test]
fn what_is_not_known_is_refused_by_name() {
    let demo = Gguf::open(Path::new(DEMO)).expect("the demo");
    let whole = tokenizer_json(demo.metadata(), true);
    let dir = tempfile::tempdir().expect("a folder");
    for (pointer, value, named) in [
        ("/model/type", json!("Unigram"), "Unigram"),
        ("/pre_tokenizer/pretokenizers/0/pattern/Regex", json!(r"\s+"), "pre_tokenizer"),
        ("/pre_tokenizer", json!(null), "pre_tokenizer"),
        ("/normalizer", json!({ "type": "Lowercase" }), "Lowercase"),
        ("/model/vocab", json!(7), "vocab"),
        ("/model/vocab/a", json!(-1), "vocab"),
        ("/model/vocab/a", json!(u64::MAX), "vocab"),
        ("/model/merges/0", json!(3), "merges"),
        ("/added_tokens/0/id", json!("x"), "added_tokens"),
        ("/added_tokens/0/content", json!(null), "added_tokens"),
    ] {
        let mut tokenizer = whole.clone();
        *tokenizer.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
        let error = with_files(dir.path(), &tokenizer, &json!({})).expect_err(pointer);
        assert!(error.contains(named) && error.contains("tokenizer.json"), "{pointer}: {error}");
    }
    std::fs::write(dir.path().join("tokenizer.json"), "{").expect("written");
    assert!(HubModel::open(dir.path()).is_err());
}
