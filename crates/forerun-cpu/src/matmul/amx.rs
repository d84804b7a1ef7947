//! AMX: matrix tiles of 8-bit integers. Intrinsics and detection are unstable in Rust, so both are written with `asm!`.
//!
//! A block of 32 has scales of its own, so every product of tiles is scaled by AVX-512 afterwards, and that is what bounds
//! the speed: while one batch of blocks is multiplied, the batch before is scaled.

use std::arch::asm;
use std::sync::OnceLock;

use forerun_quant::TensorType;

use super::avx512::Avx512;
use super::formats::{self, Format, Layout, Part};
use super::input::{BlockMeta, Picked, Quantised, TILE_ROWS};
use super::panel::{self, AHEAD, Columns, GROUP, PAIR, Pair};
use super::simd::Simd;

/// A tile of fewer input rows than this does not pay.
const LEAST_ROWS: usize = 9;

/// Whether the processor has AMX with 8-bit integers, the operating system lets this process use it, and it computes what
/// it should. Must first be called before other threads start, since permission is asked for the process.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_amx_int8() && state_is_enabled() && permitted() && self_test())
}

fn has_amx_int8() -> bool {
    const TILE_BIT: u32 = 1 << 24;
    const INT8_BIT: u32 = 1 << 25;
    let leaf = std::arch::x86_64::__cpuid_count(7, 0);
    leaf.edx & (TILE_BIT | INT8_BIT) == TILE_BIT | INT8_BIT
}

fn state_is_enabled() -> bool {
    const TILE_STATE: u64 = 0b11 << 17;
    if std::arch::x86_64::__cpuid(1).ecx & (1 << 27) == 0 {
        return false;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is set, so xgetbv exists; it only reads register 0.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    (u64::from(high) << 32 | u64::from(low)) & TILE_STATE == TILE_STATE
}

#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: asks the kernel for permission to use tile registers; it touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// The 64 bytes that `ldtilecfg` loads.
#[repr(C, align(64))]
struct Config([u8; 64]);

/// Palette 1. Tiles 0 to 3: results, `rows` × 16 words; 4 and 5: activations, `rows` × `k` bytes; 6 and 7: weights,
/// k/4 × 64 bytes.
fn config(rows: usize, k: usize) -> Config {
    let mut c = [0; 64];
    c[0] = 1;
    for tile in 0..8 {
        let (columns, rows) = if tile < 4 {
            (64, rows)
        } else if tile < 6 {
            (k, rows)
        } else {
            (64, k / 4)
        };
        c[16 + 2 * tile] = columns as u8;
        c[48 + tile] = rows as u8;
    }
    Config(c)
}

/// Activations of [`multiply`].
#[derive(Clone, Copy)]
struct Activations {
    /// Levels of the first row.
    x: *const i8,
    /// Bytes from one row to the next.
    row: usize,
    /// Bytes from one step to the next.
    step: usize,
}

/// Configures the tiles for this scope. The compiler knows no tile registers, so nothing between the blocks of `asm!` here
/// touches them; the operating system keeps them across switches, and they are released at the end of the scope.
struct Tiles;

impl Tiles {
    /// # Safety
    /// AMX is available, and no other `Tiles` lives on this thread.
    unsafe fn configure(rows: usize, k: usize) -> Self {
        let config = config(rows, k);
        // SAFETY: the caller's contract; the block is 64 readable bytes of palette 1.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        Self
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: AMX is available, since the tiles were configured.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Products of [`BATCH`] consecutive K-steps: `c[s] = x[step s] · w[s]`, all four results under way at a time.
///
/// # Safety
/// Tiles are configured for `rows` rows and steps of `k` elements. The activations have as many in every step; `w` has
/// [`BATCH`] blocks of 512 bytes of which the first `16 · k` count; `c` has room for as many blocks of 16 × 16 words.
#[inline(always)]
unsafe fn multiply<const SIGNED: bool>(a: Activations, w: *const u8, c: *mut i32) {
    macro_rules! run {
        ($product:literal) => {
            // SAFETY: the caller's contract covers every address.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{x} + {xrow}*1]",
                    "tileloadd tmm6, [{w} + {row}*1]",
                    "add {x}, {step}",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{x} + {xrow}*1]",
                    "tileloadd tmm7, [{w} + {row}*1 + 512]",
                    "add {x}, {step}",
                    concat!($product, " tmm1, tmm5, tmm7"),
                    "tileloadd tmm4, [{x} + {xrow}*1]",
                    "tileloadd tmm6, [{w} + {row}*1 + 1024]",
                    "add {x}, {step}",
                    concat!($product, " tmm2, tmm4, tmm6"),
                    "tileloadd tmm5, [{x} + {xrow}*1]",
                    "tileloadd tmm7, [{w} + {row}*1 + 1536]",
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "tilestored [{c} + {row}*1], tmm0",
                    "tilestored [{c} + {row}*1 + 1024], tmm1",
                    "tilestored [{c} + {row}*1 + 2048], tmm2",
                    "tilestored [{c} + {row}*1 + 3072], tmm3",
                    x = inout(reg) a.x => _,
                    xrow = in(reg) a.row,
                    step = in(reg) a.step,
                    w = in(reg) w,
                    row = in(reg) 64usize,
                    c = in(reg) c,
                    options(nostack)
                );
            }
        };
    }
    if SIGNED {
        run!("tdpbssd");
    } else {
        run!("tdpbsud");
    }
}

