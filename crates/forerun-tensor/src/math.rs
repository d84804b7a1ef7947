//! The transcendental functions of every Forerun backend.
//!
//! Platform maths libraries differ in the last bit, so none is called where a token could depend on it: these are our
//! own minimax polynomials (fitted with `mpmath.chebyfit`), evaluated with explicit fused multiply-add in one fixed
//! order. They are branch-free, so a loop over them vectorises, and a vector lane has the bits of the scalar call.
//! The float32 `exp`, `ln`, `log1p` and `softplus` are within 2 ulp, `sigmoid`, `silu` and `tanh` within 3; tests compare
//! them with float64. `gelu_tanh` is within 1e-6 of its value, or of 1 where that is larger: its negative tail takes the
//! rounding of a large exponent.

/// `exp(x)`. Overflows to infinity above 88.7 and underflows to zero below −87.3 (no subnormal results). NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // Adding and subtracting 1.5·2^23 rounds to the nearest integer without a rounding instruction.
    const MAGIC: f32 = 12_582_912.0;
    let c = if x > 89.0 { 89.0 } else { x };
    let c = if c < -88.0 { -88.0 } else { c };
    let shifted = c.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let n = shifted - MAGIC;
    let r = n.mul_add(-0.693_359_4, c);
    let r = n.mul_add(0.000_212_194_44, r);
    let p = 0.001_392_692_7_f32;
    let p = p.mul_add(r, 0.008_363_774);
    let p = p.mul_add(r, 0.041_666_55);
    let p = p.mul_add(r, 0.166_665_73);
    let p = p.mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    // Two factors, since 2^128 alone is no float32 while y·2^127·2 may be finite.
    let k = shifted.to_bits().wrapping_sub(MAGIC.to_bits()) as i32;
    let half = k >> 1;
    let a = f32::from_bits(((half + 127) << 23) as u32);
    let b = f32::from_bits(((k - half + 127) << 23) as u32);
    let v = y * a * b;
    if x < -87.3 { 0.0 } else { v }
}

/// `ln(x)` for normal positive x; `-inf` at 0; NaN below 0 and for NaN; `inf` for `inf`. Subnormals count as 0.
#[inline(always)]
#[must_use]
pub fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // Subtracting the bits of √½ splits the exponent where the mantissa lies in [√½, √2).
    let t = bits.wrapping_sub(0x3f35_04f3);
    let e = (t as i32) >> 23;
    let f = f32::from_bits((t & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let e = e as f32;
    let q = 0.069_691_04_f32;
    let q = q.mul_add(f, -0.115_134_31);
    let q = q.mul_add(f, 0.117_016_025);
    let q = q.mul_add(f, -0.124_223_6);
    let q = q.mul_add(f, 0.142_472_18);
    let q = q.mul_add(f, -0.166_678_79);
    let q = q.mul_add(f, 0.200_007_68);
    let q = q.mul_add(f, -0.249_999_97);
    let q = q.mul_add(f, 0.333_333_3);
    let z = f * f;
    let y = (q * f).mul_add(z, e * -0.000_212_194_44);
    let y = z.mul_add(-0.5, y);
    let v = e.mul_add(0.693_359_4, f + y);
    let v = if x < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { v };
    let v = if x == f32::INFINITY { f32::INFINITY } else { v };
    if x < 0.0 || x.is_nan() { f32::NAN } else { v }
}

/// `ln(1 + x)` with the relative precision of a float32 near 0; `-inf` at −1; NaN below.
#[inline(always)]
#[must_use]
pub fn log1p(x: f32) -> f32 {
    let z = 1.0 + x;
    // (x − (z − 1)) is exactly what the addition lost; its first-order share of the logarithm is put back.
    let lost = x - (z - 1.0);
    let v = ln(z) + lost / z;
    if z == 0.0 {
        f32::NEG_INFINITY
    } else if z == f32::INFINITY {
        f32::INFINITY
    } else {
        v
    }
}

/// `1 / (1 + exp(−x))`.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `x · sigmoid(x)`.
#[inline(always)]
#[must_use]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `ln(1 + exp(x))`, stable on both sides.
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    let above = if x > 0.0 { x } else { 0.0 };
    let v = above + log1p(exp(-x.abs()));
    if x.is_nan() { x } else { v }
}

/// `tanh(x)`. Below 0.3 in magnitude a continued fraction keeps relative precision, above it `1 − 2/(exp(2|x|) + 1)`.
#[inline(always)]
#[must_use]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let far = 1.0 - 2.0 / (exp(2.0 * a) + 1.0);
    let far = if x < 0.0 { -far } else { far };
    // sinh/cosh as a continued fraction: x·(945 + 105 s + s²) / (945 + 420 s + 15 s²), s = x².
    let s = x * x;
    let top = s.mul_add(s + 105.0, 945.0);
    let bottom = s.mul_add(s.mul_add(15.0, 420.0), 945.0);
    let near = x * (top / bottom);
    if a < 0.3 { near } else { far }
}

/// The tanh approximation of GELU, `x · sigmoid(2·√(2/π)·(x + 0.044715·x³))`.
#[inline(always)]
#[must_use]
pub fn gelu_tanh(x: f32) -> f32 {
    let u = (x * x * x).mul_add(0.044_715, x);
    x / (1.0 + exp(-1.595_769_2 * u))
}

