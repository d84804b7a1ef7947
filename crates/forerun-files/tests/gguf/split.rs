//! Checkpoints in several files.

use std::path::{Path, PathBuf};

use crate::common;
use forerun_files::{Checkpoint, Gguf, GgufWriter, Metadata, Value};
use forerun_quant::TensorType;
use tempfile::TempDir;

/// Keys and tensor names of a part.
struct Part {
    keys: Vec<(&'static str, Value)>,
    tensors: Vec<&'static str>,
}

fn parts() -> Vec<Part> {
    let part = |no: u16, tensors: &[&'static str]| Part {
        keys: vec![
            ("split.no", Value::U16(no)),
            ("split.count", Value::U16(3)),
            ("split.tensors.count", Value::I32(4)),
        ],
        tensors: tensors.to_vec(),
    };
    let mut parts = vec![part(0, &[]), part(1, &["a", "b"]), part(2, &["c", "d"])];
    parts[0].keys.push(("general.architecture", Value::String("test".into())));
    parts[2].keys.push(("general.alignment", Value::U32(64)));
    parts
}

fn name(no: usize) -> String {
    format!("m-{:05}-of-00003.gguf", no + 1)
}

fn write(parts: &[Part]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (no, part) in parts.iter().enumerate() {
        let path = folder.path().join(name(no));
        let mut metadata = Metadata::new(&path);
        for (key, value) in &part.keys {
            metadata.insert(key, value.clone());
        }
        let list: Vec<_> = part.tensors.iter().map(|t| ((*t).to_owned(), TensorType::I8, vec![5])).collect();
        let mut writer = GgufWriter::create(&path, &metadata, &list).unwrap();
        for t in &part.tensors {
            writer.tensor(t, &[t.as_bytes()[0]; 5]).unwrap();
        }
        writer.finish().unwrap();
    }
    folder
}

#[test]
fn any_part_opens_all() {
    let folder = write(&parts());
    for no in 0..3 {
        let path = folder.path().join(name(no));
        let file = Gguf::open(&path).unwrap();
        assert_eq!(file.path(), path);
        assert_eq!(file.metadata().str("general.architecture").unwrap(), "test");
        let names: Vec<_> = file.tensors().iter().map(|t| (t.name.as_str(), t.part)).collect();
        assert_eq!(names, [("a", 1), ("b", 1), ("c", 2), ("d", 2)]);
        for t in file.tensors() {
            assert_eq!(file.bytes(t).unwrap(), [t.name.as_bytes()[0]; 5]);
        }
        common::touch(&file);
    }
}

#[test]
fn one_part_is_no_split() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["m-00001-of-00001.gguf", "m.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf"] {
        let path = folder.path().join(name);
        common::write(&path, &common::metadata(&path)).unwrap();
        common::touch(&Gguf::open(&path).unwrap());
    }
}

fn fails(folder: &Path, opened: &str, culprit: &str, expected: &str) {
    let message = Gguf::open(&folder.join(opened)).unwrap_err().to_string();
    let start = folder.join(culprit).display().to_string();
    assert!(
        message.starts_with(&start) && message.contains(expected),
        "{message}\nexpected {start} … {expected}"
    );
}

#[test]
fn contradictions() {
    type Change = fn(&mut Vec<Part>);
    fn key(part: &mut Part, key: &str, value: Value) {
        part.keys.iter_mut().find(|(k, _)| *k == key).unwrap().1 = value;
    }
    let cases: [(Change, usize, &str); 10] = [
        (|p| key(&mut p[1], "split.no", Value::U16(2)), 1, "key `split.no`: found 2, expected 1"),
        (|p| key(&mut p[2], "split.count", Value::U16(4)), 2, "key `split.count`: found 4, expected 3"),
        (
            |p| key(&mut p[0], "split.count", Value::U16(u16::MAX)),
            0,
            "key `split.count`: found 65535, expected 3",
        ),
        (|p| key(&mut p[0], "split.count", Value::U16(1)), 0, "key `split.count`: found 1, expected 3"),
        (
            |p| key(&mut p[0], "split.count", Value::Bool(true)),
            0,
            "key `split.count`: found bool (true), expected an integer",
        ),
        (|p| p[2].keys.retain(|(k, _)| *k != "split.no"), 2, "key `split.no`: found no such key"),
        (|p| p[0].keys.clear(), 0, "key `split.no`: found no such key"),
        (
            |p| key(&mut p[1], "split.tensors.count", Value::I32(5)),
            1,
            "key `split.tensors.count`: found 5, expected 4",
        ),
        (
            |p| p[2].tensors = vec!["a", "d"],
            2,
            "tensor `a`: found it in two parts, expected every tensor once",
        ),
        (
            |p| p[1].keys.push(("general.architecture", Value::String("other".into()))),
            1,
            "key `general.architecture`: found \"other\", expected \"test\"",
        ),
    ];
    for (change, culprit, expected) in cases {
        let mut parts = parts();
        change(&mut parts);
        let folder = write(&parts);
        fails(folder.path(), &name(0), &name(culprit), expected);
    }
}

#[test]
fn missing_and_misnamed_parts() {
    for (missing, what) in [(1, "cannot open part 2 of 3: "), (2, "cannot open part 3 of 3: ")] {
        let folder = write(&parts());
        std::fs::remove_file(folder.path().join(name(missing))).unwrap();
        fails(folder.path(), &name(0), &name(missing), what);
    }
    let folder = write(&parts());
    std::fs::write(folder.path().join(name(2)), "").unwrap();
    fails(folder.path(), &name(1), &name(2), "file: found an empty file, expected a model file");
    let renamed: PathBuf = folder.path().join("renamed.gguf");
    std::fs::copy(folder.path().join(name(0)), renamed).unwrap();
    fails(folder.path(), "renamed.gguf", "renamed.gguf", "file name: found ");
    let folder = write(&parts());
    std::fs::rename(folder.path().join(name(1)), folder.path().join(name(2))).unwrap();
    fails(folder.path(), &name(2), &name(2), "key `split.no`: found 1, expected 2");
}
