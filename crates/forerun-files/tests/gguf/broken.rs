//! Hostile files: every one is an error that names file and culprit, or opens fine; nothing panics.

use std::path::Path;

use crate::common::{Field, Kind, fields, touch, valid};
use forerun_files::{Checkpoint, Gguf};
use proptest::prelude::*;

const NAME: &str = "hostile.gguf";

/// The error of opening these bytes; `None` when they open, after everything in them was used.
fn open(bytes: &[u8]) -> Option<String> {
    match Gguf::from_bytes(Path::new(NAME), bytes) {
        Ok(file) => {
            touch(&file);
            None
        }
        Err(e) => {
            let message = e.to_string();
            assert!(message.starts_with(&format!("{NAME}: ")), "{message}");
            assert!(message.contains(": found ") && message.contains(", expected "), "{message}");
            assert!(message.len() < 1000, "{message}");
            Some(message)
        }
    }
}

fn patched(bytes: &[u8], field: &Field, value: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[field.at..field.at + field.len].copy_from_slice(&value.to_le_bytes()[..field.len]);
    bytes
}

fn read(bytes: &[u8], field: &Field) -> u64 {
    let mut value = [0; 8];
    value[..field.len].copy_from_slice(&bytes[field.at..field.at + field.len]);
    u64::from_le_bytes(value)
}

#[test]
fn truncated_at_every_field() {
    let bytes = valid();
    let fields = fields(&bytes);
    let mut variants = 0;
    for field in &fields {
        for end in [field.at, field.at + field.len / 2] {
            if field.len == 0 {
                continue;
            }
            variants += 1;
            let message = open(&bytes[..end]).unwrap_or_else(|| panic!("{field:?} cut at {end}"));
            // A count that the rest of the file has no room for is found before what is cut.
            let culprits = [&field.culprit, "tensor count", "metadata count", "length of "];
            assert!(
                end == 0 || culprits.iter().any(|c| message.contains(*c)),
                "{field:?} cut at {end}: {message}"
            );
        }
    }
    assert!(variants >= 200, "{variants}");
}

#[test]
fn truncated_data() {
    let bytes = valid();
    let file = Gguf::from_bytes(Path::new(NAME), &bytes).unwrap();
    let last = file.tensors().last().unwrap();
    for tensor in file.tensors() {
        for end in [tensor.range.start, tensor.range.start + 1, tensor.range.end - 1] {
            let message = open(&bytes[..end]).unwrap();
            assert!(message.contains(&format!("tensor `{}`", tensor.name)), "{message}");
            assert!(message.contains(&format!("expected an end within the file's {end} bytes")), "{message}");
        }
    }
    assert_eq!(open(&bytes[..last.range.end]), None, "only padding is missing");
}

#[test]
fn absurd_lengths() {
    let bytes = valid();
    let mut variants = 0;
    for field in fields(&bytes).iter().filter(|f| matches!(f.kind, Kind::Length | Kind::Count)) {
        for value in [u64::MAX, u64::MAX - 7, 1 << 63, (1 << 63) - 1, 1 << 40, 1 << 32, bytes.len() as u64] {
            variants += 1;
            let message = open(&patched(&bytes, field, value)).unwrap();
            assert!(message.contains(&field.culprit), "{field:?} = {value}: {message}");
            assert!(message.contains(&format!("found {value}, expected at most ")), "{message}");
        }
        for value in [0, 1, read(&bytes, field) + 1, read(&bytes, field).wrapping_sub(1)] {
            variants += 1;
            open(&patched(&bytes, field, value));
        }
    }
    assert!(variants >= 200, "{variants}");
}

#[test]
fn absurd_numbers() {
    let bytes = valid();
    let must_fail: &[(Kind, &[u64])] = &[
        (Kind::Magic, &[0, 0x4747_5546, u64::MAX]),
        (Kind::Version, &[0, 1, 4, 1 << 24, 2 << 24, 3 << 24, u64::MAX]),
        (Kind::ValueType, &[13, 255, 1 << 16, u64::MAX]),
        (Kind::DimCount, &[0, 5, 6, u64::MAX]),
        (Kind::Dim, &[0, u64::MAX, 1 << 63, 1 << 62, 1 << 40]),
        (Kind::Offset, &[1, 8, 31, u64::MAX, u64::MAX - 31, 1 << 63, 1 << 40, 1 << 20]),
    ];
    for field in fields(&bytes) {
        for (_, values) in must_fail.iter().filter(|(kind, _)| *kind == field.kind) {
            for &value in *values {
                let message =
                    open(&patched(&bytes, &field, value)).unwrap_or_else(|| panic!("{field:?} = {value}"));
                assert!(message.contains(&field.culprit), "{field:?} = {value}: {message}");
            }
        }
        if matches!(field.kind, Kind::ValueType | Kind::TensorType | Kind::DimCount) {
            (0..=45).for_each(|value| drop(open(&patched(&bytes, &field, value))));
        }
    }
}

