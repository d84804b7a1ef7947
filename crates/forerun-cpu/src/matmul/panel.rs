//! The integer product: a pair of groups, which is 32 output rows, times any number of input rows.
//!
//! The unit of arithmetic is a *panel*: two vectors of output rows times a few input rows, as many as leave sums and
//! accumulators in registers. Both vectors share every activation that is loaded, and no product waits for the one before
//! it. One panel takes its levels straight from the packed weights. Several panels share levels that were unpacked once:
//! then K is cut into chunks whose levels stay in the first cache, and accumulators wait in memory from chunk to chunk.
//! Blocks ascend either way, so the bits are the same.

use forerun_quant::TensorType;

use super::formats::{self, Format, Layout, MinKind, Part, Scales};
use super::input::{BlockMeta, QuantRow, Quantised};
use super::simd::{Scalar, Simd};
use crate::isa::Isa;

/// Output rows of a group.
pub(crate) const GROUP: usize = 16;
/// Output rows of a pair of groups.
pub(crate) const PAIR: usize = 2 * GROUP;

/// Results of a pair of groups for one input row.
pub(crate) type Columns = [f32; PAIR];

/// Bytes to fetch ahead of the block at hand: enough to cover the latency of memory, not enough to lose lines again.
pub(crate) const AHEAD: usize = 8192;

/// A packed pair of groups.
#[derive(Clone, Copy)]
pub(crate) struct Pair {
    pub(crate) data: *const u8,
    /// Blocks of the type along K.
    pub(crate) blocks: usize,
    pub(crate) layout: Layout,
}

/// A kernel: `out[i]` becomes the products with input row i.
pub(crate) type PairFn = unsafe fn(Pair, Quantised<'_>, &mut Unpacked, &mut [Columns]);

/// Blocks of 32 that are unpacked at a time. Their levels, and a panel's activations, stay in a first cache of 32 KB.
const CHUNK: usize = 16;
/// Vectors of an unpacked block: levels, then the fields of [`Scales`].
const VECTORS: usize = 8 + 5;
const VECTOR_BYTES: usize = 4 * GROUP;

/// Room for a chunk of unpacked levels and scales of a pair of groups.
#[repr(C, align(64))]
pub(crate) struct Unpacked([u8; CHUNK * 2 * VECTORS * VECTOR_BYTES]);

impl Default for Unpacked {
    fn default() -> Self {
        Self([0; CHUNK * 2 * VECTORS * VECTOR_BYTES])
    }
}

/// Where a panel finds levels and scales: blocks of a pair of groups.
trait Blocks<S: Simd> {
    type Format: Format;
    /// See [`Format::SUBS`]. `PERIOD` of them are unrolled.
    const SUBS: usize;
    const PERIOD: usize;
    /// Whether scales of a block are unpacked all at once, before its levels.
    const STAGED: bool = Self::PERIOD < Self::SUBS;
    /// Bytes of a group's block.
    fn bytes(layout: Layout) -> usize;
    /// Blocks of 32 per block.
    fn subs(layout: Layout) -> usize;
    /// Level vector i of block of 32 `j`, ready to multiply.
    unsafe fn level(p: Part, j: usize, i: usize) -> S::I;
    unsafe fn scales(p: Part, j: usize) -> Scales<S>;
}

/// Weights as they are held.
struct Packed<T>(std::marker::PhantomData<T>);

impl<S: Simd, T: Format> Blocks<S> for Packed<T> {
    type Format = T;
    const SUBS: usize = T::SUBS;
    const PERIOD: usize = T::PERIOD;

    #[inline(always)]
    fn bytes(layout: Layout) -> usize {
        GROUP * T::bytes(layout)
    }
    #[inline(always)]
    fn subs(layout: Layout) -> usize {
        T::subs(layout)
    }

    #[inline(always)]
    unsafe fn level(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: the caller's contract.
        unsafe {
            let level = T::level::<S>(p, j, i);
            if T::SIGNED {
                S::ready_signed(level)
            } else if T::WIDE {
                S::ready_wide(level)
            } else {
                level
            }
        }
    }
    #[inline(always)]
    unsafe fn scales(p: Part, j: usize) -> Scales<S> {
        // SAFETY: the caller's contract.
        unsafe { T::scales::<S>(p, j) }
    }
}

/// Weights in [`Unpacked`].
struct Ready<T>(std::marker::PhantomData<T>);

impl<S: Simd, T: Format> Blocks<S> for Ready<T> {
    type Format = T;
    const SUBS: usize = 1;
    const PERIOD: usize = 1;

    #[inline(always)]
    fn bytes(_: Layout) -> usize {
        VECTORS * VECTOR_BYTES
    }
    #[inline(always)]
    fn subs(_: Layout) -> usize {
        1
    }

    #[inline(always)]
    unsafe fn level(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: a vector of the block.
        unsafe { S::load(p.vector(i)) }
    }
    #[inline(always)]
    unsafe fn scales(p: Part, _: usize) -> Scales<S> {
        // SAFETY: a block of an [`Unpacked`].
        unsafe { load_scales::<S>(p) }
    }
}

/// Packed weights that a panel fetches for what comes after it, spread over its blocks of 32: fetches all at once would
/// wait for each other.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    /// Lines of the next bytes that this panel fetches for each of its blocks.
    lines: (usize, usize),
    /// Bytes from what one block fetches to what the next does.
    step: usize,
}

