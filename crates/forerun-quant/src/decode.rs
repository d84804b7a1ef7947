//! Decoding rows to float32.

use crate::block::sub_block;
use crate::error::QuantError;
use crate::{TensorType, iq, ternary};

/// Checks that `bytes` is a row of `cols` elements.
pub(crate) fn check_row(ty: TensorType, bytes: &[u8], cols: usize) -> Result<(), QuantError> {
    if !ty.is_weight() {
        return Err(QuantError::NotAWeight(ty));
    }
    let expected = ty.row_bytes(cols).ok_or(QuantError::Columns { ty, cols, block: ty.block_elements() })?;
    if bytes.len() == expected {
        Ok(())
    } else {
        Err(QuantError::Length { ty, cols, found: bytes.len(), expected })
    }
}

/// Decodes a row of `out.len()` elements. Equal to the ecosystem's decoders to the bit for every type.
///
/// # Errors
/// When the bytes do not fit the type and the number of columns.
pub fn decode_row(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    use TensorType as T;
    check_row(ty, bytes, out.len())?;
    let block: fn(&[u8], &mut [f32]) = match ty {
        T::F32 => return decode_floats(bytes, out, f32::from_le_bytes),
        T::F16 => return decode_floats(bytes, out, |b| half::f16::from_le_bytes(b).to_f32()),
        T::BF16 => return decode_floats(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32()),
        T::IQ2_XXS => iq::iq2_xxs,
        T::IQ2_XS => iq::iq2_xs,
        T::IQ2_S => iq::iq2_s,
        T::IQ3_XXS => iq::iq3_xxs,
        T::IQ3_S => iq::iq3_s,
        T::IQ1_S => iq::iq1_s,
        T::IQ1_M => iq::iq1_m,
        T::TQ1_0 => ternary::tq1_0,
        T::TQ2_0 => ternary::tq2_0,
        _ => return decode_subs(ty, bytes, out),
    };
    for (b, o) in bytes.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_elements())) {
        block(b, o);
    }
    Ok(())
}

fn decode_floats<const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    f: impl Fn([u8; N]) -> f32,
) -> Result<(), QuantError> {
    for (b, o) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *o = f(*b);
    }
    Ok(())
}

fn decode_subs(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    for (b, o) in bytes.chunks_exact(ty.block_bytes()).zip(out.chunks_exact_mut(ty.block_elements())) {
        for (j, o) in o.chunks_exact_mut(32).enumerate() {
            let sub = sub_block(ty, b, j).ok_or(QuantError::NotAWeight(ty))?;
            o.copy_from_slice(&sub.values());
        }
    }
    Ok(())
}
