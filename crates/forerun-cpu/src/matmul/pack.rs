//! Packing rows into pairs of groups, and getting single rows back.

use forerun_quant::TensorType;

use super::formats::Field;
use super::panel::{GROUP, PAIR};

/// Puts byte b, bit w where element 4w + b of 32 bits was.
fn permute_bits(v: u32) -> u32 {
    (0..32).fold(0, |out, e| out | ((v >> e) & 1) << (8 * (e % 4) + e / 4))
}

fn restore_bits(v: u32) -> u32 {
    (0..32).fold(0, |out, e| out | ((v >> (8 * (e % 4) + e / 4)) & 1) << e)
}

/// Calls `f(offset in the file's block, offset of lane 0 in the group's block, bytes, permuted)` for every piece of a block;
/// the piece of lane r lies `r · bytes` further.
#[inline(always)]
fn pieces(fields: &[Field], mut f: impl FnMut(usize, usize, usize, bool)) {
    let mut at = 0;
    for field in fields {
        match *field {
            Field::Byte(from) => {
                f(from, at, 1, false);
                at += GROUP;
            }
            Field::Half(from) => {
                f(from, at, 2, false);
                at += 2 * GROUP;
            }
            Field::Bits(from) => {
                f(from, at, 4, true);
                at += 4 * GROUP;
            }
            Field::Words(from, n) => {
                for i in 0..n {
                    f(from + 4 * i, at + 64 * i, 4, false);
                }
                at += 64 * n;
            }
        }
    }
}

/// Packs up to 32 rows: block by block, first the group of the first 16. `rows` holds them one after the other, `row_bytes`
/// each; `out` is a whole pair, zeroed, so that missing rows have zero scales.
pub(crate) fn pack_pair(ty: TensorType, fields: &[Field], rows: &[u8], row_bytes: usize, out: &mut [u8]) {
    let size = ty.block_bytes();
    for (i, out) in out.chunks_exact_mut(GROUP * size).enumerate() {
        let (b, first) = (i / 2, i % 2 * GROUP);
        pieces(fields, |from, to, bytes, permuted| {
            for (r, row) in rows.chunks_exact(row_bytes).skip(first).take(GROUP).enumerate() {
                let src = &row[b * size + from..];
                let dst = &mut out[to + r * bytes..];
                match bytes {
                    4 => {
                        let v = u32::from_le_bytes([src[0], src[1], src[2], src[3]]);
                        let v = if permuted { permute_bits(v) } else { v };
                        dst[..4].copy_from_slice(&v.to_le_bytes());
                    }
                    2 => dst[..2].copy_from_slice(&src[..2]),
                    _ => dst[0] = src[0],
                }
            }
        });
    }
}

/// Copies row `r` of a pair of groups back into the file's layout.
pub(crate) fn unpack_row(ty: TensorType, fields: &[Field], pair: &[u8], r: usize, out: &mut [u8]) {
    let size = ty.block_bytes();
    let groups = pair.chunks_exact(GROUP * size).skip(r / GROUP).step_by(PAIR / GROUP);
    let r = r % GROUP;
    for (group, out) in groups.zip(out.chunks_exact_mut(size)) {
        pieces(fields, |from, to, bytes, permuted| {
            let src = &group[to + r * bytes..][..bytes];
            if permuted {
                let v = restore_bits(u32::from_le_bytes([src[0], src[1], src[2], src[3]]));
                out[from..from + 4].copy_from_slice(&v.to_le_bytes());
            } else {
                out[from..from + bytes].copy_from_slice(src);
            }
        });
    }
}
