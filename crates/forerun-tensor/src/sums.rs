//! Sums of the squares of what products read: what an importance matrix is made of.
//!
//! A plan that is recorded with a [`Collection`] adds them up in passing ([`crate::Op::Collect`]). Every column is added up
//! by itself in float64, rows ascending, so a sum is a function of the rows alone: not of threads, and not of how a text was
//! cut into steps.

use std::collections::HashMap;

use crate::backend::WeightId;
use crate::builder::Weight;
use crate::error::{Result, TensorError};

/// Sums that a backend holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SumsId(pub u32);

/// Shape of sums: those of a weight's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SumsSpec {
    /// Stacked matrices that read rows of their own; 1 for a dense weight.
    pub matrices: usize,
    /// Columns of a row.
    pub cols: usize,
}

impl SumsSpec {
    /// Number of sums.
    ///
    /// # Errors
    /// When there is none, or more than can be addressed.
    pub fn count(&self) -> Result<usize> {
        let len = self.matrices.checked_mul(self.cols);
        len.filter(|n| (1..=usize::MAX / 8).contains(n)).ok_or_else(|| {
            TensorError::Cache(format!(
                "sums of {} × {} columns, expected 1 or more",
                self.matrices, self.cols
            ))
        })
    }
}

/// Sums of squares, as [`crate::Backend::sums`] gives them.
#[derive(Clone, Debug, PartialEq)]
pub struct Sums {
    /// Σ x² of every column, `[matrices, cols]`.
    pub squares: Vec<f64>,
    /// Rows that each matrix read.
    pub rows: Vec<u64>,
}

/// Which weights' inputs a plan adds up, and where. Weights that share an input share sums.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Collection(HashMap<WeightId, (SumsId, SumsSpec)>);

impl Collection {
    /// Adds up the input of `weight` in `sums`.
    pub fn insert(&mut self, weight: WeightId, sums: SumsId, spec: SumsSpec) {
        self.0.insert(weight, (sums, spec));
    }

    /// Where the input of a weight is added up.
    #[must_use]
    pub fn get(&self, weight: WeightId) -> Option<(SumsId, SumsSpec)> {
        self.0.get(&weight).copied()
    }

    /// Sums that the common input of some weights is added to, each once.
    pub(crate) fn sums_of(&self, op: &'static str, weights: &[&Weight]) -> Result<Vec<SumsId>> {
        let mut found = Vec::new();
        for w in weights {
            let Some((sums, spec)) = self.get(w.id) else { continue };
            if spec != (SumsSpec { matrices: w.experts, cols: w.cols }) {
                return Err(TensorError::Plan { op, message: format!("{spec:?} for the input of {w:?}") });
            }
            if !found.contains(&sums) {
                found.push(sums);
            }
        }
        Ok(found)
    }
}
