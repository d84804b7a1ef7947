//! The normative dot products.

use crate::activation::{QuantBlock, QuantRow};
use crate::block::{Min, Sub, sub_block};
use crate::decode::{check_row, decode_row};
use crate::{QuantError, TensorType};

/// One block's step on the accumulator.
fn step(acc: f32, w: &Sub, x: &QuantBlock) -> f32 {
    let half =
        |h: usize| -> i32 { (16 * h..16 * h + 16).map(|i| i32::from(w.levels[i]) * i32::from(x.q[i])).sum() };
    let acc = if w.by_halves {
        let isum = w.scales[0] * half(0) + w.scales[1] * half(1);
        (w.d * x.d).mul_add(isum as f32, acc)
    } else {
        let dw = w.d * w.scales[0] as f32;
        (dw * x.d).mul_add((half(0) + half(1)) as f32, acc)
    };
    match w.min {
        Min::None => acc,
        Min::One(m) => (-m).mul_add(x.sx, acc),
        Min::Halves { dmin, m } => {
            let msum = m[0] * x.half_sums[0] + m[1] * x.half_sums[1];
            (-(dmin * x.d)).mul_add(msum as f32, acc)
        }
    }
}

/// The dot product of a row of an integer type with quantised activations.
///
/// # Errors
/// When the row does not fit the type and the activations' length, or the type is not an integer one.
pub fn dot_quantised(ty: TensorType, row: &[u8], x: &QuantRow) -> Result<f32, QuantError> {
    check_row(ty, row, 32 * x.blocks.len())?;
    let mut acc = 0.0;
    let per_block = ty.block_elements() / 32;
    for (b, xs) in row.chunks_exact(ty.block_bytes()).zip(x.blocks.chunks(per_block.max(1))) {
        for (j, x) in xs.iter().enumerate() {
            let sub = sub_block(ty, b, j).ok_or(QuantError::NotAWeight(ty))?;
            acc = step(acc, &sub, x);
        }
    }
    Ok(acc)
}

/// The dot product of decoded weights with float32 activations: element k goes to lane k mod 16 by fused multiply-add, and
/// the lanes are folded 8, 4, 2, 1.
#[must_use]
pub fn float_dot(w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for (k, (w, x)) in w.iter().zip(x).enumerate() {
        lanes[k % 16] = w.mul_add(*x, lanes[k % 16]);
    }
    for width in [8, 4, 2, 1] {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
    }
    lanes[0]
}

/// The normative dot product of a row of any weight type with float32 activations.
///
/// # Errors
/// When the row does not fit the type and the number of activations.
pub fn dot(ty: TensorType, row: &[u8], x: &[f32]) -> Result<f32, QuantError> {
    if ty.is_integer_dot() {
        check_row(ty, row, x.len())?;
        return dot_quantised(ty, row, &QuantRow::new(x));
    }
    let mut w = vec![0.0; x.len()];
    decode_row(ty, row, &mut w)?;
    Ok(float_dot(&w, x))
}
