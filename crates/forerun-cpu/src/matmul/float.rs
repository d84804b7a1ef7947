//! Float products: 16 lanes along K and the fixed tree, float32 activations. Types without an integer product are decoded
//! row by row and go the same way.

use forerun_quant::{TensorType, decode_row};
use forerun_tensor::math::tree16;

use super::panel::Columns;
use crate::act::InputRows;
use crate::isa::{Isa, multiversion};

/// Weight rows that share a pass over the activations: independent sums that keep the multipliers busy.
const ROWS: usize = 4;

/// `out[i][r] = w_r · x_i` for rows of float32 weights.
#[inline(always)]
fn dots_body(w: [&[f32]; ROWS], x: &[&[f32]], out: &mut [[f32; ROWS]]) {
    for (x, out) in x.iter().zip(out) {
        let (xs, tail) = x.as_chunks::<16>();
        let n = xs.len();
        let [w0, w1, w2, w3] = w.map(|w| &w.as_chunks::<16>().0[..n]);
        let (mut a, mut b, mut c, mut d) = ([0.0_f32; 16], [0.0_f32; 16], [0.0_f32; 16], [0.0_f32; 16]);
        for i in 0..n {
            fma16(&mut a, &w0[i], &xs[i]);
            fma16(&mut b, &w1[i], &xs[i]);
            fma16(&mut c, &w2[i], &xs[i]);
            fma16(&mut d, &w3[i], &xs[i]);
        }
        let mut lanes = [a, b, c, d];
        for (lanes, w) in lanes.iter_mut().zip(w) {
            for (l, x) in tail.iter().enumerate() {
                lanes[l] = w[16 * n + l].mul_add(*x, lanes[l]);
            }
        }
        *out = [tree16(&lanes[0]), tree16(&lanes[1]), tree16(&lanes[2]), tree16(&lanes[3])];
    }
}

#[inline(always)]
fn fma16(acc: &mut [f32; 16], w: &[f32; 16], x: &[f32; 16]) {
    for l in 0..16 {
        acc[l] = w[l].mul_add(x[l], acc[l]);
    }
}

multiversion! {
    fn dots = dots_body, (w: [&[f32]; ROWS], x: &[&[f32]], out: &mut [[f32; ROWS]])
}

#[inline(always)]
fn widen_body(ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    if ty == TensorType::BF16 {
        for (b, o) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *o = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
        }
    } else {
        for (b, o) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *o = f16_to_f32(u16::from_le_bytes(*b));
        }
    }
}

multiversion! {
    /// Widens 16-bit floats of either kind.
    fn widen = widen_body, (ty: TensorType, bytes: &[u8], out: &mut [f32])
}

/// Exact and without branches: the exponent is re-biased by a multiplication, which also normalises subnormals.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    let h = u32::from(h);
    let magnitude = f32::from_bits((h & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(magnitude.to_bits() | 0x7f80_0000);
    let magnitude = if magnitude >= 65536.0 { special } else { magnitude };
    f32::from_bits(magnitude.to_bits() | (h & 0x8000) << 16)
}

/// Decodes a row of any weight type.
pub(crate) fn decode(isa: Isa, ty: TensorType, bytes: &[u8], out: &mut [f32]) {
    if matches!(ty, TensorType::F16 | TensorType::BF16) {
        widen(isa, ty, bytes, out);
    } else {
        // Row sizes were checked when the weight was loaded.
        let decoded = decode_row(ty, bytes, out);
        debug_assert!(decoded.is_ok());
    }
}

/// The products of up to 32 weight rows, `row_bytes` each, with input rows. `decoded` holds decoded weights.
pub(crate) fn pair(
    isa: Isa,
    ty: TensorType,
    rows: &[u8],
    row_bytes: usize,
    x: InputRows<'_>,
    decoded: &mut Vec<f32>,
    out: &mut [Columns],
) {
    let cols = x.cols();
    let direct = as_f32(ty, rows);
    decoded.resize(if direct.is_some() { 0 } else { ROWS * cols }, 0.0);
    for (first, rows) in rows.chunks(ROWS * row_bytes.max(1)).enumerate().map(|(i, r)| (i * ROWS, r)) {
        let n = rows.len() / row_bytes.max(1);
        for (r, bytes) in rows.chunks(row_bytes.max(1)).enumerate().take(if direct.is_some() { 0 } else { n })
        {
            decode(isa, ty, bytes, &mut decoded[r * cols..][..cols]);
        }
        let w = std::array::from_fn(|r| match direct {
            Some(all) => &all[(first + r.min(n - 1)) * cols..][..cols],
            None => &decoded[r.min(n - 1) * cols..][..cols],
        });
        for (i, out) in out.iter_mut().enumerate() {
            let mut part = [[0.0; ROWS]];
            dots(isa, w, &[x.float(i)], &mut part);
            out[first..first + n].copy_from_slice(&part[0][..n]);
        }
    }
}

/// F32 rows where they are, when the file put them on their natural alignment.
fn as_f32(ty: TensorType, bytes: &[u8]) -> Option<&[f32]> {
    if ty != TensorType::F32 || cfg!(target_endian = "big") {
        return None;
    }
    // SAFETY: every bit pattern is an f32.
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    (before.is_empty() && after.is_empty()).then_some(floats)
}
