//! Sums of the squares of what products read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forerun_tensor::{Result, Sums, SumsSpec};

use crate::memory::Buffer;

/// Sums that units of a step add to in disjoint ranges of columns.
pub(crate) struct SumsStore {
    cols: usize,
    squares: Buffer<f64>,
    rows: Vec<AtomicU64>,
}

impl SumsStore {
    pub(crate) fn new(spec: &SumsSpec) -> Result<Self> {
        let squares = Buffer::new(spec.count()?, "sums of squares")?;
        Ok(Self { cols: spec.cols, squares, rows: (0..spec.matrices).map(|_| AtomicU64::new(0)).collect() })
    }

    pub(crate) fn read(&self) -> Sums {
        let rows = self.rows.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        Sums { squares: self.squares.to_vec(), rows }
    }

    /// Sums of some columns of a matrix's input.
    ///
    /// # Safety
    /// No other thread uses these columns of the matrix until the caller's unit is finished.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn cols_mut(&self, matrix: usize, cols: Range<usize>) -> &mut [f64] {
        let at = matrix * self.cols + cols.start;
        assert!(cols.end <= self.cols && at + cols.len() <= self.squares.len(), "columns of {}", self.cols);
        // SAFETY: in range, and exclusive by the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.squares.as_ptr().add(at), cols.len()) }
    }

    /// Counts rows that a matrix read.
    pub(crate) fn count(&self, matrix: usize, rows: usize) {
        self.rows[matrix].fetch_add(rows as u64, Ordering::Relaxed);
    }
}
