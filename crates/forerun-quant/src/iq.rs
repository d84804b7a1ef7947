//! Non-linear types: IQ4_NL, IQ4_XS and MXFP4 with integer dot products, and the IQ types of 1 to 3 bits, whose values
//! come from grids and which only decode.

#![allow(non_camel_case_types)]

use std::array::from_fn;

use crate::block::{IntegerBlock, Sub, f16_at, nibble, u16_at, u32_at};
use crate::grids;

/// The 16 levels of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The 16 levels of MXFP4 (E2M1), doubled so that they are integers.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the power of two that an E8M0 byte stands for: 2^(e − 128), exact down to the subnormals.
#[must_use]
pub fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (u32::from(e) - 1) << 23 })
}

/// d f16, 16 bytes of nibbles.
pub(crate) struct IQ4_NL;
impl IntegerBlock for IQ4_NL {
    fn sub(b: &[u8], _: usize) -> Sub {
        Sub::plain(from_fn(|i| IQ4_VALUES[nibble(&b[2..], i) as usize]), f16_at(b, 0))
    }
}

/// d f16, 16 bits of high scale bits, 4 bytes of low scale nibbles, 128 bytes of nibbles: `d · (s − 32) · value`.
pub(crate) struct IQ4_XS;
impl IntegerBlock for IQ4_XS {
    fn sub(b: &[u8], j: usize) -> Sub {
        let low = (b[4 + j / 2] >> (4 * (j % 2))) & 15;
        let high = (u16_at(b, 2) >> (2 * j)) & 3;
        let scale = i32::from(low) + 16 * i32::from(high) - 32;
        Sub {
            scales: [scale; 2],
            ..Sub::plain(from_fn(|i| IQ4_VALUES[nibble(&b[8 + 16 * j..], i) as usize]), f16_at(b, 0))
        }
    }
}

/// E8M0 scale, 16 bytes of nibbles.
pub(crate) struct MXFP4;
impl IntegerBlock for MXFP4 {
    fn sub(b: &[u8], _: usize) -> Sub {
        Sub::plain(from_fn(|i| MXFP4_VALUES[nibble(&b[1..], i) as usize]), e8m0_half(b[0]))
    }
}

const IQ2_VALUES: [f32; 4] = [8.0, 25.0, 43.0, 0.0];
const IQ3_XXS_VALUES: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];

/// Seven sign bits whose parity is the eighth.
fn eight_signs(seven: u32) -> u8 {
    let s = seven as u8 & 127;
    s | ((s.count_ones() as u8 & 1) << 7)
}

fn signed(value: f32, signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 1 { -value } else { value }
}

fn write8(out: &mut [f32], scale: f32, grid: u16, signs: u8) {
    for (i, o) in out.iter_mut().enumerate().take(8) {
        *o = signed(scale * IQ2_VALUES[(grid >> (2 * i) & 3) as usize], signs, i);
    }
}

fn write4(out: &mut [f32], scale: f32, value: impl Fn(usize) -> f32, signs: u8) {
    for (i, o) in out.iter_mut().enumerate().take(4) {
        *o = signed(scale * value(i), signs, i);
    }
}

/// d f16, then per 32 elements four grid bytes and a word of 4·7 sign bits and a 4-bit scale.
pub(crate) fn iq2_xxs(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for j in 0..8 {
        let (grid, word) = (&b[2 + 8 * j..], u32_at(b, 6 + 8 * j));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for k in 0..4 {
            let signs = eight_signs(word >> (7 * k));
            write8(&mut out[32 * j + 8 * k..], scale, grids::IQ2_XXS[grid[k] as usize], signs);
        }
    }
}

/// d f16, 32 words of 9 grid bits and 7 sign bits, 8 bytes of 4-bit scales per 16 elements.
pub(crate) fn iq2_xs(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for k in 0..32 {
        let word = u16_at(b, 2 + 2 * k);
        let scale = d * (0.5 + f32::from((b[66 + k / 4] >> (4 * (k / 2 % 2))) & 15)) * 0.25;
        let signs = eight_signs(u32::from(word >> 9));
        write8(&mut out[8 * k..], scale, grids::IQ2_XS[(word & 511) as usize], signs);
    }
}

