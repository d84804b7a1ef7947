//! Activation buffers: float32 rows, with a quantised copy where an integer product reads them.

use forerun_tensor::Result;

use crate::isa::Isa;
use crate::matmul::{InputRows, Layout, QuantRow, QuantRows, TILE};
use crate::memory::Buffer;

/// A buffer that threads of a region write in disjoint parts.
pub(crate) struct ActBuf {
    data: Buffer<f32>,
    cols: usize,
    quant: Option<QuantRows>,
}

impl ActBuf {
    pub(crate) fn new(rows: usize, cols: usize, quantised: bool) -> Result<Self> {
        Ok(Self {
            data: Buffer::new(rows * cols, "activations")?,
            cols,
            quant: if quantised { Some(QuantRows::new(rows, cols)?) } else { None },
        })
    }

    pub(crate) fn bytes(rows: usize, cols: usize, quantised: bool) -> u64 {
        (4 * rows * cols) as u64 + if quantised { QuantRows::bytes(rows, cols) } else { 0 }
    }

    pub(crate) fn is_quantised(&self) -> bool {
        self.quant.is_some()
    }

    /// A row. Nobody may write it at the same time: operators are separated by phases, and within one a row is read by
    /// whoever does not write it.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.cols..(row + 1) * self.cols]
    }

    /// Columns `first..first + len` of a row, for writing.
    ///
    /// # Safety
    /// No other thread uses these columns of the row until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn cols_mut(&self, row: usize, first: usize, len: usize) -> &mut [f32] {
        debug_assert!(first + len <= self.cols);
        // SAFETY: in range, and exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr().add(row * self.cols + first), len) }
    }

    /// A whole row, for writing.
    ///
    /// # Safety
    /// As [`ActBuf::cols_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn row_mut(&self, row: usize) -> &mut [f32] {
        // SAFETY: the caller's contract.
        unsafe { self.cols_mut(row, 0, self.cols) }
    }

    /// Quantises columns that were just written, when an integer product will read them. `first` and `len` are multiples
    /// of 32.
    ///
    /// # Safety
    /// As [`ActBuf::cols_mut`].
    pub(crate) unsafe fn quantise(&self, isa: Isa, row: usize, first: usize, len: usize) {
        if let Some(q) = &self.quant {
            // SAFETY: the caller's contract.
            unsafe { q.write(isa, row, first, &self.row(row)[first..first + len]) };
        }
    }

    /// Rows of a tile: `list[i]`, or `first + i`. With a list, or when `first` is no multiple of 16, rows of a prompt do not
    /// count as consecutive.
    pub(crate) fn tile_rows(&self, first: usize, count: usize, list: Option<&[u32]>) -> InputRows<'_> {
        let at = |i: usize| {
            let i = i.min(count - 1);
            list.map_or(first + i, |l| l[i] as usize)
        };
        let none = QuantRow { q: std::ptr::null(), meta: std::ptr::null() };
        InputRows {
            count,
            quant: self.quant.as_ref().map_or([none; TILE], |q| std::array::from_fn(|i| q.row(at(i)))),
            float: std::array::from_fn(|i| self.row(at(i))),
            layout: self.quant.as_ref().map_or(Layout::Rows, |q| q.layout),
            consecutive: list.is_none() && first.is_multiple_of(TILE),
        }
    }
}
