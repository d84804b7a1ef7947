//! Folders with MLX's affine weights: each holds what the same folder holds with the floats that its levels stand for.

use std::path::Path;

use forerun_files::TensorKind;
use forerun_models::{HubModel, ModelSpec, Source};
use forerun_quant::{TensorType, decode_row};
use safetensors::Dtype;
use serde_json::json;

use crate::folder::{Folder, Tensor};
use crate::pack::{converted, floats, quantised, write_with_block};

const BITS: [usize; 6] = [2, 3, 4, 5, 6, 8];

fn open(dir: &Path) -> HubModel {
    HubModel::open(dir).unwrap_or_else(|e| panic!("{e}"))
}

fn values(model: &HubModel, name: &str) -> (Vec<usize>, Vec<f32>, TensorType) {
    let t = model.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let row = t.ty.row_bytes(t.dims[0]).expect("whole rows");
    let mut values = vec![0.0; t.dims.iter().product()];
    for (bytes, to) in t.bytes.chunks_exact(row).zip(values.chunks_exact_mut(t.dims[0])) {
        decode_row(t.ty, bytes, to).expect("decodes");
    }
    (t.dims, values, t.ty)
}

/// Compares a quantised folder with its floats. Returns the names of the tensors that are affine.
fn compare([packed, decoded]: &[Folder; 2], what: &str) -> Vec<String> {
    let dirs = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    packed.write(dirs[0].path());
    decoded.write(dirs[1].path());
    let [packed, decoded] = dirs.map(|d| open(d.path()));
    assert!(!packed.is_mapped(), "{what}: its embeddings are not in one piece");
    let spec = ModelSpec::read(&packed).err().map(|e| e.to_string());
    assert_eq!(spec, None, "{what}");
    let mut affine = Vec::new();
    assert_eq!(packed.tensors().len(), decoded.tensors().len(), "{what}");
    for header in decoded.tensors() {
        let [(dims, got, ty), (want_dims, want, _)] = [&packed, &decoded].map(|m| values(m, &header.name));
        assert_eq!(dims, want_dims, "{what}: {}", header.name);
        assert!(got == want, "{what}: {}: {:?} is not {:?}", header.name, &got[..8], &want[..8]);
        if matches!(ty, TensorType::Affine(_)) {
            affine.push(header.name.clone());
        }
    }
    affine
}

#[test]
fn every_type_is_the_floats_that_it_stands_for() {
    for (i, bits) in BITS.into_iter().enumerate() {
        for group in [32, 64] {
            let name = ["qwen35-dense", "qwen35-moe", "gemma4-dense", "gemma4-moe"][(i + group / 64) % 4];
            let what = format!("{name}, {bits} bits, groups of {group}");
            let folders = quantised(&converted(name).0, |_| Some((bits, group)));
            let affine = compare(&folders, &what);
            let has = |part: &str| affine.iter().any(|n| n.contains(part));
            assert!(has("token_embd") && has("attn_q.") && affine.len() > 20, "{what}: {affine:?}");
            let experts = [has("ffn_gate_exps"), has("ffn_up_exps")];
            assert_eq!(experts, [name.ends_with("moe"); 2], "{what}");
            // Routers are float32 in every file.
            assert!(!has("ffn_gate_inp") && !has("norm"), "{what}");
        }
    }
}

#[test]
fn modules_with_their_own_bits_and_groups() {
    let of = |module: &str| match module {
        m if m.ends_with("down_proj") => Some((8, 128)),
        m if m.contains("layers.0.") => Some((3, 32)),
        m if m.contains("layers.1.") => Some((6, 64)),
        m if m.ends_with("embed_tokens") => None,
        _ => Some((4, 64)),
    };
    let folder = converted("qwen35-dense").0;
    let mut folders = quantised(&folder, of);
    let dirs = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    for prefix in ["language_model.model.", "model."] {
        // Tools that rename tensors do not always rename the entries.
        let config = folders[0].config["quantization"].as_object().expect("an object").clone();
        let renamed =
            config.into_iter().map(|(k, v)| (k.replace("language_model.model.", prefix), v)).collect();
        folders[0].config["quantization"] = serde_json::Value::Object(renamed);
        folders.iter().zip(&dirs).for_each(|(f, d)| f.write(d.path()));
        let [packed, decoded] = [&dirs[0], &dirs[1]].map(|d| open(d.path()));
        for (name, ty) in [
            ("blk.0.ffn_down.weight", "affine8g128/bf16"),
            ("blk.0.ffn_up.weight", "affine3g32/bf16"),
            ("blk.1.ffn_gate.weight", "affine6g64/bf16"),
            ("blk.3.attn_q.weight", "affine4g64/bf16"),
            ("token_embd.weight", "BF16"),
        ] {
            let [(_, got, found), (_, want, _)] = [&packed, &decoded].map(|m| values(m, name));
            assert_eq!(found.name(), ty, "{name}");
            assert!(got == want, "{name}");
        }
        assert!(packed.is_mapped());
    }
}

