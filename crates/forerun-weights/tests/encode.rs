//! Encoded rows against llama.cpp's: the sha256 of every tensor that its `llama-quantize` wrote, from the same source and
//! importance matrix. `FORERUN_QUANTIZE_FIXTURES=DIR` runs on a whole folder of that form instead of the small part of one that
//! is checked in: `source-f16.gguf`, `imatrix.gguf`, `sha256.json` and `sha256-imatrix.json`, which have for every file type
//! the type and the sha256 of each tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use forerun_files::{Checkpoint, Gguf};
use forerun_quant::{ENCODED, TensorType, decode_row, encode_row};
use forerun_weights::Imatrix;
use sha2::{Digest, Sha256};

/// File type, tensor, then [type, sha256].
type Sums = BTreeMap<String, BTreeMap<String, [String; 2]>>;

fn folder() -> PathBuf {
    std::env::var_os("FORERUN_QUANTIZE_FIXTURES")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quantize").into(), PathBuf::from)
}

fn sums(path: &Path) -> Sums {
    serde_json::from_slice(&std::fs::read(path).expect("sums")).expect("JSON of sums")
}

/// The sha256 of a tensor's rows in another type, in hexadecimal.
fn encoded(source: &Gguf, name: &str, ty: TensorType, importance: Option<&[f32]>) -> String {
    let tensor = source.tensor(name).expect("a tensor of the source");
    let cols = tensor.dims[0];
    let mut hash = Sha256::new();
    let mut row = vec![0.0; cols];
    let mut out = vec![0; ty.row_bytes(cols).expect("whole blocks")];
    for bytes in tensor.bytes.chunks_exact(tensor.ty.row_bytes(cols).expect("whole blocks")) {
        decode_row(tensor.ty, bytes, &mut row).expect("decode");
        encode_row(ty, &row, importance, &mut out).expect("encode");
        hash.update(&out);
    }
    hash.finalize().iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string");
        hex
    })
}

/// Checks every tensor of every file, and gives back the types that were seen.
fn check(sums: &Sums, source: &Gguf, imatrix: Option<&Imatrix>) -> BTreeSet<TensorType> {
    let mut checked = BTreeSet::new();
    let mut types = BTreeSet::new();
    for (file, tensors) in sums {
        for (name, [ty, sha256]) in tensors {
            let ty = TensorType::from_name(ty).expect("a type");
            if !ENCODED.contains(&ty) || !checked.insert((name, ty)) {
                continue;
            }
            let importance = imatrix.and_then(|i| i.get(name)?.importance(0));
            let got = encoded(source, name, ty, importance.as_deref());
            assert_eq!(&got, sha256, "{name} as {ty}, as in {file}");
            types.insert(ty);
        }
    }
    types
}

#[test]
fn rows_are_those_of_llama_cpp() {
    let folder = folder();
    let source = Gguf::open(&folder.join("source-f16.gguf")).expect("source");
    let plain = check(&sums(&folder.join("sha256.json")), &source, None);
    let imatrix = Imatrix::read(&folder.join("imatrix.gguf")).expect("importance matrix");
    let weighted = check(&sums(&folder.join("sha256-imatrix.json")), &source, Some(&imatrix));
    for ty in ENCODED.iter().filter(|ty| ty.block_elements() > 1) {
        assert!(plain.contains(ty) || weighted.contains(ty), "no {ty} in {}", folder.display());
    }
    assert!(weighted.len() >= 9, "only {weighted:?} with importance in {}", folder.display());
}
