//! Activations as products take them.

use forerun_tensor::Result;

use crate::isa::multiversion;
use crate::memory::{Buffer, Plain};

/// Scale and sums of 32 quantised activations.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct BlockMeta {
    pub(crate) d: f32,
    /// `d · Σq`.
    pub(crate) sx: f32,
    /// Σq of both halves as 16-bit integers in one word.
    pub(crate) pair: i32,
}
impl Plain for BlockMeta {}

/// A quantised row.
#[derive(Clone, Copy)]
pub(crate) struct QuantRow {
    pub(crate) q: *const i8,
    pub(crate) meta: *const BlockMeta,
}

/// Quantised rows of one width.
pub(crate) struct QuantRows {
    cols: usize,
    q: Buffer<i8>,
    meta: Buffer<BlockMeta>,
}

impl QuantRows {
    pub(crate) fn new(rows: usize, cols: usize) -> Result<Self> {
        Ok(Self {
            cols,
            q: Buffer::new(rows * cols, "quantised activations")?,
            meta: Buffer::new(rows * cols / 32, "quantised activations")?,
        })
    }

    pub(crate) fn bytes(rows: usize, cols: usize) -> u64 {
        (rows * (cols + cols / 32 * size_of::<BlockMeta>())) as u64
    }

    pub(crate) fn row(&self, row: usize) -> QuantRow {
        // SAFETY: rows are below the capacity that `new` was given.
        unsafe {
            QuantRow { q: self.q.as_ptr().add(row * self.cols), meta: self.meta.as_ptr().add(row * self.cols / 32) }
        }
    }

    /// Quantises the blocks of 32 in `x`, which start at column `first` of a row.
    ///
    /// # Safety
    /// No other thread uses these columns of the row at the same time.
    pub(crate) unsafe fn write(&self, isa: crate::isa::Isa, row: usize, first: usize, x: &[f32]) {
        let at = row * self.cols + first;
        // SAFETY: within the row, and exclusive by the caller's contract.
        let (q, meta) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.q.as_ptr().add(at), x.len()),
                std::slice::from_raw_parts_mut(self.meta.as_ptr().add(at / 32), x.len() / 32),
            )
        };
        quantise(isa, x, q, meta);
    }
}

multiversion! {
    /// Quantises whole blocks of 32, as `forerun_quant::QuantBlock` defines.
    fn quantise = quantise_body, (x: &[f32], q: &mut [i8], meta: &mut [BlockMeta])
}

#[inline(always)]
fn quantise_body(x: &[f32], q: &mut [i8], meta: &mut [BlockMeta]) {
    for ((x, q), meta) in x.as_chunks::<32>().0.iter().zip(q.as_chunks_mut::<32>().0).zip(meta) {
        *meta = quantise_block(x, q);
    }
}

#[inline(always)]
fn quantise_block(x: &[f32; 32], q: &mut [i8; 32]) -> BlockMeta {
    /// A sum with 1.5·2^23 is rounded to the nearest even integer, which its low bits hold.
    const MAGIC: f32 = 12_582_912.0;
    let mut top = [0u32; 16];
    for i in 0..16 {
        let a = x[i].to_bits() & 0x7fff_ffff;
        let b = x[i + 16].to_bits() & 0x7fff_ffff;
        top[i] = if a > b { a } else { b };
    }
    let top = top.iter().fold(0, |a, b| if *b > a { *b } else { a });
    let amax = f32::from_bits(top);
    if top >= f32::INFINITY.to_bits() || amax < 1e-30 {
        q.fill(0);
        let d = if amax < 1e-30 { 0.0 } else { f32::NAN };
        return BlockMeta { d, sx: d * 0.0, ..BlockMeta::default() };
    }
    let d = amax / 127.0;
    let inverse = 127.0 / amax;
    let mut levels = [0i32; 32];
    for i in 0..32 {
        levels[i] = (x[i] * inverse + MAGIC).to_bits() as i32 - MAGIC.to_bits() as i32;
        q[i] = levels[i] as i8;
    }
    let half_sums = [levels[..16].iter().sum(), levels[16..].iter().sum::<i32>()];
    let sum = half_sums[0] + half_sums[1];
    BlockMeta { d, sx: d * sum as f32, pair: (half_sums[0] & 0xffff) | (half_sums[1] << 16) }
}
