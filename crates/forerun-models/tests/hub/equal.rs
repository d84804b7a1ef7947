//! Every folder of the fixtures against the GGUF file that llama.cpp's converter made of it.

use std::path::PathBuf;

use forerun_files::{Metadata, Value};
use forerun_models::{CheckpointSource, HubModel, Source};

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models"))
}

/// Keys that depend on names, and on a tokenizer, which the fixtures were converted without.
fn is_free(key: &str) -> bool {
    key == "general.name" || key.starts_with("tokenizer.")
}

fn keys(metadata: &Metadata) -> Vec<(&str, &Value)> {
    metadata.iter().filter(|(key, _)| !is_free(key)).collect()
}

#[test]
fn folders_are_what_the_converter_makes_of_them() {
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(fixtures()).expect("fixtures") {
        let folder = entry.expect("entry").path();
        let name = folder.file_name().expect("name").to_string_lossy().into_owned();
        let gguf = CheckpointSource::open(&folder.join("model.gguf")).expect("GGUF");
        let target = name.split_once("-dflash").map(|(target, _)| fixtures().join(target));
        let hub = HubModel::open_for(&folder, target.as_deref()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(keys(hub.metadata()), keys(gguf.metadata()), "{name}");
        assert_eq!(hub.tensors(), gguf.tensors(), "{name}");
        for header in gguf.tensors() {
            let [got, want] = [&hub as &dyn Source, &gguf].map(|s| s.tensor(&header.name).expect("a tensor"));
            assert_eq!(got.dims, want.dims, "{name}: {}", header.name);
            assert!(*got.bytes == *want.bytes, "{name}: {}: bytes differ", header.name);
        }
        seen.push(name);
    }
    assert!(seen.len() >= 8, "{seen:?}");
}

#[test]
fn names_and_absent_tokenizers() {
    let hub = HubModel::open(&fixtures().join("qwen35-dense")).expect("folder");
    assert_eq!(hub.metadata().str("general.name").expect("name"), "Qwen35 Dense");
    assert_eq!(hub.metadata().str("tokenizer.ggml.model").expect("model"), "none");
    let drafter = HubModel::open(&fixtures().join("gemma4-dense-dflash")).expect("folder");
    assert_eq!(drafter.metadata().u32("tokenizer.ggml.mask_token_id").expect("mask"), 4);
}