/// `sin` and `cos` of a float64 angle up to 2^30 in magnitude, within 1e-14: rotary angles, taken once per row.
#[must_use]
pub fn sin_cos(x: f64) -> (f64, f64) {
    const P1: f64 = 1.570_796_326_734_125_6;
    const P2: f64 = 6.077_100_506_303_966e-11;
    const P3: f64 = 2.022_266_248_795_950_6e-21;
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = n.mul_add(-P3, n.mul_add(-P2, n.mul_add(-P1, x)));
    let z = r * r;
    // Taylor terms down to 1e-18 at |r| = π/4.
    let mut sin = 0.0;
    let mut cos = 0.0;
    for k in (0..9).rev() {
        let k2 = f64::from(2 * k);
        sin = (sin * z).mul_add(-1.0 / ((k2 + 2.0) * (k2 + 3.0)), 1.0);
        cos = (cos * z).mul_add(-1.0 / ((k2 + 1.0) * (k2 + 2.0)), 1.0);
    }
    let sin = sin * r;
    match (n as i64).rem_euclid(4) {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// `base^y` for base > 0 in float64, within 1e-13 relative: rotary frequencies, taken once at load.
#[must_use]
pub fn powf64(base: f64, y: f64) -> f64 {
    exp64(y * ln64(base))
}

/// `ln(x)` for normal positive x in float64.
#[must_use]
pub fn ln64(x: f64) -> f64 {
    let bits = x.to_bits();
    let mut e = ((bits >> 52) as i64) - 1023;
    let mut m = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) | 0x3ff0_0000_0000_0000);
    if m > std::f64::consts::SQRT_2 {
        m *= 0.5;
        e += 1;
    }
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let mut sum = 0.0;
    for k in (0..16).rev() {
        sum = f64::mul_add(sum, z, 1.0 / f64::from(2 * k + 1));
    }
    (e as f64).mul_add(std::f64::consts::LN_2, 2.0 * s * sum)
}

/// `exp(x)` in float64 for |x| < 700.
#[must_use]
pub fn exp64(x: f64) -> f64 {
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-1.908_214_929_270_587_7e-10, n.mul_add(-0.693_147_180_369_123_8, x));
    let mut sum = 1.0;
    for k in (1..=18).rev() {
        sum = f64::mul_add(sum, r / f64::from(k), 1.0);
    }
    let n = n.clamp(-1022.0, 1023.0) as i64;
    sum * f64::from_bits(((n + 1023) as u64) << 52)
}

/// Adds 16 lanes in the one fixed order of Forerun's reductions: halves folded onto each other, 8, 4, 2, 1.
#[inline(always)]
#[must_use]
pub fn tree16(lanes: &[f32; 16]) -> f32 {
    let mut s = *lanes;
    let mut width = 8;
    while width > 0 {
        for i in 0..width {
            s[i] += s[i + width];
        }
        width /= 2;
    }
    s[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ulps(got: f32, want: f64) -> f64 {
        let w = want as f32;
        if w == got {
            return 0.0;
        }
        let unit = f64::from(f32::from_bits(w.abs().to_bits() + 1) - w.abs());
        (f64::from(got) - want).abs() / unit
    }

    fn worst(f: impl Fn(f32) -> f32, g: impl Fn(f64) -> f64, from: f32, to: f32) -> f64 {
        (0..200_000)
            .map(|i| from + (to - from) * (i as f32 / 200_000.0))
            .map(|x| ulps(f(x), g(f64::from(x))))
            .fold(0.0, f64::max)
    }

    #[test]
    fn float32_functions_are_within_their_bounds() {
        assert!(worst(exp, f64::exp, -87.0, 88.7) < 2.0);
        assert!(worst(ln, f64::ln, 1e-30, 10.0) < 2.0);
        assert!(worst(ln, f64::ln, 0.9, 1.1) < 2.0);
        assert!(worst(log1p, f64::ln_1p, -0.999, 1.0) < 2.0);
        assert!(worst(log1p, f64::ln_1p, -1e-6, 1e-6) < 2.0);
        assert!(worst(softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), -20.0, 20.0) < 2.0);
        assert!(worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), -40.0, 40.0) < 3.0);
        assert!(worst(silu, |x| x / (1.0 + (-x).exp()), -40.0, 40.0) < 3.0);
        assert!(worst(tanh, f64::tanh, -9.0, 9.0) < 3.0);
        assert!(worst(tanh, f64::tanh, -1e-3, 1e-3) < 3.0);
    }

    #[test]
    fn gelu_is_within_its_bound() {
        for i in -200_000..200_000 {
            let x = i as f32 / 10_000.0;
            let y = f64::from(x);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (y + 0.044715 * y.powi(3));
            let want = y / (1.0 + (-2.0 * inner).exp());
            assert!((f64::from(gelu_tanh(x)) - want).abs() <= 1e-6 * want.abs().max(1.0), "{x}");
        }
    }

    #[test]
    fn edges() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan() && ln(f32::NAN).is_nan() && softplus(f32::NAN).is_nan());
        assert_eq!(ln(0.0), f32::NEG_INFINITY);
        assert_eq!(ln(1.0), 0.0);
        assert_eq!(ln(f32::INFINITY), f32::INFINITY);
        assert!(ln(-1.0).is_nan());
        assert_eq!(log1p(-1.0), f32::NEG_INFINITY);
        assert_eq!(log1p(0.0), 0.0);
        assert_eq!(silu(-200.0), 0.0);
        assert_eq!(gelu_tanh(0.0), 0.0);
    }

    #[test]
    fn float64_functions() {
        for i in 0..20_000 {
            let x = f64::from(i) * 53_687.123;
            let (s, c) = sin_cos(x);
            assert!((s - x.sin()).abs() < 1e-13 && (c - x.cos()).abs() < 1e-13, "{x}");
        }
        for i in 1..2000 {
            let y = -f64::from(i) / 2000.0;
            let want = 1e7_f64.powf(y);
            assert!((powf64(1e7, y) / want - 1.0).abs() < 1e-13);
        }
    }
}
