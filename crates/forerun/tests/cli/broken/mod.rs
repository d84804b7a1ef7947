//! Broken model files: a small model with the demo's tokenizer, written with one thing wrong, or cut, or with bytes changed.

use std::fs;
use std::path::{Path, PathBuf};

use forerun_files::{Array, Checkpoint, Gguf, GgufWriter, Metadata, TensorKind, Value};
use forerun_models::ffn::FfnShape;
use forerun_models::{Shape, Source, Synthetic, WeightMix};
use forerun_quant::TensorType;

/// A file, and what the error of `run` must name: `Some("")` when there must be none, `None` when both are right.
pub(crate) struct BrokenFile {
    pub(crate) path: PathBuf,
    pub(crate) culprit: Option<String>,
}

const TINY: Shape = Shape {
    name: "tiny",
    hidden: 64,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 16,
    ffn: FfnShape::Dense { ffn: 96 },
    vocabulary: 8192,
};

struct Tensor {
    name: String,
    ty: TensorType,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

fn tiny() -> (Metadata, Vec<Tensor>) {
    let model = Synthetic::new(&TINY, WeightMix::All(TensorType::Q8_0), 1).expect("shape");
    let demo = Gguf::open(super::DEMO.as_ref()).expect("demo");
    let mut metadata = model.metadata().clone();
    for (key, value) in demo.metadata().iter().filter(|(key, _)| key.starts_with("tokenizer.")) {
        metadata.set(key, value.clone());
    }
    let tensors = model.tensors().iter().map(|t| {
        let TensorKind::Known(ty) = t.kind else { panic!("{} has no type", t.name) };
        let bytes = model.tensor(&t.name).expect("a tensor").bytes.to_vec();
        Tensor { name: t.name.clone(), ty, dims: t.dims.clone(), bytes }
    });
    let tensors = tensors.collect();
    (metadata, tensors)
}

fn write(path: &Path, metadata: &Metadata, tensors: &[Tensor]) {
    let infos: Vec<_> = tensors.iter().map(|t| (t.name.clone(), t.ty, t.dims.clone())).collect();
    let mut writer = GgufWriter::create(path, metadata, &infos).expect("a header");
    for t in tensors {
        writer.tensor(&t.name, &t.bytes).expect("data");
    }
    writer.finish().expect("a file");
}

fn without(metadata: &Metadata, key: &str) -> Metadata {
    let mut rest = Metadata::new(metadata.path());
    for (k, v) in metadata.iter().filter(|(k, _)| *k != key) {
        rest.insert(k, v.clone());
    }
    rest
}

/// Keys with a value that is refused under the key's name.
fn wrong_values() -> Vec<(&'static str, Value)> {
    vec![
        ("general.architecture", Value::String("llama".into())),
        ("general.architecture", Value::U32(7)),
        ("general.sampling.temp", Value::F32(-1.0)),
        ("general.sampling.top_k", Value::String("many".into())),
        ("qwen35.block_count", Value::U32(0)),
        ("qwen35.block_count", Value::U64(u64::MAX)),
        ("qwen35.embedding_length", Value::U64(1 << 40)),
        ("qwen35.embedding_length", Value::String("64".into())),
        ("qwen35.attention.head_count", Value::U32(0)),
        ("qwen35.attention.head_count_kv", Value::U32(3)),
        ("qwen35.attention.layer_norm_rms_epsilon", Value::F32(f32::NAN)),
        ("qwen35.context_length", Value::I64(-1)),
        ("qwen35.rope.freq_base", Value::F32(0.0)),
        ("tokenizer.ggml.model", Value::String("wordpiece".into())),
        ("tokenizer.ggml.pre", Value::String("unheard-of".into())),
        ("tokenizer.ggml.tokens", Value::String("none".into())),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(Vec::new()))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(vec!["no such merge".into()]))),
        ("tokenizer.ggml.eos_token_id", Value::U32(u32::MAX)),
    ]
}

