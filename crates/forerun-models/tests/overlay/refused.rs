//! Overlays that do not fit, are not whole or are not overlays: each error names the file, the culprit, what was found and
//! what was expected.

use super::fake::Fake;
use super::writer::{Matrix, Overlay};
use super::{DENSE, EXPERTS, file, model, overlaid};
use forerun_models::OverlaySource;

const FOUR: (usize, usize, &str) = (4, 32, "BF16");

/// A good overlay of the dense model.
fn good() -> Overlay {
    let mut overlay = Overlay::new("4", "32");
    overlay.add("blk.3.attn_q", &Matrix::random(256, 64, FOUR, 1));
    overlay.add("blk.0.ffn_up", &Matrix::random(128, 64, FOUR, 2));
    overlay
}

/// A good overlay of the model with experts.
fn good_experts() -> Overlay {
    let mut overlay = Overlay::new("4", "32");
    for e in 0..3 {
        overlay.add(&format!("blk.0.ffn_gate_up.{e}"), &Matrix::random(64, 64, FOUR, e));
        overlay.add(&format!("blk.0.ffn_down.{e}"), &Matrix::random(64, 32, FOUR, e));
    }
    overlay
}

/// How to spoil an overlay, and what the error must say beside the file's name.
type Case = (fn(&mut Overlay), &'static [&'static str]);

fn check(base: &dyn Fn() -> Fake, good: &dyn Fn() -> Overlay, cases: &[Case]) {
    overlaid(base(), &good()).unwrap_or_else(|e| panic!("{e}"));
    for (i, (spoil, wanted)) in cases.iter().enumerate() {
        let mut overlay = good();
        spoil(&mut overlay);
        let Err(message) = overlaid(base(), &overlay) else {
            panic!("case {i}, {wanted:?}: opened without an error")
        };
        for part in ["over.safetensors", "expected"].iter().chain(*wanted) {
            assert!(message.contains(part), "case {i}: {message:?} does not say {part:?}");
        }
    }
}

fn add(o: &mut Overlay, stem: &str, rows: usize, cols: usize) {
    o.add(stem, &Matrix::random(rows, cols, FOUR, 3));
}

fn set(o: &mut Overlay, key: &'static str, value: &'static str) {
    o.strings.retain(|(k, _)| *k != key);
    o.strings.push((key, value));
}

#[test]
fn metadata_that_says_something_else() {
    let cases: &[Case] = &[
        (
            |o| set(o, "format", "mlx-affine-dwq-v2"),
            &["`format`", "mlx-affine-dwq-v2", "`mlx-affine-dwq-v1`"],
        ),
        (|o| set(o, "bits", "four"), &["`bits`", "`four`", "2, 3, 4, 5, 6 or 8"]),
        (|o| set(o, "bits", "7"), &["`bits`", "`7`"]),
        (|o| set(o, "bits", "99999999999999999999999"), &["`bits`", "999999"]),
        (|o| set(o, "group_size", "-32"), &["`group_size`", "`-32`", "32, 64 or 128"]),
        (|o| set(o, "group_size", "16"), &["`group_size`", "`16`"]),
        (|o| set(o, "transposed", "maybe"), &["`transposed`", "`maybe`", "true or false"]),
        // Other numbers than the tensors are of.
        (|o| set(o, "bits", "8"), &["blk.0.ffn_up.weight", "shape [128, 8]", "[128, 16]", "8 bits"]),
        (|o| set(o, "group_size", "64"), &["blk.0.ffn_up.weight", "shape [128, 8]", "[128, 16]", "64"]),
    ];
    check(&|| model(&DENSE), &good, cases);
}