/// Compares one product of every form with plain loops.
fn self_test() -> bool {
    let x: [i8; 16 * 128] = std::array::from_fn(|i| (i * 37 % 255) as i8);
    let w: [u8; BATCH * 512] = std::array::from_fn(|i| (i * 59 % 251) as u8);
    [(16, 32, false), (9, 32, true), (16, 16, false), (11, 16, true)].into_iter().all(|(rows, k, signed)| {
        let mut c = [0i32; BATCH * 256];
        let a = Activations { x: x.as_ptr(), row: 128, step: k };
        // SAFETY: AMX is there; four steps of at most 32 elements fit the arrays.
        unsafe {
            let _tiles = Tiles::configure(rows, k);
            if signed {
                multiply::<true>(a, w.as_ptr(), c.as_mut_ptr());
            } else {
                multiply::<false>(a, w.as_ptr(), c.as_mut_ptr());
            }
        }
        (0..BATCH * rows * 16).all(|i| {
            let (s, r, o) = (i / (rows * 16), i / 16 % rows, i % 16);
            let want: i32 = (0..k)
                .map(|e| {
                    let level = w[s * 512 + e / 4 * 64 + 4 * o + e % 4];
                    let level = if signed { i32::from(level as i8) } else { i32::from(level) };
                    i32::from(x[128 * r + s * k + e]) * level
                })
                .sum();
            c[s * 256 + r * 16 + o] == want
        })
    })
}

/// Blocks of 32 that are unpacked and multiplied at a time, one result tile each.
const BATCH: usize = 4;

/// Weights and results of two batches: one is multiplied while the other is scaled.
#[repr(C, align(64))]
struct Work {
    weights: [[u8; BATCH * 512]; 2],
    /// Sums of whole blocks, or of their first halves; then of their second halves.
    sums: [[[i32; BATCH * 256]; 2]; 2],
}

thread_local! {
    static WORK: std::cell::RefCell<Box<Work>> =
        std::cell::RefCell::new(Box::new(Work { weights: [[0; BATCH * 512]; 2], sums: [[[0; BATCH * 256]; 2]; 2] }));
}

type TileFn = unsafe fn(Pair, usize, Input, &mut Work, &mut [Columns]);

