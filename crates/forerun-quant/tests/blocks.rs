//! Decoding against values made by an independent decoder, and dot products against float64.
//!
//! `FORERUN_QUANT_FIXTURES=DIR` runs the decoding test on another folder of the same form.

use std::path::PathBuf;

use forerun_quant::{QuantRow, TensorType, decode_row, dot, dot_quantised, random_rows};
use proptest::prelude::*;
use safetensors::SafeTensors;

fn folder() -> PathBuf {
    std::env::var_os("FORERUN_QUANT_FIXTURES")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/quants").into(), PathBuf::from)
}

#[test]
fn decoding_equals_the_fixtures_bit_for_bit() {
    let mut seen = 0;
    for entry in std::fs::read_dir(folder()).expect("fixture folder") {
        let path = entry.expect("entry").path();
        let Some(ty) = path.file_stem().and_then(|s| TensorType::from_name(s.to_str()?)) else { continue };
        let bytes = std::fs::read(&path).expect("fixture");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        let (raw, values) = (file.tensor("raw").expect("raw"), file.tensor("values").expect("values"));
        let [rows, cols] = values.shape() else { panic!("{ty}: values are no matrix") };
        let row_bytes = raw.data().len() / rows;
        for r in 0..*rows {
            let mut got = vec![0.0; *cols];
            decode_row(ty, &raw.data()[r * row_bytes..][..row_bytes], &mut got).expect("row");
            for (c, (got, want)) in
                got.iter().zip(values.data()[4 * r * cols..].as_chunks::<4>().0).enumerate()
            {
                let want = f32::from_le_bytes(*want);
                assert_eq!(got.to_bits(), want.to_bits(), "{ty} row {r} column {c}: {got} for {want}");
            }
        }
        seen += 1;
    }
    assert!(seen > 0, "no fixture in {}", folder().display());
    if std::env::var_os("FORERUN_QUANT_FIXTURES").is_none() {
        assert_eq!(seen, TensorType::GGML.iter().filter(|t| t.is_weight()).count() - 1, "every type but F32");
    }
}

/// Normally distributed numbers, by Box and Muller.
fn gaussian(n: usize, seed: u64) -> Vec<f32> {
    let bytes = random_rows(TensorType::I8, 1, 16 * n, seed).expect("bytes");
    let uniform =
        |b: &[u8]| (f64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])) + 0.5) / 4_294_967_296.0;
    bytes
        .chunks_exact(16)
        .map(|b| ((-2.0 * uniform(b).ln()).sqrt() * (std::f64::consts::TAU * uniform(&b[4..])).cos()) as f32)
        .collect()
}

#[test]
fn dot_products_agree_with_float64() {
    const COLS: usize = 1024;
    const ROWS: usize = 64;
    for &ty in TensorType::ALL.iter().filter(|t| t.is_weight()) {
        let x = gaussian(COLS, 7);
        let quantised = QuantRow::new(&x);
        let weights = random_rows(ty, ROWS, COLS, 3).expect("weights");
        let (mut error, mut power) = (0.0, 0.0);
        for row in weights.chunks_exact(weights.len() / ROWS) {
            let mut w = vec![0.0; COLS];
            decode_row(ty, row, &mut w).expect("row");
            let exact: f64 = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let got = dot(ty, row, &x).expect("dot");
            error += (f64::from(got) - exact).powi(2);
            power += exact * exact;
            if ty.is_integer_dot() {
                let mut sum = 0.0;
                let mut size = 0.0;
                for (k, w) in w.iter().enumerate() {
                    let b = &quantised.blocks[k / 32];
                    let term = f64::from(*w) * f64::from(b.d) * f64::from(b.q[k % 32]);
                    sum += term;
                    size += term.abs();
                }
                assert!((f64::from(got) - sum).abs() <= 2e-6 * size, "{ty}: {got} for {sum} of {size}");
            }
        }
        let bound = if ty.is_integer_dot() { 5e-5 } else { 1e-12 };
        assert!(error / power <= bound, "{ty}: NMSE {:.2e}", error / power);
    }
}

#[test]
fn random_weights_have_the_wanted_spread() {
    for &ty in TensorType::ALL.iter().filter(|t| t.is_weight()) {
        let bytes = random_rows(ty, 16, 4096, 1).expect("weights");
        let mut sum = 0.0;
        for row in bytes.chunks_exact(bytes.len() / 16) {
            let mut w = vec![0.0; 4096];
            decode_row(ty, row, &mut w).expect("row");
            sum += w.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        }
        let std = (sum / 16.0).sqrt();
        assert!((0.4..2.5).contains(&std), "{ty}: {std:.3} of the wanted deviation");
    }
}

#[test]
fn special_activations() {
    for &ty in TensorType::ALL.iter().filter(|t| t.is_integer_dot()) {
        let row = random_rows(ty, 1, 256, 5).expect("weights");
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 256];
            x[77] = bad;
            assert!(dot(ty, &row, &x).expect("dot").is_nan(), "{ty} with {bad}");
        }
        assert_eq!(dot(ty, &row, &[0.0; 256]), Ok(0.0), "{ty}");
        assert_eq!(dot(ty, &row, &[1e-38; 256]), Ok(0.0), "{ty}");
        assert!(dot(ty, &row, &[1e30; 256]).expect("dot").is_finite(), "{ty}");
    }
}

#[test]
fn wrong_lengths_are_errors() {
    let mut out = [0.0; 256];
    assert!(decode_row(TensorType::Q4_K, &[0; 143], &mut out).is_err());
    assert!(decode_row(TensorType::Q4_K, &[0; 144], &mut out[..200]).is_err());
    assert!(decode_row(TensorType::I32, &[0; 1024], &mut out).is_err());
    assert!(dot_quantised(TensorType::F32, &[0; 128], &QuantRow::new(&out[..32])).is_err());
    assert_eq!(TensorType::Q4_K.row_bytes(100), None);
}

proptest! {
    #[test]
    fn any_bytes_decode_and_multiply(ty in prop::sample::select(TensorType::ALL), bytes in prop::collection::vec(any::<u8>(), 1024)) {
        prop_assume!(ty.is_weight());
        let row = &bytes[..ty.row_bytes(256).expect("256 columns")];
        let mut out = [0.0; 256];
        decode_row(ty, row, &mut out).expect("decode");
        dot(ty, row, &[0.5; 256]).expect("dot");
    }
}
