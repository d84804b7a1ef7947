//! The types that a file of weights can have as a whole.

use forerun_quant::{ENCODED, TensorType};

macro_rules! file_types {
    ($($name:ident = $number:literal, $base:ident, $note:literal;)*) => {
        /// Type of a file's matrices, by the ecosystem's names: all of one type, or a mix that gives more bits to the matrices
        /// where errors hurt most.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(non_camel_case_types)]
        pub enum FileType {
            /// Every tensor as it is.
            Same,
            $(#[doc = $note] $name,)*
        }

        impl FileType {
            /// Every type but `Same`.
            pub(crate) const ALL: &'static [FileType] = &[$(FileType::$name),*];

            /// The name, in lower case.
            #[must_use]
            pub fn name(self) -> String {
                match self { FileType::Same => "same", $(FileType::$name => stringify!($name),)* }.to_lowercase()
            }

            /// The number that the file carries in `general.file_type`; `None` where it keeps its own.
            #[must_use]
            pub fn number(self) -> Option<u32> {
                match self { FileType::Same => None, $(FileType::$name => Some($number),)* }
            }

            /// The type that a matrix has when no rule says otherwise; `None` where each keeps its own.
            #[must_use]
            pub fn base(self) -> Option<TensorType> {
                match self { FileType::Same => None, $(FileType::$name => Some(TensorType::$base),)* }
            }
        }
    };
}

file_types! {
    F32 = 0, F32, "32-bit floats.";
    F16 = 1, F16, "16-bit floats.";
    BF16 = 32, BF16, "16-bit floats with the range of 32-bit ones.";
    Q8_0 = 7, Q8_0, "8 bits.";
    Q4_0 = 2, Q4_0, "4 bits, a scale for 32 weights.";
    Q4_1 = 3, Q4_1, "4 bits, a scale and a minimum for 32 weights.";
    Q5_0 = 8, Q5_0, "5 bits, a scale for 32 weights.";
    Q5_1 = 9, Q5_1, "5 bits, a scale and a minimum for 32 weights.";
    Q2_K = 10, Q2_K, "A mix around Q2_K.";
    Q2_K_S = 21, Q2_K, "A smaller mix around Q2_K, which needs an importance matrix.";
    Q3_K_S = 11, Q3_K, "A small mix around Q3_K.";
    Q3_K_M = 12, Q3_K, "A mix around Q3_K.";
    Q3_K_L = 13, Q3_K, "A large mix around Q3_K.";
    Q4_K_S = 14, Q4_K, "A small mix around Q4_K.";
    Q4_K_M = 15, Q4_K, "The usual mix: Q4_K, and Q6_K where it matters most.";
    Q5_K_S = 16, Q5_K, "A small mix around Q5_K.";
    Q5_K_M = 17, Q5_K, "A mix around Q5_K.";
    Q6_K = 18, Q6_K, "6 bits.";
    IQ3_S = 26, IQ3_S, "3 bits, levels from a grid.";
    IQ4_NL = 25, IQ4_NL, "4 bits on uneven levels, a scale for 32 weights.";
    IQ4_XS = 30, IQ4_XS, "4 bits on uneven levels, in blocks of 256.";
}

impl FileType {
    /// Shorter names of the middle mixes.
    const SHORT: [(&'static str, FileType); 3] =
        [("q3_k", FileType::Q3_K_M), ("q4_k", FileType::Q4_K_M), ("q5_k", FileType::Q5_K_M)];

    /// The file type of a name in any case, as in `q4_k_m`; `same` leaves every type as it is. `None` also for types that
    /// rows cannot be encoded in.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.to_lowercase();
        let short = Self::SHORT.iter().find(|(short, _)| *short == name).map(|(_, ty)| *ty);
        short.or_else(|| Self::writable().find(|ty| ty.name() == name))
    }

    /// Every name.
    #[must_use]
    pub fn names() -> Vec<String> {
        Self::writable().map(Self::name).collect()
    }

    fn writable() -> impl Iterator<Item = FileType> {
        let encoded = |ty: &FileType| ty.base().is_some_and(|base| ENCODED.contains(&base));
        std::iter::once(FileType::Same).chain(Self::ALL.iter().copied().filter(encoded))
    }

    /// Whether matrices become blocks of integers, by the rules of a mix.
    pub(crate) fn is_mix(self) -> bool {
        self.base().is_some_and(|base| base.block_elements() > 1)
    }
}
