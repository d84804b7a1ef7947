//! Adding up the squares of what products read. A unit of work is a range of columns, whose rows it adds in order, so the
//! sums are the same on any number of threads.

use std::ops::Range;

use forerun_tensor::{Act, SumsId};

use crate::act::InputRows;
use crate::exec::{Ctx, Worker};
use crate::isa::{Isa, multiversion};
use crate::sums::SumsStore;

/// Columns of a unit.
const COLS: usize = 64;
/// Columns whose sums stay in registers over all rows.
const LANES: usize = 32;

/// Units that the input of a weight of so many columns takes.
pub(super) fn units(cols: usize) -> usize {
    cols.div_ceil(COLS)
}

pub(super) fn collect(ctx: &Ctx<'_>, w: &Worker<'_>, x: Act, sums: SumsId) {
    let (rows, sums) = (ctx.act(x).run(0, ctx.rows(x)), &ctx.sums[sums.0 as usize]);
    w.for_each(units(ctx.cols(x)), |unit, _| add(ctx.isa, rows, sums, 0, unit));
}

/// One unit of the rows that a matrix reads. No other unit of the phase has the same columns of the same matrix.
pub(super) fn add(isa: Isa, rows: InputRows<'_>, sums: &SumsStore, matrix: usize, unit: usize) {
    let cols = unit * COLS..((unit + 1) * COLS).min(rows.cols());
    if unit == 0 {
        sums.count(matrix, rows.count());
    }
    // SAFETY: this unit alone has these columns.
    let own = unsafe { sums.cols_mut(matrix, cols.clone()) };
    add_squares(isa, rows, cols, own);
}

multiversion! {
    /// Adds the squares of some columns, rows ascending. The square of a float32 is exact in float64.
    fn add_squares = add_squares_body, (rows: InputRows<'_>, cols: Range<usize>, sums: &mut [f64])
}

#[inline(always)]
fn add_squares_body(rows: InputRows<'_>, cols: Range<usize>, sums: &mut [f64]) {
    let (chunks, rest) = sums.as_chunks_mut::<LANES>();
    let mut at = cols.start;
    for chunk in chunks {
        let mut own = *chunk;
        for row in 0..rows.count() {
            let x = &rows.float(row)[at..at + LANES];
            own.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
        }
        *chunk = own;
        at += LANES;
    }
    for row in 0..rows.count() {
        let x = &rows.float(row)[at..cols.end];
        rest.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    }
}
