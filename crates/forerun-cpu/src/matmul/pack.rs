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

/// Levels of `BITS` bits, as a file has 32 of them, in planes (see [`super::formats::Affine`]): words of bytes.
fn planes<const BITS: usize>(stream: &[u8]) -> [[u8; 4]; BITS] {
    let mut levels = [0u8; 32];
    for (levels, bytes) in levels.chunks_exact_mut(8).zip(stream.chunks_exact(BITS)) {
        let mut eight = [0; 8];
        eight[..BITS].copy_from_slice(bytes);
        for (k, level) in levels.iter_mut().enumerate() {
            *level = (u64::from_le_bytes(eight) >> (k * BITS)) as u8 & (0xff >> (8 - BITS));
        }
    }
    let mut words = [[0; 4]; BITS];
    each_piece::<BITS>(|e, low, word, bit, mask| words[word][e % 4] |= ((levels[e] >> low) & mask) << bit);
    words
}

/// What [`planes`] was given.
fn stream<const BITS: usize>(words: [[u8; 4]; BITS]) -> [u8; 32] {
    let mut levels = [0u8; 32];
    each_piece::<BITS>(|e, low, word, bit, mask| levels[e] |= ((words[word][e % 4] >> bit) & mask) << low);
    let mut out = [0; 32];
    for (out, levels) in out.chunks_exact_mut(BITS).zip(levels.chunks_exact(8)) {
        let eight = levels.iter().rev().fold(0u64, |eight, level| eight << BITS | u64::from(*level));
        out.copy_from_slice(&eight.to_le_bytes()[..BITS]);
    }
    out
}

/// Calls `f(element, its lowest bit there, word, lowest bit in the byte, mask)` for every element of every plane.
#[inline(always)]
fn each_piece<const BITS: usize>(mut f: impl FnMut(usize, usize, usize, usize, u8)) {
    let mut done = 0;
    for width in [8, 4, 2, 1] {
        if BITS & width != 0 {
            for e in 0..32 {
                let i = e / 4;
                f(e, done, done + i % width, width * (i / width), 0xff >> (8 - width));
            }
            done += width;
        }
    }
}

/// How a piece of a block is copied.
#[derive(Clone, Copy)]
enum Piece {
    /// So many bytes as they are.
    Bytes(usize),
    /// 32 bits in another order.
    Bits,
    /// 32 levels of so many bits, as planes.
    Levels(usize),
}

/// Calls `f(offset in the file's block, offset of lane 0 in the group's block, piece)` for every piece of a block. The next
/// lane's lies as many bytes further; words of levels lie 64 bytes apart.
#[inline(always)]
fn pieces(fields: &[Field], mut f: impl FnMut(usize, usize, Piece)) {
    let mut at = 0;
    for field in fields {
        match *field {
            Field::Byte(from) => f(from, at, Piece::Bytes(1)),
            Field::Half(from) => f(from, at, Piece::Bytes(2)),
            Field::Bits(from) => f(from, at, Piece::Bits),
            Field::Words(from, n) => (0..n).for_each(|i| f(from + 4 * i, at + 64 * i, Piece::Bytes(4))),
            Field::Levels(from, bits) => f(from, at, Piece::Levels(bits)),
        }
        at += GROUP * field.bytes();
    }
}

/// Calls a function with its number of bits as a constant.
macro_rules! with_bits {
    ($bits:expr, $f:ident($($arg:expr),*)) => {
        match $bits {
            2 => $f::<2>($($arg),*),
            3 => $f::<3>($($arg),*),
            4 => $f::<4>($($arg),*),
            5 => $f::<5>($($arg),*),
            6 => $f::<6>($($arg),*),
            _ => $f::<8>($($arg),*),
        }
    };
}

fn put_levels<const BITS: usize>(src: &[u8], dst: &mut [u8]) {
    for (i, word) in planes::<BITS>(src).into_iter().enumerate() {
        dst[4 * GROUP * i..][..4].copy_from_slice(&word);
    }
}

fn take_levels<const BITS: usize>(src: &[u8], dst: &mut [u8]) {
    let words = std::array::from_fn(|i| std::array::from_fn(|b| src[4 * GROUP * i + b]));
    dst[..4 * BITS].copy_from_slice(&stream::<BITS>(words)[..4 * BITS]);
}

/// Packs up to 32 rows: block by block, first the group of the first 16. `rows` holds them one after the other, `row_bytes`
/// each; `out` is a whole pair, zeroed, so that missing rows have zero scales.
pub(crate) fn pack_pair(ty: TensorType, fields: &[Field], rows: &[u8], row_bytes: usize, out: &mut [u8]) {
    let size = ty.block_bytes();
    for (i, out) in out.chunks_exact_mut(GROUP * size).enumerate() {
        let (b, first) = (i / 2, i % 2 * GROUP);
        pieces(fields, |from, to, piece| {
            for (r, row) in rows.chunks_exact(row_bytes).skip(first).take(GROUP).enumerate() {
                let src = &row[b * size + from..];
                match piece {
                    Piece::Levels(bits) => with_bits!(bits, put_levels(src, &mut out[to + 4 * r..])),
                    Piece::Bits => {
                        let v = permute_bits(u32::from_le_bytes([src[0], src[1], src[2], src[3]]));
                        out[to + 4 * r..][..4].copy_from_slice(&v.to_le_bytes());
                    }
                    Piece::Bytes(4) => out[to + 4 * r..][..4].copy_from_slice(&src[..4]),
                    Piece::Bytes(2) => out[to + 2 * r..][..2].copy_from_slice(&src[..2]),
                    Piece::Bytes(n) => out[to + n * r..][..n].copy_from_slice(&src[..n]),
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
        pieces(fields, |from, to, piece| match piece {
            Piece::Levels(bits) => with_bits!(bits, take_levels(&group[to + 4 * r..], &mut out[from..])),
            Piece::Bits => {
                let src = &group[to + 4 * r..];
                let v = restore_bits(u32::from_le_bytes([src[0], src[1], src[2], src[3]]));
                out[from..from + 4].copy_from_slice(&v.to_le_bytes());
            }
            Piece::Bytes(n) => out[from..from + n].copy_from_slice(&group[to + n * r..][..n]),
        });
    }
}
