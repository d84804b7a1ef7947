//! Which instruction set encodes, found at run time.

/// An instruction set that lanes are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Isa {
    /// Plain Rust, any processor.
    Portable,
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Those that this processor and its operating system run, the best one last.
    pub(super) fn available() -> impl Iterator<Item = Self> {
        #[cfg(target_arch = "x86_64")]
        let wide = [
            is_x86_feature_detected!("avx2").then_some(Self::Avx2),
            is_x86_feature_detected!("avx512f").then_some(Self::Avx512),
        ];
        #[cfg(not(target_arch = "x86_64"))]
        let wide = [None; 2];
        std::iter::once(Self::Portable).chain(wide.into_iter().flatten())
    }

    /// The best available one.
    pub(super) fn detect() -> Self {
        Self::available().last().unwrap_or(Self::Portable)
    }
}

/// Compiles a generic `#[inline(always)]` function over lanes once per instruction set, and calls the one for `isa`.
macro_rules! per_isa {
    (fn $name:ident = $body:ident::<V $(, $n:literal)*>($($arg:ident: $ty:ty),* $(,)?)) => {
        fn $name(isa: Isa, $($arg: $ty),*) {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) { $body::<Avx2 $(, $n)*>($($arg),*) }
                #[target_feature(enable = "avx2,avx512f")]
                fn avx512($($arg: $ty),*) { $body::<Avx512 $(, $n)*>($($arg),*) }
                match isa {
                    Isa::Portable => {}
                    // SAFETY: `Isa::available` detected the features.
                    Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    // SAFETY: as above.
                    Isa::Avx512 => return unsafe { avx512($($arg),*) },
                }
            }
            let _ = isa;
            $body::<Portable $(, $n)*>($($arg),*);
        }
    };
}
pub(super) use per_isa;
