//! Activation buffers: float32 rows, with a quantised copy where an integer product reads them.

use forerun_tensor::Result;

use crate::isa::Isa;
use crate::matmul::{Picked, QuantRows, Quantised};
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

    /// Rows `first..first + count`, for a product.
    pub(crate) fn run(&self, first: usize, count: usize) -> InputRows<'_> {
        InputRows { act: self, picked: Picked::Run { first, count } }
    }

    /// Rows in any order, for a product.
    pub(crate) fn list<'a>(&'a self, rows: &'a [u32]) -> InputRows<'a> {
        InputRows { act: self, picked: Picked::List(rows) }
    }
}

/// Rows that a product reads, in the form that the weight's type takes. What holds for [`ActBuf::row`] holds for them.
#[derive(Clone, Copy)]
pub(crate) struct InputRows<'a> {
    act: &'a ActBuf,
    picked: Picked<'a>,
}

impl<'a> InputRows<'a> {
    pub(crate) fn count(&self) -> usize {
        self.picked.count()
    }

    /// Activations of a row.
    pub(crate) fn cols(&self) -> usize {
        self.act.cols
    }

    pub(crate) fn float(&self, i: usize) -> &'a [f32] {
        self.act.row(self.picked.at(i))
    }

    pub(crate) fn quantised(&self) -> Quantised<'a> {
        match &self.act.quant {
            Some(rows) => Quantised { rows, picked: self.picked },
            None => unreachable!("buffers that integer products read are quantised"),
        }
    }
}
