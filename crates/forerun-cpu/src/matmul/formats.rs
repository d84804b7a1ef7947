//! The packed layout of each integer type: how 16 rows of a block are stored, and how their levels and scales come back as
//! vectors with one row a lane.
//!
//! A *group* is 16 output rows, and two of them are a *pair*, whose blocks alternate along K. A group's block holds the same
//! bytes as 16 blocks of the file, field by field: 16-bit scales of the 16 rows side by side, everything else as 32-bit words, word i of all
//! rows making one 64-byte vector. (The high bits of Q5_0 and Q5_1 are permuted so that byte b, bit w belongs to element
//! 4w + b.)
//!
//! Affine types of as many bits are one format: groups of any size and scales of any type differ only in a block's
//! [`Layout`], which is known when the kernel runs. Their levels change places within 32 elements, see [`Affine`].

#![allow(non_camel_case_types)]

use forerun_quant::{IQ4_VALUES, MXFP4_VALUES, TensorType};

use super::simd::Simd;

/// A field of a block, as packing sees it.
#[derive(Clone, Copy)]
pub(crate) enum Field {
    /// A single byte.
    Byte(usize),
    /// A 16-bit value.
    Half(usize),
    /// So many 32-bit words.
    Words(usize, usize),
    /// 32 bits whose order is changed (see above).
    Bits(usize),
    /// 32 affine levels of so many bits, whose order is changed (see [`Affine`]).
    Levels(usize, usize),
}

impl Field {
    /// Bytes of the field in a block of the file.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Field::Byte(_) => 1,
            Field::Half(_) => 2,
            Field::Words(_, n) | Field::Levels(_, n) => 4 * n,
            Field::Bits(_) => 4,
        }
    }
}

/// What a block of a type looks like.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Bytes of a row's block.
    pub(crate) bytes: usize,
    /// Blocks of 32 per block: a power of two.
    pub(crate) subs: usize,
    /// Float type of an affine block's scale and bias.
    line: Line,
}

/// Float type of scales and biases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    F32,
    F16,
    BF16,
}

impl Layout {
    pub(crate) fn of(ty: TensorType) -> Self {
        let line = match ty {
            TensorType::Affine(a) if a.scale() == TensorType::F16 => Line::F16,
            TensorType::Affine(a) if a.scale() == TensorType::BF16 => Line::BF16,
            _ => Line::F32,
        };
        Self { bytes: ty.block_bytes(), subs: ty.block_elements() / 32, line }
    }

    /// Bytes of the scales, or biases, of a group's rows.
    #[inline(always)]
    fn line_bytes(self) -> usize {
        if self.line == Line::F32 { 64 } else { 32 }
    }
}

/// Scales of a block of 32 for every lane.
#[derive(Clone, Copy)]
pub(crate) struct Scales<S: Simd> {
    /// Common scale; with one scale for all 32 it is complete.
    pub(crate) d: S::F,
    /// Whole scales of both halves.
    pub(crate) s: [S::F; 2],
    /// Complete minimum, or the common factor of the halves' minima.
    pub(crate) m: S::F,
    /// Integer minima of both halves as 16-bit pairs.
    pub(crate) m_pair: S::I,
}

/// How minima enter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum MinKind {
    None,
    /// Subtracted.
    One,
    /// Added (the format stores a signed offset).
    Plus,
    Halves,
}

/// A packed integer type.
pub(crate) trait Format {
    /// Blocks of 32 per block, or per part of a block where parts are alike and [`Format::subs`] is a multiple.
    const SUBS: usize;
    /// Blocks of 32 until the shifts of [`Format::level`] repeat, where the panel may loop over such runs. Then it unpacks
    /// the scales of a whole block first.
    const PERIOD: usize = Self::SUBS;
    /// Fields in packed order, where the layout does not decide them.
    const FIELDS: &'static [Field];
    /// Levels are signed bytes rather than unsigned ones below 128.
    const SIGNED: bool = false;
    /// Unsigned levels may be 128 or more.
    const WIDE: bool = false;
    /// Unsigned levels stand for `level − 2^n`.
    const OFFSET_LOG2: Option<u32> = None;
    /// Halves of 16 have scales of their own.
    const HALVES: bool = false;
    const MIN: MinKind = MinKind::None;