#[test]
fn tensors_that_are_no_matrices() {
    let cases: &[Case] = &[
        (|o| o.tensors.clear(), &["no tensors"]),
        (|o| o.remove("blk.3.attn_q.weight"), &["blk.3.attn_q.weight", "missing", ".biases"]),
        (|o| o.remove("blk.3.attn_q.scales"), &["blk.3.attn_q.scales", "missing"]),
        (|o| o.remove("blk.0.ffn_up.biases"), &["blk.0.ffn_up.biases", "missing"]),
        (|o| o.raw("blk.0.ffn_up.zeros", "F32", &[1], vec![0; 4]), &["blk.0.ffn_up.zeros", ".weight"]),
        (|o| o.raw("lone", "F32", &[1], vec![0; 4]), &["`lone`"]),
        (|o| o.tensor("blk.0.ffn_up.weight").dtype = "I32", &["blk.0.ffn_up.weight", "type I32", "U32"]),
        (|o| o.tensor("blk.0.ffn_up.scales").dtype = "I16", &["blk.0.ffn_up.scales", "F32, F16 or BF16"]),
        (|o| o.tensor("blk.0.ffn_up.biases").dtype = "F16", &["blk.0.ffn_up.biases", "type F16", "BF16"]),
        (|o| o.tensor("blk.0.ffn_up.scales").shape = vec![256], &["blk.0.ffn_up.scales", "shape [256]"]),
        (
            |o| o.tensor("blk.0.ffn_up.biases").shape = vec![2, 128],
            &["blk.0.ffn_up.biases", "shape [2, 128]", "[128, 2]"],
        ),
        (
            |o| o.tensor("blk.0.ffn_up.weight").shape = vec![64, 16],
            &["blk.0.ffn_up.weight", "shape [64, 16]", "[128, 8]"],
        ),
        (|o| o.tensor("blk.0.ffn_up.weight").shape = vec![1024], &["blk.0.ffn_up.weight", "shape [1024]"]),
    ];
    check(&|| model(&DENSE), &good, cases);
}

#[test]
fn stems_that_the_model_has_no_place_for() {
    let cases: &[Case] = &[
        (|o| add(o, "blk.0.ssm_out", 64, 128), &["blk.0.ssm_out.weight", "unknown stem", "ffn_gate_up"]),
        (|o| add(o, "token_embd", 96, 64), &["token_embd.weight", "unknown stem"]),
        (|o| add(o, "blk.00.ffn_up", 128, 64), &["blk.00.ffn_up.weight", "unknown stem"]),
        (|o| add(o, "blk.+1.ffn_up", 128, 64), &["blk.+1.ffn_up.weight", "unknown stem"]),
        (|o| add(o, "blk.0.ffn_up_exps", 128, 64), &["blk.0.ffn_up_exps.weight", "unknown stem"]),
        (|o| add(o, "blk.0.ffn_up.x", 128, 64), &["blk.0.ffn_up.x.weight", "unknown stem"]),
        (|o| add(o, "blk.9.ffn_up", 128, 64), &["blk.9.ffn_up.weight", "tiny.gguf has not", "block 9"]),
        (
            |o| add(o, "blk.1.attn_q", 256, 64),
            &["blk.1.attn_q.weight", "tiny.gguf has not", "block 1", "linear attention"],
        ),
        (|o| add(o, "blk.0.ffn_up.0", 32, 64), &["blk.0.ffn_up.0.weight", "tiny.gguf has not"]),
        (
            |o| add(o, "blk.0.ffn_down.0", 64, 32),
            &["blk.0.ffn_down.0.weight", "`blk.0.ffn_down_exps.weight`"],
        ),
        (|o| add(o, "output", 95, 64), &["output.weight", "95 rows of 64", "96 rows of 64"]),
        (|o| add(o, "blk.3.attn_k", 64, 128), &["blk.3.attn_k.weight", "64 rows of 128", "64 rows of 64"]),
        // Attention has one orientation.
        (|o| add(o, "blk.3.attn_output", 128, 64), &["blk.3.attn_output.weight", "64 rows of 128"]),
        (
            |o| add(o, "blk.0.ffn_down", 96, 128),
            &["blk.0.ffn_down.weight", "96 rows of 128", "64 rows of 128"],
        ),
        (
            |o| set(o, "transposed", "true"),
            &["blk.0.ffn_up.weight", "128 rows of 64", "64 rows of 128", "`transposed` is true"],
        ),
        (
            |o| {
                set(o, "transposed", "false");
                add(o, "blk.1.ffn_up", 64, 128);
            },
            &["blk.1.ffn_up.weight", "64 rows of 128", "128 rows of 64"],
        ),
    ];
    check(&|| model(&DENSE), &good, cases);
}

