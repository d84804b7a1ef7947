//! Encoding float rows. The search for scales of Q4_K is the weighted least squares of ggml's reference quantiser: a grid of
//! first guesses, and for each the best line through the levels that it gives.

use half::{bf16, f16};

use crate::decode::check_row;
use crate::{QuantError, TensorType};

/// Types that [`encode_row`] writes.
pub const ENCODED: [TensorType; 6] = [
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
];

/// Encodes a row of whole blocks.
///
/// # Errors
/// When the type is none of [`ENCODED`], the row is no whole number of blocks, or `out` has not the bytes that it needs.
pub fn encode_row(ty: TensorType, row: &[f32], out: &mut [u8]) -> Result<(), QuantError> {
    let encode: fn(&[f32], &mut [u8]) = match ty {
        TensorType::Q4_0 => q4_0,
        TensorType::Q8_0 => q8_0,
        TensorType::Q4_K => q4_k,
        TensorType::F32 => |x, out| out.copy_from_slice(&x[0].to_le_bytes()),
        TensorType::F16 => |x, out| out.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
        TensorType::BF16 => |x, out| out.copy_from_slice(&bf16::from_f32(x[0]).to_le_bytes()),
        _ => return Err(QuantError::NoEncoder(ty)),
    };
    check_row(ty, out, row.len())?;
    let blocks = out.chunks_exact_mut(ty.block_bytes());
    row.chunks_exact(ty.block_elements()).zip(blocks).for_each(|(x, block)| encode(x, block));
    Ok(())
}

