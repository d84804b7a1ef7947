//! Bytes of superblocks from scales and levels; `kquants.rs` of the crate describes their layout.

use super::kquants::{Levels, SUPER};
use super::put_f16;

/// Four levels of two bits to a byte: those of 32 elements apart, in each half of the superblock.
fn pairs_of_bits(levels: &Levels, shift: u32, out: &mut [u8]) {
    for (l, out) in levels.as_chunks::<128>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (i, to) in out.iter_mut().enumerate() {
            let bits = |k: usize| ((l[i + 32 * k] >> shift) & 3) << (2 * k);
            *to = bits(0) | bits(1) | bits(2) | bits(3);
        }
    }
}

/// Two levels of four bits to a byte: those of 32 elements apart.
fn nibbles(levels: &Levels, out: &mut [u8]) {
    for (l, out) in levels.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        for (i, to) in out.iter_mut().enumerate() {
            *to = l[i] & 15 | l[i + 32] << 4;
        }
    }
}

/// Bit `bit` of every level: those of 32 elements apart share a byte.
fn high_bits(levels: &Levels, bit: u32, out: &mut [u8]) {
    for (i, to) in out.iter_mut().enumerate().take(32) {
        *to = (0..SUPER / 32).fold(0, |bits, k| bits | ((levels[i + 32 * k] >> bit) & 1) << k);
    }
}

pub(super) fn q2_k_scales(out: &mut [u8], [d, dmin]: [f32; 2], [s, m]: [&[u8]; 2]) {
    for (to, (s, m)) in out.iter_mut().zip(s.iter().zip(m)) {
        *to = s | m << 4;
    }
    put_f16(&mut out[80..], d);
    put_f16(&mut out[82..], dmin);
}

pub(super) fn q2_k(out: &mut [u8], levels: &Levels) {
    pairs_of_bits(levels, 0, &mut out[16..80]);
}

/// Eight pairs of six bits in twelve bytes after d and dmin.
pub(super) fn q45_k_scales(out: &mut [u8], [d, dmin]: [f32; 2], [s, m]: [&[u8]; 2]) {
    put_f16(out, d);
    put_f16(&mut out[2..], dmin);
    let packed = &mut out[4..16];
    for j in 0..4 {
        packed[j] = s[j] | s[j + 4] >> 4 << 6;
        packed[j + 4] = m[j] | m[j + 4] >> 4 << 6;
        packed[j + 8] = s[j + 4] & 15 | (m[j + 4] & 15) << 4;
    }
}

pub(super) fn q4_k(out: &mut [u8], levels: &Levels) {
    nibbles(levels, &mut out[16..]);
}

pub(super) fn q5_k(out: &mut [u8], levels: &Levels) {
    high_bits(levels, 4, &mut out[16..48]);
    nibbles(levels, &mut out[48..]);
}

pub(super) fn q3_k(out: &mut [u8], scales: &[i8; 16], levels: &Levels) {
    high_bits(levels, 2, &mut out[..32]);
    pairs_of_bits(levels, 0, &mut out[32..96]);
    let s = scales.map(|s| (s + 32).cast_unsigned());
    let packed = &mut out[96..108];
    for j in 0..8 {
        packed[j] = s[j] & 15 | s[j + 8] << 4;
    }
    for j in 0..4 {
        packed[8 + j] = (0..4).fold(0, |bits, k| bits | s[j + 4 * k] >> 4 << (2 * k));
    }
}

pub(super) fn q6_k(out: &mut [u8], scales: &[i8; 16], levels: &Levels) {
    let halves = levels.as_chunks::<128>().0.iter().zip(out[..128].as_chunks_mut::<64>().0);
    for (l, out) in halves {
        for (i, to) in out.iter_mut().enumerate() {
            *to = l[i] & 15 | l[i + 64] << 4;
        }
    }
    pairs_of_bits(levels, 4, &mut out[128..192]);
    for (to, s) in out[192..208].iter_mut().zip(scales) {
        *to = s.cast_unsigned();
    }
}