/// Products of a pair of groups with those of the rows, tile by tile, that are better off here; gives back the others.
pub(crate) fn tiles<'a, 'o>(
    ty: TensorType,
    w: Pair,
    x: Quantised<'a>,
    out: &'o mut [Columns],
) -> (Quantised<'a>, &'o mut [Columns]) {
    // Rows of a tile must lie at one distance.
    let Picked::Run { first, count } = x.picked else { return (x, out) };
    if !first.is_multiple_of(TILE_ROWS) {
        return (x, out);
    }
    let Some(run) = panel::with_format!(ty, F => tile_of::<F> as TileFn) else { return (x, out) };
    let here = if count % TILE_ROWS < LEAST_ROWS { count - count % TILE_ROWS } else { count };
    let (done, rest) = out.split_at_mut(here);
    WORK.with_borrow_mut(|work| {
        for (i, out) in done.chunks_mut(TILE_ROWS).enumerate() {
            let input = Input::new(x, i * TILE_ROWS, out.len());
            for group in 0..PAIR / GROUP {
                // SAFETY: the pair and rows are those of the caller's contract; AMX was detected, and with it AVX-512.
                unsafe { run(w, group, input, work, out) };
            }
        }
    });
    (Quantised { picked: Picked::Run { first: first + here, count: count - here }, ..x }, rest)
}

/// Input rows at constant distances.
#[derive(Clone, Copy)]
struct Input {
    rows: usize,
    q: Activations,
    meta: *const BlockMeta,
    /// Bytes from one row's sums to the next's, and from one block's to the next's.
    meta_row: usize,
    meta_step: usize,
}

