//! The integer product: 16 output rows times up to 16 input rows, over all of K.

use forerun_quant::TensorType;

use super::formats::{self, Format, MinKind, Part};
use super::input::{BlockMeta, Layout, QuantRow};
use super::simd::{Scalar, Simd};
use crate::isa::Isa;

/// Output rows of a group.
pub(crate) const GROUP: usize = 16;
/// Input rows of the largest tile.
pub(crate) const TILE: usize = 16;

/// Results of a tile: `[input row][output row]`.
pub(crate) type Tile = [[f32; GROUP]; TILE];

/// Input rows of a kernel.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub(crate) rows: &'a [QuantRow; TILE],
    pub(crate) layout: Layout,
}

/// A kernel: group (packed), blocks along K, input rows, results.
pub(crate) type TileFn = unsafe fn(*const u8, usize, Rows<'_>, &mut Tile);

/// Bytes to fetch ahead of the block at hand: enough to cover the latency of memory, not enough to lose lines again.
pub(crate) const AHEAD: usize = 8192;

/// What takes the levels' offset of 2^n off a sum: pairs of 16-bit factors for the sums of activations of both halves.
#[inline(always)]
fn offset_pair(n: Option<u32>, halves: [bool; 2]) -> Option<i32> {
    let n = n?;
    let factor = -(1i32 << n) & 0xffff;
    Some(if halves[0] { factor } else { 0 } | if halves[1] { factor << 16 } else { 0 })
}

/// `sum − 2^n · Σx` over the halves that are on.
#[inline(always)]
unsafe fn without_offset<S: Simd>(sum: S::I, n: Option<u32>, halves: [bool; 2], meta: &BlockMeta) -> S::I {
    match offset_pair(n, halves) {
        // SAFETY: the caller has the instruction set.
        Some(pair) => unsafe { S::dot16(sum, S::splat(pair), meta.pair) },
        None => sum,
    }
}

/// One step of the normative dot product for every lane.
#[inline(always)]
unsafe fn step<S: Simd, T: Format>(
    acc: S::F,
    levels: &[S::I; 8],
    sc: &formats::Scales<S>,
    q: *const i32,
    meta: &BlockMeta,
) -> S::F {
    let offset = if T::SIGNED { S::SIGNED_OFFSET_LOG2 } else { T::OFFSET_LOG2 };
    // SAFETY: the caller has the instruction set; `q` are the 32 bytes of this block.
    unsafe {
        if T::HALVES {
            let low = without_offset::<S>(S::splat(0), offset, [true, false], meta);
            let high = without_offset::<S>(S::splat(0), offset, [false, true], meta);
            let (low, high) = (dots::<S, T, 0, 4>(low, levels, q), dots::<S, T, 4, 8>(high, levels, q));
            let sum = S::add(S::mul(low, sc.s[0]), S::mul(high, sc.s[1]));
            scale::<S, T>(acc, S::to_f(sum), sc, meta)
        } else {
            let sum = without_offset::<S>(S::splat(0), offset, [true; 2], meta);
            scale::<S, T>(acc, S::to_f(dots::<S, T, 0, 8>(sum, levels, q)), sc, meta)
        }
    }
}

/// Adds the products of vectors `FIRST..END` of a block.
#[inline(always)]
unsafe fn dots<S: Simd, T: Format, const FIRST: usize, const END: usize>(
    mut sum: S::I,
    levels: &[S::I; 8],
    q: *const i32,
) -> S::I {
    // SAFETY: the caller has the instruction set; `q` are the 32 bytes of the block.
    unsafe {
        for (i, level) in levels.iter().enumerate().take(END).skip(FIRST) {
            let x = q.add(i).read_unaligned();
            sum = if T::SIGNED { S::dot_signed(sum, *level, x) } else { S::dot(sum, *level, x) };
        }
    }
    sum
}

/// Scales a block's integer sum, as a float, into the accumulator and takes off the minimum.
#[inline(always)]
pub(crate) unsafe fn scale<S: Simd, T: Format>(
    acc: S::F,
    isum: S::F,
    sc: &formats::Scales<S>,
    meta: &BlockMeta,
) -> S::F {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let acc = S::fma(S::mul_f(sc.d, S::splat_f(meta.d)), isum, acc);
        match T::MIN {
            MinKind::None => acc,
            MinKind::One => S::fnma(sc.m, S::splat_f(meta.sx), acc),
            MinKind::Plus => S::fma(sc.m, S::splat_f(meta.sx), acc),
            MinKind::Halves => {
                let msum = S::dot16(S::splat(0), sc.m_pair, meta.pair);
                S::fnma(S::mul_f(sc.m, S::splat_f(meta.d)), S::to_f(msum), acc)
            }
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Simd, T: Format, const R: usize, const TILED: bool>(
    group: *const u8,
    blocks: usize,
    x: Rows<'_>,
    out: &mut Tile,
) {
    let (q_step, meta_step) = if TILED { Layout::Tiles.steps() } else { x.layout.steps() };
    let first_row = x.rows[0].q;
    let size = GROUP * T::TYPE.block_bytes();
    for part in 0..GROUP / S::LANES {
        // SAFETY: the caller's contract: a packed group of `blocks` blocks, R rows of as many activations, and the
        // instruction set.
        unsafe {
            let mut acc = [S::zero_f(); 8];
            for b in 0..blocks {
                let block = group.add(b * size);
                let p = Part { block, first: part * S::LANES };
                for j in 0..T::SUBS {
                    if part == 0 {
                        // Spread over the block: fetches all at once would wait for each other.
                        for line in (size * j / T::SUBS..size * (j + 1) / T::SUBS).step_by(64) {
                            S::prefetch(block.wrapping_add(AHEAD + line));
                        }
                    }
                    let levels = T::levels::<S>(p, j);
                    let scales = T::scales::<S>(p, j);
                    let at = b * T::SUBS + j;
                    // Unrolled by hand: the accumulators must stay in registers, and the compiler would keep the larger
                    // arrays in memory.
                    macro_rules! rows {
                        ($($r:literal)*) => {$(
                            if $r < R {
                                // Tiled rows are at constant distances, which leaves registers free.
                                let (q, meta) = if TILED {
                                    let lane = x.rows[0].meta.byte_add(meta_step * at).add($r);
                                    (first_row.add(q_step * at + 32 * $r), lane)
                                } else {
                                    (x.rows[$r].q.add(q_step * at), x.rows[$r].meta.byte_add(meta_step * at))
                                };
                                acc[$r] = step::<S, T>(acc[$r], &levels, &scales, q.cast(), &*meta);
                            }
                        )*};
                    }
                    rows!(0 1 2 3 4 5 6 7);
                }
            }
            for (acc, out) in acc.into_iter().zip(out.iter_mut()).take(R) {
                S::store(out.as_mut_ptr().add(part * S::LANES), acc);
            }
        }
    }
}

/// Kernels for 1, 2, 4, 8 and 16 input rows (a tile of another size runs the next larger one with a row repeated), and one
/// for 16 rows of [`Layout::Tiles`] that follow each other.
pub(crate) type Kernels = [TileFn; 6];

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile_avx512<T: Format, const R: usize, const TILED: bool>(
    g: *const u8,
    blocks: usize,
    x: Rows<'_>,
    out: &mut Tile,
) {
    // SAFETY: the caller's contract, with the features enabled here.
    unsafe { tile::<super::avx512::Avx512, T, R, TILED>(g, blocks, x, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile_avx2<T: Format, const R: usize, const TILED: bool>(
    g: *const u8,
    blocks: usize,
    x: Rows<'_>,
    out: &mut Tile,
) {
    // SAFETY: the caller's contract, with the features enabled here.
    unsafe { tile::<super::avx2::Avx2, T, R, TILED>(g, blocks, x, out) }
}

unsafe fn tile_scalar<T: Format, const R: usize, const TILED: bool>(
    g: *const u8,
    blocks: usize,
    x: Rows<'_>,
    out: &mut Tile,
) {
    // SAFETY: the caller's contract; plain Rust needs no feature.
    unsafe { tile::<Scalar, T, R, TILED>(g, blocks, x, out) }
}

/// Runs tiles of `R` rows several times to cover `N`: small register files do not hold more accumulators.
unsafe fn in_parts<const R: usize, const N: usize>(
    kernel: TileFn,
    g: *const u8,
    blocks: usize,
    x: Rows<'_>,
    out: &mut Tile,
) {
    for first in (0..N).step_by(R) {
        let mut part = *x.rows;
        part.rotate_left(first);
        let mut result = [[0.0; GROUP]; TILE];
        // SAFETY: the caller's contract.
        unsafe { kernel(g, blocks, Rows { rows: &part, ..x }, &mut result) };
        out[first..first + R].copy_from_slice(&result[..R]);
    }
}

fn of<T: Format>(isa: Isa) -> Kernels {
    macro_rules! in_parts_of {
        ($kernel:ident, $r:literal, $n:literal, $tiled:literal) => {{
            unsafe fn f<T: Format>(g: *const u8, blocks: usize, x: Rows<'_>, out: &mut Tile) {
                // SAFETY: the caller's contract.
                unsafe { in_parts::<$r, $n>($kernel::<T, $r, $tiled>, g, blocks, x, out) }
            }
            f::<T> as TileFn
        }};
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => [
            tile_avx512::<T, 1, false>,
            tile_avx512::<T, 2, false>,
            tile_avx512::<T, 4, false>,
            tile_avx512::<T, 8, false>,
            in_parts_of!(tile_avx512, 8, 16, false),
            in_parts_of!(tile_avx512, 8, 16, true),
        ],
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => [
            tile_avx2::<T, 1, false>,
            tile_avx2::<T, 2, false>,
            tile_avx2::<T, 4, false>,
            in_parts_of!(tile_avx2, 4, 8, false),
            in_parts_of!(tile_avx2, 4, 16, false),
            in_parts_of!(tile_avx2, 4, 16, true),
        ],
        _ => [
            tile_scalar::<T, 1, false>,
            tile_scalar::<T, 2, false>,
            in_parts_of!(tile_scalar, 2, 4, false),
            in_parts_of!(tile_scalar, 2, 8, false),
            in_parts_of!(tile_scalar, 2, 16, false),
            in_parts_of!(tile_scalar, 2, 16, true),
        ],
    }
}

/// A value made from the format of an integer type; `None` for other types.
macro_rules! with_format {
    ($ty:expr, $format:ident => $value:expr) => {
        with_format!(
            $ty, $format => $value;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4
        )
    };
    ($ty:expr, $format:ident => $value:expr; $($name:ident)*) => {
        match $ty {
            $(TensorType::$name => {
                type $format = formats::$name;
                Some($value)
            })*
            _ => None,
        }
    };
}

/// The kernels of an integer type; `None` for others.
pub(crate) fn kernels(ty: TensorType, isa: Isa) -> Option<Kernels> {
    with_format!(ty, F => of::<F>(isa))
}

/// The packed fields of an integer type; `None` for others.
pub(crate) fn fields(ty: TensorType) -> Option<&'static [formats::Field]> {
    with_format!(ty, F => F::FIELDS)
}
