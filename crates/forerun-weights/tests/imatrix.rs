//! Importance matrices: reading, adding up, writing, and files that are none.

use std::path::Path;

use forerun_files::{Array, GgufWriter, Metadata, Value};
use forerun_quant::TensorType;
use forerun_weights::Imatrix;

/// Written by the ecosystem's `gguf` package.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize/imatrix.gguf");

fn fixture() -> Imatrix {
    Imatrix::read(Path::new(FIXTURE)).expect("the fixture")
}

#[test]
fn a_file_comes_back_as_it_was_written() {
    let read = fixture();
    assert_eq!(
        (read.len(), read.chunks, read.chunk_size, &read.datasets[..]),
        (40, 1, 512, &["synthetic".to_owned()][..])
    );
    let down = read.get("blk.0.ffn_down.weight").expect("a weight");
    assert_eq!((down.cols(), down.matrices()), (256, 1));
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("again.gguf");
    read.write(&path).expect("write");
    let again = Imatrix::read(&path).expect("read");
    assert!(read.iter().eq(again.iter()));
    assert_eq!((again.chunks, again.chunk_size, again.datasets), (1, 512, read.datasets));
}

#[test]
fn adding_doubles_and_keeps_means() {
    let one = fixture();
    let mut two = one.clone();
    two.merge(&one).expect("merge");
    assert_eq!((two.chunks, two.datasets.len()), (2, 1));
    for (name, stats) in one.iter() {
        let both = two.get(name).expect("the same weight");
        assert_eq!(both.count(0), 2.0 * stats.count(0));
        assert_eq!(both.importance(0), stats.importance(0), "{name}");
    }
}

#[test]
fn rows_add_their_squares_and_experts_without_rows_have_no_mean() {
    let mut imatrix = Imatrix::new(Path::new("new"), 512);
    let stats = imatrix.entry("blk.0.ffn_up_exps.weight", 3, 2).expect("entry");
    stats.add_row(1, &[1.0, -2.0, 0.0]);
    stats.add_row(1, &[3.0, 2.0, 0.0]);
    assert_eq!((stats.sums(1), stats.count(1)), (&[10.0, 8.0, 0.0][..], 2.0));
    assert_eq!((stats.importance(0), stats.importance(1)), (None, Some(vec![5.0, 4.0, 0.0])));
    let other = imatrix.entry("blk.0.ffn_up_exps.weight", 4, 2).expect_err("another shape").to_string();
    assert!(
        other.contains("blk.0.ffn_up_exps.weight") && other.contains("2 matrices of 3 columns"),
        "{other}"
    );
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_added() {
    let mut ours = fixture();
    let mut theirs = Imatrix::new(Path::new("theirs.gguf"), 512);
    theirs.entry("a.weight", 8, 1).expect("entry");
    theirs.entry("blk.0.ffn_down.weight", 8, 1).expect("entry");
    let error = ours.merge(&theirs).expect_err("another shape").to_string();
    assert!(error.starts_with("theirs.gguf: tensor `blk.0.ffn_down.weight`: found 8 columns"), "{error}");
    assert_eq!(ours, fixture());
    let error = ours.merge(&Imatrix::new(Path::new("theirs.gguf"), 256)).expect_err("chunks").to_string();
    assert!(error.contains("imatrix.chunk_size") && error.contains("256"), "{error}");
}

/// Writes a file of tensors as given, and says what reading it as an importance matrix comes to.
fn error_of(kind: &str, tensors: &[(&str, TensorType, &[usize], Vec<u8>)]) -> String {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("bad.gguf");
    let mut metadata = Metadata::new(&path);
    metadata.set("general.type", Value::String(kind.to_owned()));
    metadata.set("imatrix.datasets", Value::Array(Array::String(Vec::new())));
    metadata.set("imatrix.chunk_count", Value::U32(1));
    metadata.set("imatrix.chunk_size", Value::U32(512));
    let infos: Vec<_> = tensors.iter().map(|t| (t.0.to_owned(), t.1, t.2.to_vec())).collect();
    let mut writer = GgufWriter::create(&path, &metadata, &infos).expect("create");
    tensors.iter().for_each(|t| writer.tensor(t.0, &t.3).expect("data"));
    writer.finish().expect("finish");
    Imatrix::read(&path).expect_err("no importance matrix").to_string()
}

fn floats(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn broken_files_are_refused_by_name() {
    let sums = |x: &[f32]| ("w.weight.in_sum2", TensorType::F32, &[2usize, 1][..], floats(x));
    let counts = ("w.weight.counts", TensorType::F32, &[1usize, 1][..], floats(&[4.0]));
    let good = sums(&[1.0, 2.0]);
    for (culprit, error) in [
        ("general.type", error_of("model", &[good.clone(), counts.clone()])),
        ("NAME.in_sum2", error_of("imatrix", &[])),
        ("w.weight.counts", error_of("imatrix", std::slice::from_ref(&good))),
        ("w.weight.in_sum2", error_of("imatrix", std::slice::from_ref(&counts))),
        ("found NaN", error_of("imatrix", &[sums(&[1.0, f32::NAN]), counts.clone()])),
        ("found inf", error_of("imatrix", &[sums(&[f32::INFINITY, 1.0]), counts.clone()])),
        (
            "found -1",
            error_of("imatrix", &[good.clone(), ("w.weight.counts", TensorType::F32, &[1], floats(&[-1.0]))]),
        ),
        (
            "found 2 elements",
            error_of(
                "imatrix",
                &[good.clone(), ("w.weight.counts", TensorType::F32, &[2], floats(&[1.0, 1.0]))],
            ),
        ),
        ("type F16", error_of("imatrix", &[good, ("w.weight.counts", TensorType::F16, &[1, 1], vec![0, 0])])),
    ] {
        assert!(error.contains("bad.gguf") && error.contains(culprit), "{culprit}: {error}");
    }
    let missing = Imatrix::read(Path::new("/nowhere/imatrix.gguf")).expect_err("no file").to_string();
    assert!(missing.starts_with("/nowhere/imatrix.gguf"), "{missing}");
}