/// A small model that runs, without an MTP block.
pub(crate) fn without_mtp(dir: &Path) -> PathBuf {
    let (mut metadata, mut tensors) = tiny();
    metadata.set("qwen35.block_count", Value::U32(TINY.layers as u32));
    metadata.set("qwen35.nextn_predict_layers", Value::U32(0));
    tensors.retain(|t| !t.name.starts_with(&format!("blk.{}.", TINY.layers)));
    let path = dir.join("no-mtp.gguf");
    write(&path, &metadata, &tensors);
    path
}

pub(crate) fn files(dir: &Path) -> Vec<BrokenFile> {
    let (metadata, mut tensors) = tiny();
    let mut files = Vec::new();
    let good = dir.join("good.gguf");
    write(&good, &metadata, &tensors);
    let bytes = fs::read(&good).expect("read");
    files.push(BrokenFile { path: good, culprit: Some(String::new()) });
    for (i, (key, value)) in wrong_values().into_iter().enumerate() {
        let path = dir.join(format!("value-{i}.gguf"));
        let mut changed = metadata.clone();
        changed.set(key, value);
        write(&path, &changed, &tensors);
        let culprit = key.strip_prefix("general.sampling.").unwrap_or(key);
        // Some errors name the thing itself rather than its key.
        let culprit = if culprit == "general.architecture" { "architecture" } else { culprit };
        files.push(BrokenFile { path, culprit: Some(culprit.to_owned()) });
    }
    // Paths must not name the culprit, or every message would.
    let keys =
        ["general.architecture", "qwen35.block_count", "qwen35.embedding_length", "tokenizer.ggml.tokens"];
    for (i, key) in keys.into_iter().enumerate() {
        let path = dir.join(format!("no-key-{i}.gguf"));
        write(&path, &without(&metadata, key), &tensors);
        files.push(BrokenFile { path, culprit: Some(key.to_owned()) });
    }
    let names = ["token_embd.weight", "output_norm.weight", "blk.0.ssm_a", "blk.3.attn_q.weight"];
    for (i, name) in names.into_iter().enumerate() {
        let at = tensors.iter().position(|t| t.name == name).expect("a tensor of that name");
        let tensor = tensors.remove(at);
        let path = dir.join(format!("no-tensor-{i}.gguf"));
        write(&path, &metadata, &tensors);
        files.push(BrokenFile { path, culprit: Some(name.to_owned()) });
        tensors.insert(at, tensor);
    }
    spoilt_weights(dir, &metadata, &mut tensors, &mut files);
    changed_bytes(dir, &bytes, &mut files);
    files
}

/// Weights that are no numbers: the generation ends with an error, not with nonsense.
fn spoilt_weights(dir: &Path, metadata: &Metadata, tensors: &mut [Tensor], files: &mut Vec<BrokenFile>) {
    let norm = tensors.iter_mut().find(|t| t.name == "output_norm.weight").expect("the norm");
    norm.bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = dir.join("nan.gguf");
    write(&path, metadata, tensors);
    files.push(BrokenFile { path, culprit: Some("NaN".to_owned()) });
}

/// The file cut anywhere, and with bytes of its header changed.
fn changed_bytes(dir: &Path, bytes: &[u8], files: &mut Vec<BrokenFile>) {
    let mut add = |name: String, bytes: &[u8], must_fail: bool| {
        let path = dir.join(name);
        fs::write(&path, bytes).expect("write");
        let culprit = must_fail.then(|| path.to_str().expect("a path").to_owned());
        files.push(BrokenFile { path, culprit });
    };
    let len = bytes.len();
    for cut in [0, 1, 3, 4, 8, 16, 23, 24, 25, 100, 1000, 10_000, 100_000, len / 2, len - 4096] {
        add(format!("cut-{cut}.gguf"), &bytes[..cut], true);
    }
    // Version, counts of tensors and keys, the first key's length and type.
    for at in [0, 4, 5, 8, 12, 15, 16, 20, 23, 24, 28, 31, 52] {
        let mut changed = bytes.to_vec();
        changed[at] ^= 0x80;
        add(format!("flip-{at}.gguf"), &changed, false);
    }
    let infos = bytes.windows(17).position(|w| w == b"token_embd.weight").expect("the first tensor's name");
    for i in 0..24 {
        let mut changed = bytes.to_vec();
        changed[infos + 17 + i * 7] ^= 0xff;
        add(format!("info-{i}.gguf"), &changed, false);
    }
}
