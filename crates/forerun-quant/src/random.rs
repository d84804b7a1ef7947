//! Random weights of any type: benchmarks on real shapes without real files, and tests.

use crate::TensorType;

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Byte offsets of a block's float16 fields that are scales, and of those that are minima with the ratio to the scale that
/// centres the values on zero.
fn f16_fields(ty: TensorType) -> (&'static [usize], Option<(usize, f32)>) {
    use TensorType as T;
    match ty {
        T::Q4_1 => (&[0], Some((2, -7.5))),
        T::Q5_1 => (&[0], Some((2, -15.5))),
        T::Q2_K => (&[80], Some((82, 1.5))),
        T::Q4_K => (&[0], Some((2, 7.5))),
        T::Q5_K => (&[0], Some((2, 15.5))),
        T::Q3_K => (&[108], None),
        T::Q6_K => (&[208], None),
        T::TQ1_0 => (&[52], None),
        T::TQ2_0 => (&[64], None),
        T::MXFP4 | T::IQ1_M | T::Affine(_) => (&[], None),
        _ if !ty.is_weight() || ty.block_elements() == 1 => (&[], None),
        _ => (&[0], None),
    }
}

/// Standard deviation of a value under scale 1 and uniformly random levels and sub-scales.
fn spread(ty: TensorType) -> f32 {
    use TensorType as T;
    match ty {
        T::Q4_0 | T::Q4_1 => 4.6,
        T::Q5_0 | T::Q5_1 => 9.2,
        T::Q8_0 => 73.9,
        T::Q2_K => 14.0,
        T::Q3_K => 42.0,
        T::Q4_K => 250.0,
        T::Q5_K => 500.0,
        T::Q6_K => 1370.0,
        T::IQ4_NL => 70.0,
        T::IQ4_XS => 1300.0,
        T::IQ2_XXS | T::IQ2_XS | T::IQ2_S => 60.0,
        T::IQ3_XXS => 150.0,
        T::IQ3_S => 150.0,
        T::IQ1_S | T::IQ1_M => 7.5,
        T::Affine(a) => (1 << a.bits()) as f32 / 12.0_f32.sqrt(),
        _ => 0.8,
    }
}

/// `rows` rows of `cols` random weights whose standard deviation is about `1/√cols`. Equal arguments give equal bytes.
///
/// `None` when `cols` is no multiple of the type's block or the size overflows.
#[must_use]
pub fn random_rows(ty: TensorType, rows: usize, cols: usize, seed: u64) -> Option<Vec<u8>> {
    let len = ty.row_bytes(cols)?.checked_mul(rows)?;
    let mut rng = SplitMix(seed);
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    while bytes.len() + 8 <= len {
        bytes.extend_from_slice(&rng.next().to_le_bytes());
    }
    bytes.extend_from_slice(&rng.next().to_le_bytes()[..len - bytes.len()]);
    let std = 1.0 / (cols.max(1) as f32).sqrt();
    match ty {
        TensorType::F32 => floats(&mut bytes, std, &mut rng, |v| v.to_le_bytes()),
        TensorType::F16 => floats(&mut bytes, std, &mut rng, |v| half::f16::from_f32(v).to_le_bytes()),
        TensorType::BF16 => floats(&mut bytes, std, &mut rng, |v| half::bf16::from_f32(v).to_le_bytes()),
        _ => scales(ty, &mut bytes, std, &mut rng),
    }
    Some(bytes)
}

/// Sums of four uniform numbers: near enough to a normal distribution.
fn floats<const N: usize>(bytes: &mut [u8], std: f32, rng: &mut SplitMix, encode: impl Fn(f32) -> [u8; N]) {
    for b in bytes.as_chunks_mut::<N>().0 {
        let r = rng.next();
        let sum: f32 = (0..4).map(|i| ((r >> (16 * i)) & 0xffff) as f32 / 65536.0 - 0.5).sum();
        *b = encode(sum * std * 1.732);
    }
}

fn scales(ty: TensorType, bytes: &mut [u8], std: f32, rng: &mut SplitMix) {
    let (fields, min) = f16_fields(ty);
    let base = std / spread(ty);
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        let d = base * (0.75 + (rng.next() >> 40) as f32 / (1u64 << 25) as f32);
        let mut put =
            |at: usize, v: f32| block[at..at + 2].copy_from_slice(&half::f16::from_f32(v).to_le_bytes());
        for &at in fields {
            put(at, d);
        }
        if let Some((at, ratio)) = min {
            put(at, d * ratio);
        }
        match ty {
            TensorType::Affine(a) => a.put_line(block, d, d * ((1 << a.bits()) - 1) as f32 / -2.0),
            // Level 12/2 is the largest; the exponent byte is that of the wanted spread.
            TensorType::MXFP4 => block[0] = (127.0 + (std / 3.0).log2()).clamp(0.0, 254.0) as u8,
            TensorType::IQ1_M => {
                let bits = half::f16::from_f32(d).to_bits();
                for i in 0..4 {
                    let high = &mut block[49 + 2 * i];
                    *high = (*high & 0x0f) | (((bits >> (4 * i)) & 15) << 4) as u8;
                }
            }
            _ => {}
        }
    }
}
