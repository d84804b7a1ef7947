//! Affine weights against a decoder of MLX's three tensors that shares nothing with the crate: it walks the row's bits one
//! by one, as the format is written down.

use forerun_quant::{Affine, AffineParts, QuantError, QuantRow, TensorType, decode_row, dot_quantised};
use proptest::prelude::*;

/// MLX's tensors of some rows.
#[derive(Debug)]
struct Mlx {
    ty: Affine,
    cols: usize,
    weight: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl Mlx {
    /// Rows of the given bytes, repeated as often as needed.
    fn of(ty: Affine, rows: usize, cols: usize, bytes: &[u8]) -> Self {
        let mut endless = bytes.iter().copied().cycle();
        let mut take = |n: usize| endless.by_ref().take(n).collect::<Vec<u8>>();
        let floats = rows * cols / ty.group() * ty.scale().block_bytes();
        let words = rows * cols * ty.bits() / 32;
        Self { ty, cols, weight: take(4 * words), scales: take(floats), biases: take(floats) }
    }

    /// Rows of random levels, with scales and biases of every size.
    fn random(ty: Affine, rows: usize, cols: usize, seed: u64) -> Self {
        Self::of(ty, rows, cols, &forerun_quant::random_rows(TensorType::I8, 1, 8191, seed).expect("bytes"))
    }

    fn parts(&self) -> AffineParts<'_> {
        AffineParts { weight: &self.weight, scales: &self.scales, biases: &self.biases }
    }

    fn row_bytes(&self) -> usize {
        TensorType::Affine(self.ty).row_bytes(self.cols).expect("whole groups")
    }

    fn rows(&self) -> usize {
        8 * self.weight.len() / self.cols / self.ty.bits()
    }

    /// All rows joined at once.
    fn blocks(&self) -> Vec<u8> {
        let mut out = vec![0xa5; self.rows() * self.row_bytes()];
        self.ty.join(self.parts(), &mut out).expect("parts that fit");
        out
    }

    /// Bit `i` of row `r`: bit i mod 32 of the row's 32-bit word i / 32.
    fn bit(&self, r: usize, i: usize) -> u32 {
        let words = self.cols * self.ty.bits() / 32;
        let at = 4 * (r * words + i / 32);
        let word = u32::from(self.weight[at])
            + u32::from(self.weight[at + 1]) * 0x100
            + u32::from(self.weight[at + 2]) * 0x1_0000
            + u32::from(self.weight[at + 3]) * 0x100_0000;
        word >> (i % 32) & 1
    }

    fn level(&self, r: usize, j: usize) -> u32 {
        let b = self.ty.bits();
        (0..b).map(|k| self.bit(r, j * b + k) << k).sum()
    }

    fn line(&self, r: usize, j: usize) -> (f32, f32) {
        let at = r * (self.cols / self.ty.group()) + j / self.ty.group();
        let float = |all: &[u8]| match self.ty.scale() {
            TensorType::F32 => f32::from_bits((0..4).map(|i| u32::from(all[4 * at + i]) << (8 * i)).sum()),
            TensorType::BF16 => {
                f32::from_bits((0..2).map(|i| u32::from(all[2 * at + i]) << (16 + 8 * i)).sum())
            }
            _ => f16(u32::from(all[2 * at]) + 256 * u32::from(all[2 * at + 1])),
        };
        (float(&self.scales), float(&self.biases))
    }

    /// `scale · level + bias`, each rounded once.
    fn value(&self, r: usize, j: usize) -> f32 {
        let (scale, bias) = self.line(r, j);
        scale * self.level(r, j) as f32 + bias
    }
}

/// IEEE half precision, from its definition.
fn f16(bits: u32) -> f32 {
    let (sign, exponent, mantissa) = (bits >> 15, (bits >> 10 & 31) as i32, f64::from(bits & 1023) / 1024.0);
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-14),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1.0 + mantissa) * 2f64.powi(e - 15),
    };
    (if sign == 1 { -magnitude } else { magnitude }) as f32
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn check_decoding(mlx: &Mlx) {
    let blocks = mlx.blocks();
    for (r, row) in blocks.chunks_exact(mlx.row_bytes()).enumerate() {
        let mut got = vec![0.0; mlx.cols];
        decode_row(TensorType::Affine(mlx.ty), row, &mut got).expect("a row");
        for (j, got) in got.into_iter().enumerate() {
            let want = mlx.value(r, j);
            assert!(same(got, want), "{} row {r} column {j}: {got:e} for {want:e}", mlx.ty.name());
        }
    }
}

/// The steps as the crate's documentation has them.
fn check_dot(mlx: &Mlx) {
    let x: Vec<f32> = (0..mlx.cols).map(|i| ((i * 37 + 11) % 101) as f32 - 50.5).collect();
    let x = QuantRow::new(&x);
    for (r, row) in mlx.blocks().chunks_exact(mlx.row_bytes()).enumerate() {
        let mut want = 0.0f32;
        for (b, x) in x.blocks.iter().enumerate() {
            let (scale, bias) = mlx.line(r, 32 * b);
            let sum: i64 = (0..32).map(|i| i64::from(mlx.level(r, 32 * b + i)) * i64::from(x.q[i])).sum();
            want = (scale * x.d).mul_add(sum as f32, want);
            want = bias.mul_add(x.sx, want);
        }
        let got = dot_quantised(TensorType::Affine(mlx.ty), row, &x).expect("a row");
        assert!(same(got, want), "{} row {r}: {got:e} for {want:e}", mlx.ty.name());
    }
}

