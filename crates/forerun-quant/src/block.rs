//! The common view of the integer block types: 32 levels, a scale, a minimum.

use crate::TensorType;
use crate::{iq, kquants, legacy};

/// What is subtracted from `scale · level`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Min {
    /// Nothing.
    None,
    /// One value for the block (already a product where the format stores it as one; exact in float32).
    One(f32),
    /// `dmin · m` with an integer m for each half of 16.
    Halves {
        /// Common factor.
        dmin: f32,
        /// Integer minima.
        m: [i32; 2],
    },
}

/// 32 consecutive weights of a row of an integer type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sub {
    /// Integer levels: those of ggml types are within ±128, those of affine types from 0 to 255.
    pub levels: [i16; 32],
    /// Common scale.
    pub d: f32,
    /// Integer scales of the halves of 16. Where the format has one for all 32, both are it.
    pub scales: [i32; 2],
    /// Whether the halves have scales of their own.
    pub by_halves: bool,
    /// The minimum.
    pub min: Min,
}

impl Sub {
    pub(crate) fn plain<L: Into<i16>>(levels: [L; 32], d: f32) -> Self {
        Self { levels: levels.map(L::into), d, scales: [1, 1], by_halves: false, min: Min::None }
    }

    /// The 32 values in float32: level times scale, less the minimum, each rounded once.
    #[must_use]
    pub fn values(&self) -> [f32; 32] {
        std::array::from_fn(|i| {
            let h = i / 16;
            let v = (self.d * self.scales[h] as f32) * f32::from(self.levels[i]);
            match self.min {
                Min::None => v,
                Min::One(m) => v - m,
                Min::Halves { dmin, m } => v - dmin * m[h] as f32,
            }
        })
    }
}

/// A block type whose dot product runs over integers.
pub(crate) trait IntegerBlock {
    /// The `j`-th 32 weights of a block.
    fn sub(block: &[u8], j: usize) -> Sub;
}

/// The `j`-th 32 weights of one block of an integer type; `None` for other types.
///
/// # Panics
/// When `block` is shorter than the type's block or `j` is outside it.
#[must_use]
pub fn sub_block(ty: TensorType, block: &[u8], j: usize) -> Option<Sub> {
    use TensorType as T;
    assert!(block.len() >= ty.block_bytes() && 32 * j < ty.block_elements(), "no {ty} block of 32 at {j}");
    Some(match ty {
        T::Q4_0 => legacy::Q4_0::sub(block, j),
        T::Q4_1 => legacy::Q4_1::sub(block, j),
        T::Q5_0 => legacy::Q5_0::sub(block, j),
        T::Q5_1 => legacy::Q5_1::sub(block, j),
        T::Q8_0 => legacy::Q8_0::sub(block, j),
        T::Q2_K => kquants::Q2_K::sub(block, j),
        T::Q3_K => kquants::Q3_K::sub(block, j),
        T::Q4_K => kquants::Q4_K::sub(block, j),
        T::Q5_K => kquants::Q5_K::sub(block, j),
        T::Q6_K => kquants::Q6_K::sub(block, j),
        T::IQ4_NL => iq::IQ4_NL::sub(block, j),
        T::IQ4_XS => iq::IQ4_XS::sub(block, j),
        T::MXFP4 => iq::MXFP4::sub(block, j),
        T::Affine(affine) => affine.sub(block, j),
        _ => return None,
    })
}

/// The float16 at a byte offset, as float32.
pub(crate) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// The little-endian u16 at a byte offset.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The little-endian u32 at a byte offset.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Element i of 32 nibbles in 16 bytes: low nibbles first.
pub(crate) fn nibble(bytes: &[u8], i: usize) -> u8 {
    let b = bytes[i % 16];
    if i < 16 { b & 15 } else { b >> 4 }
}