impl Ahead {
    /// The share of panel `i` of `panels`.
    #[inline(always)]
    fn new<T: Format>(layout: Layout, at: *const u8, i: usize, panels: usize) -> Self {
        let step = PAIR * T::bytes(layout) / T::subs(layout);
        let lines = step.div_ceil(64);
        Self { at, lines: (lines * i / panels, lines * (i + 1) / panels), step }
    }

    #[inline(always)]
    unsafe fn fetch<S: Simd>(&mut self) {
        for line in self.lines.0..self.lines.1 {
            // SAFETY: a prefetch of any address is harmless; the caller has the instruction set.
            unsafe { S::prefetch(self.at.wrapping_add(64 * line)) };
        }
        self.at = self.at.wrapping_add(self.step);
    }
}

/// The part of a pair's block that holds output rows from `lane` on.
#[inline(always)]
unsafe fn part(block: *const u8, bytes: usize, lane: usize, layout: Layout) -> Part {
    // SAFETY: the caller's block holds two groups of as many bytes.
    Part { block: unsafe { block.add(lane / GROUP * bytes) }, first: lane % GROUP, layout }
}

/// Calls the macro `$body` for every block of 32 of a block of `$subs`, with literals: shifts by constants are cheaper.
macro_rules! each_sub {
    ($subs:expr, $body:ident) => {
        each_sub!($subs, $body, 0 1 2 3 4 5 6 7)
    };
    ($subs:expr, $body:ident, $($j:literal)*) => {$(if $j < $subs { $body!($j); })*};
}

/// Unpacks blocks of a pair of groups.
#[inline(always)]
unsafe fn unpack<S: Simd, T: Format>(w: Pair, to: &mut Unpacked) {
    let mut to = to.0.as_mut_ptr();
    let mut block = w.data;
    let bytes = GROUP * T::bytes(w.layout);
    for _ in 0..w.blocks {
        // SAFETY: the caller's contract: a pair of `blocks` blocks, at most a chunk of them, and the instruction set.
        unsafe {
            let mut first = 0;
            macro_rules! sub {
                ($j:literal) => {
                    for lane in (0..PAIR).step_by(S::LANES) {
                        let from = part(block, bytes, lane, w.layout);
                        unpack_part::<S, T>(
                            from,
                            first + $j,
                            part(to, VECTORS * VECTOR_BYTES, lane, w.layout),
                        );
                    }
                    to = to.add(2 * VECTORS * VECTOR_BYTES);
                };
            }
            while first < T::subs(w.layout) {
                each_sub!(T::SUBS, sub);
                first += T::SUBS;
            }
            block = block.add(2 * bytes);
        }
    }
}

#[inline(always)]
unsafe fn unpack_part<S: Simd, T: Format>(from: Part, j: usize, to: Part) {
    // SAFETY: the caller's parts, `to` in an [`Unpacked`] of its own.
    unsafe {
        let at = |i: usize| to.vector(i).cast_mut();
        for i in 0..8 {
            S::store(at(i), <Packed<T> as Blocks<S>>::level(from, j, i));
        }
        store_scales::<S, T>(T::scales::<S>(from, j), to);
    }
}

/// Where [`load_scales`] finds them.
#[inline(always)]
unsafe fn store_scales<S: Simd, T: Format>(scales: Scales<S>, to: Part) {
    // SAFETY: the caller's part of a block of an [`Unpacked`] of its own.
    unsafe {
        let at = |i: usize| to.vector(i).cast_mut();
        S::store_f(at(8), scales.d);
        if T::MIN != MinKind::None {
            S::store_f(at(9), scales.m);
        }
        if T::HALVES {
            S::store_f(at(10), scales.s[0]);
            S::store_f(at(11), scales.s[1]);
        }
        if T::MIN == MinKind::Halves {
            S::store(at(12), scales.m_pair);
        }
    }
}

