//! AMX: matrix tiles of 8-bit integers. Intrinsics and detection are unstable in Rust, so both are written with `asm!`;
//! configuration, tiles and release stand in one block, where no compiler can drop or move them.

use std::arch::asm;
use std::sync::OnceLock;

use forerun_quant::TensorType;

use super::avx512::Avx512;
use super::formats::{self, Format, Part};
use super::tile::{self, GROUP, Tile};
use super::{InputRows, TILE};

/// Fewer input rows than this do not pay for unpacking weights to memory.
const LEAST_ROWS: usize = 9;

/// Whether a tile of these rows is better off here.
pub(crate) fn pays(x: &InputRows<'_>) -> bool {
    x.count >= LEAST_ROWS && x.consecutive
}

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

/// Products of `steps` (a multiple of 4) consecutive K-steps of `k` (16 or 32) elements: `c[s] = x[step s] · w[s]`. Four
/// results are under way at a time.
///
/// # Safety
/// AMX is available. The activations have `rows` rows of `k` bytes in every step; `w` has `steps` blocks of
/// 512 bytes of which the first `16 · k` count; `c` has room for `steps` blocks of 16 × 16 words.
unsafe fn multiply(
    rows: usize,
    k: usize,
    signed: bool,
    steps: usize,
    a: Activations,
    w: *const u8,
    c: *mut i32,
) {
    let config = config(rows, k);
    macro_rules! run {
        ($product:literal) => {
            // SAFETY: the caller's contract covers every address; the tile registers are configured and released within.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "2:",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tileloadd tmm4, [{x} + {xrow}*1]",
                    "tileloadd tmm6, [{w} + {row}*1]",
                    "add {x}, {step}",
                    "add {w}, {block}",
                    concat!($product, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{x} + {xrow}*1]",
                    "tileloadd tmm7, [{w} + {row}*1]",
                    "add {x}, {step}",
                    "add {w}, {block}",
                    concat!($product, " tmm1, tmm5, tmm7"),
                    "tileloadd tmm4, [{x} + {xrow}*1]",
                    "tileloadd tmm6, [{w} + {row}*1]",
                    "add {x}, {step}",
                    "add {w}, {block}",
                    concat!($product, " tmm2, tmm4, tmm6"),
                    "tileloadd tmm5, [{x} + {xrow}*1]",
                    "tileloadd tmm7, [{w} + {row}*1]",
                    "add {x}, {step}",
                    "add {w}, {block}",
                    concat!($product, " tmm3, tmm5, tmm7"),
                    "tilestored [{c} + {row}*1], tmm0",
                    "tilestored [{c} + {row}*1 + 1024], tmm1",
                    "tilestored [{c} + {row}*1 + 2048], tmm2",
                    "tilestored [{c} + {row}*1 + 3072], tmm3",
                    "add {c}, 4096",
                    "sub {steps}, 4",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const config,
                    x = inout(reg) a.x => _,
                    xrow = in(reg) a.row,
                    step = in(reg) a.step,
                    w = inout(reg) w => _,
                    row = in(reg) 64usize,
                    c = inout(reg) c => _,
                    block = in(reg) 512usize,
                    steps = inout(reg) steps => _,
                    options(nostack)
                );
            }
        };
    }
    if signed {
        run!("tdpbssd");
    } else {
        run!("tdpbsud");
    }
}

