//! Reading: a file of an outside converter, typed getters, mapped data.

use std::path::Path;

use crate::common;
use forerun_files::{Advice, Array, Checkpoint, Gguf, Metadata, TensorKind, Value};
use forerun_quant::TensorType;

fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

#[test]
fn converted_model() {
    let file: Box<dyn Checkpoint> = Box::new(Gguf::open(&data("qwen35-dense.gguf")).unwrap());
    let m = file.metadata();
    assert_eq!(m.len(), 28);
    assert_eq!(m.iter().next().unwrap().0, "general.architecture");
    assert_eq!(m.str("general.architecture").unwrap(), "qwen35");
    assert_eq!(m.u32("qwen35.block_count").unwrap(), 5);
    assert_eq!(m.f32("qwen35.rope.freq_base").unwrap(), 1e7);
    assert_eq!(m.u32s("qwen35.rope.dimension_sections").unwrap(), [2, 1, 1, 0]);
    assert_eq!(m.bools("qwen35.attention.recurrent_layers").unwrap(), [true, true, true, false, false]);
    assert_eq!(file.tensors().len(), 71);
    for (name, ty, dims, bytes) in [
        ("output.weight", TensorType::BF16, &[64, 512][..], 65_536),
        ("blk.0.attn_norm.weight", TensorType::F32, &[64], 256),
        ("blk.0.ssm_a", TensorType::F32, &[4], 16),
        ("blk.4.nextn.hnorm.weight", TensorType::F32, &[64], 256),
    ] {
        let t = file.tensor(name).unwrap();
        assert_eq!((t.name, t.ty, t.dims, t.bytes.len()), (name, ty, dims, bytes));
    }
    // −exp(A_log) is negative for every head.
    let a = file.tensor("blk.0.ssm_a").unwrap().bytes;
    assert!(a.as_chunks::<4>().0.iter().all(|b| f32::from_le_bytes(*b) < 0.0));
    let first = file.find("output.weight").unwrap();
    assert_eq!(first.kind, TensorKind::Known(TensorType::BF16));
    let part = file.part(first.part).unwrap();
    assert_eq!((*part).as_ref()[first.range.clone()], *file.bytes(first).unwrap());
    assert!(file.part(1).is_none());
}

#[test]
fn version_2() {
    let mut bytes = common::valid();
    let newer = Gguf::from_bytes(Path::new("v3"), &bytes).unwrap();
    bytes[4] = 2;
    let older = Gguf::from_bytes(Path::new("v2"), &bytes).unwrap();
    assert!(newer.metadata().iter().eq(older.metadata().iter()));
    assert_eq!(newer.tensors(), older.tensors());
}

#[test]
fn lossless_conversions() {
    let m = common::metadata(Path::new("some.gguf"));
    assert_eq!(m.u32("v.u8").unwrap(), 200);
    assert_eq!(m.u64("v.u32").unwrap(), 7);
    assert_eq!(m.i64("v.i8").unwrap(), -3);
    assert_eq!(m.f32("v.f64").unwrap(), 0.5);
    assert_eq!(m.f32("v.u16").unwrap(), 40_000.0);
    assert_eq!(m.u32s("a.u8").unwrap(), [1, 2, 3]);
    assert_eq!(m.i32s("a.u64").unwrap(), [0; 0]);
    assert_eq!(m.f32s("a.f32").unwrap(), [0.5, -2.0]);
    assert_eq!(m.strings("a.str").unwrap(), ["", "a", "ĠÄ日本"]);
    assert_eq!(m.opt_u32("absent").unwrap(), None);
}

#[test]
fn getters_name_file_key_and_types() {
    let mut m = common::metadata(Path::new("some.gguf"));
    m.insert("v.third", Value::F64(0.1));
    m.insert("long", Value::Array(Array::U32((0..1000).collect())));
    let cases: [(Result<(), _>, &str); 9] = [
        (m.u32("v.i8").map(drop), "key `v.i8`: found i8 (-3), expected an integer of 0 to 2^32 − 1"),
        (
            m.u32("v.u64").map(drop),
            "key `v.u64`: found u64 (1099511627776), expected an integer of 0 to 2^32 − 1",
        ),
        (m.u32("v.bool").map(drop), "key `v.bool`: found bool (true), expected an integer"),
        (m.str("v.u32").map(drop), "key `v.u32`: found u32 (7), expected a string"),
        (m.f32("v.third").map(drop), "key `v.third`: found f64 (0.1), expected a number that fits f32"),
        (
            m.bools("a.i32").map(drop),
            "key `a.i32`: found array of i32 ([11, 11, 10, 0] (4 elements)), expected an array",
        ),
        (m.u32("general.architecture").map(drop), "found string (\"test\"), expected an integer"),
        (m.strings("long").map(drop), "[0, 1, 2, 3, 4, 5, 6, 7, …] (1000 elements)"),
        (m.u32("absent").map(drop), "key `absent`: found no such key, expected an integer"),
    ];
    for (result, expected) in cases {
        let message = result.unwrap_err().to_string();
        assert!(message.starts_with("some.gguf: ") && message.contains(expected), "{message}");
    }
}

