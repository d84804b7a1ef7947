//! Folders as MLX quantises them, by plain loops over single bits.

use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::folder::{Folder, Tensor, Tensors, write_tensors};

fn bf16(bytes: &[u8]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
}

/// The upper half of a number's bits: whatever it cuts off, the number that is left is the scale.
fn cut(x: f32) -> [u8; 2] {
    ((x.to_bits() >> 16) as u16).to_le_bytes()
}

pub(crate) fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Tensor { dtype: Dtype::F32, shape: shape.to_vec(), data }
}

/// Levels, scales and biases of a BF16 tensor, and the floats that they stand for.
fn pack(tensor: &Tensor, bits: usize, group: usize) -> ([Tensor; 3], Tensor) {
    let values: Vec<f32> = tensor.data.chunks_exact(2).map(bf16).collect();
    let cols = *tensor.shape.last().expect("columns");
    let most = (1u32 << bits) - 1;
    let (mut words, mut scales, mut biases, mut decoded) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for row in values.chunks_exact(cols) {
        let mut stream = vec![false; cols * bits];
        for (g, group_values) in row.chunks_exact(group).enumerate() {
            let (low, high) =
                group_values.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            let (scale, bias) = (cut((high - low) / most as f32), cut(low));
            scales.extend(scale);
            biases.extend(bias);
            let (scale, bias) = (bf16(&scale), bf16(&bias));
            for (i, v) in group_values.iter().enumerate() {
                let level =
                    if scale == 0.0 { 0.0 } else { ((v - bias) / scale).round().clamp(0.0, most as f32) };
                decoded.push((f64::from(scale) * f64::from(level) + f64::from(bias)) as f32);
                for bit in 0..bits {
                    stream[(g * group + i) * bits + bit] = (level as u32) >> bit & 1 == 1;
                }
            }
        }
        for word in stream.chunks_exact(32) {
            let word = word.iter().rev().fold(0u32, |w, bit| w << 1 | u32::from(*bit));
            words.extend(word.to_le_bytes());
        }
    }
    let shape = |last: usize| [&tensor.shape[..tensor.shape.len() - 1], &[last]].concat();
    let line = |data| Tensor { dtype: Dtype::BF16, shape: shape(cols / group), data };
    let words = Tensor { dtype: Dtype::U32, shape: shape(cols * bits / 32), data: words };
    ([words, line(scales), line(biases)], floats(&tensor.shape, &decoded))
}

/// A folder with the modules quantised for which `of` gives bits and group size (as far as rows are whole groups), and the
/// same folder with the floats that they stand for. Modules that differ from the first have entries of their own.
pub(crate) fn quantised(folder: &Folder, of: impl Fn(&str) -> Option<(usize, usize)>) -> [Folder; 2] {
    let (mut packed, mut decoded) = (folder.clone(), folder.clone());
    let mut config = serde_json::Map::new();
    for (name, tensor) in &folder.tensors {
        let Some(module) = name.strip_suffix(".weight").filter(|_| tensor.shape.len() > 1) else { continue };
        let Some((bits, group)) = of(module) else { continue };
        if name.contains("conv1d") || !tensor.shape.last().expect("columns").is_multiple_of(group) {
            continue;
        }
        let (parts, values) = pack(tensor, bits, group);
        for (suffix, part) in ["weight", "scales", "biases"].into_iter().zip(parts) {
            packed.tensors.insert(format!("{module}.{suffix}"), part);
        }
        decoded.tensors.insert(name.clone(), values);
        if config.is_empty() {
            config.insert("bits".into(), bits.into());
            config.insert("group_size".into(), group.into());
            config.insert("mode".into(), "affine".into());
        } else if config["bits"] != bits || config["group_size"] != group {
            config.insert(module.into(), json!({"bits": bits, "group_size": group}));
        }
    }
    packed.config["quantization"] = config.clone().into();
    packed.config["quantization_config"] = config.into();
    [packed, decoded]
}

/// A folder of the fixtures as MLX's tools convert it: gains instead of gains less 1, convolutions the other way round,
/// their prefix, experts stacked. The MTP block, which they drop, stays apart.
pub(crate) fn converted(name: &str) -> (Folder, Tensors) {
    let mut folder = Folder::of_fixture(name);
    let block = folder.take("mtp.");
    let names: Vec<String> = folder.tensors.keys().cloned().collect();
    let layers = names.iter().filter_map(|n| n.strip_suffix(".experts.0.down_proj.weight"));
    for layer in layers {
        for part in ["gate_proj", "up_proj", "down_proj"] {
            let stacked =
                stack(&mut folder.tensors, 8, |e, p| format!("{layer}.experts.{e}.{p}.weight"), &[part]);
            folder.tensors.insert(format!("{layer}.switch_mlp.{part}.weight"), stacked);
        }
    }
    for layer in names.iter().filter_map(|n| n.strip_suffix(".experts.gate_up_proj")) {
        let both = folder.tensors.remove(&format!("{layer}.experts.gate_up_proj")).expect("stacked experts");
        let down = folder.tensors.remove(&format!("{layer}.experts.down_proj")).expect("stacked experts");
        for (part, half) in ["gate_proj", "up_proj"].into_iter().zip(halves(&both)) {
            folder.tensors.insert(format!("{layer}.experts.switch_glu.{part}.weight"), half);
        }
        folder.tensors.insert(format!("{layer}.experts.switch_glu.down_proj.weight"), down);
    }
    if name.starts_with("qwen") {
        for (name, t) in &mut folder.tensors {
            if name.ends_with("conv1d.weight") {
                t.shape.swap(1, 2);
            } else if name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight") {
                let gains: Vec<f32> = t.data.chunks_exact(2).map(|b| 1.0 + bf16(b)).collect();
                *t = floats(&t.shape, &gains);
            }
        }
    }
    (folder.renamed(|n| format!("language_model.{}", n.trim_start_matches("language_model."))), block)
}

/// `[expert, rows, cols]` of single experts, the parts of each one after the other.
pub(crate) fn stack(
    tensors: &mut Tensors,
    experts: usize,
    name: impl Fn(usize, &str) -> String,
    parts: &[&str],
) -> Tensor {
    let mut all = Tensor { dtype: Dtype::BF16, shape: vec![experts, 0, 0], data: Vec::new() };
    for e in 0..experts {
        all.shape[1] = 0;
        for part in parts {
            let one = tensors.remove(&name(e, part)).expect("an expert");
            all.shape = vec![experts, all.shape[1] + one.shape[0], one.shape[1]];
            all.data.extend_from_slice(&one.data);
        }
    }
    all
}

/// Both halves of the rows of every matrix of a stack.
fn halves(stack: &Tensor) -> [Tensor; 2] {
    let matrix = stack.data.len() / stack.shape[0];
    let half = |i: usize| {
        let data = stack
            .data
            .chunks_exact(matrix)
            .flat_map(|m| m[i * matrix / 2..][..matrix / 2].to_vec())
            .collect();
        Tensor { dtype: stack.dtype, shape: vec![stack.shape[0], stack.shape[1] / 2, stack.shape[2]], data }
    };
    [half(0), half(1)]
}

/// Writes a folder, with an MTP block in a file of its own.
pub(crate) fn write_with_block(folder: &Folder, block: &Tensors, dir: &Path) {
    folder.write(dir);
    if !block.is_empty() {
        write_tensors(&dir.join("mtp.safetensors"), block);
    }
}
