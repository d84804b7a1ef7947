//! Sixteen lanes in one AVX-512 vector.

use std::arch::x86_64::*;
use std::ops::{Add, BitAnd, Div, Mul, Sub};

use super::lanes::{Lanes, WIDTH};

#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

#[derive(Clone, Copy)]
pub(super) struct Avx512Mask(__mmask16);

// Everything below is `inline(always)` into functions that enable the features, which is what makes the intrinsics legal; the
// trait's contract says so.

macro_rules! operators {
    ($($name:ident, $method:ident, $intrinsic:ident;)*) => {$(
        impl $name for Avx512 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: the caller has the feature.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )*};
}
operators! { Add, add, _mm512_add_ps; Sub, sub, _mm512_sub_ps; Mul, mul, _mm512_mul_ps; Div, div, _mm512_div_ps; }

impl BitAnd for Avx512Mask {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl Lanes for Avx512 {
    type Mask = Avx512Mask;

    #[inline(always)]
    fn load(from: &[f32; WIDTH]) -> Self {
        // SAFETY: 64 readable bytes; the caller has the feature.
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; WIDTH]) {
        // SAFETY: 64 writable bytes; the caller has the feature.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: the caller has the feature.
        Self(unsafe { _mm512_set1_ps(value) })
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: the caller has the feature.
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn less(self, other: Self) -> Avx512Mask {
        // SAFETY: the caller has the feature.
        Avx512Mask(unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0) })
    }
    #[inline(always)]
    fn differs(self, other: Self) -> Avx512Mask {
        // SAFETY: the caller has the feature.
        Avx512Mask(unsafe { _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(self.0, other.0) })
    }
    #[inline(always)]
    fn choose(mask: Avx512Mask, yes: Self, no: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(unsafe { _mm512_mask_blend_ps(mask.0, no.0, yes.0) })
    }
    #[inline(always)]
    fn any(mask: Avx512Mask) -> bool {
        mask.0 != 0
    }
    #[inline(always)]
    fn with_bits(self, keep: u32, set: u32) -> Self {
        // SAFETY: the caller has the feature.
        unsafe {
            let (keep, set) = (_mm512_set1_epi32(keep as i32), _mm512_set1_epi32(set as i32));
            // 0xea is the truth table of a & b | c.
            let bits = _mm512_ternarylogic_epi32::<0xea>(_mm512_castps_si512(self.0), keep, set);
            Self(_mm512_castsi512_ps(bits))
        }
    }
    #[inline(always)]
    fn bytes(self) -> [u8; WIDTH] {
        let mut out = [0; WIDTH];
        // SAFETY: 16 writable bytes; the caller has the feature. What 32 bits cannot hold becomes i32::MIN, whose low byte is 0.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(self.0));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        }
        out
    }
    #[inline(always)]
    fn ends(self) -> (f32, f32) {
        // SAFETY: the caller has the feature.
        unsafe { (_mm512_reduce_max_ps(self.0), _mm512_reduce_min_ps(self.0)) }
    }
    #[inline(always)]
    fn from_bytes(from: &[u8; WIDTH]) -> Self {
        // SAFETY: 16 readable bytes; the caller has the feature.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) })
    }
    #[inline(always)]
    fn first(self, value: f32) -> usize {
        // SAFETY: the caller has the feature.
        let mask = unsafe { _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, _mm512_set1_ps(value)) };
        mask.trailing_zeros() as usize % WIDTH
    }
    #[inline(always)]
    fn pick(self, bounds: &[f32; WIDTH], values: &[f32; WIDTH]) -> (Self, Self) {
        // SAFETY: the tables are 64 readable bytes; the caller has the feature.
        unsafe {
            let bounds = _mm512_loadu_ps(bounds.as_ptr());
            let mut index = _mm512_setzero_si512();
            // A binary search: is the value beyond the middle of what is left?
            for half in [8, 4, 2, 1] {
                let middle = _mm512_add_epi32(index, _mm512_set1_epi32(half - 1));
                let bound = _mm512_permutexvar_ps(middle, bounds);
                let beyond = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(self.0, bound);
                index = _mm512_mask_add_epi32(index, beyond, index, _mm512_set1_epi32(half));
            }
            let value = _mm512_permutexvar_ps(index, _mm512_loadu_ps(values.as_ptr()));
            (Self(_mm512_cvtepi32_ps(index)), Self(value))
        }
    }
}