#[test]
fn clones_share_until_changed() {
    let one = common::metadata(Path::new("some.gguf"));
    let mut two = one.clone();
    assert!(!two.insert("v.u32", Value::U32(8)));
    two.set("v.u32", Value::U32(9));
    two.set("new", Value::Bool(true));
    assert_eq!((one.u32("v.u32").unwrap(), two.u32("v.u32").unwrap()), (7, 9));
    assert_eq!((one.len() + 1, one.get("new")), (two.len(), None));
    assert!(one.iter().map(|(k, _)| k).eq(two.iter().map(|(k, _)| k).filter(|k| *k != "new")));
}

#[test]
fn unsupported_types_are_listed_and_refused_by_name() {
    let mut bytes = common::valid();
    let field = common::fields(&bytes).into_iter().rfind(|f| f.kind == common::Kind::TensorType).unwrap();
    for (id, name) in
        [(40u32, "NVFP4"), (9, "Q8_1"), (12_345, "ggml type 12345"), (u32::MAX, "ggml type 4294967295")]
    {
        bytes[field.at..field.at + 4].copy_from_slice(&id.to_le_bytes());
        let file = Gguf::from_bytes(Path::new("new.gguf"), &bytes).unwrap();
        let info = file.find("one").unwrap();
        assert_eq!((info.kind, info.kind.name().as_str()), (TensorKind::Unknown(id), name));
        let expected = format!("new.gguf: tensor `one`: found type {name}, expected a supported type");
        assert_eq!(file.tensor("one").unwrap_err().to_string(), expected);
        assert!(file.tensor("norm").is_ok());
    }
    let file = Gguf::from_bytes(Path::new("a.gguf"), &bytes).unwrap();
    let missing = file.tensor("blk.0.x").unwrap_err().to_string();
    assert!(missing.starts_with("a.gguf: tensor `blk.0.x`: found no such tensor"), "{missing}");
}

#[test]
fn infos_of_other_files_are_harmless() {
    let file = Gguf::from_bytes(Path::new("a.gguf"), &common::valid()).unwrap();
    let mut info = file.find("norm").unwrap().clone();
    for (part, range) in [(0, 10..usize::MAX), (0, usize::MAX - 1..usize::MAX), (1, 0..1)] {
        (info.part, info.range) = (part, range);
        let message = file.bytes(&info).unwrap_err().to_string();
        assert!(message.starts_with("a.gguf: tensor `norm`"), "{message}");
        for advice in [Advice::Sequential, Advice::WillNeed, Advice::DontNeed] {
            file.advise(&info, advice);
        }
    }
}

/// Resident bytes of a mapped file, as the kernel counts them.
#[cfg(target_os = "linux")]
fn resident(path: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_file = maps.split_once(path.to_str().unwrap()).unwrap().1;
    let rss = of_file.lines().find_map(|l| l.strip_prefix("Rss:")).unwrap();
    rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[test]
fn released_pages_leave_and_come_back() {
    const SIZE: usize = 4 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.gguf");
    let tensors = [("a", 0x5a), ("b", 0xc3)].map(|(name, byte)| (name.to_owned(), vec![byte; SIZE]));
    let list = tensors.clone().map(|(name, _)| (name, TensorType::I8, vec![SIZE]));
    let mut writer = forerun_files::GgufWriter::create(&path, &Metadata::new(&path), &list).unwrap();
    for (name, data) in &tensors {
        writer.tensor(name, data).unwrap();
    }
    writer.finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    let touch = |name: &str| {
        file.tensor(name).unwrap().bytes.iter().all(|b| *b == if name == "a" { 0x5a } else { 0xc3 })
    };
    assert!(touch("a") && touch("b"));
    assert!(resident(&path) >= 2 * SIZE);
    file.release(file.find("a").unwrap());
    assert!(resident(&path) < SIZE + (SIZE / 4));
    assert!(touch("a") && touch("b"));
}