/// Value heads as wide as a group or wider are put in order group by group; columns of narrower ones become floats.
#[test]
fn columns_of_heads() {
    for (head, group, native) in
        [(32, 32, true), (64, 32, true), (64, 64, true), (32, 64, false), (64, 128, false)]
    {
        let mut folder = Folder::of_fixture("qwen35-dense");
        folder.config["linear_value_head_dim"] = head.into();
        let cols = 4 * head;
        let data = (0..3 * cols)
            .flat_map(|i| ((i * 77 % 1000) as f32 - 400.0).to_le_bytes()[2..].to_vec())
            .collect();
        let name = "model.layers.0.linear_attn.out_proj.weight";
        folder.tensors.clear();
        folder.tensors.insert(name.into(), Tensor { dtype: Dtype::BF16, shape: vec![3, cols], data });
        let folders = quantised(&folder, |_| Some((4, group)));
        let dirs = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
        folders.iter().zip(&dirs).for_each(|(f, d)| f.write(d.path()));
        let [(_, got, ty), (_, want, _)] =
            [&dirs[0], &dirs[1]].map(|d| values(&open(d.path()), "blk.0.ssm_out.weight"));
        assert_eq!(matches!(ty, TensorType::Affine(_)), native, "heads of {head}, groups of {group}");
        assert_eq!(got, want, "heads of {head}, groups of {group}");
        // Folders have heads 0 and 1 of the first key head together, GGUF has them at 0 and 2.
        let stored: Vec<f32> = folders[1].tensors[name]
            .data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes")))
            .collect();
        assert_eq!(got[head..2 * head], stored[2 * head..3 * head]);
    }
}

#[test]
fn an_mtp_block_beside_is_not_quantised() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, block) = converted("qwen35-moe");
    let [packed, _] = quantised(&folder, |_| Some((4, 32)));
    write_with_block(&packed, &block, dir.path());
    let (model, whole) = (open(dir.path()), open(&crate::folder::fixture("qwen35-moe")));
    let block: Vec<_> = whole.tensors().iter().filter(|t| t.name.starts_with("blk.4.")).collect();
    assert!(block.len() > 10);
    for t in block {
        let [got, want] = [&model, &whole].map(|m| m.tensor(&t.name).expect("a tensor"));
        assert!((got.ty, &got.dims) == (want.ty, &want.dims) && *got.bytes == *want.bytes, "{}", t.name);
    }
    assert!(ModelSpec::read(&model).expect("a model").mtp.is_some());
}

fn refused(folder: &Folder, names: &[&str]) {
    let dir = tempfile::tempdir().expect("a folder");
    folder.write(dir.path());
    let error = match HubModel::open(dir.path()) {
        Err(e) => e.to_string(),
        Ok(m) => ModelSpec::read(&m).err().unwrap_or_else(|| panic!("no error with {names:?}")).to_string(),
    };
    for name in names {
        assert!(error.contains(name), "{error}: no {name}");
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let [whole, _] = quantised(&converted("qwen35-dense").0, |_| Some((4, 64)));
    let change = |f: &dyn Fn(&mut Folder)| {
        let mut folder = whole.clone();
        f(&mut folder);
        folder
    };
    let up = "language_model.model.layers.1.mlp.up_proj";
    let setting = |key: &'static str, value: serde_json::Value| {
        change(&|f| f.config["quantization"][key] = value.clone())
    };
    for mode in ["mxfp4", "nvfp4", "mxfp8"] {
        refused(&setting("mode", mode.into()), &["quantization.mode", mode, "affine"]);
        refused(&setting(up, json!({"mode": mode})), &["mode", mode, "affine"]);
    }
    refused(&setting("bits", 7.into()), &["bits", "7"]);
    refused(&setting("bits", json!(null)), &["bits", "nothing"]);
    refused(&setting("group_size", 16.into()), &["group_size", "16"]);
    refused(&setting("group_size", 32.into()), &["32", "as config.json says"]);
    refused(&setting(up, json!({"bits": 8})), &[up, "8 bits"]);
    refused(&setting(up, false.into()), &[up, "false"]);
    refused(&change(&|f| f.config = Folder::of_fixture("qwen35-dense").config), &["quantization", "nothing"]);
    for (suffix, other) in [("scales", "weight"), ("biases", "weight"), ("weight", "biases")] {
        let gone = change(&|f| drop(f.tensors.remove(&format!("{up}.{suffix}"))));
        refused(&gone, &[&format!("{up}.{other}"), &format!("{up}.{suffix}")]);
    }
    refused(
        &change(&|f| drop(f.tensors.insert(format!("{up}.biases"), floats(&[128, 1], &[0.0; 128])))),
        &[&format!("{up}.biases"), "F32", "BF16"],
    );
    refused(
        &change(&|f| drop(f.tensors.insert(format!("{up}.weight"), floats(&[128, 8], &[0.0; 1024])))),
        &[up, "U32"],
    );
    let short = |f: &mut Folder| {
        for part in ["scales", "biases"] {
            let t = f.tensors.get_mut(&format!("{up}.{part}")).expect("a tensor");
            t.shape[0] -= 1;
            t.data.truncate(2 * t.shape[0] * t.shape[1]);
        }
    };
    refused(&change(&short), &[up, "127"]);
    let fp8 = change(&|f| {
        let config = f.config.as_object_mut().expect("an object");
        config.remove("quantization");
        config.insert("quantization_config".into(), json!({"quant_method": "fp8"}));
    });
    refused(&fp8, &["quantization_config.quant_method", "fp8"]);
}

#[test]
fn tensors_of_words_alone_are_refused_by_type() {
    let mut folder = Folder::of_fixture("qwen35-dense");
    let words = Tensor { dtype: Dtype::U32, shape: vec![4], data: vec![0; 16] };
    folder.tensors.insert("model.layers.0.linear_attn.A_log".into(), words);
    refused(&folder, &["A_log", "U32"]);
    let dir = tempfile::tempdir().expect("a folder");
    let plain = Folder::of_fixture("qwen35-dense");
    plain.write(dir.path());
    assert!(open(dir.path()).tensors().iter().all(|t| matches!(t.kind, TensorKind::Known(_))));
}
