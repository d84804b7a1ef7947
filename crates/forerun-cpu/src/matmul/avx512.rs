//! AVX-512 with VNNI: 16 rows a vector.

use std::arch::x86_64::*;

use super::simd::Simd;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// Every function below is `inline(always)` into kernels that enable the features, which is what makes the intrinsics
// legal; the trait's contract says so.
impl Simd for Avx512 {
    const LANES: usize = 16;
    const ROWS: usize = 4;
    const SIGNED_OFFSET_LOG2: Option<u32> = Some(7);
    type I = __m512i;
    type F = __m512;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        // SAFETY: the caller gives 64 readable bytes and the feature.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const u8) -> __m512 {
        // SAFETY: the caller gives 64 readable bytes and the feature.
        unsafe { _mm512_loadu_ps(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u8) -> __m512i {
        // SAFETY: the caller gives 32 readable bytes and the feature.
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        // SAFETY: the caller gives 32 readable bytes and the feature.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        // SAFETY: the caller gives 32 readable bytes and the feature.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(Self::load_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> __m512 {
        // SAFETY: the caller gives 16 readable bytes and the feature.
        unsafe {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
            let is_tiny = _mm512_cmplt_epu32_mask(e, _mm512_set1_epi32(2));
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, is_tiny, tiny))
        }
    }
    #[inline(always)]
    unsafe fn splat(v: i32) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_set1_epi32(v) }
    }
    #[inline(always)]
    unsafe fn splat_f(v: f32) -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_set1_ps(v) }
    }
    #[inline(always)]
    unsafe fn zero_f() -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, mask: u32) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_and_si512(a, _mm512_set1_epi32(mask as i32)) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, n: u32) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, n: u32) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(n as i32)) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn signed_byte(a: __m512i, n: u32) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_srai_epi32::<24>(Self::shl(a, 24 - 8 * n)) }
    }
    #[inline(always)]
    unsafe fn dot16(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_dpwssd_epi32(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn table(index: __m512i, table: &[i8; 16]) -> __m512i {
        // SAFETY: the table is 16 readable bytes and the caller has the feature.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), index) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_dpbusd_epi32(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn ready_signed(w: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_xor_si512(w, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn dot_signed(acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller has the feature.
        unsafe { Self::dot(acc, w, x) }
    }
    #[inline(always)]
    unsafe fn to_f(a: __m512i) -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn mul_f(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the caller has the feature.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: __m512i) {
        // SAFETY: the caller gives room for 64 bytes and has the feature.
        unsafe { _mm512_storeu_si512(p.cast(), v) };
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut u8, v: __m512) {
        // SAFETY: the caller gives room for 16 floats and has the feature.
        unsafe { _mm512_storeu_ps(p.cast(), v) };
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        // SAFETY: a prefetch of any address is harmless.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }
}
