//! Encoding float rows, equal to llama.cpp's quantiser to the bit: the same searches for scales, with every float operation in
//! the same order. What is independent of each other runs in lanes (`lanes.rs`).

mod iq3;
mod iq4;
mod isa;
mod kquants;
mod lanes;
mod legacy;
mod line;
mod pack;
mod symmetric;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
use half::{bf16, f16};
use iq3::iq3_s;
use iq4::{iq4_nl, iq4_xs};
use isa::{Isa, per_isa};
use kquants::{q3_k, q6_k, with_minima};
use lanes::Portable;
use legacy::{plain, q8_0, weighted};

use crate::decode::check_row;
use crate::{QuantError, TensorType};

/// Types that [`encode_row`] writes.
pub const ENCODED: [TensorType; 16] = [
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q8_0,
    TensorType::Q2_K,
    TensorType::Q3_K,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::IQ3_S,
    TensorType::IQ4_NL,
    TensorType::IQ4_XS,
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
];

/// Encodes a row of whole blocks. `importance` has a weight per column, the mean square of what the column is multiplied by:
/// the searches for scales then weigh errors by it. Floats and Q8_0 have no search, and leave it aside. Finite rows have the
/// bytes that llama.cpp's quantiser writes, but for IQ3_S where a group of 32 is zero: llama.cpp
/// misplaces what follows it.
///
/// # Errors
/// When the type is none of [`ENCODED`], the row is no whole number of blocks, `out` has not the bytes that it needs, or the
/// importance has not a weight per column. Also when a weight of the importance is negative or no finite number, or all are
/// zero: llama.cpp refuses what is not finite when it reads the file, and where nothing counts it writes zeros for the row.
pub fn encode_row(
    ty: TensorType,
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    encode_on(Isa::detect(), ty, row, importance, out)
}

fn encode_on(
    isa: Isa,
    ty: TensorType,
    row: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantError> {
    use TensorType as T;
    if !ENCODED.contains(&ty) {
        return Err(QuantError::NoEncoder(ty));
    }
    check_row(ty, out, row.len())?;
    importance.map_or(Ok(()), |w| check_importance(w, row.len()))?;
    match ty {
        T::Q4_0 => on_legacy(isa, legacy::Q4_0, row, importance, out),
        T::Q4_1 => on_legacy(isa, legacy::Q4_1, row, importance, out),
        T::Q5_0 => on_legacy(isa, legacy::Q5_0, row, importance, out),
        T::Q5_1 => on_legacy(isa, legacy::Q5_1, row, importance, out),
        T::Q8_0 => on_q8_0(isa, row, out),
        T::Q2_K => on_halves(isa, kquants::Q2_K, row, importance, out),
        T::Q3_K => on_q3_k(isa, row, importance, out),
        T::Q4_K => on_wholes(isa, kquants::Q4_K, row, importance, out),
        T::Q5_K => on_wholes(isa, kquants::Q5_K, row, importance, out),
        T::Q6_K => on_q6_k(isa, row, importance, out),
        T::IQ3_S => on_iq3_s(isa, row, importance, out),
        T::IQ4_NL => on_iq4_nl(isa, row, importance, out),
        T::IQ4_XS => on_iq4_xs(isa, row, importance, out),
        T::F16 => floats(row, out, |x| f16::from_f32(x).to_le_bytes()),
        T::BF16 => floats(row, out, |x| bf16::from_f32(x).to_le_bytes()),
        _ => floats(row, out, f32::to_le_bytes),
    }
    Ok(())
}

fn check_importance(importance: &[f32], cols: usize) -> Result<(), QuantError> {
    if importance.len() != cols {
        return Err(QuantError::ImportanceLength { cols, found: importance.len() });
    }
    let is_bad = |w: f32| !(0.0..f32::INFINITY).contains(&w);
    // One pass without branches: this runs for every row.
    let (bad, some) =
        importance.iter().fold((false, false), |(bad, some), w| (bad | is_bad(*w), some | (*w != 0.0)));
    if bad && let Some(column) = importance.iter().position(|w| is_bad(*w)) {
        return Err(QuantError::Importance { column, found: importance[column].to_string() });
    }
    if cols > 0 && !some {
        return Err(QuantError::NoImportance { cols });
    }
    Ok(())
}

fn on_legacy(isa: Isa, format: legacy::Format, row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    match importance {
        None => on_plain(isa, format, row, out),
        Some(importance) => on_weighted(isa, format, row, importance, out),
    }
}

per_isa! { fn on_plain = plain::<V>(format: legacy::Format, row: &[f32], out: &mut [u8]) }
per_isa! { fn on_weighted = weighted::<V>(format: legacy::Format, row: &[f32], importance: &[f32], out: &mut [u8]) }
per_isa! { fn on_q8_0 = q8_0::<V>(row: &[f32], out: &mut [u8]) }
per_isa! {
    fn on_halves =
        with_minima::<V, 16, 16>(format: kquants::Format, row: &[f32], importance: Option<&[f32]>, out: &mut [u8])
}
per_isa! {
    fn on_wholes =
        with_minima::<V, 32, 8>(format: kquants::Format, row: &[f32], importance: Option<&[f32]>, out: &mut [u8])
}
per_isa! { fn on_q3_k = q3_k::<V>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) }
per_isa! { fn on_q6_k = q6_k::<V>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) }
per_isa! { fn on_iq3_s = iq3_s::<V>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) }
per_isa! { fn on_iq4_nl = iq4_nl::<V>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) }
per_isa! { fn on_iq4_xs = iq4_xs::<V>(row: &[f32], importance: Option<&[f32]>, out: &mut [u8]) }

fn floats<const N: usize>(row: &[f32], out: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    for (x, out) in row.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = encode(*x);
    }
}

/// Writes a float16 and gives it back as it was rounded.
fn put_f16(out: &mut [u8], x: f32) -> f32 {
    let rounded = f16::from_f32(x);
    out[..2].copy_from_slice(&rounded.to_le_bytes());
    rounded.to_f32()
}
