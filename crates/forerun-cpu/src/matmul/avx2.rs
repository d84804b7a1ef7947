//! AVX2: 8 rows a vector.

use std::arch::x86_64::*;

use super::simd::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

// Every function below is `inline(always)` into kernels that enable the features, which is what makes the intrinsics
// legal; the trait's contract says so.
impl Simd for Avx2 {
    const LANES: usize = 8;
    const ROWS: usize = 2;
    const SIGNED_OFFSET_LOG2: Option<u32> = None;
    const WIDE_LOWERED: i32 = 128;
    type I = __m256i;
    type F = __m256;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256i {
        // SAFETY: the caller gives 32 readable bytes and the feature.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const u8) -> __m256 {
        // SAFETY: the caller gives 32 readable bytes and the feature.
        unsafe { _mm256_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u8) -> __m256i {
        // SAFETY: the caller gives 16 readable bytes and the feature.
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m256 {
        // SAFETY: the caller gives 16 readable bytes and the feature.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m256 {
        // SAFETY: the caller gives 16 readable bytes and the feature.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(Self::load_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> __m256 {
        // SAFETY: the caller gives 8 readable bytes and the feature.
        unsafe {
            let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            let is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
            _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, is_tiny))
        }
    }
    #[inline(always)]
    unsafe fn splat(v: i32) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn zero_f() -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, mask: u32) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_and_si256(a, _mm256_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m256i, n: u32) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m256i, n: u32) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn signed_byte(a: __m256i, n: u32) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_srai_epi32::<24>(Self::shl(a, 24 - 8 * n)) }
    }
    #[inline(always)]
    unsafe fn dot16(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(w, x)) }
    }
    #[inline(always)]
    unsafe fn table(index: __m256i, table: &[i8; 16]) -> __m256i {
        // SAFETY: the table is 16 readable bytes and the caller has the feature.
        unsafe {
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), index)
        }
    }
    /// Pairs of products stay below 2·127·127 < 2^15, so the 16-bit sums do not saturate.
    #[inline(always)]
    unsafe fn dot(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe {
            let pairs = _mm256_maddubs_epi16(w, x);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    #[inline(always)]
    unsafe fn ready_signed(w: __m256i) -> __m256i {
        w
    }
    /// |w| up to 128 times ±x, |x| up to 127: pairs stay below 2·128·127 < 2^15.
    #[inline(always)]
    unsafe fn dot_signed(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe {
            let x = _mm256_sign_epi8(x, w);
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    }
    /// As signed levels, whose products fit.
    #[inline(always)]
    unsafe fn ready_wide(w: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_xor_si256(w, _mm256_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        // SAFETY: the caller has the feature.
        unsafe { Self::dot_signed(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn to_f(a: __m256i) -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn mul_f(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the caller has the feature.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: __m256i) {
        // SAFETY: the caller gives room for 32 bytes and has the feature.
        unsafe { _mm256_storeu_si256(p.cast(), v) };
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut u8, v: __m256) {
        // SAFETY: the caller gives room for 8 floats and has the feature.
        unsafe { _mm256_storeu_ps(p.cast(), v) };
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
}
