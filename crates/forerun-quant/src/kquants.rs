//! The K types: superblocks of 256 with quantised scales.

#![allow(non_camel_case_types)]

use std::array::from_fn;

use crate::block::{IntegerBlock, Min, Sub, f16_at};

/// 16 bytes of 4-bit scales (low) and minima (high) of 16 elements each, 64 bytes of 2-bit levels, d f16, dmin f16.
pub(crate) struct Q2_K;
impl IntegerBlock for Q2_K {
    fn sub(b: &[u8], j: usize) -> Sub {
        let qs = &b[16 + 32 * (j / 4)..];
        let scale = |h: usize| b[2 * j + h];
        Sub {
            levels: from_fn(|i| i16::from((qs[i] >> (2 * (j % 4))) & 3)),
            d: f16_at(b, 80),
            scales: from_fn(|h| i32::from(scale(h) & 15)),
            by_halves: true,
            min: Min::Halves { dmin: f16_at(b, 82), m: from_fn(|h| i32::from(scale(h) >> 4)) },
        }
    }
}

/// 32 bytes of high bits, 64 bytes of 2-bit levels, 12 bytes of sixteen 6-bit scales, d f16: `d · (s − 32) · (q − 4)`.
pub(crate) struct Q3_K;
impl Q3_K {
    /// Scale k: low 4 bits in the nibbles of bytes 0..8, high 2 bits in the bit pairs of bytes 8..12.
    fn scale(s: &[u8], k: usize) -> i32 {
        let low = if k < 8 { s[k] & 15 } else { s[k - 8] >> 4 };
        let high = (s[8 + k % 4] >> (2 * (k / 4))) & 3;
        i32::from(low | (high << 4)) - 32
    }
}
impl IntegerBlock for Q3_K {
    fn sub(b: &[u8], j: usize) -> Sub {
        let qs = &b[32 + 32 * (j / 4)..];
        Sub {
            levels: from_fn(|i| {
                let low = i16::from((qs[i] >> (2 * (j % 4))) & 3);
                let high = i16::from((b[i] >> j) & 1);
                low + 4 * high - 4
            }),
            d: f16_at(b, 108),
            scales: from_fn(|h| Self::scale(&b[96..108], 2 * j + h)),
            by_halves: true,
            min: Min::None,
        }
    }
}

/// Scale and minimum j of eight 6-bit pairs in 12 bytes.
pub(crate) fn scale_min(s: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (s[j] & 63, s[j + 4] & 63)
    } else {
        ((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4))
    }
}

fn scaled(b: &[u8], j: usize, levels: [i16; 32]) -> Sub {
    let (s, m) = scale_min(&b[4..16], j);
    Sub {
        levels,
        d: f16_at(b, 0),
        scales: [i32::from(s); 2],
        by_halves: false,
        min: Min::One(f16_at(b, 2) * f32::from(m)),
    }
}

/// Nibbles of the j-th 32 elements: two groups share 32 bytes.
fn paired_nibble(qs: &[u8], j: usize, i: usize) -> u8 {
    (qs[32 * (j / 2) + i] >> (4 * (j % 2))) & 15
}

/// d f16, dmin f16, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles: `d·s·q − dmin·m`.
pub(crate) struct Q4_K;
impl IntegerBlock for Q4_K {
    fn sub(b: &[u8], j: usize) -> Sub {
        scaled(b, j, from_fn(|i| i16::from(paired_nibble(&b[16..], j, i))))
    }
}

/// As Q4_K, with 32 bytes of high bits before the nibbles.
pub(crate) struct Q5_K;
impl IntegerBlock for Q5_K {
    fn sub(b: &[u8], j: usize) -> Sub {
        let high = |i: usize| (b[16 + i] >> j) & 1;
        scaled(b, j, from_fn(|i| i16::from(paired_nibble(&b[48..], j, i) | (high(i) << 4))))
    }
}

/// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, d f16: `d · s · (q − 32)`.
pub(crate) struct Q6_K;
impl IntegerBlock for Q6_K {
    fn sub(b: &[u8], j: usize) -> Sub {
        let (half, k) = (j / 4, j % 4);
        let low = |i: usize| (b[64 * half + 32 * (k % 2) + i] >> (4 * (k / 2))) & 15;
        let high = |i: usize| (b[128 + 32 * half + i] >> (2 * k)) & 3;
        Sub {
            levels: from_fn(|i| i16::from(low(i) | (high(i) << 4)) - 32),
            d: f16_at(b, 208),
            scales: from_fn(|h| i32::from(b[192 + 2 * j + h] as i8)),
            by_halves: true,
            min: Min::None,
        }
    }
}
