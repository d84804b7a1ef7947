//! Instruction sets, found at run time.

use std::fmt;

/// An instruction set that kernels are written for. Each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust, any processor.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AVX-512 and AMX with 8-bit integers.
    Amx,
}

impl Isa {
    /// Every instruction set.
    pub const ALL: [Isa; 4] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Amx];

    /// The one to use when none is asked for: the best that this processor and its operating system run.
    #[must_use]
    pub fn detect() -> Self {
        let preferred = [Isa::Amx, Isa::Avx512, Isa::Avx2];
        preferred.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Scalar)
    }

    /// Whether this processor and its operating system run it.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && crate::matmul::amx::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// What a processor needs for it.
    #[must_use]
    pub fn requirements(self) -> &'static str {
        match self {
            Isa::Scalar => "nothing",
            Isa::Avx2 => "AVX2, FMA and F16C",
            Isa::Avx512 => "AVX-512 F, BW, VL, DQ and VNNI",
            Isa::Amx => "AVX-512 with VNNI, AMX-TILE and AMX-INT8, enabled by the operating system",
        }
    }

    /// Its name, as the command line spells it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Compiles a generic `#[inline(always)]` function once per instruction set and calls the one for `isa`. The function is
/// written without intrinsics over fixed lanes, so every version has the same bits; the compiler makes vectors of it.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident = $body:path, ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?) => {
        $(#[$meta])*
        $vis fn $name(isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                fn avx2($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
                fn avx512($($arg: $ty),*) $(-> $ret)? { $body($($arg),*) }
                match isa {
                    $crate::isa::Isa::Scalar => {}
                    // SAFETY: an `Isa` other than Scalar is only made after its features were detected.
                    $crate::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    $crate::isa::Isa::Avx512 | $crate::isa::Isa::Amx => return unsafe { avx512($($arg),*) },
                }
            }
            let _ = isa;
            $body($($arg),*)
        }
    };
}
pub(crate) use multiversion;