/// d f16, 32 grid bytes, 32 sign bytes, 8 bytes of high grid bits, 8 bytes of 4-bit scales per 16 elements.
pub(crate) fn iq2_s(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for k in 0..32 {
        let high = (b[66 + k / 4] >> (2 * (k % 4))) & 3;
        let scale = d * (0.5 + f32::from((b[74 + k / 4] >> (4 * (k / 2 % 2))) & 15)) * 0.25;
        let grid = grids::IQ2_S[usize::from(b[2 + k]) | usize::from(high) << 8];
        write8(&mut out[8 * k..], scale, grid, b[34 + k]);
    }
}

/// d f16, 64 grid bytes, then per 32 elements a word of 4·7 sign bits and a 4-bit scale.
pub(crate) fn iq3_xxs(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for k in 0..64 {
        let word = u32_at(b, 66 + 4 * (k / 8));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = eight_signs(word >> (7 * (k / 2 % 4))) >> (4 * (k % 2));
        let grid = grids::IQ3_XXS[b[2 + k] as usize];
        write4(&mut out[4 * k..], scale, |i| IQ3_XXS_VALUES[(grid >> (3 * i) & 7) as usize], signs);
    }
}

/// d f16, 64 grid bytes, 8 bytes of high grid bits, 32 sign bytes, 4 bytes of 4-bit scales per 32 elements.
pub(crate) fn iq3_s(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for k in 0..64 {
        let high = usize::from(b[66 + k / 8] >> (k % 8) & 1);
        let scale = d * f32::from(1 + 2 * ((b[106 + k / 16] >> (4 * (k / 8 % 2))) & 15));
        let grid = grids::IQ3_S[usize::from(b[2 + k]) | high << 8];
        let signs = b[74 + k / 2] >> (4 * (k % 2));
        write4(&mut out[4 * k..], scale, |i| f32::from(1 + 2 * (grid >> (3 * i) & 7)), signs);
    }
}

fn write_ternary(out: &mut [f32], scale: f32, grid: u16, delta: f32) {
    for (i, o) in out.iter_mut().enumerate().take(8) {
        *o = scale * (f32::from((grid >> (2 * i) & 3) as i8 - 1) + delta);
    }
}

/// d f16, 32 grid bytes, then per 32 elements a word: 4·3 high grid bits, a 3-bit scale, the sign of the 1/8 shift.
pub(crate) fn iq1_s(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 0);
    for k in 0..32 {
        let word = u16_at(b, 34 + 2 * (k / 4));
        let scale = d * f32::from(2 * ((word >> 12) & 7) + 1);
        let delta = if word & 0x8000 == 0 { 0.125 } else { -0.125 };
        let high = usize::from(word >> (3 * (k % 4)) & 7);
        write_ternary(&mut out[8 * k..], scale, grids::IQ1[usize::from(b[k + 2]) | high << 8], delta);
    }
}

/// 32 grid bytes, 16 bytes of nibbles (3 high grid bits, the sign of the 1/8 shift), 8 bytes of 3-bit scales per 16
/// elements whose top nibbles together are d f16.
pub(crate) fn iq1_m(b: &[u8], out: &mut [f32]) {
    let scales: [u16; 4] = from_fn(|i| u16_at(b, 48 + 2 * i));
    let bits = (0..4).fold(0, |a, i| a | (scales[i] >> 12) << (4 * i));
    let d = half::f16::from_bits(bits).to_f32();
    for k in 0..32 {
        let nibble = (b[32 + k / 2] >> (4 * (k % 2))) & 15;
        let group = k / 2;
        let scale = d * f32::from(2 * ((scales[group / 4] >> (3 * (group % 4))) & 7) + 1);
        let delta = if nibble & 8 == 0 { 0.125 } else { -0.125 };
        let grid = grids::IQ1[usize::from(b[k]) | usize::from(nibble & 7) << 8];
        write_ternary(&mut out[8 * k..], scale, grid, delta);
    }
}
