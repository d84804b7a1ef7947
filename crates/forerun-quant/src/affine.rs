//! MLX's affine weights: `scale · level + bias`, with a scale and a bias for every group of elements along a row.
//!
//! MLX keeps levels, scales and biases in tensors of their own. Here a group is a block, like those of every other type:
//! its scale, its bias, then its levels. Nothing is converted: scale and bias keep the file's float type, and the levels
//! its bit stream, of which element j of a row takes bits `[j·bits, (j+1)·bits)`, the lowest bits of every byte first.
//! 32 elements are whole 32-bit words, so no group shares a byte with another.

use std::array::from_fn;
use std::ops::Range;

use crate::block::{Min, Sub};
use crate::{QuantError, TensorType};

/// A type of affine weights: bits of a level, elements of a group, float type of scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Affine {
    bits: u8,
    group: u8,
    scale: Scale,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Scale {
    F32,
    F16,
    BF16,
}

const BITS: [u8; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [u8; 3] = [32, 64, 128];
const SCALES: [Scale; 3] = [Scale::F32, Scale::F16, Scale::BF16];

macro_rules! names {
    (@ $bits:literal $group:literal) => {
        [
            concat!("affine", $bits, "g", $group, "/f32"),
            concat!("affine", $bits, "g", $group, "/f16"),
            concat!("affine", $bits, "g", $group, "/bf16"),
        ]
    };
    (@ $bits:literal) => { [names!(@ $bits 32), names!(@ $bits 64), names!(@ $bits 128)] };
    ($($bits:literal)*) => { [$(names!(@ $bits)),*] };
}

const NAMES: [[[&str; SCALES.len()]; GROUPS.len()]; BITS.len()] = names!(2 3 4 5 6 8);

impl Affine {
    /// Every affine type.
    pub const ALL: [Self; BITS.len() * GROUPS.len() * SCALES.len()] = {
        let mut all =
            [Self { bits: 0, group: 0, scale: Scale::F32 }; BITS.len() * GROUPS.len() * SCALES.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Self {
                bits: BITS[i / (GROUPS.len() * SCALES.len())],
                group: GROUPS[i / SCALES.len() % GROUPS.len()],
                scale: SCALES[i % SCALES.len()],
            };
            i += 1;
        }
        all
    };

    /// The type of 2, 3, 4, 5, 6 or 8 bits, groups of 32, 64 or 128 elements, and F32, F16 or BF16 scales and biases.
    ///
    /// # Errors
    /// For anything else.
    pub const fn new(bits: usize, group: usize, scale: TensorType) -> Result<Self, QuantError> {
        let kind = match scale {
            TensorType::F32 => Some(Scale::F32),
            TensorType::F16 => Some(Scale::F16),
            TensorType::BF16 => Some(Scale::BF16),
            _ => None,
        };
        match (bits, group, kind) {
            (2..=6 | 8, 32 | 64 | 128, Some(kind)) => {
                Ok(Self { bits: bits as u8, group: group as u8, scale: kind })
            }
            _ => Err(QuantError::NoAffine { bits, group, scale }),
        }
    }

    /// Bits of a level.
    #[must_use]
    pub const fn bits(self) -> usize {
        self.bits as usize
    }

    /// Elements of a group.
    #[must_use]
    pub const fn group(self) -> usize {
        self.group as usize
    }

    /// Type of scales and biases.
    #[must_use]
    pub const fn scale(self) -> TensorType {
        match self.scale {
            Scale::F32 => TensorType::F32,
            Scale::F16 => TensorType::F16,
            Scale::BF16 => TensorType::BF16,
        }
    }

    /// The name, as in `affine4g64/bf16`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let place = |all: &[u8], of: u8| all.iter().position(|v| *v == of).unwrap_or(0);
        NAMES[place(&BITS, self.bits)][place(&GROUPS, self.group)][self.scale as usize]
    }

    /// Bytes of a group: scale, bias, levels.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        2 * self.scale_bytes() + self.level_bytes()
    }

    /// Bytes of a scale, and of a bias.
    const fn scale_bytes(self) -> usize {
        self.scale().block_bytes()
    }

    /// Bytes of a group's levels.
    const fn level_bytes(self) -> usize {
        self.group() * self.bits() / 8
    }

    /// The `j`-th 32 weights of a group.
    pub(crate) fn sub(self, block: &[u8], j: usize) -> Sub {
        let stream = &block[2 * self.scale_bytes() + 4 * self.bits() * j..];
        let bias = self.float(&block[self.scale_bytes()..]);
        let levels = from_fn(|i| level(stream, self.bits(), i));
        Sub { min: Min::One(-bias), ..Sub::plain(levels, self.float(block)) }
    }

    /// The first scale or bias in `bytes`.
    fn float(self, bytes: &[u8]) -> f32 {
        match self.scale {
            Scale::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Scale::F16 => half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Scale::BF16 => half::bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }

    /// Gives a group this scale and bias, rounded to their type.
    pub(crate) fn put_line(self, block: &mut [u8], scale: f32, bias: f32) {
        let size = self.scale_bytes();
        for (to, v) in block.chunks_exact_mut(size).zip([scale, bias]) {
            match self.scale {
                Scale::F32 => to.copy_from_slice(&v.to_le_bytes()),
                Scale::F16 => to.copy_from_slice(&half::f16::from_f32(v).to_le_bytes()),
                Scale::BF16 => to.copy_from_slice(&half::bf16::from_f32(v).to_le_bytes()),
            }
        }
    }

    /// Makes rows of blocks from MLX's three tensors, as many rows as `out` has room for. Any run of whole groups will
    /// do, so a tensor can be joined in pieces; [`AffineParts::rows`] cuts them.
    ///
    /// # Errors
    /// When `out` is no whole number of groups, or a part has not as many as `out`.
    pub fn join(self, parts: AffineParts<'_>, out: &mut [u8]) -> Result<(), QuantError> {
        let (scale, levels) = (self.scale_bytes(), self.level_bytes());
        let groups = out.len() / self.block_bytes();
        for (part, found, size) in [
            ("blocks", out.len(), self.block_bytes()),
            ("levels", parts.weight.len(), levels),
            ("scales", parts.scales.len(), scale),
            ("biases", parts.biases.len(), scale),
        ] {
            if found != groups * size {
                let expected = groups * size;
                return Err(QuantError::Part { ty: TensorType::Affine(self), groups, part, found, expected });
            }
        }
        let lines = parts.scales.chunks_exact(scale).zip(parts.biases.chunks_exact(scale));
        let sources = lines.zip(parts.weight.chunks_exact(levels));
        for (out, ((s, b), w)) in out.chunks_exact_mut(self.block_bytes()).zip(sources) {
            let (line, to) = out.split_at_mut(2 * scale);
            line[..scale].copy_from_slice(s);
            line[scale..].copy_from_slice(b);
            to.copy_from_slice(w);
        }
        Ok(())
    }
}

