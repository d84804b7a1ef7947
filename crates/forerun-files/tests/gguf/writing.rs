//! Writing: what is written reads back, and what cannot be written is refused without leaving anything.

use std::path::Path;

use crate::common;
use forerun_files::{Array, Checkpoint, Gguf, GgufWriter, Metadata, Value};
use forerun_quant::TensorType;
use proptest::collection::vec;
use proptest::prelude::*;

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(any::<f32>(), 0..9).prop_map(Array::F32),
        vec(any::<f64>(), 0..9).prop_map(Array::F64),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(any::<String>(), 0..9).prop_map(Array::String),
    ]
}

/// A type, a number of blocks per row, and further dimensions.
fn tensor() -> impl Strategy<Value = (TensorType, Vec<usize>)> {
    let ty = proptest::sample::select(TensorType::GGML);
    (ty, 1usize..4, vec(1usize..4, 0..4)).prop_map(|(ty, blocks, rest)| {
        let mut dims = vec![blocks * ty.block_elements()];
        dims.extend(rest);
        (ty, dims)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn round_trip(
        entries in proptest::collection::btree_map("\\PC{1,20}", prop_oneof![scalar(), array().prop_map(Value::Array)], 0..8),
        tensors in vec(tensor(), 0..6),
        alignment in proptest::option::of(3u32..9),
        piece in 1usize..2000,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.gguf");
        let mut metadata = Metadata::new(&path);
        for (key, value) in &entries {
            metadata.insert(key, value.clone());
        }
        if let Some(log2) = alignment {
            metadata.set("general.alignment", Value::U32(1 << log2));
        }
        let list: Vec<_> =
            tensors.iter().enumerate().map(|(i, (ty, dims))| (format!("t.{i}"), *ty, dims.clone())).collect();
        let mut writer = GgufWriter::create(&path, &metadata, &list).unwrap();
        for (i, (name, ty, dims)) in list.iter().enumerate() {
            for data in common::data(i, common::size(*ty, dims)).chunks(piece) {
                writer.tensor(name, data).unwrap();
            }
        }
        writer.finish().unwrap();

        let file = Gguf::open(&path).unwrap();
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.tensors().len(), list.len());
        for (i, (name, ty, dims)) in list.iter().enumerate() {
            let view = file.tensor(name).unwrap();
            prop_assert_eq!((view.ty, view.dims), (*ty, dims.as_slice()));
            prop_assert_eq!(view.bytes, common::data(i, common::size(*ty, dims)));
            prop_assert_eq!(view.bytes.as_ptr().addr() % alignment.map_or(32, |log2| 1 << log2), 0);
        }
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn old_file_stays_until_the_new_one_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, "old").unwrap();
    let m = common::metadata(&path);
    let mut writer = GgufWriter::create(&path, &m, &common::tensors()).unwrap();
    writer.tensor("token_embd.weight", &[0; 100]).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"old");
    let message = writer.finish().unwrap_err().to_string();
    assert!(
        message.contains("tensor `token_embd.weight`: found the end of its data, expected 104 bytes more"),
        "{message}"
    );
    assert_eq!(
        (entries(folder.path()), std::fs::read(&path).unwrap()),
        (vec!["m.gguf".to_owned()], b"old".to_vec())
    );
    common::write(&path, &m).unwrap();
    assert_eq!(entries(folder.path()), ["m.gguf"]);
    common::touch(&Gguf::open(&path).unwrap());
}

#[test]
fn refused_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let t = |name: &str, dims: &[usize]| (name.to_owned(), TensorType::Q8_0, dims.to_vec());
    let key = |key: &str, value| {
        let mut m = Metadata::new(&path);
        m.insert(key, value);
        m
    };
    let plain = Metadata::new(&path);
    let long = "x".repeat(65_536);
    let cases = [
        (&plain, vec![t("a", &[])], "tensor `a`: found 0 dimensions, expected 1 to 4"),
        (&plain, vec![t("a", &[32, 1, 1, 1, 1])], "tensor `a`: found 5 dimensions, expected 1 to 4"),
        (&plain, vec![t("a", &[32, 0])], "tensor `a`: found dimensions [32, 0], expected at least 1 each"),
        (
            &plain,
            vec![("a".to_owned(), TensorType::from_name("affine4g64/f16").unwrap(), vec![64])],
            "tensor `a`: found type affine4g64/f16, expected a type of GGUF files",
        ),
        (
            &plain,
            vec![t("a", &[33])],
            "tensor `a`: found dimensions [33] of type Q8_0, expected rows of whole blocks of 32",
        ),
        (
            &plain,
            vec![t("a", &[1 << 40, 1 << 40])],
            "tensor `a`: found dimensions [1099511627776, 1099511627776]",
        ),
        (
            &plain,
            vec![t("a", &[32]), t("a", &[32])],
            "tensor `a`: found it twice, expected every tensor once",
        ),
        (&plain, vec![t("", &[32])], "tensor ``: found 0 bytes, expected 1 to 65535 bytes"),
        (&plain, vec![t(&long, &[32])], "…`: found 65536 bytes, expected 1 to 65535 bytes"),
        (&key("", Value::U8(0)), vec![], "key ``: found 0 bytes, expected 1 to 65535 bytes"),
        (
            &key("general.alignment", Value::U32(24)),
            vec![],
            "key `general.alignment`: found 24, expected a power of two",
        ),
        (
            &key("general.alignment", Value::F32(1.5)),
            vec![],
            "key `general.alignment`: found f32 (1.5), expected an integer",
        ),
    ];
    for (metadata, tensors, expected) in cases {
        let message = GgufWriter::create(&path, metadata, &tensors).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("m.gguf: "), "{message}");
        assert_eq!(entries(folder.path()), [""; 0]);
    }
    let nowhere = folder.path().join("none/m.gguf");
    let message = GgufWriter::create(&nowhere, &plain, &[]).unwrap_err().to_string();
    assert!(message.contains("none/m.gguf: cannot create the file"), "{message}");
}

#[test]
fn refused_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let list = [("a".to_owned(), TensorType::I8, vec![3]), ("b".to_owned(), TensorType::I8, vec![2])];
    let mut w = GgufWriter::create(&path, &Metadata::new(&path), &list).unwrap();
    let refuse = |w: &mut GgufWriter, name, data: &[u8], expected: &str| {
        let message = w.tensor(name, data).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    refuse(&mut w, "b", &[1], "tensor `b`: found its data, expected data of tensor `a`");
    refuse(&mut w, "a", &[1; 4], "tensor `a`: found 4 bytes, expected at most 3");
    w.tensor("a", &[1; 3]).unwrap();
    w.tensor("b", &[2; 2]).unwrap();
    refuse(&mut w, "b", &[1], "tensor `b`: found its data, expected none: every tensor is complete");
    w.finish().unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensor("b").unwrap().bytes, [2, 2]);
}