/// Scales of a block of an [`Unpacked`]. The compiler leaves out what the format does not use.
#[inline(always)]
unsafe fn load_scales<S: Simd>(p: Part) -> Scales<S> {
    // SAFETY: vectors of the caller's block.
    unsafe {
        Scales {
            d: S::load_f(p.vector(8)),
            m: S::load_f(p.vector(9)),
            s: [S::load_f(p.vector(10)), S::load_f(p.vector(11))],
            m_pair: S::load(p.vector(12)),
        }
    }
}

/// What sums start from to lose the levels' offset of 2^n: `−2^n · Σx` over the halves that are on. Or to regain what wide
/// levels were lowered by.
#[inline(always)]
unsafe fn start<S: Simd, T: Format>(halves: [bool; 2], meta: &BlockMeta) -> S::I {
    // SAFETY: the caller has the instruction set.
    unsafe {
        let zero = S::splat(0);
        let offset = if T::SIGNED { S::SIGNED_OFFSET_LOG2 } else { T::OFFSET_LOG2 };
        let factor = if T::WIDE { S::WIDE_LOWERED } else { offset.map_or(0, |n| -(1i32 << n)) };
        if factor == 0 {
            return zero;
        }
        // Pairs of 16-bit factors for the sums of activations of both halves.
        let factor = factor & 0xffff;
        let pair = if halves[0] { factor } else { 0 } | if halves[1] { factor << 16 } else { 0 };
        S::dot16(zero, S::splat(pair), S::splat(meta.pair))
    }
}

/// Activations of one block of 32: levels and sums of every row.
struct Inputs<'a, const R: usize> {
    q: [*const i32; R],
    meta: [&'a BlockMeta; R],
}

/// Sums of the products of level vectors `FIRST..END`, for both parts and every input row. Rows alternate, so that no
/// product waits for the one before.
#[inline(always)]
unsafe fn sums<S: Simd, B: Blocks<S>, const R: usize, const FIRST: usize, const END: usize>(
    w: [Part; 2],
    j: usize,
    x: &Inputs<'_, R>,
) -> [[S::I; 2]; R] {
    // SAFETY: the caller's blocks and rows, and the instruction set.
    unsafe {
        let mut sums = [[S::splat(0); 2]; R];
        for (sums, meta) in sums.iter_mut().zip(x.meta) {
            *sums = [start::<S, B::Format>([FIRST < 4, END > 4], meta); 2];
        }
        macro_rules! vectors {
            ($($i:literal)*) => {$(if FIRST <= $i && $i < END {
                let [a, b] = [B::level(w[0], j, $i), B::level(w[1], j, $i)];
                for r in 0..R {
                    let x = S::splat(x.q[r].add($i).read_unaligned());
                    sums[r] = if B::Format::SIGNED {
                        [S::dot_signed(sums[r][0], a, x), S::dot_signed(sums[r][1], b, x)]
                    } else if B::Format::WIDE {
                        [S::dot_wide(sums[r][0], a, x), S::dot_wide(sums[r][1], b, x)]
                    } else {
                        [S::dot(sums[r][0], a, x), S::dot(sums[r][1], b, x)]
                    };
                }
            })*};
        }
        vectors!(0 1 2 3 4 5 6 7);
        sums
    }
}

/// One step of the normative dot product for every lane of both parts and every input row.
#[inline(always)]
unsafe fn step<S: Simd, B: Blocks<S>, const R: usize>(
    acc: &mut [[S::F; 2]; R],
    w: [Part; 2],
    j: usize,
    scales: [Scales<S>; 2],
    x: &Inputs<'_, R>,
) {
    // SAFETY: the caller's blocks and rows, and the instruction set.
    unsafe {
        let mut isum = [[S::zero_f(); 2]; R];
        if B::Format::HALVES {
            let low = sums::<S, B, R, 0, 4>(w, j, x);
            for r in 0..R {
                for v in 0..2 {
                    isum[r][v] = S::mul_f(S::to_f(low[r][v]), scales[v].s[0]);
                }
            }
            let high = sums::<S, B, R, 4, 8>(w, j, x);
            for r in 0..R {
                for v in 0..2 {
                    // Products and sum are whole numbers below 2^24: exact in any order.
                    isum[r][v] = S::fma(S::to_f(high[r][v]), scales[v].s[1], isum[r][v]);
                }
            }
        } else {
            let all = sums::<S, B, R, 0, 8>(w, j, x);
            for r in 0..R {
                isum[r] = [S::to_f(all[r][0]), S::to_f(all[r][1])];
            }
        }
        for r in 0..R {
            for v in 0..2 {
                acc[r][v] = scale::<S, B::Format>(acc[r][v], isum[r][v], &scales[v], x.meta[r]);
            }
        }
    }
}

