//! Whole files against llama.cpp's: type and sha256 of every tensor that its `llama-quantize` wrote from the same source and
//! importance matrix.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use forerun_files::{Checkpoint, Gguf};
use forerun_models::CheckpointSource;
use forerun_weights::{ConvertOptions, FileType, Imatrix, Keep, WeightsError, convert};
use sha2::{Digest, Sha256};

/// File type, tensor, then [type, sha256].
type Sums = BTreeMap<String, BTreeMap<String, [String; 2]>>;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/quantize")).join(name)
}

fn source() -> CheckpointSource {
    CheckpointSource::open(&fixture("source-f16.gguf")).expect("source")
}

fn imatrix() -> Imatrix {
    Imatrix::read(&fixture("imatrix.gguf")).expect("importance matrix")
}

/// Type and sha256 of every tensor of the file that is made.
fn made(options: &ConvertOptions<'_>) -> Result<BTreeMap<String, [String; 2]>, WeightsError> {
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.gguf");
    convert(&source(), &out, options, &mut |_| true)?;
    let file = Gguf::open(&out).expect("GGUF");
    let sum = |bytes: &[u8]| {
        Sha256::digest(bytes).iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a string");
            hex
        })
    };
    let tensors = file.tensors().iter().map(|t| {
        let bytes = file.bytes(t).expect("bytes");
        (t.name.clone(), [t.kind.to_string(), sum(bytes)])
    });
    Ok(tensors.collect())
}

/// Makes every file that has sums, and gives back how many tensors were compared.
fn check(sums: &str, imatrix: Option<&Imatrix>) -> usize {
    let sums: Sums =
        serde_json::from_slice(&std::fs::read(fixture(sums)).expect("sums")).expect("JSON of sums");
    for (i, (name, want)) in sums.iter().enumerate() {
        let ty = FileType::from_name(name).unwrap_or_else(|| panic!("{name}"));
        let threads = NonZeroUsize::new(1 + i % 3);
        let options = ConvertOptions { imatrix, threads, ..ConvertOptions::new(ty) };
        let got = made(&options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(got.len(), want.len(), "{name}");
        for (tensor, want) in want {
            assert_eq!(&got[tensor], want, "{name}: {tensor}");
        }
    }
    sums.values().map(BTreeMap::len).sum()
}

#[test]
fn files_are_those_of_llama_quantize() {
    assert_eq!(check("sha256.json", None), 17 * 71);
    assert_eq!(check("sha256-imatrix.json", Some(&imatrix())), 10 * 71);
}

fn wishes(texts: &[&str]) -> Vec<Keep> {
    texts.iter().map(|t| Keep::parse(t).unwrap_or_else(|e| panic!("{e}"))).collect()
}

/// What a caller wants for some tensors changes no others.
#[test]
fn tensors_that_get_another_type() {
    let keep = wishes(&["ffn_down=q8_0", r"blk\.0\.ffn_down=q4_0", "attn_q=same"]);
    let options = ConvertOptions { keep: &keep, ..ConvertOptions::new(FileType::Q4_K_M) };
    let (with, without) =
        (made(&options).expect("made"), made(&ConvertOptions::new(FileType::Q4_K_M)).expect("made"));
    let mut changed = 0;
    for (name, [ty, _]) in &with {
        let want = match name.as_str() {
            n if n.contains("ffn_down") => "Q8_0",
            n if n.contains("attn_q.") || n.contains("attn_qkv.") => "F16",
            n => without[n][0].as_str(),
        };
        changed += usize::from(want != without[name][0]);
        assert_eq!(ty, want, "{name}");
    }
    assert!(changed > 8, "{changed}");
}

fn error(options: &ConvertOptions<'_>) -> String {
    made(options).expect_err("an error").to_string()
}

#[test]
fn what_does_not_fit_is_refused() {
    for (wish, words) in [
        ("nothing_like_it=q8_0", ["keep", "no tensor"].as_slice()),
        ("output_norm=q8_0", &["keep", "never change"]),
    ] {
        let keep = wishes(&[wish]);
        let error = error(&ConvertOptions { keep: &keep, ..ConvertOptions::new(FileType::Q4_K_M) });
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    }
    for text in ["attn_v", "=q8_0", "attn_v=q9", "attn_v=iq1_s", "(=q8_0"] {
        assert!(Keep::parse(text).is_err(), "{text}");
    }
    let error = error(&ConvertOptions::new(FileType::Q2_K_S));
    assert!(error.contains("q2_k_s") && error.contains("--imatrix"), "{error}");
}

#[test]
fn blocks_are_not_quantised_twice_unless_asked() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = dir.path().join("q8_0.gguf");
    convert(&source(), &first, &ConvertOptions::new(FileType::Q8_0), &mut |_| true).expect("made");
    let from = CheckpointSource::open(&first).expect("GGUF");
    let out = dir.path().join("out.gguf");
    let options = ConvertOptions::new(FileType::Q4_K_M);
    let error = convert(&from, &out, &options, &mut |_| true).expect_err("an error").to_string();
    assert!(error.contains("--allow-requantize") && error.contains("Q8_0"), "{error}");
    assert!(!out.exists());
    let options = ConvertOptions { allow_requantize: true, ..options };
    let done = convert(&from, &out, &options, &mut |_| true).expect("made");
    assert!(done.changed > 20 && done.bits_per_weight() < 6.0, "{done:?}");
    // Floats can always be made of them.
    convert(&from, &out, &ConvertOptions::new(FileType::F32), &mut |_| true).expect("made");
}

#[test]
fn importance_of_another_model_is_refused_and_absent_one_is_named() {
    let mut other = Imatrix::new("other.gguf".as_ref(), 512);
    other.entry("blk.0.attn_gate.weight", 128, 1).expect("an entry").add_row(0, &[1.0; 128]);
    let options = ConvertOptions { imatrix: Some(&other), ..ConvertOptions::new(FileType::Q4_K_M) };
    let error = error(&options);
    assert!(error.contains("other.gguf") && error.contains("blk.0.attn_gate.weight"), "{error}");

    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.gguf");
    let all = imatrix();
    let options = ConvertOptions { imatrix: Some(&all), ..ConvertOptions::new(FileType::Q4_K_M) };
    let done = convert(&source(), &out, &options, &mut |_| true).expect("made");
    assert!(done.unweighed.iter().any(|n| n.ends_with("nextn.eh_proj.weight")), "{:?}", done.unweighed);
    let file = CheckpointSource::open(&out).expect("GGUF");
    let meta = forerun_models::Source::metadata(&file);
    assert_eq!(meta.u32("general.file_type").expect("a number"), 15);
    assert_eq!(meta.u32("quantize.imatrix.entries_count").expect("a number") as usize, all.len());
}
