//! A small valid file, and a walk over its fields that shares no code with the reader.

use std::path::Path;

use forerun_files::{Array, Checkpoint, FileError, Gguf, GgufWriter, Metadata, TensorKind, Value};
use forerun_quant::TensorType;

/// One value of every type.
pub(crate) fn metadata(path: &Path) -> Metadata {
    let mut m = Metadata::new(path);
    let strings = |s: &[&str]| Value::Array(Array::String(s.iter().map(|s| (*s).to_owned()).collect()));
    for (key, value) in [
        ("general.architecture", Value::String("test".into())),
        ("v.u8", Value::U8(200)),
        ("v.i8", Value::I8(-3)),
        ("v.u16", Value::U16(40_000)),
        ("v.i16", Value::I16(-300)),
        ("v.u32", Value::U32(7)),
        ("v.i32", Value::I32(-70_000)),
        ("v.u64", Value::U64(1 << 40)),
        ("v.i64", Value::I64(-1)),
        ("v.f32", Value::F32(1e-6)),
        ("v.f64", Value::F64(0.5)),
        ("v.bool", Value::Bool(true)),
        ("a.u8", Value::Array(Array::U8(vec![1, 2, 3]))),
        ("a.i32", Value::Array(Array::I32(vec![11, 11, 10, 0]))),
        ("a.f32", Value::Array(Array::F32(vec![0.5, -2.0]))),
        ("a.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("a.u64", Value::Array(Array::U64(vec![]))),
        ("a.str", strings(&["", "a", "ĠÄ日本"])),
    ] {
        assert!(m.insert(key, value), "{key}");
    }
    m
}

/// Names, types and dimensions of the tensors.
pub(crate) fn tensors() -> Vec<(String, TensorType, Vec<usize>)> {
    let t = |name: &str, ty, dims: &[usize]| (name.to_owned(), ty, dims.to_vec());
    vec![
        t("token_embd.weight", TensorType::Q8_0, &[64, 3]),
        t("norm", TensorType::F32, &[5]),
        t("experts", TensorType::Q4_K, &[256, 2, 2]),
        t("one", TensorType::BF16, &[3, 1, 2, 1]),
    ]
}

/// Bytes that differ from tensor to tensor.
pub(crate) fn data(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|j| (j * 7 + i * 31 + 1) as u8).collect()
}

/// Bytes of a tensor.
pub(crate) fn size(ty: TensorType, dims: &[usize]) -> usize {
    ty.row_bytes(dims[0]).unwrap() * dims[1..].iter().product::<usize>()
}

/// Writes a file with the given metadata and [`tensors`].
pub(crate) fn write(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let tensors = tensors();
    let mut writer = GgufWriter::create(path, metadata, &tensors)?;
    for (i, (name, ty, dims)) in tensors.iter().enumerate() {
        writer.tensor(name, &data(i, size(*ty, dims)))?;
    }
    writer.finish()
}

/// The bytes of a small valid file.
pub(crate) fn valid() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("valid.gguf");
    write(&path, &metadata(&path)).unwrap();
    std::fs::read(path).unwrap()
}

/// Uses everything that an open file offers.
pub(crate) fn touch(file: &Gguf) {
    for (key, value) in file.metadata().iter() {
        let _ = (value.summary(), value.type_name());
        let m = file.metadata();
        let _ =
            (m.opt_u32(key).is_ok(), m.opt_f32(key).is_ok(), m.opt_str(key).is_ok(), m.opt_bool(key).is_ok());
        let _ = (
            m.opt_u32s(key).is_ok(),
            m.opt_strings(key).is_ok(),
            m.opt_bools(key).is_ok(),
            m.opt_f32s(key).is_ok(),
        );
    }
    for info in file.tensors() {
        match (file.tensor(&info.name), info.kind) {
            (Ok(view), TensorKind::Known(ty)) => {
                assert_eq!(view.bytes.len(), size(ty, &info.dims));
                std::hint::black_box(view.bytes.iter().fold(0u8, |a, b| a ^ b));
            }
            (Err(e), TensorKind::Unknown(_)) => {
                assert!(e.to_string().contains("expected a supported type"), "{e}")
            }
            (other, _) => panic!("{}: {other:?}", info.name),
        }
        assert!(info.elements() > 0);
        file.release(info);
    }
}

/// What a field of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Magic,
    Version,
    Count,
    Length,
    Text,
    ValueType,
    Value,
    DimCount,
    Dim,
    TensorType,
    Offset,
}

/// A field: where it is, and what an error about it must contain.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) kind: Kind,
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) culprit: String,
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    fields: Vec<Field>,
}

impl Walk<'_> {
    fn field(&mut self, kind: Kind, len: usize, culprit: &str) -> u64 {
        let mut value = [0; 8];
        let n = len.min(8);
        value[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.fields.push(Field { kind, at: self.at, len, culprit: culprit.to_owned() });
        self.at += len;
        u64::from_le_bytes(value)
    }

    fn text(&mut self, culprit: &str) -> String {
        let len = self.field(Kind::Length, 8, culprit) as usize;
        let text = String::from_utf8(self.bytes[self.at..self.at + len].to_vec()).unwrap();
        self.field(Kind::Text, len, culprit);
        text
    }

    fn value(&mut self, ty: u64, culprit: &str) {
        match ty {
            0 | 1 | 7 => drop(self.field(Kind::Value, 1, culprit)),
            2 | 3 => drop(self.field(Kind::Value, 2, culprit)),
            4..=6 => drop(self.field(Kind::Value, 4, culprit)),
            8 => drop(self.text(culprit)),
            9 => {
                let element = self.field(Kind::ValueType, 4, culprit);
                for _ in 0..self.field(Kind::Length, 8, culprit) {
                    self.value(element, culprit);
                }
            }
            _ => drop(self.field(Kind::Value, 8, culprit)),
        }
    }
}

/// The fields of a valid file up to its data.
pub(crate) fn fields(bytes: &[u8]) -> Vec<Field> {
    let mut w = Walk { bytes, at: 0, fields: Vec::new() };
    w.field(Kind::Magic, 4, "magic");
    w.field(Kind::Version, 4, "version");
    let tensors = w.field(Kind::Count, 8, "tensor count");
    let keys = w.field(Kind::Count, 8, "metadata count");
    for i in 0..keys {
        let culprit = format!("key `{}`", w.text(&format!("name of key {i}")));
        let ty = w.field(Kind::ValueType, 4, &culprit);
        w.value(ty, &culprit);
    }
    for i in 0..tensors {
        let culprit = format!("tensor `{}`", w.text(&format!("name of tensor {i}")));
        for _ in 0..w.field(Kind::DimCount, 4, &culprit) {
            w.field(Kind::Dim, 8, &culprit);
        }
        w.field(Kind::TensorType, 4, &culprit);
        w.field(Kind::Offset, 8, &culprit);
    }
    w.fields
}