    /// Fields in packed order.
    fn fields(_: Layout) -> Vec<Field> {
        Self::FIELDS.to_vec()
    }
    /// Bytes of a row's block.
    #[inline(always)]
    fn bytes(_: Layout) -> usize {
        const { bytes(Self::FIELDS) }
    }
    /// Blocks of 32 per block.
    #[inline(always)]
    fn subs(_: Layout) -> usize {
        Self::SUBS
    }
    /// Vector i of the 8 of block j: bytes of 4 consecutive elements of every row. `p` is the group's block, moved by
    /// the lanes' part.
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I;
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S>;
}

const fn bytes(fields: &[Field]) -> usize {
    let (mut sum, mut i) = (0, 0);
    while i < fields.len() {
        sum += fields[i].bytes();
        i += 1;
    }
    sum
}

/// A group's block, seen by the lanes from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) block: *const u8,
    pub(crate) first: usize,
    pub(crate) layout: Layout,
}

impl Part {
    /// Vector `i` of the words that start `at` bytes into the block.
    #[inline(always)]
    unsafe fn word<S: Simd>(self, at: usize, i: usize) -> S::I {
        // SAFETY: the caller names a word field of the block.
        unsafe { S::load(self.block.add(at + 64 * i + 4 * self.first)) }
    }
    /// Where vector `i` of a block of nothing but word vectors lies.
    #[inline(always)]
    pub(crate) unsafe fn vector(self, i: usize) -> *const u8 {
        // SAFETY: the caller names a vector of the block.
        unsafe { self.block.add(64 * i + 4 * self.first) }
    }
    #[inline(always)]
    unsafe fn f16<S: Simd>(self, at: usize) -> S::F {
        // SAFETY: the caller names a 16-bit field of the block.
        unsafe { S::load_f16(self.block.add(at + 2 * self.first)) }
    }
}

#[inline(always)]
unsafe fn plain<S: Simd>(d: S::F) -> Scales<S> {
    // SAFETY: the caller has the instruction set.
    unsafe { Scales { d, s: [S::zero_f(); 2], m: S::zero_f(), m_pair: S::splat(0) } }
}

/// Nibbles of 4 words: low ones are elements 0 to 15, high ones 16 to 31.
#[inline(always)]
unsafe fn nibbles<S: Simd>(p: Part, at: usize, i: usize) -> S::I {
    // SAFETY: the caller names 4 word vectors.
    unsafe {
        let w = p.word::<S>(at, i % 4);
        S::and(if i < 4 { w } else { S::shr(w, 4) }, 0x0f0f_0f0f)
    }
}

/// Sets bit 4 of every byte from bit `at` of every byte of `high`.
#[inline(always)]
unsafe fn with_fifth_bit<S: Simd>(v: S::I, high: S::I, at: usize) -> S::I {
    // SAFETY: the caller has the instruction set.
    unsafe { S::or(v, S::shl(S::and(S::shr(high, at as u32), 0x0101_0101), 4)) }
}

pub(crate) struct Q4_0;
impl Format for Q4_0 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Words(2, 4)];
    const OFFSET_LOG2: Option<u32> = Some(3);
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { nibbles::<S>(p, 32, i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { plain::<S>(p.f16::<S>(0)) }
    }
}

pub(crate) struct Q4_1;
impl Format for Q4_1 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Half(2), Field::Words(4, 4)];
    const MIN: MinKind = MinKind::Plus;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { nibbles::<S>(p, 64, i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { Scales { m: p.f16::<S>(32), ..plain::<S>(p.f16::<S>(0)) } }
    }
}

pub(crate) struct Q5_0;
impl Format for Q5_0 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Bits(2), Field::Words(6, 4)];
    const OFFSET_LOG2: Option<u32> = Some(4);
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { with_fifth_bit::<S>(nibbles::<S>(p, 96, i), p.word::<S>(32, 0), i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { plain::<S>(p.f16::<S>(0)) }
    }
}

