//! Router and experts.

use super::{Frame, ReferenceBackend, activate, sigmoid};
use crate::plan::{ExpertsOp, RouteOp, RouterKind};

impl ReferenceBackend {
    pub(super) fn route(&self, op: &RouteOp, f: &mut Frame<'_>) {
        let scale = match op.kind {
            RouterKind::SoftmaxRenormalised => None,
            RouterKind::SoftmaxRenormalisedScaled(w) => Some(self.weight(w).vector()),
        };
        let routes = f
            .get(op.logits)
            .iter()
            .map(|row| {
                let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let mut p: Vec<(usize, f64)> = row.iter().map(|l| (l - max).exp()).enumerate().collect();
                p.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                p.truncate(op.top_k);
                let sum: f64 = p.iter().map(|(_, w)| w).sum();
                p.into_iter().map(|(e, w)| (e, w / sum * scale.as_ref().map_or(1.0, |s| s[e]))).collect()
            })
            .collect();
        f.routes[op.out.index()] = routes;
    }

    pub(super) fn experts(&self, op: &ExpertsOp, f: &mut Frame<'_>) {
        let (gate, up, down) = (self.weight(op.gate), self.weight(op.up), self.weight(op.down));
        let mut out = Vec::new();
        for (i, x) in f.get(op.x).iter().enumerate() {
            let mut y = vec![0.0; down.data.rows];
            for &(e, w) in &f.routes[op.routes.index()][i] {
                let hidden: Vec<f64> = gate
                    .product(e, x)
                    .iter()
                    .zip(up.product(e, x))
                    .map(|(g, u)| activate(op.activation, *g) * u)
                    .collect();
                y.iter_mut().zip(down.product(e, &hidden)).for_each(|(y, v)| *y += w * v);
            }
            if let Some(s) = op.shared {
                let gate = sigmoid(f.get(s.gate)[i][0]);
                y.iter_mut().zip(&f.get(s.out)[i]).for_each(|(y, v)| *y += gate * v);
            }
            if let Some(r) = op.residual {
                y.iter_mut().zip(&f.get(r)[i]).for_each(|(y, v)| *y += v);
            }
            out.push(y);
        }
        f.set(op.out, out);
    }
}
