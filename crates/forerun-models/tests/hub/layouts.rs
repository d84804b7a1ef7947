//! The ways in which one model lies in folders: all are read as the same.

use std::path::Path;

use forerun_models::{HubModel, Source};
use safetensors::Dtype;
use serde_json::json;

use crate::folder::{Folder, Tensor, Tensors, fixture, write_tensors};
use crate::pack::{converted, stack, write_with_block};

/// Checks that a folder holds what the fixture holds, to the bit.
fn same(dir: &Path, name: &str, what: &str) {
    let [got, want] =
        [dir, &fixture(name)].map(|d| HubModel::open(d).unwrap_or_else(|e| panic!("{what}: {e}")));
    let names = |m: &HubModel| -> Vec<String> {
        let mut names: Vec<String> = m.tensors().iter().map(|t| t.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&got), names(&want), "{what}");
    for t in want.tensors() {
        let [a, b] = [&got, &want].map(|m| m.tensor(&t.name).expect("a tensor"));
        assert_eq!((&a.dims, a.ty), (&b.dims, b.ty), "{what}: {}", t.name);
        assert!(*a.bytes == *b.bytes, "{what}: {}", t.name);
    }
}

#[test]
fn prefixes_and_parts_that_see() {
    let dir = tempfile::tempdir().expect("a folder");
    for (name, prefix) in [("qwen35-dense", "model.language_model."), ("gemma4-moe", "model.language_model.")]
    {
        let mut folder = Folder::of_fixture(name).renamed(|n| match n.strip_prefix("model.") {
            Some(rest) => format!("{prefix}{}", rest.trim_start_matches("language_model.")),
            None => n.to_owned(),
        });
        let eye = Tensor { dtype: Dtype::BF16, shape: vec![2], data: vec![0; 4] };
        folder.tensors.insert("model.visual.patch_embed.weight".into(), eye);
        folder.write(dir.path());
        same(dir.path(), name, prefix);
    }
}

#[test]
fn shards_with_an_index() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = Folder::of_fixture("qwen35-moe");
    folder.write(dir.path());
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    let mut parts = [Tensors::new(), Tensors::new(), Tensors::new()];
    let mut map = serde_json::Map::new();
    for (i, (name, tensor)) in folder.tensors.into_iter().enumerate() {
        map.insert(name.clone(), format!("part-{}.safetensors", i % 3).into());
        parts[i % 3].insert(name, tensor);
    }
    for (i, part) in parts.iter().enumerate() {
        write_tensors(&dir.path().join(format!("part-{i}.safetensors")), part);
    }
    let index = dir.path().join("model.safetensors.index.json");
    std::fs::write(&index, json!({ "weight_map": map }).to_string()).expect("written");
    same(dir.path(), "qwen35-moe", "shards");

    std::fs::remove_file(dir.path().join("part-1.safetensors")).expect("removed");
    let error = HubModel::open(dir.path()).err().expect("an error").to_string();
    assert!(error.contains("part-1.safetensors"), "{error}");
}

#[test]
fn an_mtp_block_within_or_beside() {
    let dir = tempfile::tempdir().expect("a folder");
    let within = |n: &str| if n.starts_with("mtp.") { format!("model.{n}") } else { n.to_owned() };
    Folder::of_fixture("qwen35-dense").renamed(within).write(dir.path());
    same(dir.path(), "qwen35-dense", "model.mtp.");

    let mut folder = Folder::of_fixture("qwen35-dense");
    let block = folder.take("mtp.");
    folder.write(dir.path());
    let without = HubModel::open(dir.path()).expect("a model");
    assert!(without.tensors().iter().all(|t| !t.name.contains("nextn")));
    write_tensors(&dir.path().join("mtp.safetensors"), &block);
    same(dir.path(), "qwen35-dense", "a file beside");
}

#[test]
fn experts_alone_stacked_and_fused() {
    let dir = tempfile::tempdir().expect("a folder");
    for fused in [true, false] {
        let mut folder = Folder::of_fixture("qwen35-moe");
        let layers: Vec<String> = folder
            .tensors
            .keys()
            .filter_map(|n| n.strip_suffix(".experts.0.down_proj.weight"))
            .map(str::to_owned)
            .collect();
        assert!(layers.len() > 2);
        for layer in layers {
            let name = |e: usize, part: &str| format!("{layer}.experts.{e}.{part}.weight");
            let all: &[(&str, &[&str])] = if fused {
                &[("experts.gate_up_proj", &["gate_proj", "up_proj"]), ("experts.down_proj", &["down_proj"])]
            } else {
                &[
                    ("switch_mlp.gate_proj.weight", &["gate_proj"]),
                    ("switch_mlp.up_proj.weight", &["up_proj"]),
                    ("switch_mlp.down_proj.weight", &["down_proj"]),
                ]
            };
            for (to, parts) in all {
                let stacked = stack(&mut folder.tensors, 8, name, parts);
                folder.tensors.insert(format!("{layer}.{to}"), stacked);
            }
        }
        folder.write(dir.path());
        same(dir.path(), "qwen35-moe", if fused { "fused" } else { "stacked" });
    }
}

#[test]
fn folders_that_went_through_mlx() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["qwen35-dense", "qwen35-moe"] {
        let (folder, block) = converted(name);
        write_with_block(&folder, &block, dir.path());
        same(dir.path(), name, "MLX");
    }
}