/// Element i of a little-endian bit stream.
fn level(stream: &[u8], bits: usize, i: usize) -> i16 {
    let at = bits * i;
    let high = stream.get(at / 8 + 1).copied().unwrap_or(0);
    let word = u16::from_le_bytes([stream[at / 8], high]);
    ((word >> (at % 8)) & ((1 << bits) - 1)) as i16
}

/// Rows of MLX's three tensors, little endian, one row after the other.
#[derive(Clone, Copy, Debug)]
pub struct AffineParts<'a> {
    /// `.weight`: 32-bit words of levels, `cols · bits / 32` a row.
    pub weight: &'a [u8],
    /// `.scales`: `cols / group` floats a row.
    pub scales: &'a [u8],
    /// `.biases`: as many, of the same type.
    pub biases: &'a [u8],
}

impl<'a> AffineParts<'a> {
    /// The parts of some rows of `cols` elements. `None` when `cols` is no whole number of groups or a part has not those
    /// rows.
    #[must_use]
    pub fn rows(self, ty: Affine, cols: usize, rows: Range<usize>) -> Option<Self> {
        let groups = cols.is_multiple_of(ty.group()).then_some(cols / ty.group())?;
        let cut = |part: &'a [u8], size: usize| {
            let row = groups.checked_mul(size)?;
            part.get(rows.start.checked_mul(row)?..rows.end.checked_mul(row)?)
        };
        Some(Self {
            weight: cut(self.weight, ty.level_bytes())?,
            scales: cut(self.scales, ty.scale_bytes())?,
            biases: cut(self.biases, ty.scale_bytes())?,
        })
    }
}