fn remove(o: &mut Overlay, stem: &str) {
    ["weight", "scales", "biases"].iter().for_each(|part| o.remove(&format!("{stem}.{part}")));
}

#[test]
fn experts_that_do_not_fit() {
    let cases: &[Case] = &[
        (
            |o| remove(o, "blk.0.ffn_down.1"),
            &["blk.0.ffn_down.1.weight", "missing", "1 of the 3 experts", "all experts"],
        ),
        (
            |o| [0, 2].iter().for_each(|e| remove(o, &format!("blk.0.ffn_gate_up.{e}"))),
            &["blk.0.ffn_gate_up.0.weight", "missing", "2 of the 3 experts"],
        ),
        (|o| add(o, "blk.0.ffn_down.3", 64, 32), &["blk.0.ffn_down.3.weight", "expert 3", "0 to 2"]),
        (
            |o| add(o, "blk.0.ffn_down.18446744073709551615", 64, 32),
            &["blk.0.ffn_down.18446744073709551615", "expert 18446744073709551615"],
        ),
        (
            |o| add(o, "blk.0.ffn_gate.2", 32, 64),
            &["blk.0.ffn_gate_up.2.weight", "same expert as `blk.0.ffn_gate.2`", "once"],
        ),
        (|o| add(o, "blk.0.ffn_down.01", 64, 32), &["blk.0.ffn_down.01.weight", "unknown stem"]),
        (
            |o| add(o, "blk.1.ffn_gate.0", 64, 32),
            &["blk.1.ffn_gate.0.weight", "64 rows of 32", "32 rows of 64"],
        ),
        (|o| add(o, "blk.1.ffn_gate_up.0", 32, 64), &["blk.1.ffn_gate_up.0.weight", "64 rows of 64"]),
        (
            |o| {
                remove(o, "blk.0.ffn_down.1");
                o.add("blk.0.ffn_down.1", &Matrix::random(64, 32, (4, 32, "F16"), 1));
            },
            &["blk.0.ffn_down.", "affine4g32/bf16", "affine4g32/f16", "one type"],
        ),
        (|o| add(o, "blk.0.ffn_up", 32, 64), &["blk.0.ffn_up.weight", "tiny.gguf has not"]),
    ];
    check(&|| model(&EXPERTS), &good_experts, cases);
}

/// The same name twice in one header leaves bytes that no tensor owns.
#[test]
fn the_same_tensor_twice() {
    let mut overlay = good();
    let again = overlay.tensor("blk.3.attn_q.scales").clone();
    overlay.tensors.push(again);
    let message = overlaid(model(&DENSE), &overlay).err().expect("an error");
    assert!(message.contains("over.safetensors") && message.contains("safetensors header"), "{message}");
}

/// A file cut anywhere, or with any byte of its header changed, is refused or read, and nothing panics.
#[test]
fn broken_files() {
    let whole = good_experts().bytes();
    let open = |bytes: &[u8]| {
        let file = file(bytes);
        OverlaySource::open(Box::new(model(&EXPERTS)), &file.path).map_err(|e| e.to_string())
    };
    let header = 8 + u64::from_le_bytes(*whole.first_chunk().expect("a length")) as usize;
    for len in (0..header).step_by(97).chain([header, whole.len() - 1]) {
        let message = open(&whole[..len]).err().unwrap_or_else(|| panic!("{len} bytes were read"));
        assert!(message.contains("over.safetensors"), "{message}");
    }
    for at in (0..header).step_by(23) {
        for change in [1, 0x10, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            if let Err(message) = open(&bytes) {
                assert!(message.contains("over.safetensors"), "{message}");
            }
        }
    }
    let mut huge = whole.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(open(&huge).is_err());
}
