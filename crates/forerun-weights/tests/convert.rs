//! Conversion against the files that llama.cpp's converter wrote, and its types against decoding.

use std::path::{Path, PathBuf};

use forerun_models::{CheckpointSource, HubModel, Source, always_f32};
use forerun_quant::{TensorType, decode_row};
use forerun_weights::{ConvertOptions, FileType, WeightsError, convert};

fn fixtures() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models"))
}

fn folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(fixtures()).expect("fixtures");
    let mut folders: Vec<PathBuf> = entries.map(|e| e.expect("entry").path()).collect();
    folders.sort();
    assert!(folders.len() >= 8, "{folders:?}");
    folders
}

fn open(folder: &Path) -> HubModel {
    let name = folder.file_name().expect("name").to_string_lossy().into_owned();
    let target = name.split_once("-dflash").map(|(target, _)| fixtures().join(target));
    HubModel::open_for(folder, target.as_deref()).unwrap_or_else(|e| panic!("{e}"))
}

/// Everything but names and what the fixtures, converted without a tokenizer, say of one.
#[test]
fn folders_become_the_files_of_the_converter() {
    let dir = tempfile::tempdir().expect("a folder");
    for folder in folders() {
        let out = dir.path().join("out.gguf");
        convert(&open(&folder), &out, &ConvertOptions::new(FileType::Same), &mut |_| true)
            .unwrap_or_else(|e| panic!("{e}"));
        let [got, want] =
            [&out, &folder.join("model.gguf")].map(|p| CheckpointSource::open(p).expect("GGUF"));
        let keys = |s: &CheckpointSource| -> Vec<(String, forerun_files::Value)> {
            let free = |key: &str| key == "general.name" || key.starts_with("tokenizer.");
            s.metadata().iter().filter(|(k, _)| !free(k)).map(|(k, v)| (k.to_owned(), v.clone())).collect()
        };
        assert_eq!(keys(&got), keys(&want), "{}", folder.display());
        assert_eq!(got.tensors(), want.tensors(), "{}", folder.display());
        for t in want.tensors() {
            let [a, b] = [&got, &want].map(|s| s.tensor(&t.name).expect("a tensor").bytes);
            assert!(*a == *b, "{}: {}", folder.display(), t.name);
        }
    }
}

fn values(source: &dyn Source, name: &str) -> Vec<f32> {
    let t = source.tensor(name).expect("a tensor");
    let mut out = Vec::new();
    let mut row = vec![0.0; t.dims[0]];
    for bytes in t.bytes.chunks_exact(t.ty.row_bytes(t.dims[0]).expect("whole blocks")) {
        decode_row(t.ty, bytes, &mut row).expect("a row");
        out.extend_from_slice(&row);
    }
    out
}

#[test]
fn matrices_get_the_type_that_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = fixtures().join("qwen35-moe");
    let from = open(&folder);
    for (name, number, bound) in [("f32", 0, 0.0), ("f16", 1, 1e-6), ("bf16", 32, 0.0), ("q8_0", 7, 1e-4)] {
        let ty = TensorType::from_name(name).expect("a type");
        let out = dir.path().join(format!("{name}.gguf"));
        let options = ConvertOptions::new(FileType::from_name(name).expect("named"));
        let done = convert(&from, &out, &options, &mut |_| true).expect("converted");
        let to = CheckpointSource::open(&out).expect("GGUF");
        assert_eq!(done.tensors, from.tensors().len());
        assert_eq!(to.metadata().u32("general.file_type").expect("a number"), number);
        for t in from.tensors() {
            let made = to.tensor(&t.name).expect("a tensor");
            let fits = ty.row_bytes(t.dims[0]).is_some();
            let want = match () {
                () if always_f32(&t.name, &t.dims) => TensorType::F32,
                () if fits => ty,
                () => TensorType::F16,
            };
            assert_eq!(made.ty, want, "{name}: {}", t.name);
            let (a, b) = (values(&from, &t.name), values(&to, &t.name));
            let error: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            let power: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
            assert!(error <= bound * power, "{name}: {}: {error:e} of {power:e}", t.name);
        }
    }
    assert_eq!(FileType::from_name("q9"), None);
}

#[test]
fn stopping_leaves_nothing_and_an_old_file_as_it_was() {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.gguf");
    std::fs::write(&out, "old").expect("written");
    let from = open(&fixtures().join("gemma4-dense"));
    let mut calls = 0;
    let stopped = convert(&from, &out, &ConvertOptions::new(FileType::Q8_0), &mut |p| {
        calls += 1;
        assert!(p.done_bytes <= p.total_bytes);
        calls < 20
    });
    assert!(matches!(stopped, Err(WeightsError::Cancelled)), "{stopped:?}");
    assert_eq!(std::fs::read(&out).expect("read"), b"old");
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 1);
}
