//! The types a tensor can have in a file.

use std::fmt;

use crate::Affine;

macro_rules! types {
    ($($name:ident = $id:literal, $elements:literal, $bytes:literal;)*) => {
        /// Element type of a tensor: those of the ggml ecosystem by their names there, and MLX's affine types.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, missing_docs)]
        pub enum TensorType { $($name,)* Affine(Affine) }

        impl TensorType {
            /// The types of GGUF files.
            pub const GGML: &'static [TensorType] = &[$(TensorType::$name),*];

            /// The type of a ggml id; `None` for ids that are not supported ([`refused_name`] may name them).
            #[must_use]
            pub fn from_ggml_id(id: u32) -> Option<Self> {
                match id { $($id => Some(TensorType::$name),)* _ => None }
            }
            /// The id in GGUF files; `None` for types that they cannot hold.
            #[must_use]
            pub fn ggml_id(self) -> Option<u32> {
                match self { $(TensorType::$name => Some($id),)* TensorType::Affine(_) => None }
            }
            /// The name, as in `Q4_K`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$name => stringify!($name),)* TensorType::Affine(a) => a.name() }
            }
            /// Elements of a block.
            #[must_use]
            pub const fn block_elements(self) -> usize {
                match self { $(TensorType::$name => $elements,)* TensorType::Affine(a) => a.group() }
            }
            /// Bytes of a block.
            #[must_use]
            pub const fn block_bytes(self) -> usize {
                match self { $(TensorType::$name => $bytes,)* TensorType::Affine(a) => a.block_bytes() }
            }
        }
    };
}

types! {
    F32 = 0, 1, 4;
    F16 = 1, 1, 2;
    Q4_0 = 2, 32, 18;
    Q4_1 = 3, 32, 20;
    Q5_0 = 6, 32, 22;
    Q5_1 = 7, 32, 24;
    Q8_0 = 8, 32, 34;
    Q2_K = 10, 256, 84;
    Q3_K = 11, 256, 110;
    Q4_K = 12, 256, 144;
    Q5_K = 13, 256, 176;
    Q6_K = 14, 256, 210;
    IQ2_XXS = 16, 256, 66;
    IQ2_XS = 17, 256, 74;
    IQ3_XXS = 18, 256, 98;
    IQ1_S = 19, 256, 50;
    IQ4_NL = 20, 32, 18;
    IQ3_S = 21, 256, 110;
    IQ2_S = 22, 256, 82;
    IQ4_XS = 23, 256, 136;
    I8 = 24, 1, 1;
    I16 = 25, 1, 2;
    I32 = 26, 1, 4;
    I64 = 27, 1, 8;
    F64 = 28, 1, 8;
    IQ1_M = 29, 256, 56;
    BF16 = 30, 1, 2;
    TQ1_0 = 34, 256, 54;
    TQ2_0 = 35, 256, 66;
    MXFP4 = 39, 32, 17;
}

impl TensorType {
    /// Every type: those of GGUF files, then the affine ones.
    pub const ALL: &'static [TensorType] = &{
        let mut all = [TensorType::F32; Self::GGML.len() + Affine::ALL.len()];
        let (ggml, affine) = all.split_at_mut(Self::GGML.len());
        ggml.copy_from_slice(Self::GGML);
        let mut i = 0;
        while i < affine.len() {
            affine[i] = TensorType::Affine(Affine::ALL[i]);
            i += 1;
        }
        all
    };

    /// The type of a name, in any case. An affine type that does not name its scales' type has BF16 ones, as MLX writes
    /// them: `affine4g64`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let find = |name: &str| Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name));
        find(name).or_else(|| find(&format!("{name}/bf16")))
    }

    /// Bytes of a row; `None` when `cols` is no multiple of the block, or the size overflows.
    #[must_use]
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_elements()) {
            return None;
        }
        (cols / self.block_elements()).checked_mul(self.block_bytes())
    }

    /// Whether values of this type are weights (float or quantised).
    #[must_use]
    pub fn is_weight(self) -> bool {
        !matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64 | Self::F64)
    }

    /// Whether the dot product runs over integers with quantised activations.
    #[must_use]
    pub fn is_integer_dot(self) -> bool {
        use TensorType as T;
        matches!(
            self,
            T::Q4_0
                | T::Q4_1
                | T::Q5_0
                | T::Q5_1
                | T::Q8_0
                | T::Q2_K
                | T::Q3_K
                | T::Q4_K
                | T::Q5_K
                | T::Q6_K
                | T::IQ4_NL
                | T::IQ4_XS
                | T::MXFP4
                | T::Affine(_)
        )
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of a ggml type that exists but is not supported.
#[must_use]
pub fn refused_name(id: u32) -> Option<&'static str> {
    Some(match id {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}
