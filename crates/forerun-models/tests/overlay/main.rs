//! Weights of another file over a model's.

#[path = "../common/fake.rs"]
mod fake;
mod places;
mod refused;
mod writer;

use std::path::PathBuf;

use fake::Fake;
use forerun_models::ffn::FfnShape;
use forerun_models::{
    CacheConfig, Model, ModelSpec, OverlaySource, Shape, Source, StepShape, Taps, WeightMix,
};
use forerun_quant::{TensorType, decode_row};
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{Backend, OutRow, Pick, SeqRows, StepOut, StepRows};
use writer::Overlay;

const DENSE: Shape = Shape {
    name: "tiny.gguf",
    hidden: 64,
    layers: 4,
    heads: 4,
    kv_heads: 2,
    head_dim: 32,
    key_heads: 2,
    value_heads: 4,
    delta_dim: 32,
    ffn: FfnShape::Dense { ffn: 128 },
    vocabulary: 96,
};

const EXPERTS: Shape =
    Shape { ffn: FfnShape::Experts { experts: 3, top_k: 2, ffn: 32, shared: 64 }, ..DENSE };

/// A model of F32 matrices, so that it can be given the same values.
fn model(shape: &Shape) -> Fake {
    Fake::filled(shape, WeightMix::All(TensorType::F32), 5)
}

/// A file of its own for a test.
struct File {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn file(bytes: &[u8]) -> File {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("over.safetensors");
    std::fs::write(&path, bytes).expect("write");
    File { path, _folder: folder }
}

fn overlaid(base: Fake, overlay: &Overlay) -> Result<OverlaySource, String> {
    let file = file(&overlay.bytes());
    OverlaySource::open(Box::new(base), &file.path).map_err(|e| e.to_string())
}

fn open(base: Fake, overlay: &Overlay) -> OverlaySource {
    overlaid(base, overlay).unwrap_or_else(|e| panic!("{e}"))
}

/// Dims, type and decoded elements of a tensor.
fn values(source: &dyn Source, name: &str) -> (Vec<usize>, TensorType, Vec<f32>) {
    let t = source.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let header = source.tensors().iter().find(|h| h.name == name).expect("a header");
    assert_eq!(header.dims, t.dims, "{name}");
    let mut all = Vec::new();
    let mut row = vec![0.0; t.dims[0]];
    for bytes in t.bytes.chunks(t.ty.row_bytes(t.dims[0]).expect("whole blocks")) {
        decode_row(t.ty, bytes, &mut row).expect("a row");
        all.extend_from_slice(&row);
    }
    (t.dims, t.ty, all)
}

/// Logits of nine tokens in float64.
fn logits(source: &dyn Source) -> Vec<f32> {
    let spec = ModelSpec::read(source).unwrap_or_else(|e| panic!("{e}"));
    let mut backend = ReferenceBackend::new();
    let caches = CacheConfig { context: 16, ..CacheConfig::default() };
    let model = Model::load(source, spec, &mut backend, &caches, &mut |_| true);
    let model = model.unwrap_or_else(|e| panic!("{e}"));
    let shape = StepShape { max_rows: 9, max_out: 9, taps: Taps::default() };
    let plan = backend.prepare(model.record(&shape).expect("record")).expect("prepare");
    let rows = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: 0, rows: 9, replay: 0, commit: true }],
        tokens: (0..9).map(|i| i * 10).collect(),
        out: (0..9).map(|row| OutRow { row, pick: Pick::None, logits: true }).collect(),
    };
    let mut out = StepOut::default();
    let ticket = backend.submit(plan, &rows).expect("submit");
    backend.wait(ticket, &mut out).expect("wait");
    out.logits
}