pub(crate) struct Q5_1;
impl Format for Q5_1 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Half(2), Field::Bits(4), Field::Words(8, 4)];
    const MIN: MinKind = MinKind::Plus;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { with_fifth_bit::<S>(nibbles::<S>(p, 128, i), p.word::<S>(64, 0), i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { Scales { m: p.f16::<S>(32), ..plain::<S>(p.f16::<S>(0)) } }
    }
}

pub(crate) struct Q8_0;
impl Format for Q8_0 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Words(2, 8)];
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { p.word::<S>(32, i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { plain::<S>(p.f16::<S>(0)) }
    }
}

pub(crate) struct Q2_K;
impl Format for Q2_K {
    const SUBS: usize = 8;
    const FIELDS: &'static [Field] =
        &[Field::Half(80), Field::Half(82), Field::Words(0, 4), Field::Words(16, 16)];
    const HALVES: bool = true;
    const MIN: MinKind = MinKind::Halves;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { S::and(S::shr(p.word::<S>(320, 8 * (j / 4) + i), 2 * (j as u32 % 4)), 0x0303_0303) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe {
            let pair = S::shr(p.word::<S>(64, j / 2), 16 * (j as u32 % 2));
            let both = S::or(S::and(pair, 0xff), S::shl(S::and(pair, 0xff00), 8));
            Scales {
                d: p.f16::<S>(0),
                s: [S::to_f(S::and(pair, 15)), S::to_f(S::and(S::shr(pair, 8), 15))],
                m: p.f16::<S>(32),
                m_pair: S::and(S::shr(both, 4), 0x000f_000f),
            }
        }
    }
}

/// Scale k of the sixteen 6-bit scales of a Q3_K block, less 32.
#[inline(always)]
unsafe fn q3_scale<S: Simd>(p: Part, k: usize) -> S::F {
    // SAFETY: fields of a Q3_K block.
    unsafe {
        let low = S::and(S::shr(p.word::<S>(32, k % 8 / 4), (8 * (k % 4) + 4 * (k / 8)) as u32), 15);
        let high = S::and(S::shr(p.word::<S>(32, 2), (8 * (k % 4) + 2 * (k / 4)) as u32), 3);
        S::to_f(S::sub(S::or(low, S::shl(high, 4)), S::splat(32)))
    }
}

pub(crate) struct Q3_K;
impl Format for Q3_K {
    const SUBS: usize = 8;
    const FIELDS: &'static [Field] =
        &[Field::Half(108), Field::Words(96, 3), Field::Words(0, 8), Field::Words(32, 16)];
    const HALVES: bool = true;
    const OFFSET_LOG2: Option<u32> = Some(2);
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe {
            let low = S::and(S::shr(p.word::<S>(736, 8 * (j / 4) + i), 2 * (j as u32 % 4)), 0x0303_0303);
            let high = S::and(S::shr(p.word::<S>(224, i), j as u32), 0x0101_0101);
            S::or(low, S::shl(high, 2))
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe {
            Scales { s: [q3_scale::<S>(p, 2 * j), q3_scale::<S>(p, 2 * j + 1)], ..plain::<S>(p.f16::<S>(0)) }
        }
    }
}

/// Scale and minimum j of the 6-bit pairs in three words.
#[inline(always)]
unsafe fn six_bit_pair<S: Simd>(p: Part, at: usize, j: usize) -> [S::I; 2] {
    // SAFETY: the caller names three word vectors.
    unsafe {
        let (a, b) = (p.word::<S>(at, 0), p.word::<S>(at, 1));
        let k = 8 * (j as u32 % 4);
        if j < 4 {
            return [S::and(S::shr(a, k), 63), S::and(S::shr(b, k), 63)];
        }
        let c = p.word::<S>(at, 2);
        [join_six_bits::<S>(c, k, a, k + 6), join_six_bits::<S>(c, k + 4, b, k + 6)]
    }
}

/// Four low bits of one word and two high bits of another.
#[inline(always)]
unsafe fn join_six_bits<S: Simd>(low: S::I, low_at: u32, high: S::I, high_at: u32) -> S::I {
    // SAFETY: the caller has the instruction set.
    unsafe { S::or(S::and(S::shr(low, low_at), 15), S::shl(S::and(S::shr(high, high_at), 3), 4)) }
}

