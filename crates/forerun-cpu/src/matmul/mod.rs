//! Products of weights with activations.
//!
//! Integer types are packed so that a vector lane is an output row (`formats.rs`, `pack.rs`); one generic kernel
//! (`tile.rs`) over the few vector operations of `simd.rs` serves every type on every instruction set, and `amx.rs` runs
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
mod simd;
#[cfg(test)]
mod tests;
mod tile;

use forerun_quant::TensorType;
use forerun_tensor::{Result, SharedBytes, WeightData, WeightUse};

use crate::exec::Claims;
use crate::isa::Isa;
use crate::memory::Buffer;
use crate::pool::Pool;

pub(crate) use float::f16_to_f32;
pub(crate) use input::{Layout, QuantRow, QuantRows};
pub(crate) use tile::{GROUP, TILE, Tile};

use tile::Kernels;

/// Up to 16 input rows of a tile, in the form that the weight's type takes.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    pub(crate) count: usize,
    /// Quantised rows; entries beyond `count` repeat the last.
    pub(crate) quant: [QuantRow; TILE],
    pub(crate) float: [&'a [f32]; TILE],
    /// How the quantised rows lie.
    pub(crate) layout: Layout,
    /// The rows follow each other in their buffer.
    pub(crate) consecutive: bool,
}

/// A weight in this backend's layout.
pub(crate) struct Matrix {
    pub(crate) ty: TensorType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    store: Store,
}

enum Store {
    /// Groups of 16 rows, expert after expert.
    Packed { data: Buffer<u8>, kernels: Kernels, fields: &'static [formats::Field] },
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
        let store = match (is_packed(w.ty, w.usage), tile::kernels(w.ty, isa), tile::fields(w.ty)) {
            (true, Some(kernels), Some(fields)) => {
                Store::Packed { data: pack_all(w, fields, pool)?, kernels, fields }
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
            (experts * rows.div_ceil(GROUP) * GROUP) as u64 * ty.row_bytes(cols).unwrap_or(0) as u64
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

    /// Number of groups of 16 output rows; the last may be partly filled.
    pub(crate) fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP)
    }

    fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols).unwrap_or(0)
    }

    fn group_bytes(&self) -> usize {
        GROUP * self.row_bytes()
    }

    /// Row `row` of the first expert as float32.
    pub(crate) fn decode_row(&self, isa: Isa, row: usize, out: &mut [f32]) {
        let bytes = self.row_bytes();
        match &self.store {
            Store::Rows { bytes: all, .. } => float::decode(isa, self.ty, &all[row * bytes..][..bytes], out),
            Store::Packed { data, fields, .. } => {
                let group = &data[row / GROUP * self.group_bytes()..][..self.group_bytes()];
                let mut raw = vec![0; bytes];
                pack::unpack_row(self.ty, fields, group, row % GROUP, &mut raw);
                float::decode(isa, self.ty, &raw, out);
            }
        }
    }

    /// Products of a group of output rows with up to 16 input rows: `out[i][r]`. Entries beyond the rows are undefined.
    pub(crate) fn tile(
        &self,
        isa: Isa,
        expert: usize,
        group: usize,
        x: &InputRows<'_>,
        scratch: &mut Vec<f32>,
        out: &mut Tile,
    ) {
        match &self.store {
            Store::Packed { data, kernels, .. } => {
                let bytes = self.group_bytes();
                let at = (expert * self.groups() + group) * bytes;
                let packed = data[at..at + bytes].as_ptr();
                let blocks = self.cols / self.ty.block_elements();
                #[cfg(target_arch = "x86_64")]
                if isa == Isa::Amx && amx::pays(x) && amx::tile(self.ty, packed, blocks, x, out) {
                    return;
                }
                let full = x.count == TILE && x.consecutive && x.layout == Layout::Tiles;
                let size = if full { 5 } else { x.count.next_power_of_two().trailing_zeros() as usize };
                let rows = tile::Rows { rows: &x.quant, layout: x.layout };
                // SAFETY: the group has `blocks` blocks; the input rows have as many activations (the plan's shapes agree
                // and the rows were quantised from buffers of `cols` columns); the kernel was chosen for this machine.
                unsafe { kernels[size](packed, blocks, rows, out) };
            }
            Store::Rows { bytes, expert_stride } => {
                let row = self.row_bytes();
                let first = group * GROUP;
                let count = GROUP.min(self.rows - first);
                let rows = &bytes[expert * expert_stride + first * row..][..count * row];
                float::tile(isa, self.ty, rows, row, &x.float[..x.count], scratch, out);
            }
        }
    }
}

fn pack_all(w: &WeightData, fields: &'static [formats::Field], pool: &mut Pool) -> Result<Buffer<u8>> {
    let row_bytes = w.row_bytes()?;
    let groups = w.rows.div_ceil(GROUP);
    let group_bytes = GROUP * row_bytes;
    let data = Buffer::<u8>::new(w.experts * groups * group_bytes, &w.name)?;
    let claims = Claims::new(w.experts * groups, 16);
    pool.run(|_| {
        while let Some(range) = claims.next() {
            for unit in range {
                let (expert, group) = (unit / groups, unit % groups);
                let first = group * GROUP;
                let rows = GROUP.min(w.rows - first);
                let source = &w.bytes[expert * w.expert_stride + first * row_bytes..][..rows * row_bytes];
                // SAFETY: every unit is claimed once and is a range of its own in `data`.
                let out = unsafe {
                    std::slice::from_raw_parts_mut(data.as_ptr().add(unit * group_bytes), group_bytes)
                };
                pack::pack_group(w.ty, fields, source, row_bytes, out);
            }
        }
        true
    });
    Ok(data)
}
