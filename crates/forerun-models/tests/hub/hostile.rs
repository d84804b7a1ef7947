//! Folders that are broken or lie: one error that names what is wrong, and no panic.

use forerun_models::{HubModel, ModelSpec};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::folder::{Folder, Tensor};

/// The error of opening a folder and reading its spec.
fn error(folder: &Folder) -> Option<String> {
    let dir = tempfile::tempdir().expect("a folder");
    folder.write(dir.path());
    match HubModel::open(dir.path()) {
        Err(e) => Some(e.to_string()),
        Ok(model) => ModelSpec::read(&model).err().map(|e| e.to_string()),
    }
}

#[test]
fn settings_that_are_missing_or_absurd() {
    for name in ["qwen35-dense", "qwen35-moe", "gemma4-dense", "gemma4-moe", "gemma4-ple"] {
        let whole = Folder::of_fixture(name);
        assert_eq!(error(&whole), None, "{name}");
        let nested = whole.config.get("text_config").is_some();
        let keys: Vec<String> = if nested { &whole.config["text_config"] } else { &whole.config }
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        let odd = [
            Value::Null,
            json!(-1),
            json!(0),
            json!(1e300),
            json!(u64::MAX),
            json!("many"),
            json!([]),
            json!({}),
            json!([1, "a", null]),
        ];
        let mut refused = 0;
        for key in &keys {
            for value in &odd {
                let mut folder = whole.clone();
                let text = if nested { &mut folder.config["text_config"] } else { &mut folder.config };
                text[key.as_str()] = value.clone();
                if let Some(error) = error(&folder) {
                    assert!(error.len() < 800 && !error.contains('\n'), "{name}: {key} = {value}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 4 * odd.len(), "{name}: {refused} of {} keys", keys.len());
    }
}

#[test]
fn tensors_that_are_missing_unknown_or_misshapen() {
    for name in ["qwen35-dense", "qwen35-moe", "gemma4-moe", "gemma4-ple"] {
        let whole = Folder::of_fixture(name);
        for key in whole.tensors.keys() {
            let mut folder = whole.clone();
            let tensor = folder.tensors.remove(key).expect("a tensor");
            let optional = ["lm_head.weight", "mtp.", "layer_scalar"].iter().any(|part| key.contains(part));
            let found = error(&folder);
            assert!(found.is_some() || optional, "{name}: without {key}");

            let mut folder = whole.clone();
            let mut shape = tensor.shape.clone();
            shape.insert(0, 1);
            let last = shape.len() - 1;
            shape.swap(0, last);
            let turned =
                Tensor { shape: [&[2], &shape[..]].concat(), data: [&*tensor.data; 2].concat(), ..tensor };
            folder.tensors.insert(key.clone(), turned);
            assert!(error(&folder).is_some(), "{name}: {key} of another shape");
        }
        let mut folder = whole.clone();
        let odd = Tensor { dtype: Dtype::BF16, shape: vec![2], data: vec![0; 4] };
        folder.tensors.insert("model.layers.0.surprise.weight".into(), odd);
        let error = error(&folder).expect("an error");
        assert!(error.contains("model.layers.0.surprise.weight"), "{error}");
    }
}

#[test]
fn weights_of_other_kinds_are_refused_by_name() {
    let mut folder = Folder::of_fixture("qwen35-dense");
    folder.config["quantization_config"] = json!({ "quant_method": "fp8" });
    let refused = error(&folder).expect("an error");
    assert!(refused.contains("quantization_config") && refused.contains("fp8"), "{refused}");
    let mut folder = Folder::of_fixture("qwen35-dense");
    folder.config["model_type"] = json!("llama");
    let refused = error(&folder).expect("an error");
    assert!(refused.contains("llama"), "{refused}");
    let mut folder = Folder::of_fixture("qwen35-dense");
    let name = "model.layers.0.mlp.up_proj.weight";
    if let Some(t) = folder.tensors.get_mut(name) {
        (t.dtype, t.shape) = (Dtype::U8, vec![t.data.len()]);
    }
    let refused = error(&folder).expect("an error");
    assert!(refused.contains(name), "{refused}");
}