#[inline(always)]
unsafe fn scaled_pair<S: Simd>(p: Part, j: usize) -> Scales<S> {
    // SAFETY: fields of a Q4_K or Q5_K block.
    unsafe {
        let [s, m] = six_bit_pair::<S>(p, 64, j);
        let d = S::mul_f(p.f16::<S>(0), S::to_f(s));
        Scales { m: S::mul_f(p.f16::<S>(32), S::to_f(m)), ..plain::<S>(d) }
    }
}

/// Nibbles of the j-th 32 elements: two groups share 8 words.
#[inline(always)]
unsafe fn paired_nibbles<S: Simd>(p: Part, at: usize, j: usize, i: usize) -> S::I {
    // SAFETY: the caller names the words of a block.
    unsafe {
        let w = p.word::<S>(at, 8 * (j / 2) + i);
        S::and(if j.is_multiple_of(2) { w } else { S::shr(w, 4) }, 0x0f0f_0f0f)
    }
}

pub(crate) struct Q4_K;
impl Format for Q4_K {
    const SUBS: usize = 8;
    const PERIOD: usize = 2;
    const FIELDS: &'static [Field] =
        &[Field::Half(0), Field::Half(2), Field::Words(4, 3), Field::Words(16, 32)];
    const MIN: MinKind = MinKind::One;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { paired_nibbles::<S>(p, 256, j, i) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { scaled_pair::<S>(p, j) }
    }
}

pub(crate) struct Q5_K;
impl Format for Q5_K {
    const SUBS: usize = 8;
    const FIELDS: &'static [Field] =
        &[Field::Half(0), Field::Half(2), Field::Words(4, 3), Field::Words(16, 8), Field::Words(48, 32)];
    const MIN: MinKind = MinKind::One;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { with_fifth_bit::<S>(paired_nibbles::<S>(p, 768, j, i), p.word::<S>(256, i), j) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { scaled_pair::<S>(p, j) }
    }
}

pub(crate) struct Q6_K;
impl Format for Q6_K {
    const SUBS: usize = 8;
    const FIELDS: &'static [Field] =
        &[Field::Half(208), Field::Words(192, 4), Field::Words(0, 32), Field::Words(128, 16)];
    const HALVES: bool = true;
    const OFFSET_LOG2: Option<u32> = Some(5);
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe {
            let (half, k) = (j / 4, j % 4);
            let low = S::shr(p.word::<S>(288, 16 * half + 8 * (k % 2) + i), 4 * (k as u32 / 2));
            let high = S::shr(p.word::<S>(2336, 8 * half + i), 2 * k as u32);
            S::or(S::and(low, 0x0f0f_0f0f), S::shl(S::and(high, 0x0303_0303), 4))
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe {
            let w = p.word::<S>(32, j / 2);
            let k = 2 * (j as u32 % 2);
            let s = [S::to_f(S::signed_byte(w, k)), S::to_f(S::signed_byte(w, k + 1))];
            Scales { s, ..plain::<S>(p.f16::<S>(0)) }
        }
    }
}

pub(crate) struct IQ4_NL;
impl Format for IQ4_NL {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Half(0), Field::Words(2, 4)];
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { S::table(nibbles::<S>(p, 32, i), &IQ4_VALUES) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { plain::<S>(p.f16::<S>(0)) }
    }
}

pub(crate) struct IQ4_XS;
impl Format for IQ4_XS {
    const SUBS: usize = 8;
    const FIELDS: &'static [Field] =
        &[Field::Half(0), Field::Half(2), Field::Words(4, 1), Field::Words(8, 32)];
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { S::table(nibbles::<S>(p, 128 + 256 * j, i), &IQ4_VALUES) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, j: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe {
            let low = S::and(S::shr(p.word::<S>(64, 0), 4 * j as u32), 15);
            let high = S::and(S::shr(S::load_u16(p.block.add(32 + 2 * p.first)), 2 * j as u32), 3);
            let scale = S::sub(S::or(low, S::shl(high, 4)), S::splat(32));
            plain::<S>(S::mul_f(p.f16::<S>(0), S::to_f(scale)))
        }
    }
}