fn put_f16(out: &mut [u8], x: f32) -> f32 {
    let rounded = f16::from_f32(x);
    out[..2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// 32 levels of −8 to 7; the largest magnitude becomes −8.
fn q4_0(x: &[f32], out: &mut [u8]) {
    let largest = x.iter().copied().fold(0.0f32, |a, b| if b.abs() > a.abs() { b } else { a });
    let d = largest / -8.0;
    put_f16(out, d);
    let inverse = inverse(d);
    let level = |x: f32| ((x * inverse + 8.5) as u8).min(15);
    for i in 0..16 {
        out[2 + i] = level(x[i]) | level(x[i + 16]) << 4;
    }
}

/// 32 levels of −127 to 127.
fn q8_0(x: &[f32], out: &mut [u8]) {
    let d = x.iter().fold(0.0f32, |a, b| a.max(b.abs())) / 127.0;
    put_f16(out, d);
    let inverse = inverse(d);
    for (x, level) in x.iter().zip(&mut out[2..]) {
        *level = (x * inverse).round() as i8 as u8;
    }
}

const SUB: usize = 32;

/// Eight parts of 32 levels of 0 to 15, each with a scale and a minimum of six bits.
fn q4_k(x: &[f32], out: &mut [u8]) {
    let mut lines = [(0.0, 0.0); 8];
    for (x, line) in x.as_chunks::<SUB>().0.iter().zip(&mut lines) {
        *line = fit(x);
    }
    let most = |of: fn(&(f32, f32)) -> f32| lines.iter().map(of).fold(0.0f32, f32::max);
    let (most_scale, most_min) = (most(|l| l.0), most(|l| l.1));
    let six_bits = |x: f32, most: f32| ((63.0 * inverse(most) * x).round_ties_even() as u8).min(63);
    let (d, dmin) = (put_f16(out, most_scale / 63.0), put_f16(&mut out[2..], most_min / 63.0));
    let (packed, levels) = out[4..].split_at_mut(12);
    packed.fill(0);
    levels.fill(0);
    for (j, (x, (scale, min))) in x.as_chunks::<SUB>().0.iter().zip(lines).enumerate() {
        let (s, m) = (six_bits(scale, most_scale), six_bits(min, most_min));
        if j < 4 {
            packed[j] = s;
            packed[j + 4] = m;
        } else {
            packed[j + 4] = s & 15 | (m & 15) << 4;
            packed[j - 4] |= s >> 4 << 6;
            packed[j] |= m >> 4 << 6;
        }
        let (step, low) = (d * f32::from(s), dmin * f32::from(m));
        if step == 0.0 {
            continue;
        }
        for (i, x) in x.iter().enumerate() {
            let level = ((x + low) / step).round_ties_even().clamp(0.0, 15.0) as u8;
            levels[SUB * (j / 2) + i] |= level << (4 * (j % 2));
        }
    }
}

/// Scale s and minimum m that bring `s · level − m` closest to x, with levels of 0 to 15. Larger values count for more.
fn fit(x: &[f32; SUB]) -> (f32, f32) {
    const MOST: f32 = 15.0;
    let mean = (x.iter().map(|x| x * x).sum::<f32>() / SUB as f32).sqrt();
    let weights = x.map(|x| mean + x.abs());
    let (low, high) = x.iter().fold((0.0f32, x[0]), |(low, high), x| (low.min(*x), high.max(*x)));
    if low == high || !(high - low).is_finite() {
        return (0.0, -low);
    }
    let levels = |inverse: f32| x.map(|x| (inverse * (x - low)).round_ties_even().clamp(0.0, MOST));
    let error = |levels: &[f32; SUB], scale: f32, min: f32| {
        let one = |i: usize| weights[i] * (scale * levels[i] + min - x[i]).powi(2);
        (0..SUB).map(one).sum::<f32>()
    };
    let scale = (high - low) / MOST;
    let mut best = (scale, low);
    let mut least = error(&levels(MOST / (high - low)), scale, low);
    let sum = |of: &dyn Fn(usize) -> f32| (0..SUB).map(|i| weights[i] * of(i)).sum::<f32>();
    let (w, wx) = (sum(&|_| 1.0), sum(&|i| x[i]));
    for guess in 0..=20u8 {
        let l = levels((MOST - 1.0 + 0.1 * f32::from(guess)) / (high - low));
        let (wl, wll, wxl) = (sum(&|i| l[i]), sum(&|i| l[i] * l[i]), sum(&|i| x[i] * l[i]));
        let determinant = w * wll - wl * wl;
        if determinant <= 0.0 {
            continue;
        }
        let (mut scale, mut min) = ((w * wxl - wx * wl) / determinant, (wll * wx - wl * wxl) / determinant);
        if min > 0.0 {
            (scale, min) = (wxl / wll, 0.0);
        }
        let error = error(&l, scale, min);
        if error < least {
            (least, best) = (error, (scale, min));
        }
    }
    (best.0, -best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode_row, random_rows};

    fn floats(seed: u64) -> Vec<f32> {
        let bytes = random_rows(TensorType::F32, 4, 256, seed).expect("rows");
        bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// Error over norm, squared, of a row that is encoded and decoded.
    fn nmse(ty: TensorType, x: &[f32]) -> f64 {
        let mut bytes = vec![0; ty.row_bytes(x.len()).expect("whole blocks")];
        encode_row(ty, x, &mut bytes).expect("encode");
        let mut back = vec![0.0; x.len()];
        decode_row(ty, &bytes, &mut back).expect("decode");
        let square = |x: f64| x * x;
        let error: f64 = x.iter().zip(&back).map(|(a, b)| square(f64::from(a - b))).sum();
        error / x.iter().map(|x| square(f64::from(*x))).sum::<f64>()
    }

    #[test]
    fn errors_are_those_of_the_bits() {
        let x = floats(3);
        // A uniform step of D errs by D²/12 on average: with bell-shaped values about these shares of their square.
        for (ty, least, most) in
            [(TensorType::Q8_0, 1e-6, 4e-5), (TensorType::Q4_0, 3e-3, 1.2e-2), (TensorType::Q4_K, 2e-3, 6e-3)]
        {
            let e = nmse(ty, &x);
            assert!((least..most).contains(&e), "{ty}: NMSE {e:.2e}");
        }
    }

    #[test]
    fn values_on_the_grid_come_back_and_odd_rows_do_no_harm() {
        let grid: Vec<f32> = (0..256).map(|i| (i % 16) as f32 - 8.0).collect();
        assert_eq!(nmse(TensorType::Q4_0, &grid), 0.0);
        for odd in [0.0, 1.0, -1.0, 1e-30, 1e30, f32::INFINITY, f32::NAN] {
            for ty in ENCODED {
                let mut bytes = vec![0; ty.row_bytes(256).expect("whole blocks")];
                encode_row(ty, &[odd; 256], &mut bytes).expect("encode");
            }
        }
        let zero = nmse(TensorType::Q4_K, &[0.0; 256]);
        assert!(zero.is_nan(), "0 of 0");
    }

    #[test]
    fn what_cannot_be_encoded_is_refused() {
        assert!(encode_row(TensorType::Q2_K, &[0.0; 256], &mut [0; 84]).is_err());
        assert!(encode_row(TensorType::Q8_0, &[0.0; 31], &mut [0; 34]).is_err());
        assert!(encode_row(TensorType::Q8_0, &[0.0; 32], &mut [0; 33]).is_err());
    }
}
