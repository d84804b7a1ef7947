//! Products of weights with activations.
//!
//! Integer types are packed so that a vector lane is an output row (`formats.rs`, `pack.rs`); one generic kernel
//! (`panel.rs`) over the few vector operations of `simd.rs` serves every type on every instruction set, and `amx.rs` runs
//! the same steps with matrix tiles. Float types and types that only decode stay in their file's layout (`float.rs`).

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod float;
mod formats;
mod input;
mod pack;
mod panel;
mod simd;
#[cfg(test)]
mod tests;

use std::ops::Range;

use forerun_quant::TensorType;
use forerun_tensor::{Result, SharedBytes, WeightData, WeightUse};

use crate::act::InputRows;
use crate::exec::Claims;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::pool::Pool;

pub(crate) use float::f16_to_f32;
pub(crate) use input::{Picked, QuantRows, Quantised};
pub(crate) use panel::{Columns, PAIR};

use panel::{Pair, PairFn, Unpacked};

/// Memory that a product needs while it runs.
#[derive(Default)]
pub(crate) struct Space {
    unpacked: Box<Unpacked>,
    decoded: Vec<f32>,
}

/// A weight in this backend's layout.
pub(crate) struct Matrix {
    pub(crate) ty: TensorType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    store: Store,
}

enum Store {
    /// Pairs of groups of 16 rows, expert after expert.
    Packed { data: Buffer<u8>, kernel: PairFn, fields: Vec<formats::Field>, layout: formats::Layout },
    /// The file's own rows.
    Rows { bytes: SharedBytes, expert_stride: usize },
}

/// Whether a weight of this type and use is packed.
fn is_packed(ty: TensorType, usage: WeightUse) -> bool {
    ty.is_integer_dot() && matches!(usage, WeightUse::Matrix | WeightUse::TiedTable)
}

impl Matrix {
    /// Takes a weight whose bytes were checked, packing it on all threads where its type is packed.
    pub(crate) fn load(w: &WeightData, isa: Isa, pool: &mut Pool) -> Result<Self> {
        let store = match (is_packed(w.ty, w.usage), panel::kernel(w.ty, isa), panel::fields(w.ty)) {
            (true, Some(kernel), Some(fields)) => {
                let data = pack_all(w, &fields, pool)?;
                Store::Packed { data, kernel, fields, layout: formats::Layout::of(w.ty) }
            }
            _ => Store::Rows { bytes: w.bytes.clone(), expert_stride: w.expert_stride },
        };
        Ok(Self { ty: w.ty, rows: w.rows, cols: w.cols, store })
    }

    /// Bytes that a weight of this shape takes besides its file.
    pub(crate) fn held_bytes(
        ty: TensorType,
        rows: usize,
        cols: usize,
        experts: usize,
        usage: WeightUse,
    ) -> u64 {
        if is_packed(ty, usage) {
            (experts * rows.div_ceil(PAIR) * PAIR) as u64 * ty.row_bytes(cols).unwrap_or(0) as u64
        } else {
            0
        }
    }

    pub(crate) fn held(&self) -> u64 {
        match &self.store {
            Store::Packed { data, .. } => data.len() as u64,
            Store::Rows { .. } => 0,
        }
    }

    pub(crate) fn is_packed(&self) -> bool {
        matches!(self.store, Store::Packed { .. })
    }

    /// Number of pairs of groups of output rows; the last may be partly filled.
    pub(crate) fn pairs(&self) -> usize {
        self.rows.div_ceil(PAIR)
    }

    /// Output rows of a pair, which are columns of the result.
    pub(crate) fn columns(&self, pair: usize) -> Range<usize> {
        PAIR * pair..(PAIR * (pair + 1)).min(self.rows)
    }

    fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols).unwrap_or(0)
    }

    fn pair_bytes(&self) -> usize {
        PAIR * self.row_bytes()
    }

    /// Row `row` of the first expert as float32.
    pub(crate) fn decode_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let bytes = self.row_bytes();
        match &self.store {
            Store::Rows { bytes: all, .. } => float::decode(isa, self.ty, &all[row * bytes..][..bytes], out),
            Store::Packed { data, fields, .. } => {
                let pair = &data[row / PAIR * self.pair_bytes()..][..self.pair_bytes()];
                let mut raw = vec![0; bytes];
                pack::unpack_row(self.ty, fields, pair, row % PAIR, &mut raw);
                float::decode(isa, self.ty, &raw, out);
            }
        }
    }

    /// Products of a pair of groups of output rows with input rows: `out[i][r]`. Entries beyond the rows are undefined.
    pub(crate) fn pair(
        &self,
        isa: Isa,
        (expert, pair): (usize, usize),
        x: InputRows<'_>,
        space: &mut Space,
        out: &mut [Columns],
    ) {
        debug_assert_eq!(x.count(), out.len());
        match &self.store {
            Store::Packed { data, kernel, layout, .. } => {
                let bytes = self.pair_bytes();
                let at = (expert * self.pairs() + pair) * bytes;
                let blocks = self.cols / self.ty.block_elements();
                let w = Pair { data: data[at..at + bytes].as_ptr(), blocks, layout: *layout };
                let x = x.quantised();
                #[cfg(target_arch = "x86_64")]
                let (x, out) = if isa == Isa::Amx { amx::tiles(self.ty, w, x, out) } else { (x, out) };
                // SAFETY: the pair has `blocks` blocks; the input rows have as many activations (the plan's shapes agree
                // and the rows were quantised from buffers of `cols` columns); the kernel was chosen for this machine.
                unsafe { kernel(w, x, &mut space.unpacked, out) };
            }
            Store::Rows { bytes, expert_stride } => {
                let row = self.row_bytes();
                let rows = self.columns(pair);
                let rows = &bytes[expert * expert_stride + rows.start * row..][..rows.len() * row];
                float::pair(isa, self.ty, rows, row, x, &mut space.decoded, out);
            }
        }
    }
}

fn pack_all(w: &WeightData, fields: &[formats::Field], pool: &mut Pool) -> Result<Buffer<u8>> {
    let row_bytes = w.row_bytes()?;
    let pairs = w.rows.div_ceil(PAIR);
    let pair_bytes = PAIR * row_bytes;
    let data = Buffer::<u8>::new(w.experts * pairs * pair_bytes, &w.name)?;
    let claims = Claims::new(w.experts * pairs, 8);
    pool.run(|_| {
        while let Some(range) = claims.next() {
            for unit in range {
                let (expert, first) = (unit / pairs, unit % pairs * PAIR);
                let rows = PAIR.min(w.rows - first);
                let source = &w.bytes[expert * w.expert_stride + first * row_bytes..][..rows * row_bytes];
                // SAFETY: every unit is claimed once and is a range of its own in `data`.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(data.as_ptr().add(unit * pair_bytes), pair_bytes)
                };
                pack::pack_pair(w.ty, fields, source, row_bytes, out);
            }
        }
        true
    });
    Ok(data)
}