#[test]
fn every_type_decodes_and_multiplies_as_it_is_written_down() {
    for (i, ty) in Affine::ALL.into_iter().enumerate() {
        for (rows, cols) in [(1, ty.group()), (3, 5 * ty.group()), (2, 384)] {
            let mlx = Mlx::random(ty, rows, cols, i as u64);
            check_decoding(&mlx);
            check_dot(&mlx);
        }
    }
}

/// Elements 10 of 3 bits, 6 of 5 bits and 5 of 6 bits lie in two words.
#[test]
fn levels_straddle_words() {
    for (bits, j, words, level) in [
        (3, 10, [0xc000_0000u32, 1], 7),
        (3, 10, [0x8000_0000, 0], 2),
        (3, 21, [0, 0x8000_0000], 1),
        (5, 6, [0xc000_0000, 0b101], 0b1_0111),
        (6, 5, [0x4000_0000, 0b1001], 0b10_0101),
    ] {
        let ty = Affine::new(bits, 32, TensorType::F32).expect("a type");
        let mut weight: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        weight.resize(4 * bits, 0);
        let (scales, biases) = (1.0f32.to_le_bytes(), 0.0f32.to_le_bytes());
        let parts = AffineParts { weight: &weight, scales: &scales, biases: &biases };
        let mut block = vec![0; ty.block_bytes()];
        ty.join(parts, &mut block).expect("a group");
        let mut out = [0.0; 32];
        decode_row(TensorType::Affine(ty), &block, &mut out).expect("a row");
        assert_eq!(out[j], level as f32, "{bits} bits: {out:?}");
    }
}

#[test]
fn pieces_join_to_the_whole() {
    for ty in Affine::ALL {
        let mlx = Mlx::random(ty, 7, 2 * ty.group(), 3);
        let whole = mlx.blocks();
        let mut pieces = Vec::new();
        for rows in [0..1, 1..4, 4..4, 4..7] {
            let mut out = vec![0; rows.len() * mlx.row_bytes()];
            ty.join(mlx.parts().rows(ty, mlx.cols, rows).expect("rows"), &mut out).expect("a piece");
            pieces.extend(out);
        }
        assert_eq!(pieces, whole, "{}", ty.name());
        assert_eq!(whole.len(), mlx.weight.len() + mlx.scales.len() + mlx.biases.len());
        assert!(mlx.parts().rows(ty, mlx.cols, 4..8).is_none());
        assert!(mlx.parts().rows(ty, mlx.cols + 1, 0..1).is_none());
        assert!(mlx.parts().rows(ty, ty.group() << 40, 0..usize::MAX).is_none());
        assert!(mlx.parts().rows(ty, mlx.cols, 1..usize::MAX).is_none());
    }
}

#[test]
fn parts_that_do_not_fit_are_errors() {
    let ty = Affine::new(4, 64, TensorType::BF16).expect("a type");
    let mlx = Mlx::random(ty, 2, 64, 1);
    let whole = mlx.parts();
    let cases = [
        (
            AffineParts { weight: &whole.weight[..60], ..whole },
            72,
            "the levels of 2 affine4g64/bf16 groups have 64 bytes: found 60",
        ),
        (
            AffineParts { scales: &[0; 8], ..whole },
            72,
            "the scales of 2 affine4g64/bf16 groups have 4 bytes: found 8",
        ),
        (
            AffineParts { biases: &[], ..whole },
            72,
            "the biases of 2 affine4g64/bf16 groups have 4 bytes: found 0",
        ),
        (whole, 71, "the blocks of 1 affine4g64/bf16 groups have 36 bytes: found 71"),
        (whole, 36, "the levels of 1 affine4g64/bf16 groups have 32 bytes: found 64"),
    ];
    for (parts, len, message) in cases {
        assert_eq!(ty.join(parts, &mut vec![0; len]).unwrap_err().to_string(), message);
    }
}

#[test]
fn types_are_found_by_what_they_are() {
    let mut names = std::collections::HashSet::new();
    for ty in Affine::ALL {
        assert_eq!(Affine::new(ty.bits(), ty.group(), ty.scale()), Ok(ty));
        assert_eq!(TensorType::from_name(&ty.name().to_uppercase()), Some(TensorType::Affine(ty)));
        assert_eq!(TensorType::Affine(ty).ggml_id(), None);
        assert_eq!(ty.name(), format!("affine{}g{}/{}", ty.bits(), ty.group(), ty.scale()).to_lowercase());
        assert!(names.insert(ty.name()));
    }
    let bf16 = Affine::new(8, 128, TensorType::BF16).map(TensorType::Affine);
    assert_eq!(TensorType::from_name("affine8g128").ok_or(()), bf16.map_err(|_| ()));
    for (bits, group, scale) in
        [(7, 32, TensorType::F32), (4, 16, TensorType::F32), (4, 64, TensorType::Q8_0)]
    {
        let error = Affine::new(bits, group, scale).unwrap_err();
        assert_eq!(error, QuantError::NoAffine { bits, group, scale });
        let found = format!("found {bits} bits, groups of {group}, {scale} scales");
        assert!(error.to_string().ends_with(&found), "{error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_decode_and_multiply_as_written_down(
        ty in prop::sample::select(&Affine::ALL[..]),
        groups in 1usize..6,
        rows in 1usize..3,
        bytes in prop::collection::vec(any::<u8>(), 1..700),
    ) {
        let mlx = Mlx::of(ty, rows, groups * ty.group(), &bytes);
        check_decoding(&mlx);
        check_dot(&mlx);
    }
}