impl Input {
    fn new(x: Quantised<'_>, first: usize, rows: usize) -> Self {
        let (q_step, meta_step) = x.steps();
        let [first, second] = [x.row(first), x.row(first + 1)];
        Self {
            rows,
            q: Activations { x: first.q, row: second.q as usize - first.q as usize, step: q_step },
            meta: first.meta,
            meta_row: second.meta as usize - first.meta as usize,
            meta_step,
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile_of<T: Format>(w: Pair, group: usize, input: Input, work: &mut Work, out: &mut [Columns]) {
    let subs = w.blocks * T::subs(w.layout);
    // SAFETY: addresses stay within the pair, the rows and `work`; features are enabled here.
    unsafe {
        let group_at = w.data.add(group * GROUP * T::bytes(w.layout));
        let mut acc = [Avx512::zero_f(); TILE_ROWS];
        let _tiles = Tiles::configure(input.rows, if T::HALVES { 16 } else { 32 });
        let batches = subs / BATCH;
        for batch in 0..batches {
            let now = batch % 2;
            let at = Batch { group: group_at, layout: w.layout, first: batch * BATCH, count: BATCH };
            sums_of::<T>(at, input.q, &mut work.weights[now], &mut work.sums[now]);
            if batch > 0 {
                let before = Batch { first: at.first - BATCH, ..at };
                add::<T>(before, &input, &work.sums[1 - now], &mut acc);
            }
        }
        if let Some(last) = batches.checked_sub(1) {
            let at = Batch { group: group_at, layout: w.layout, first: last * BATCH, count: BATCH };
            add::<T>(at, &input, &work.sums[last % 2], &mut acc);
        }
        for first in batches * BATCH..subs {
            // With no distance between steps nothing is read beyond the rows.
            let at = Batch { group: group_at, layout: w.layout, first, count: 1 };
            let q = Activations { x: input.q.x.add(input.q.step * first), step: 0, ..input.q };
            sums_of::<T>(at, q, &mut work.weights[0], &mut work.sums[0]);
            add::<T>(at, &input, &work.sums[0], &mut acc);
        }
        for (acc, out) in acc.into_iter().zip(out.iter_mut()) {
            Avx512::store_f(out.as_mut_ptr().add(group * GROUP).cast(), acc);
        }
    }
}

/// Whether the unpacked levels are signed: those of a format with an offset are lowered by it.
const fn is_signed<T: Format>() -> bool {
    T::SIGNED || T::OFFSET_LOG2.is_some()
}

/// Blocks of 32 of a group: `count` from `first` on.
#[derive(Clone, Copy)]
struct Batch {
    group: *const u8,
    layout: Layout,
    first: usize,
    count: usize,
}

/// Unpacks a batch and multiplies it with the activations at `q` for its place: those of step `first`, unless steps have no
/// distance.
#[inline(always)]
unsafe fn sums_of<T: Format>(
    at: Batch,
    q: Activations,
    weights: &mut [u8; BATCH * 512],
    sums: &mut [[i32; BATCH * 256]; 2],
) {
    // SAFETY: the caller's contract: blocks of the group and of the rows, tiles configured for them.
    unsafe {
        unpack::<T>(at, weights);
        let q = Activations { x: q.x.add(q.step * at.first), ..q };
        let [low, high] = sums;
        multiply_lowered::<T>(q, weights.as_ptr(), low.as_mut_ptr());
        if T::HALVES {
            // The halves of a block lie 16 levels apart.
            let q = Activations { x: q.x.add(16), ..q };
            multiply_lowered::<T>(q, weights.as_ptr().add(256), high.as_mut_ptr());
        }
    }
}

#[inline(always)]
unsafe fn multiply_lowered<T: Format>(a: Activations, w: *const u8, c: *mut i32) {
    // SAFETY: the caller's contract is that of `multiply`.
    unsafe { if is_signed::<T>() { multiply::<true>(a, w, c) } else { multiply::<false>(a, w, c) } }
}

/// The group's block that holds block of 32 `at`, and its place there. `group` is the group's first block.
#[inline(always)]
unsafe fn block_of<T: Format>(group: *const u8, layout: Layout, at: usize) -> (Part, usize) {
    // A power of two: a shift is cheaper than a division.
    let subs = T::subs(layout);
    let number = at >> subs.trailing_zeros();
    // SAFETY: the caller names a block of the group.
    let block = unsafe { group.add(number * PAIR * T::bytes(layout)) };
    (Part { block, first: 0, layout }, at & (subs - 1))
}

/// Writes the levels of a batch as weight tiles.
#[inline(always)]
unsafe fn unpack<T: Format>(Batch { group, layout, first, count }: Batch, weights: &mut [u8; BATCH * 512]) {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm512_set1_epi8, _mm512_store_si512, _mm512_sub_epi8,
    };
    for s in 0..count {
        // SAFETY: blocks of the group; the caller has the instruction set; a prefetch of any address is harmless.
        unsafe {
            let (part, j) = block_of::<T>(group, layout, first + s);
            let size = GROUP * T::bytes(layout);
            let shift = T::subs(layout).trailing_zeros();
            for line in ((size * j) >> shift..(size * (j + 1)) >> shift).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(part.block.wrapping_add(AHEAD + line).cast());
            }
            for i in 0..8 {
                let level = T::level::<Avx512>(part, j, i);
                let level = match T::OFFSET_LOG2 {
                    Some(n) => _mm512_sub_epi8(level, _mm512_set1_epi8(1 << n)),
                    None => level,
                };
                _mm512_store_si512(weights.as_mut_ptr().add(512 * s + 64 * i).cast(), level);
            }
        }
    }
}

/// Scales the sums of a batch into the accumulators, blocks ascending.
#[inline(always)]
unsafe fn add<T: Format>(
    Batch { group, layout, first, count }: Batch,
    x: &Input,
    sums: &[[i32; BATCH * 256]; 2],
    acc: &mut [<Avx512 as Simd>::F; TILE_ROWS],
) {
    for s in 0..count {
        // SAFETY: blocks of the group and of the rows; the caller has the instruction set.
        unsafe {
            let (part, j) = block_of::<T>(group, layout, first + s);
            let scales = T::scales::<Avx512>(part, j);
            let meta = x.meta.byte_add(x.meta_step * (first + s));
            // Unrolled by hand: the accumulators must stay in registers.
            macro_rules! rows {
                ($($r:literal)*) => {$(if $r < x.rows {
                    let low = Avx512::to_f(Avx512::load(sums[0].as_ptr().add(256 * s + 16 * $r).cast()));
                    let sum = if T::HALVES {
                        // Products and sum are whole numbers below 2^24: exact in any order.
                        let high = Avx512::load(sums[1].as_ptr().add(256 * s + 16 * $r).cast());
                        Avx512::fma(low, scales.s[0], Avx512::mul_f(Avx512::to_f(high), scales.s[1]))
                    } else {
                        low
                    };
                    acc[$r] = panel::scale::<Avx512, T>(acc[$r], sum, &scales, &*meta.byte_add(x.meta_row * $r));
                })*};
            }
            rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        }
    }
}