/// Scales a block's integer sum, as a float, into the accumulator and takes off the minimum.
#[inline(always)]
pub(crate) unsafe fn scale<S: Simd, T: Format>(
    acc: S::F,
    isum: S::F,
    sc: &Scales<S>,
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
                let msum = S::dot16(S::splat(0), sc.m_pair, S::splat(meta.pair));
                S::fnma(S::mul_f(sc.m, S::splat_f(meta.d)), S::to_f(msum), acc)
            }
        }
    }
}

/// Adds the products of a run of blocks to the results of `R` input rows. `x` are the rows at the run's first block, `steps`
/// the distances of their blocks. `staged` has room for the scales of a block of the format: unpacked between
/// products, they would push sums out of the registers.
#[inline(always)]
unsafe fn panel<S: Simd, B: Blocks<S>, const R: usize>(
    w: Pair,
    staged: *mut u8,
    x: [QuantRow; R],
    steps: (usize, usize),
    mut ahead: Ahead,
    out: &mut [Columns],
) {
    let results = out.as_mut_ptr();
    for lane in (0..PAIR).step_by(2 * S::LANES) {
        // SAFETY: the caller's contract: blocks of the pair, rows of as many activations, `R` results, the instruction set.
        unsafe {
            let at = |r: usize, v: usize| results.add(r).cast::<u8>().add(4 * (lane + v * S::LANES));
            let mut acc = [[S::zero_f(); 2]; R];
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = [S::load_f(at(r, 0)), S::load_f(at(r, 1))];
            }
            let (mut block, mut q, mut meta) = (w.data, 0, 0);
            let bytes = B::bytes(w.layout);
            for _ in 0..w.blocks {
                let parts = [0, S::LANES].map(|v| part(block, bytes, lane + v, w.layout));
                let stage = |j: usize, v: usize| {
                    let at = staged.cast_const().wrapping_add(j * 2 * VECTORS * VECTOR_BYTES);
                    part(at, VECTORS * VECTOR_BYTES, lane + v * S::LANES, w.layout)
                };
                if B::STAGED {
                    macro_rules! unpack_scales {
                        ($j:literal) => {
                            for v in 0..2 {
                                store_scales::<S, B::Format>(B::scales(parts[v], $j), stage($j, v));
                            }
                        };
                    }
                    each_sub!(B::SUBS, unpack_scales);
                }
                let mut first = 0;
                macro_rules! sub {
                    ($j:literal) => {
                        if lane == 0 {
                            ahead.fetch::<S>();
                        }
                        let j = first + $j;
                        let scales = if B::STAGED {
                            [load_scales::<S>(stage(j, 0)), load_scales::<S>(stage(j, 1))]
                        } else {
                            [B::scales(parts[0], j), B::scales(parts[1], j)]
                        };
                        let inputs = Inputs {
                            q: std::array::from_fn(|r| x[r].q.add(q).cast()),
                            meta: std::array::from_fn(|r| &*x[r].meta.byte_add(meta)),
                        };
                        step::<S, B, R>(&mut acc, parts, j, scales, &inputs);
                        (q, meta) = (q + steps.0, meta + steps.1);
                    };
                }
                while first < B::subs(w.layout) {
                    each_sub!(B::PERIOD, sub);
                    first += B::PERIOD;
                }
                block = block.add(2 * bytes);
            }
            for (r, acc) in acc.into_iter().enumerate() {
                S::store_f(at(r, 0), acc[0]);
                S::store_f(at(r, 1), acc[1]);
            }
        }
    }
}

/// Input rows of a panel, from one of their blocks on.
#[derive(Clone, Copy)]
struct Origin<'a> {
    x: Quantised<'a>,
    row: usize,
    /// Block of 32.
    block: usize,
}