/// Compares one product of every form with plain loops.
fn self_test() -> bool {
    const STEPS: usize = 4;
    let x: [i8; 16 * 128] = std::array::from_fn(|i| (i * 37 % 255) as i8);
    let w: [u8; STEPS * 512] = std::array::from_fn(|i| (i * 59 % 251) as u8);
    [(16, 32, false), (9, 32, true), (16, 16, false), (11, 16, true)].into_iter().all(|(rows, k, signed)| {
        let mut c = [0i32; STEPS * 256];
        let a = Activations { x: x.as_ptr(), row: 128, step: k };
        // SAFETY: four steps of at most 32 elements fit the arrays.
        unsafe { multiply(rows, k, signed, STEPS, a, w.as_ptr(), c.as_mut_ptr()) };
        (0..STEPS * rows * 16).all(|i| {
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

/// Blocks of 32 that are unpacked and multiplied at a time: weights and results stay in the first-level cache.
const STEPS: usize = 8;

#[repr(C, align(64))]
struct Work {
    weights: [u8; STEPS * 512],
    sums: [i32; 2 * STEPS * 256],
}

thread_local! {
    static WORK: std::cell::RefCell<Box<Work>> =
        std::cell::RefCell::new(Box::new(Work { weights: [0; STEPS * 512], sums: [0; 2 * STEPS * 256] }));
}

/// A product as [`super::Matrix::tile`] wants it; false when the type has no kernel here.
pub(crate) fn tile(
    ty: TensorType,
    group: *const u8,
    blocks: usize,
    x: &InputRows<'_>,
    out: &mut Tile,
) -> bool {
    use TensorType as T;
    let run = match ty {
        T::Q4_0 => tile_of::<formats::Q4_0>,
        T::Q4_1 => tile_of::<formats::Q4_1>,
        T::Q5_0 => tile_of::<formats::Q5_0>,
        T::Q5_1 => tile_of::<formats::Q5_1>,
        T::Q8_0 => tile_of::<formats::Q8_0>,
        T::Q2_K => tile_of::<formats::Q2_K>,
        T::Q3_K => tile_of::<formats::Q3_K>,
        T::Q4_K => tile_of::<formats::Q4_K>,
        T::Q5_K => tile_of::<formats::Q5_K>,
        T::Q6_K => tile_of::<formats::Q6_K>,
        T::IQ4_NL => tile_of::<formats::IQ4_NL>,
        T::IQ4_XS => tile_of::<formats::IQ4_XS>,
        T::MXFP4 => tile_of::<formats::MXFP4>,
        _ => return false,
    };
    WORK.with_borrow_mut(|work| {
        // SAFETY: the group and rows are those of the caller's contract; AMX was detected, and with it AVX-512.
        unsafe { run(group, blocks, x, work, out) };
    });
    true
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn tile_of<T: Format>(
    group: *const u8,
    blocks: usize,
    x: &InputRows<'_>,
    work: &mut Work,
    out: &mut Tile,
) {
    use super::simd::Simd;
    let size = GROUP * T::TYPE.block_bytes();
    let subs = blocks * T::SUBS;
    // SAFETY: addresses stay within the group, the rows and `work`; features are enabled here.
    unsafe {
        let mut acc = [Avx512::zero_f(); TILE];
        let mut first = 0;
        while first < subs {
            let steps = STEPS.min(subs - first);
            for s in 0..steps {
                let (b, j) = ((first + s) / T::SUBS, (first + s) % T::SUBS);
                let levels = T::levels::<Avx512>(Part { block: group.add(b * size), first: 0 }, j);
                for (i, v) in levels.into_iter().enumerate() {
                    std::arch::x86_64::_mm512_store_si512(
                        work.weights.as_mut_ptr().add(512 * s + 64 * i).cast(),
                        v,
                    );
                }
            }
            let (q_step, _) = x.layout.steps();
            let row = x.quant[1].q.offset_from(x.quant[0].q) as usize;
            let q = x.quant[0].q.add(q_step * first);
            let (w, c) = (work.weights.as_ptr(), work.sums.as_mut_ptr());
            // The halves of every block lie 16 levels apart: each half is a run of steps of its own.
            let (k, runs) = if T::HALVES { (16, 2) } else { (32, 1) };
            let padded = steps.next_multiple_of(4);
            for half in 0..runs {
                let a = Activations { x: q.add(16 * half), row, step: q_step };
                multiply(x.count, k, T::SIGNED, padded, a, w.add(256 * half), c.add(STEPS * 256 * half));
            }
            let meta_step = x.layout.steps().1;
            let scales_of = |s: usize| ((first + s) / T::SUBS, (first + s) % T::SUBS);
            let (b, j) = scales_of(0);
            let mut scales = [T::scales::<Avx512>(Part { block: group.add(b * size), first: 0 }, j); STEPS];
            for (s, scale) in scales.iter_mut().enumerate().take(steps).skip(1) {
                let (b, j) = scales_of(s);
                *scale = T::scales::<Avx512>(Part { block: group.add(b * size), first: 0 }, j);
            }
            for (r, acc) in acc.iter_mut().enumerate().take(x.count) {
                let mut a = *acc;
                for (s, scale) in scales.iter().enumerate().take(steps) {
                    let low = Avx512::load(c.add(s * 256 + 16 * r).cast());
                    let high = if T::HALVES {
                        Avx512::load(c.add((STEPS + s) * 256 + 16 * r).cast())
                    } else {
                        Avx512::splat(0)
                    };
                    let meta = &*x.quant[r].meta.byte_add(meta_step * (first + s));
                    a = tile::finish::<Avx512, T>(a, low, high, scale, meta);
                }
                *acc = a;
            }
            first += steps;
        }
        for (acc, out) in acc.into_iter().zip(out.iter_mut()).take(x.count) {
            Avx512::store(out.as_mut_ptr(), acc);
        }
    }
}