#[test]
fn every_bit_flipped() {
    let bytes = valid();
    let end = fields(&bytes).last().map(|f| f.at + f.len).unwrap();
    let mut copy = bytes.clone();
    for at in 0..end {
        for mask in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            copy[at] ^= mask;
            open(&copy);
            copy[at] ^= mask;
        }
    }
    assert_eq!(copy, bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn several_bytes_changed(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        open(&bytes);
    }

    #[test]
    fn noise(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), start in any::<bool>()) {
        if start {
            bytes.splice(0..bytes.len().min(8), *b"GGUF\x03\0\0\0");
        }
        open(&bytes);
    }
}

/// Files made by hand, and what the error about each must say.
const BROKEN: &[(&str, &str)] = &[
    ("array-of-arrays.gguf", "key `a`: found an array of arrays, expected an array of scalars or strings"),
    ("bad-alignment.gguf", "key `general.alignment`: found 48, expected a power of two from 8 to 1048576"),
    ("bad-bool.gguf", "key `b`: found byte 2 for a bool, expected 0 or 1"),
    (
        "bad-utf8-key.gguf",
        "name of key 0: found bytes that are no UTF-8 after byte 1 of 3, expected UTF-8 text",
    ),
    ("bad-utf8-element.gguf", "key `s`, element 1: found bytes that are no UTF-8 after byte 0 of 1"),
    ("big-endian.gguf", "version: found version 3 in big-endian order, expected 2 or 3, little endian"),
    ("count-beyond-file.gguf", "tensor count: found 4611686018427387904, expected at most"),
    (
        "dims-overflow.gguf",
        "tensor `w`: found dimensions [4294967296, 4294967296, 4294967296], expected at least 1",
    ),
    ("duplicate-key.gguf", "key `k`: found it twice, expected every key once"),
    ("duplicate-tensor.gguf", "tensor `w`: found it twice, expected every tensor once"),
    ("html.gguf", "magic: found \"<!DO\", expected \"GGUF\""),
    ("misaligned.gguf", "tensor `w`: found offset 4, expected a multiple of 32"),
    ("old-version.gguf", "version: found 1, expected 2 or 3"),
    (
        "overlap.gguf",
        "tensor `v`: found data at 128..160 over tensor `w` at 96..160, expected data that do not overlap",
    ),
    ("overlap-unknown-type.gguf", "over tensor `"),
    (
        "past-end.gguf",
        "tensor `w`: found at least 128 bytes of data at 64 + 0, expected an end within the file's 128 bytes",
    ),
    (
        "partial-block.gguf",
        "tensor `w`: found dimensions [33] of type Q8_0, expected rows of whole blocks of 32 elements",
    ),
    ("string-beyond-file.gguf", "length of key `s`: found 9223372036854775807, expected at most 3"),
    ("terminal-escape.gguf", "key `\\u{1b}[31m`: found value type 99, expected a type of 0 to 12"),
    ("zero-dim.gguf", "tensor `w`: found dimensions [8, 0], expected at least 1 each"),
];

#[test]
fn broken_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/broken");
    for (name, expected) in BROKEN {
        let path = folder.join(name);
        let message = Gguf::open(&path).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("{}: ", path.display())) && message.contains(expected),
            "{message}"
        );
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), BROKEN.len(), "every file has its line");
}

#[test]
fn no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("empty.gguf"), "").unwrap();
    std::fs::write(path("short.gguf"), "GG").unwrap();
    let mut cases = vec![
        (path("missing.gguf"), "cannot open the file: "),
        (path("empty.gguf"), "file: found an empty file, expected a model file"),
        (path("short.gguf"), "magic: found the end of the file at byte 2, expected 4 bytes from byte 0"),
        (folder.path().to_path_buf(), "file: found a directory, expected a model file"),
    ];
    if cfg!(unix) {
        cases.push(("/dev/null".into(), "file: found neither a file nor a directory, expected a model file"));
    }
    for (path, expected) in cases {
        let message = Gguf::open(&path).unwrap_err().to_string();
        assert!(message.starts_with(&path.display().to_string()) && message.contains(expected), "{message}");
    }
}
