//! Weights as the file holds them, decoded row by row when they are used.

use forerun_quant::decode_row;

use crate::backend::WeightData;
use crate::error::Result;

/// A weight whose sizes were checked.
pub(super) struct Weight {
    data: WeightData,
    row_bytes: usize,
}

impl Weight {
    pub(super) fn new(data: &WeightData) -> Result<Self> {
        data.check()?;
        Ok(Self { row_bytes: data.row_bytes()?, data: data.clone() })
    }

    /// Rows of one expert.
    pub(super) fn rows(&self) -> usize {
        self.data.rows
    }

    /// Elements of all experts.
    pub(super) fn elements(&self) -> usize {
        self.data.experts * self.data.rows * self.data.cols
    }

    /// One row of one expert.
    pub(super) fn row(&self, expert: usize, row: usize) -> Vec<f64> {
        let start = expert * self.data.expert_stride + row * self.row_bytes;
        let mut out = vec![0.0; self.data.cols];
        decode_row(self.data.ty, &self.data.bytes[start..start + self.row_bytes], &mut out)
            .expect("type and row size were checked when the weight was loaded");
        out.into_iter().map(f64::from).collect()
    }

    /// Every element, in order.
    pub(super) fn vector(&self) -> Vec<f64> {
        let rows = (0..self.data.experts).flat_map(|e| (0..self.data.rows).map(move |r| (e, r)));
        rows.flat_map(|(e, r)| self.row(e, r)).collect()
    }

    /// `W[expert] · x` for every x.
    pub(super) fn products(&self, expert: usize, xs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut out = vec![Vec::with_capacity(self.data.rows); xs.len()];
        for r in 0..self.data.rows {
            let w = self.row(expert, r);
            for (x, y) in xs.iter().zip(&mut out) {
                y.push(w.iter().zip(x).map(|(w, x)| w * x).sum());
            }
        }
        out
    }

    /// `W[expert] · x`.
    pub(super) fn product(&self, expert: usize, x: &[f64]) -> Vec<f64> {
        let dot = |w: Vec<f64>| w.iter().zip(x).map(|(w, x)| w * x).sum();
        (0..self.data.rows).map(|r| dot(self.row(expert, r))).collect()
    }
}
