//! Router and experts.

use super::{Frame, ReferenceBackend, activate, sigmoid};
use crate::plan::{ExpertsOp, RouteOp, RouterKind};

/// The `top_k` most probable experts of a row, ties to the lower id, with weights that sum to 1.
fn choose(logits: &[f64], top_k: usize) -> Vec<(usize, f64)> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // The softmax's denominator cancels in the renormalisation.
    let mut experts: Vec<(usize, f64)> = logits.iter().map(|l| (l - max).exp()).enumerate().collect();
    experts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    experts.truncate(top_k);
    let sum: f64 = experts.iter().map(|(_, w)| w).sum();
    experts.into_iter().map(|(e, w)| (e, w / sum)).collect()
}

impl ReferenceBackend {
    pub(super) fn route(&self, op: &RouteOp, f: &mut Frame<'_>) {
        let mut routes: Vec<_> = f.get(op.logits).iter().map(|row| choose(row, op.top_k)).collect();
        if let RouterKind::SoftmaxRenormalisedScaled(w) = op.kind {
            let scale = self.weight(w).vector();
            routes.iter_mut().flatten().for_each(|(e, w)| *w *= scale[*e]);
        }
        f.routes[op.out.index()] = routes;
    }

    pub(super) fn experts(&mut self, op: &ExpertsOp, f: &mut Frame<'_>) {
        let (gate, up, down) = (self.weight(op.gate), self.weight(op.up), self.weight(op.down));
        let mut out = Vec::new();
        // Of every row and expert, what the expert's down projection read.
        let mut read = Vec::new();
        for (i, x) in f.get(op.x).iter().enumerate() {
            let mut y = vec![0.0; down.rows()];
            let mut add = |factor: f64, v: &[f64]| y.iter_mut().zip(v).for_each(|(y, v)| *y += factor * v);
            for &(e, w) in &f.routes[op.routes.index()][i] {
                let (g, u) = (gate.product(e, x), up.product(e, x));
                let hidden: Vec<f64> =
                    g.iter().zip(u).map(|(g, u)| activate(op.activation, *g) * u).collect();
                add(w, &down.product(e, &hidden));
                read.push((i, e, hidden));
            }
            if let Some(shared) = op.shared {
                add(sigmoid(f.get(shared.gate)[i][0]), &f.get(shared.out)[i]);
            }
            if let Some(residual) = op.residual {
                add(1.0, &f.get(residual)[i]);
            }
            out.push(y);
        }
        for (i, e, hidden) in &read {
            op.sums.input.iter().for_each(|s| self.add_squares(*s, *e, &f.get(op.x)[*i]));
            op.sums.hidden.iter().for_each(|s| self.add_squares(*s, *e, hidden));
        }
        f.set(op.out, out);
    }
}
