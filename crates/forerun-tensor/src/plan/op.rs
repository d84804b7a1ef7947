//! What an operator is called, and what it uses.

use super::{Factor, Op, RouteOp, RouterKind};
use crate::backend::WeightId;
use crate::sums::SumsId;

impl Op {
    /// The operator's name in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "mat_mul",
            Op::GatedMatMul { .. } => "gated_mat_mul",
            Op::RopeKv(_) => "rope_kv",
            Op::Attention(_) => "attention",
            Op::DeltaNet(_) => "delta_net",
            Op::Route(_) => "route",
            Op::Experts(_) => "experts",
            Op::Collect { .. } => "collect",
            Op::Select { .. } => "select",
            Op::Softcap { .. } => "softcap",
            Op::Multiply { .. } => "multiply",
            Op::Sample { .. } => "sample",
            Op::Output { .. } => "output",
            Op::Concat { .. } => "concat",
            Op::Keep { .. } => "keep",
            Op::Recall { .. } => "recall",
        }
    }

    /// Every weight that the operator reads.
    #[must_use]
    pub fn weights(&self) -> Vec<WeightId> {
        match self {
            Op::Embed { table, .. } => vec![*table],
            Op::RmsNorm { weight, scale: Some(Factor::Weight(scale)), .. } => {
                weight.iter().chain([scale]).copied().collect()
            }
            Op::RmsNorm { weight, .. } => weight.iter().copied().collect(),
            Op::MatMul { products, .. } => products.iter().map(|p| p.weight).collect(),
            Op::GatedMatMul { gate, up, .. } => vec![*gate, *up],
            Op::RopeKv(op) => op.q_norm.iter().chain(&op.k_norm).copied().collect(),
            Op::DeltaNet(op) => vec![op.conv, op.dt_bias, op.a, op.norm],
            Op::Route(RouteOp { kind: RouterKind::SoftmaxRenormalisedScaled(scale), .. }) => vec![*scale],
            Op::Experts(op) => vec![op.gate, op.up, op.down],
            Op::Attention(_)
            | Op::Route(_)
            | Op::Collect { .. }
            | Op::Select { .. }
            | Op::Softcap { .. }
            | Op::Multiply { .. }
            | Op::Sample { .. }
            | Op::Concat { .. }
            | Op::Keep { .. }
            | Op::Recall { .. }
            | Op::Output { .. } => Vec::new(),
        }
    }

    /// The matrices that the operator multiplies, those that read the same rows together.
    #[must_use]
    pub fn products(&self) -> Vec<Vec<WeightId>> {
        match self {
            Op::MatMul { products, .. } => vec![products.iter().map(|p| p.weight).collect()],
            Op::GatedMatMul { gate, up, .. } => vec![vec![*gate, *up]],
            Op::Experts(op) => vec![vec![op.gate, op.up], vec![op.down]],
            _ => Vec::new(),
        }
    }

    /// Sums that the operator adds to.
    #[must_use]
    pub fn sums(&self) -> Vec<SumsId> {
        match self {
            Op::Collect { sums, .. } => vec![*sums],
            Op::Experts(op) => op.sums.input.into_iter().chain(op.sums.hidden).collect(),
            _ => Vec::new(),
        }
    }
}
