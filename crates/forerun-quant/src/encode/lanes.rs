//! Sixteen floats at a time. A search runs over sixteen groups of weights at once, a group in each lane, so that the sums of
//! a group keep their order and every instruction set has the same bits.

use std::array::from_fn;
use std::ops::{Add, BitAnd, Div, Mul, Sub};

/// Lanes of a vector.
pub(super) const WIDTH: usize = 16;

/// Element i of sixteen groups, for every i.
pub(super) type Groups<const N: usize> = [[f32; WIDTH]; N];

/// 1.5 · 2^23: floats of this size have no fraction, so adding it rounds to the nearest integer, ties to even.
const ROUNDER: f32 = 12_582_912.0;

/// The bits of 2^23, above a mantissa that is an integer.
const INTEGER: u32 = 0x4b00_0000;

/// Sixteen floats. Values of a type for an instruction set are only made in functions compiled for it.
pub(super) trait Lanes:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// A choice per lane.
    type Mask: Copy + BitAnd<Output = Self::Mask>;

    fn load(from: &[f32; WIDTH]) -> Self;
    fn store(self, to: &mut [f32; WIDTH]);
    fn splat(value: f32) -> Self;
    fn sqrt(self) -> Self;
    /// `self` where it is less than `other`, otherwise `other`.
    fn min(self, other: Self) -> Self;
    /// `self` where it is greater than `other`, otherwise `other`.
    fn max(self, other: Self) -> Self;
    /// Whether `self` is less; never where one is NaN.
    fn less(self, other: Self) -> Self::Mask;
    /// Whether they are not equal; always where one is NaN.
    fn differs(self, other: Self) -> Self::Mask;
    fn choose(mask: Self::Mask, yes: Self, no: Self) -> Self;
    fn any(mask: Self::Mask) -> bool;
    /// The floats whose bits are `bits & keep | set`.
    fn with_bits(self, keep: u32, set: u32) -> Self;
    /// The low bytes of the values as integers, cut towards zero; 0 where 32 bits cannot hold one.
    fn bytes(self) -> [u8; WIDTH];
    fn from_bytes(from: &[u8; WIDTH]) -> Self;
    /// The first lane that is equal to a value; 0 where none is.
    fn first(self, value: f32) -> usize;
    /// How many of 15 ascending `bounds` are not above each value (all, for NaN): an index into `values`, and that entry of it.
    fn pick(self, bounds: &[f32; WIDTH], values: &[f32; WIDTH]) -> (Self, Self);

    /// The largest and the smallest lane.
    #[inline(always)]
    fn ends(self) -> (f32, f32) {
        let x = self.to_array();
        let tree = |better: fn(f32, f32) -> f32| {
            let eight: [f32; 8] = from_fn(|i| better(x[i], x[i + 8]));
            let four: [f32; 4] = from_fn(|i| better(eight[i], eight[i + 4]));
            better(better(four[0], four[2]), better(four[1], four[3]))
        };
        (tree(|a, b| if a > b { a } else { b }), tree(|a, b| if a < b { a } else { b }))
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.with_bits(0x7fff_ffff, 0)
    }

    /// The nearest integer, ties to even. Beyond ±2^22 it wraps, and what is no number gives 0 or −2^22: the low 23 bits of the
    /// rounded sum are taken for the integer whatever its exponent, as the ecosystem's encoders do.
    #[inline(always)]
    fn nearest(self) -> Self {
        (self + Self::splat(ROUNDER)).with_bits(0x007f_ffff, INTEGER) - Self::splat(ROUNDER)
    }

    /// The low byte of [`Lanes::nearest`], from 0 to 255.
    #[inline(always)]
    fn nearest_byte(self) -> Self {
        (self + Self::splat(ROUNDER)).with_bits(0xff, INTEGER) - Self::splat(8_388_608.0)
    }

    #[inline(always)]
    fn clamp(self, low: f32, high: f32) -> Self {
        self.max(Self::splat(low)).min(Self::splat(high))
    }

    #[inline(always)]
    fn to_array(self) -> [f32; WIDTH] {
        let mut out = [0.0; WIDTH];
        self.store(&mut out);
        out
    }
}

/// Element i of the groups and of another set of groups. (What works on lanes is no closure: a closure that is not inlined
/// has not the caller's instruction set, and every operation in it becomes a call.)
#[inline(always)]
pub(super) fn pair<V: Lanes, const N: usize>(x: &Groups<N>, w: &Groups<N>, i: usize) -> (V, V) {
    (V::load(&x[i]), V::load(&w[i]))
}

/// Consecutive groups of N elements as lanes. Lanes without a group are zero.
#[inline(always)]
pub(super) fn gather<const N: usize>(from: &[f32]) -> Groups<N> {
    let mut groups = [[0.0; WIDTH]; N];
    for (lane, group) in from.as_chunks::<N>().0.iter().enumerate().take(WIDTH) {
        for (to, x) in groups.iter_mut().zip(group) {
            to[lane] = *x;
        }
    }
    groups
}

/// Plain Rust, any processor.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; WIDTH]);

#[derive(Clone, Copy)]
pub(super) struct PortableMask([bool; WIDTH]);

macro_rules! portable_operators {
    ($($name:ident, $method:ident, $op:tt;)*) => {$(
        impl $name for Portable {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                Self(from_fn(|i| self.0[i] $op other.0[i]))
            }
        }
    )*};
}
portable_operators! { Add, add, +; Sub, sub, -; Mul, mul, *; Div, div, /; }

impl BitAnd for PortableMask {
    type Output = Self;
    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(from_fn(|i| self.0[i] & other.0[i]))
    }
}

impl Lanes for Portable {
    type Mask = PortableMask;

    #[inline(always)]
    fn load(from: &[f32; WIDTH]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn store(self, to: &mut [f32; WIDTH]) {
        *to = self.0;
    }
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; WIDTH])
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        Self(from_fn(|i| if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        Self(from_fn(|i| if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] }))
    }
    #[inline(always)]
    fn less(self, other: Self) -> PortableMask {
        PortableMask(from_fn(|i| self.0[i] < other.0[i]))
    }
    #[inline(always)]
    fn differs(self, other: Self) -> PortableMask {
        PortableMask(from_fn(|i| self.0[i] != other.0[i]))
    }
    #[inline(always)]
    fn choose(mask: PortableMask, yes: Self, no: Self) -> Self {
        Self(from_fn(|i| if mask.0[i] { yes.0[i] } else { no.0[i] }))
    }
    #[inline(always)]
    fn any(mask: PortableMask) -> bool {
        mask.0.contains(&true)
    }
    #[inline(always)]
    fn with_bits(self, keep: u32, set: u32) -> Self {
        Self(self.0.map(|x| f32::from_bits(x.to_bits() & keep | set)))
    }
    #[inline(always)]
    fn bytes(self) -> [u8; WIDTH] {
        self.0.map(|x| if x.abs() < 2_147_483_648.0 { x as i32 as u8 } else { 0 })
    }
    #[inline(always)]
    fn from_bytes(from: &[u8; WIDTH]) -> Self {
        Self(from.map(f32::from))
    }
    #[inline(always)]
    fn first(self, value: f32) -> usize {
        self.0.iter().position(|x| *x == value).unwrap_or(0)
    }
    #[inline(always)]
    fn pick(self, bounds: &[f32; WIDTH], values: &[f32; WIDTH]) -> (Self, Self) {
        let index = self.0.map(|x| WIDTH - 1 - bounds[..WIDTH - 1].iter().filter(|b| x < **b).count());
        (Self(index.map(|i| i as f32)), Self(index.map(|i| values[i])))
    }
}