/// [`panel`] for as many rows as `out` has, at most [`Simd::ROWS`].
#[inline(always)]
unsafe fn panel_of<S: Simd, B: Blocks<S>>(
    w: Pair,
    staged: *mut u8,
    from: Origin<'_>,
    ahead: Ahead,
    out: &mut [Columns],
) {
    let steps = from.x.steps();
    // SAFETY: the caller's contract.
    unsafe {
        macro_rules! rows {
            ($r:literal) => {{
                let x = std::array::from_fn(|r| from.x.row(from.row + r).skip(from.block, steps));
                panel::<S, B, $r>(w, staged, x, steps, ahead, out);
            }};
        }
        match out.len() {
            1 => rows!(1),
            2 => rows!(2),
            3 if S::ROWS > 2 => rows!(3),
            4 if S::ROWS > 2 => rows!(4),
            _ => {}
        }
    }
}

/// The products of a pair of groups.
#[inline(always)]
unsafe fn pair<S: Simd, T: Format>(w: Pair, x: Quantised<'_>, space: &mut Unpacked, out: &mut [Columns]) {
    out.as_flattened_mut().fill(0.0);
    // SAFETY: the caller's contract; a chunk's blocks are blocks of the pair.
    unsafe {
        if out.len() <= S::ROWS {
            let ahead = Ahead::new::<T>(w.layout, w.data.wrapping_add(AHEAD), 0, 1);
            let from = Origin { x, row: 0, block: 0 };
            return panel_of::<S, Packed<T>>(w, space.0.as_mut_ptr(), from, ahead, out);
        }
        let panels = out.len().div_ceil(S::ROWS);
        let (bytes, subs) = (PAIR * T::bytes(w.layout), T::subs(w.layout));
        for first in (0..w.blocks).step_by(CHUNK / subs) {
            let blocks = (CHUNK / subs).min(w.blocks - first);
            let at = |block: usize| w.data.wrapping_add(block * bytes);
            let data = at(first);
            unpack::<S, T>(Pair { data, blocks, ..w }, space);
            let ready = Pair { data: space.0.as_ptr(), blocks: blocks * subs, ..w };
            for (i, out) in out.chunks_mut(S::ROWS).enumerate() {
                let from = Origin { x, row: i * S::ROWS, block: first * subs };
                let ahead = Ahead::new::<T>(w.layout, at(first + blocks), i, panels);
                panel_of::<S, Ready<T>>(ready, std::ptr::null_mut(), from, ahead, out);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn pair_avx512<T: Format>(w: Pair, x: Quantised<'_>, space: &mut Unpacked, out: &mut [Columns]) {
    // SAFETY: the caller's contract, with the features enabled here.
    unsafe { pair::<super::avx512::Avx512, T>(w, x, space, out) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pair_avx2<T: Format>(w: Pair, x: Quantised<'_>, space: &mut Unpacked, out: &mut [Columns]) {
    // SAFETY: the caller's contract, with the features enabled here.
    unsafe { pair::<super::avx2::Avx2, T>(w, x, space, out) }
}

unsafe fn pair_scalar<T: Format>(w: Pair, x: Quantised<'_>, space: &mut Unpacked, out: &mut [Columns]) {
    // SAFETY: the caller's contract; plain Rust needs no feature.
    unsafe { pair::<Scalar, T>(w, x, space, out) }
}

fn of<T: Format>(isa: Isa) -> PairFn {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Amx => pair_avx512::<T>,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => pair_avx2::<T>,
        _ => pair_scalar::<T>,
    }
}

/// A value made from the format of an integer type; `None` for other types.
macro_rules! with_format {
    ($ty:expr, $format:ident => $value:expr) => {
        $crate::matmul::panel::with_format!(
            $ty, $format => $value;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4;
            2 3 4 5 6 8
        )
    };
    ($ty:expr, $format:ident => $value:expr; $($name:ident)*; $($bits:literal)*) => {
        match $ty {
            $(TensorType::$name => {
                type $format = formats::$name;
                Some($value)
            })*
            TensorType::Affine(affine) => match affine.bits() {
                $($bits => {
                    type $format = formats::Affine<$bits>;
                    Some($value)
                })*
                _ => None,
            },
            _ => None,
        }
    };
}
pub(super) use with_format;

/// The kernel of an integer type; `None` for others.
pub(crate) fn kernel(ty: TensorType, isa: Isa) -> Option<PairFn> {
    with_format!(ty, F => of::<F>(isa))
}

/// The packed fields of an integer type; `None` for others.
pub(crate) fn fields(ty: TensorType) -> Option<Vec<formats::Field>> {
    with_format!(ty, F => F::fields(Layout::of(ty)))
}
