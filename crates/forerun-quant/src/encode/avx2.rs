//! Sixteen lanes in two AVX2 vectors.

use std::arch::x86_64::*;
use std::array::from_fn;
use std::ops::{Add, BitAnd, Div, Mul, Sub};

use super::lanes::{Lanes, WIDTH};

#[derive(Clone, Copy)]
pub(super) struct Avx2([__m256; 2]);

/// Lanes of all ones or all zeros.
#[derive(Clone, Copy)]
pub(super) struct Avx2Mask([__m256; 2]);

/// An expression for both vectors. No closure: what is not inlined has not the feature.
macro_rules! both {
    ($i:ident => $each:expr) => {
        [
            {
                const $i: usize = 0;
                $each
            },
            {
                const $i: usize = 1;
                $each
            },
        ]
    };
}

// Everything below is `inline(always)` into functions that enable the feature, which is what makes the intrinsics legal; the
// trait's contract says so.

macro_rules! operators {
    ($($name:ident, $method:ident, $intrinsic:ident;)*) => {$(
        impl $name for Avx2 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: the caller has the feature.
                Self(both!(I => unsafe { $intrinsic(self.0[I], other.0[I]) }))
            }
        }
    )*};
}
operators! { Add, add, _mm256_add_ps; Sub, sub, _mm256_sub_ps; Mul, mul, _mm256_mul_ps; Div, div, _mm256_div_ps; }

impl BitAnd for Avx2Mask {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(both!(I => unsafe { _mm256_and_ps(self.0[I], other.0[I]) }))
    }
}

/// Every `step`th of the bounds, from one on.
#[inline(always)]
fn every(bounds: &[f32; WIDTH], from: usize, step: usize) -> [f32; 8] {
    from_fn(|i| bounds[(from + step * i) % WIDTH])
}

/// Index and value of one vector for [`Lanes::pick`]: a binary search whose middles are blended or looked up.
#[inline(always)]
fn pick(x: __m256, bounds: &[f32; WIDTH], values: &[f32; WIDTH]) -> (__m256, __m256) {
    // SAFETY: loads read eight floats of a table; the caller has the feature.
    unsafe {
        let upper = _mm256_cmp_ps::<_CMP_NLT_UQ>(x, _mm256_set1_ps(bounds[7]));
        let mut middle = _mm256_blendv_ps(_mm256_set1_ps(bounds[3]), _mm256_set1_ps(bounds[11]), upper);
        // A mask is −1 as an integer.
        let mut index = _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_castps_si256(upper));
        for table in [every(bounds, 1, 4), every(bounds, 0, 2), [0.0; 8]] {
            let beyond = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_NLT_UQ>(x, middle));
            index = _mm256_sub_epi32(_mm256_add_epi32(index, index), beyond);
            middle = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), index);
        }
        let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values.as_ptr()), index);
        let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(values.as_ptr().add(8)), index);
        (_mm256_cvtepi32_ps(index), _mm256_blendv_ps(low, high, upper))
    }
}

impl Lanes for Avx2 {
    type Mask = Avx2Mask;