pub(crate) struct MXFP4;
impl Format for MXFP4 {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[Field::Byte(0), Field::Words(1, 4)];
    const SIGNED: bool = true;
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, _: usize, i: usize) -> S::I {
        // SAFETY: fields of this block.
        unsafe { S::table(nibbles::<S>(p, 16, i), &MXFP4_VALUES) }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block.
        unsafe { plain::<S>(S::load_e8m0(p.block.add(p.first))) }
    }
}

/// Affine levels of so many bits. The 32 levels of a row are cut into planes of 8, 4, 2 or 1 bits, the lowest bits in the
/// widest: a plane of n bits is n words, and vector i of its levels are bits `n·⌊i/n⌋..` of the bytes of word i mod n.
pub(crate) struct Affine<const BITS: usize>;

impl<const BITS: usize> Affine<BITS> {
    /// Vector i of the plane of `WIDTH` bits that starts `at` bytes into the block.
    #[inline(always)]
    unsafe fn plane<S: Simd, const WIDTH: usize>(p: Part, at: usize, i: usize) -> S::I {
        // SAFETY: the caller names a plane of the block.
        unsafe {
            let w = p.word::<S>(at, i % WIDTH);
            let shift = (WIDTH * (i / WIDTH)) as u32;
            S::and(if shift == 0 { w } else { S::shr(w, shift) }, 0x0101_0101 * ((1 << WIDTH) - 1))
        }
    }
}

impl<const BITS: usize> Format for Affine<BITS> {
    const SUBS: usize = 1;
    const FIELDS: &'static [Field] = &[];
    const WIDE: bool = BITS == 8;
    const MIN: MinKind = MinKind::Plus;

    fn fields(layout: Layout) -> Vec<Field> {
        let (mut fields, line) = match layout.line {
            Line::F32 => (vec![Field::Words(0, 1), Field::Words(4, 1)], 8),
            Line::F16 | Line::BF16 => (vec![Field::Half(0), Field::Half(2)], 4),
        };
        fields.extend((0..layout.subs).map(|j| Field::Levels(line + 4 * BITS * j, BITS)));
        fields
    }
    #[inline(always)]
    fn bytes(layout: Layout) -> usize {
        layout.bytes
    }
    #[inline(always)]
    fn subs(layout: Layout) -> usize {
        layout.subs
    }
    #[inline(always)]
    unsafe fn level<S: Simd>(p: Part, j: usize, i: usize) -> S::I {
        let at = 2 * p.layout.line_bytes() + 64 * BITS * j;
        // SAFETY: planes of this block.
        unsafe {
            match BITS {
                2 => Self::plane::<S, 2>(p, at, i),
                3 => {
                    let high = Self::plane::<S, 1>(p, at + 128, i);
                    S::or(Self::plane::<S, 2>(p, at, i), S::shl(high, 2))
                }
                4 => Self::plane::<S, 4>(p, at, i),
                5 => {
                    let high = Self::plane::<S, 1>(p, at + 256, i);
                    S::or(Self::plane::<S, 4>(p, at, i), S::shl(high, 4))
                }
                6 => {
                    let high = Self::plane::<S, 2>(p, at + 256, i);
                    S::or(Self::plane::<S, 4>(p, at, i), S::shl(high, 4))
                }
                _ => p.word::<S>(at, i),
            }
        }
    }
    #[inline(always)]
    unsafe fn scales<S: Simd>(p: Part, _: usize) -> Scales<S> {
        // SAFETY: fields of this block, as its layout has them.
        unsafe {
            let [d, m] = match p.layout.line {
                Line::F32 => [0, 64].map(|at| S::load_f(p.block.add(at + 4 * p.first))),
                Line::F16 => [0, 32].map(|at| p.f16::<S>(at)),
                Line::BF16 => [0, 32].map(|at| S::load_bf16(p.block.add(at + 2 * p.first))),
            };
            Scales { m, ..plain::<S>(d) }
        }
    }
}
