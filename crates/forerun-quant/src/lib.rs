//! Weight formats: ggml block types and MLX's affine groups, how they decode, and the one dot product that every backend
//! must match bit for bit.
//!
//! # Arithmetic
//! All floats are float32, rounded to nearest even; `fma` rounds once; conversions from 16-bit floats are exact.
//!
//! **Integer types** ([`TensorType::is_integer_dot`]) multiply activations that were quantised to 8-bit integers per 32
//! elements ([`QuantRow`]). Each block of 32 weights offers integer levels, a scale and perhaps a minimum ([`Sub`]), and
//! adds one step to an accumulator that starts at 0, blocks ascending ([`dot_quantised`]):
//!
//! | scale of a block of 32 | step |
//! |---|---|
//! | one scale `d·s` (exact in float32) | `acc = fma((d·s)·dx, Σ q·x, acc)` |
//! | integer scales `s₀`, `s₁` of its halves | `acc = fma(d·dx, s₀·Σ₀ q·x + s₁·Σ₁ q·x, acc)` |
//! | then a minimum `m` | `acc = fma(−m, dx·Σx, acc)` |
//! | then a bias `b` of an affine group | `acc = fma(b, dx·Σx, acc)`: it is the minimum `−b` |
//! | then integer minima `m₀`, `m₁` of its halves | `acc = fma(−(dmin·dx), m₀·Σ₀x + m₁·Σ₁x, acc)` |
//!
//! Levels are within ±128, those of affine types from 0 to 255: sums stay below 2^24, exact as floats. Sums of integers are
//! exact, so they have no order. A group of 64 or 128 gives its scale and bias to each of its blocks of 32.
//!
//! **All other types** are decoded to float32 and multiplied with float32 activations in 16 lanes and one fixed tree
//! ([`float_dot`]).

mod activation;
mod affine;
mod block;
mod decode;
mod dot;
mod encode;
mod error;
mod grids;
mod iq;
mod kquants;
mod legacy;
mod random;
mod ternary;
mod types;

pub use activation::{QuantBlock, QuantRow};
pub use affine::{Affine, AffineParts};
pub use block::{Min, Sub, sub_block};
pub use decode::decode_row;
pub use dot::{dot, dot_quantised, float_dot};
pub use encode::{ENCODED, encode_row};
pub use error::QuantError;
pub use iq::{IQ4_VALUES, MXFP4_VALUES, e8m0_half};
pub use random::random_rows;
pub use types::{TensorType, refused_name};
