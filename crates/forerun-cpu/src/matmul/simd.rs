//! The few vector operations that integer products are made of. A lane is an output row: 16 of them with AVX-512, 8 with
//! AVX2, one in plain Rust. Every implementation has the same results, bit for bit.

/// Vectors of `LANES` 32-bit lanes.
///
/// # Safety
/// Methods may only be called where the implementation's instruction set is available. Loads read `LANES` elements.
pub(crate) trait Simd: Copy {
    /// Output rows per vector.
    const LANES: usize;
    /// Input rows that a pass over the weights serves: sums and accumulators of two vectors of output rows for each of
    /// them fit the registers.
    const ROWS: usize;
    /// [`Simd::ready_signed`] adds 2^n to levels: the caller takes `2^n · Σx` off again.
    const SIGNED_OFFSET_LOG2: Option<u32>;
    /// [`Simd::ready_wide`] takes this from levels: the caller adds as many `Σx` again.
    const WIDE_LOWERED: i32 = 0;
    /// 32-bit integers, or four bytes per lane.
    type I: Copy;
    /// 32-bit floats.
    type F: Copy;

    unsafe fn load(p: *const u8) -> Self::I;
    unsafe fn load_f(p: *const u8) -> Self::F;
    unsafe fn load_u16(p: *const u8) -> Self::I;
    unsafe fn load_f16(p: *const u8) -> Self::F;
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    unsafe fn load_e8m0(p: *const u8) -> Self::F;
    unsafe fn splat(v: i32) -> Self::I;
    unsafe fn splat_f(v: f32) -> Self::F;
    unsafe fn zero_f() -> Self::F;
    unsafe fn and(a: Self::I, mask: u32) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shr(a: Self::I, n: u32) -> Self::I;
    unsafe fn shl(a: Self::I, n: u32) -> Self::I;
    unsafe fn sub(a: Self::I, b: Self::I) -> Self::I;
    /// Sign-extends the byte at bit position 8·n of each lane.
    unsafe fn signed_byte(a: Self::I, n: u32) -> Self::I;
    /// Per lane, `acc` and the products of both signed 16-bit halves of `w` with those of `x`.
    unsafe fn dot16(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Looks up each byte (0 to 15) in a table of signed bytes.
    unsafe fn table(index: Self::I, table: &[i8; 16]) -> Self::I;
    /// `acc + Σ w·x` over four bytes per lane, w unsigned up to 127.
    unsafe fn dot(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Signed levels as [`Simd::dot_signed`] takes them.
    unsafe fn ready_signed(w: Self::I) -> Self::I;
    /// `acc + Σ w·x` with w made ready; see [`Simd::SIGNED_OFFSET_LOG2`].
    unsafe fn dot_signed(acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Unsigned levels up to 255 as [`Simd::dot_wide`] takes them.
    #[inline(always)]
    unsafe fn ready_wide(w: Self::I) -> Self::I {
        w
    }
    /// `acc + Σ w·x` with w made ready; see [`Simd::WIDE_LOWERED`]. Here for where [`Simd::dot`] has no bound on levels.
    #[inline(always)]
    unsafe fn dot_wide(acc: Self::I, w: Self::I, x: Self::I) -> Self::I {
        // SAFETY: the caller has the instruction set.
        unsafe { Self::dot(acc, w, x) }
    }
    unsafe fn to_f(a: Self::I) -> Self::F;
    unsafe fn mul_f(a: Self::F, b: Self::F) -> Self::F;
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `−(a·b) + c`, rounded once.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn store(p: *mut u8, v: Self::I);
    unsafe fn store_f(p: *mut u8, v: Self::F);
    unsafe fn prefetch(p: *const u8);
}

/// One lane in plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

fn bytes(a: u32) -> [u8; 4] {
    a.to_le_bytes()
}

impl Simd for Scalar {
    const LANES: usize = 1;
    const ROWS: usize = 2;
    const SIGNED_OFFSET_LOG2: Option<u32> = None;
    type I = u32;
    type F = f32;

    unsafe fn load(p: *const u8) -> u32 {
        // SAFETY: the caller gives four readable bytes.
        u32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() })
    }
    unsafe fn load_f(p: *const u8) -> f32 {
        // SAFETY: the caller gives four readable bytes.
        f32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read() })
    }
    unsafe fn load_u16(p: *const u8) -> u32 {
        // SAFETY: the caller gives two readable bytes.
        u32::from(u16::from_le_bytes(unsafe { p.cast::<[u8; 2]>().read() }))
    }
    unsafe fn load_f16(p: *const u8) -> f32 {
        // SAFETY: the caller gives two readable bytes.
        half::f16::from_le_bytes(unsafe { p.cast::<[u8; 2]>().read() }).to_f32()
    }
    unsafe fn load_bf16(p: *const u8) -> f32 {
        // SAFETY: the caller gives two readable bytes.
        half::bf16::from_le_bytes(unsafe { p.cast::<[u8; 2]>().read() }).to_f32()
    }
    unsafe fn load_e8m0(p: *const u8) -> f32 {
        // SAFETY: the caller gives a readable byte.
        forerun_quant::e8m0_half(unsafe { p.read() })
    }
    unsafe fn splat(v: i32) -> u32 {
        v as u32
    }
    unsafe fn splat_f(v: f32) -> f32 {
        v
    }
    unsafe fn zero_f() -> f32 {
        0.0
    }
    unsafe fn and(a: u32, mask: u32) -> u32 {
        a & mask
    }
    unsafe fn or(a: u32, b: u32) -> u32 {
        a | b
    }
    unsafe fn shr(a: u32, n: u32) -> u32 {
        a >> n
    }
    unsafe fn shl(a: u32, n: u32) -> u32 {
        a << n
    }
    unsafe fn sub(a: u32, b: u32) -> u32 {
        a.wrapping_sub(b)
    }
    unsafe fn signed_byte(a: u32, n: u32) -> u32 {
        i32::from((a >> (8 * n)) as u8 as i8) as u32
    }
    unsafe fn dot16(acc: u32, w: u32, x: u32) -> u32 {
        let low = i32::from(w as i16) * i32::from(x as i16);
        let high = i32::from((w >> 16) as i16) * i32::from((x >> 16) as i16);
        acc.wrapping_add(low.wrapping_add(high) as u32)
    }
    unsafe fn table(index: u32, table: &[i8; 16]) -> u32 {
        u32::from_le_bytes(bytes(index).map(|i| table[usize::from(i & 15)] as u8))
    }
    unsafe fn dot(acc: u32, w: u32, x: u32) -> u32 {
        let sum: i32 =
            bytes(w).into_iter().zip(bytes(x)).map(|(w, x)| i32::from(w) * i32::from(x as i8)).sum();
        acc.wrapping_add(sum as u32)
    }
    unsafe fn ready_signed(w: u32) -> u32 {
        w
    }
    unsafe fn dot_signed(acc: u32, w: u32, x: u32) -> u32 {
        let sum: i32 =
            bytes(w).into_iter().zip(bytes(x)).map(|(w, x)| i32::from(w as i8) * i32::from(x as i8)).sum();
        acc.wrapping_add(sum as u32)
    }
    unsafe fn to_f(a: u32) -> f32 {
        a as i32 as f32
    }
    unsafe fn mul_f(a: f32, b: f32) -> f32 {
        a * b
    }
    unsafe fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    unsafe fn fnma(a: f32, b: f32, c: f32) -> f32 {
        (-a).mul_add(b, c)
    }
    unsafe fn store(p: *mut u8, v: u32) {
        // SAFETY: the caller gives room for four bytes.
        unsafe { p.cast::<[u8; 4]>().write(v.to_le_bytes()) };
    }
    unsafe fn store_f(p: *mut u8, v: f32) {
        // SAFETY: the caller gives room for one float.
        unsafe { p.cast::<[u8; 4]>().write(v.to_le_bytes()) };
    }
    unsafe fn prefetch(_: *const u8) {}
}