    #[inline(always)]
    fn load(from: &[f32; WIDTH]) -> Self {
        // SAFETY: eight of sixteen readable floats; the caller has the feature.
        Self(both!(I => unsafe { _mm256_loadu_ps(from.as_ptr().add(8 * I)) }))
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; WIDTH]) {
        for (i, half) in self.0.into_iter().enumerate() {
            // SAFETY: eight of sixteen writable floats; the caller has the feature.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(8 * i), half) }
        }
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: the caller has the feature.
        Self([unsafe { _mm256_set1_ps(value) }; 2])
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: the caller has the feature.
        Self(both!(I => unsafe { _mm256_sqrt_ps(self.0[I]) }))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(both!(I => unsafe { _mm256_min_ps(self.0[I], other.0[I]) }))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(both!(I => unsafe { _mm256_max_ps(self.0[I], other.0[I]) }))
    }
    #[inline(always)]
    fn less(self, other: Self) -> Avx2Mask {
        // SAFETY: the caller has the feature.
        Avx2Mask(both!(I => unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(self.0[I], other.0[I]) }))
    }
    #[inline(always)]
    fn differs(self, other: Self) -> Avx2Mask {
        // SAFETY: the caller has the feature.
        Avx2Mask(both!(I => unsafe { _mm256_cmp_ps::<_CMP_NEQ_UQ>(self.0[I], other.0[I]) }))
    }
    #[inline(always)]
    fn choose(mask: Avx2Mask, yes: Self, no: Self) -> Self {
        // SAFETY: the caller has the feature.
        Self(both!(I => unsafe { _mm256_blendv_ps(no.0[I], yes.0[I], mask.0[I]) }))
    }
    #[inline(always)]
    fn any(mask: Avx2Mask) -> bool {
        // SAFETY: the caller has the feature.
        both!(I => unsafe { _mm256_movemask_ps(mask.0[I]) }) != [0, 0]
    }
    #[inline(always)]
    fn with_bits(self, keep: u32, set: u32) -> Self {
        // SAFETY: the caller has the feature.
        unsafe {
            let keep = _mm256_castsi256_ps(_mm256_set1_epi32(keep as i32));
            let set = _mm256_castsi256_ps(_mm256_set1_epi32(set as i32));
            Self(both!(I => _mm256_or_ps(_mm256_and_ps(self.0[I], keep), set)))
        }
    }
    #[inline(always)]
    fn bytes(self) -> [u8; WIDTH] {
        let mut out = [0; WIDTH];
        for (half, out) in self.0.into_iter().zip(out.chunks_exact_mut(8)) {
            // SAFETY: eight writable bytes; the caller has the feature. What 32 bits cannot hold becomes i32::MIN, whose low
            // byte is 0.
            unsafe {
                let low_bytes = _mm256_set_epi64x(-1, 0x0c08_0400, -1, 0x0c08_0400);
                let bytes = _mm256_shuffle_epi8(_mm256_cvttps_epi32(half), low_bytes);
                let both =
                    _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                _mm_storel_epi64(out.as_mut_ptr().cast(), both);
            }
        }
        out
    }
    #[inline(always)]
    fn ends(self) -> (f32, f32) {
        // SAFETY: the caller has the feature.
        unsafe {
            let [a, b] = self.0;
            let (high, low) = (_mm256_max_ps(a, b), _mm256_min_ps(a, b));
            let high = _mm_max_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps::<1>(high));
            let low = _mm_min_ps(_mm256_castps256_ps128(low), _mm256_extractf128_ps::<1>(low));
            let (high, low) =
                (_mm_max_ps(high, _mm_movehl_ps(high, high)), _mm_min_ps(low, _mm_movehl_ps(low, low)));
            let (high, low) =
                (_mm_max_ss(high, _mm_movehdup_ps(high)), _mm_min_ss(low, _mm_movehdup_ps(low)));
            (_mm_cvtss_f32(high), _mm_cvtss_f32(low))
        }
    }
    #[inline(always)]
    fn from_bytes(from: &[u8; WIDTH]) -> Self {
        // SAFETY: eight of sixteen readable bytes; the caller has the feature.
        Self(both!(I => unsafe {
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.as_ptr().add(8 * I).cast())))
        }))
    }
    #[inline(always)]
    fn first(self, value: f32) -> usize {
        // SAFETY: the caller has the feature.
        let [low, high] = both!(I => unsafe {
            _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0[I], _mm256_set1_ps(value)))
        });
        (low | high << 8).trailing_zeros() as usize % WIDTH
    }
    #[inline(always)]
    fn pick(self, bounds: &[f32; WIDTH], values: &[f32; WIDTH]) -> (Self, Self) {
        let [a, b] = both!(I => pick(self.0[I], bounds, values));
        (Self([a.0, b.0]), Self([a.1, b.1]))
    }
}
