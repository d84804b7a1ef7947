//! The ternary types TQ1_0 and TQ2_0, which only decode.

use crate::block::f16_at;

/// 32 bytes of five base-3 digits, 16 bytes of five, 4 bytes of four, d f16. A byte holds its digits as a fraction of 256,
/// so multiplying by powers of 3 (mod 256) brings each to the top.
pub(crate) fn tq1_0(b: &[u8], out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = f16_at(b, 52);
    let mut at = 0;
    for (bytes, digits) in [(&b[..32], 5), (&b[32..48], 5), (&b[48..52], 4)] {
        for power in &POWERS[..digits] {
            for byte in bytes {
                let digit = (u16::from(byte.wrapping_mul(*power)) * 3) >> 8;
                out[at] = d * f32::from(digit as i8 - 1);
                at += 1;
            }
        }
    }
}

/// 64 bytes of four 2-bit digits, d f16.
pub(crate) fn tq2_0(b: &[u8], out: &mut [f32]) {
    let d = f16_at(b, 64);
    for (i, o) in out.iter_mut().enumerate().take(256) {
        let digit = (b[32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4))) & 3;
        *o = d * f32::from(digit as i8 - 1);
    }
}
