//! The types with blocks of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0.

#![allow(non_camel_case_types)]

use std::array::from_fn;

use crate::block::{IntegerBlock, Min, Sub, f16_at, nibble, u32_at};

/// d f16, 16 bytes of nibbles: `d · (q − 8)`.
pub(crate) struct Q4_0;
impl IntegerBlock for Q4_0 {
    fn sub(b: &[u8], _: usize) -> Sub {
        Sub::plain(from_fn(|i| nibble(&b[2..], i) as i8 - 8), f16_at(b, 0))
    }
}

/// d f16, m f16, 16 bytes of nibbles: `d · q + m`.
pub(crate) struct Q4_1;
impl IntegerBlock for Q4_1 {
    fn sub(b: &[u8], _: usize) -> Sub {
        Sub {
            min: Min::One(-f16_at(b, 2)),
            ..Sub::plain(from_fn(|i| nibble(&b[4..], i) as i8), f16_at(b, 0))
        }
    }
}

fn five_bits(high: u32, low: &[u8], i: usize) -> i8 {
    (nibble(low, i) | (((high >> i) & 1) << 4) as u8) as i8
}

/// d f16, 32 high bits, 16 bytes of nibbles: `d · (q − 16)`.
pub(crate) struct Q5_0;
impl IntegerBlock for Q5_0 {
    fn sub(b: &[u8], _: usize) -> Sub {
        let high = u32_at(b, 2);
        Sub::plain(from_fn(|i| five_bits(high, &b[6..], i) - 16), f16_at(b, 0))
    }
}

/// d f16, m f16, 32 high bits, 16 bytes of nibbles: `d · q + m`.
pub(crate) struct Q5_1;
impl IntegerBlock for Q5_1 {
    fn sub(b: &[u8], _: usize) -> Sub {
        let high = u32_at(b, 4);
        Sub {
            min: Min::One(-f16_at(b, 2)),
            ..Sub::plain(from_fn(|i| five_bits(high, &b[8..], i)), f16_at(b, 0))
        }
    }
}

/// d f16, 32 signed bytes: `d · q`.
pub(crate) struct Q8_0;
impl IntegerBlock for Q8_0 {
    fn sub(b: &[u8], _: usize) -> Sub {
        Sub::plain(from_fn(|i| b[2 + i] as i8), f16_at(b, 0))
    }
}
