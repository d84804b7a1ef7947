//! The feed-forward half of a block: dense, or a mixture of experts with a shared one.

use forerun_tensor::{Act, Activation, ExpertSums, ExpertsOp, PlanBuilder, RouterKind, SharedExpert, Weight};

use crate::error::Result;
use crate::keys::Keys;
use crate::tensors::{Inventory, TensorSpec, tensor_group};

/// Widest feed-forward layer that is accepted.
pub(crate) const MOST_FFN: usize = 1 << 20;
/// Most experts that are accepted.
pub(crate) const MOST_EXPERTS: usize = 1 << 12;

tensor_group! {
    /// `down · (act(gate · x) ⊙ (up · x))`, act SiLU or GELU by the architecture. H is the hidden size, F the feed-forward length.
    Dense {
        /// `ffn_gate.weight` `[F, H]`.
        ffn_gate,
        /// `ffn_up.weight` `[F, H]`.
        ffn_up,
        /// `ffn_down.weight` `[H, F]`.
        ffn_down,
    }
}

tensor_group! {
    /// `Σ wₑ · expertₑ(x) + sigmoid(ffn_gate_inp_shexp · x) · shared(x)`: E experts of feed-forward length F, each a gated
    /// product as in [`Dense`]; w are the largest router probabilities, renormalised.
    Experts {
        /// `ffn_gate_inp.weight` `[E, H]`, the router.
        ffn_gate_inp,
        /// `ffn_gate_exps.weight` `[E][F, H]`.
        ffn_gate_exps,
        /// `ffn_up_exps.weight` `[E][F, H]`.
        ffn_up_exps,
        /// `ffn_down_exps.weight` `[E][H, F]`.
        ffn_down_exps,
        /// `ffn_gate_inp_shexp.weight` `[1, H]`, the gate of the shared expert.
        ffn_gate_inp_shexp,
        /// `ffn_gate_shexp.weight` `[S, H]`, S the shared expert's length.
        ffn_gate_shexp,
        /// `ffn_up_shexp.weight` `[S, H]`.
        ffn_up_shexp,
        /// `ffn_down_shexp.weight` `[H, S]`.
        ffn_down_shexp,
    }
}

/// Either kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Ffn<T> {
    /// Every row runs the same weights.
    Dense(Dense<T>),
    /// Every row chooses its experts.
    Experts(Box<Experts<T>>),
}

/// Sizes of the feed-forward half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FfnShape {
    /// Dense.
    Dense {
        /// Feed-forward length.
        ffn: usize,
    },
    /// Mixture of experts.
    Experts {
        /// Number of experts.
        experts: usize,
        /// Experts that a row runs.
        top_k: usize,
        /// Feed-forward length of an expert.
        ffn: usize,
        /// Feed-forward length of the shared expert.
        shared: usize,
    },
}

impl FfnShape {
    /// Dense sizes. Keys that speak of experts must be absent or 0.
    pub(crate) fn read_dense(keys: Keys<'_>) -> Result<Self> {
        if let Some(n @ 1..) = keys.opt_count("expert_count", 0..=usize::MAX)? {
            return Err(keys.wrong("expert_count", n, "none in a dense architecture"));
        }
        Ok(FfnShape::Dense { ffn: keys.count("feed_forward_length", 1..=MOST_FFN)? })
    }

    /// Sizes of a mixture.
    pub(crate) fn read_experts(keys: Keys<'_>) -> Result<Self> {
        let experts = keys.count("expert_count", 1..=MOST_EXPERTS)?;
        Ok(FfnShape::Experts {
            experts,
            top_k: keys.count("expert_used_count", 1..=experts)?,
            ffn: keys.count("expert_feed_forward_length", 1..=MOST_FFN)?,
            shared: keys.count("expert_shared_feed_forward_length", 1..=MOST_FFN)?,
        })
    }

    /// A dense layer; `None` when its length is out of range.
    pub(crate) fn dense(ffn: usize) -> Option<Self> {
        (1..=MOST_FFN).contains(&ffn).then_some(FfnShape::Dense { ffn })
    }

    /// Experts that a row runs; 0 when dense.
    pub(crate) fn top_k(self) -> usize {
        match self {
            FfnShape::Dense { .. } => 0,
            FfnShape::Experts { top_k, .. } => top_k,
        }
    }
}

impl<T> Ffn<T> {
    /// Its tensors.
    pub(crate) fn tensors(&self) -> Vec<&T> {
        match self {
            Ffn::Dense(d) => d.fields(),
            Ffn::Experts(e) => e.fields(),
        }
    }
}

impl Dense<TensorSpec> {
    /// Checks the tensors of a block whose names start with `block` (as in `blk.0.`).
    pub(crate) fn read(inv: &mut Inventory<'_>, block: &str, hidden: usize, ffn: usize) -> Result<Self> {
        let name = |suffix: &str| format!("{block}{suffix}.weight");
        Ok(Dense {
            ffn_gate: inv.matrix(&name("ffn_gate"), hidden, ffn)?,
            ffn_up: inv.matrix(&name("ffn_up"), hidden, ffn)?,
            ffn_down: inv.matrix(&name("ffn_down"), ffn, hidden)?,
        })
    }
}

/// Stacked gates and ups of experts: tensors of their own, or halves of one.
pub(crate) fn gate_up_exps(
    inv: &mut Inventory<'_>,
    block: &str,
    hidden: usize,
    ffn: usize,
    experts: usize,
) -> Result<(TensorSpec, TensorSpec)> {
    let name = |suffix: &str| format!("{block}{suffix}.weight");
    let fused = name("ffn_gate_up_exps");
    if inv.has(&fused) {
        let both = inv.experts(&fused, hidden, 2 * ffn, experts)?;
        return Ok((both.part(0, ffn), both.part(ffn, ffn)));
    }
    let gate = inv.experts(&name("ffn_gate_exps"), hidden, ffn, experts)?;
    Ok((gate, inv.experts(&name("ffn_up_exps"), hidden, ffn, experts)?))
}

impl Ffn<TensorSpec> {
    /// Checks the tensors of a block whose names start with `block` (as in `blk.0.`).
    pub(crate) fn read(inv: &mut Inventory<'_>, block: &str, hidden: usize, shape: FfnShape) -> Result<Self> {
        let name = |suffix: &str| format!("{block}{suffix}.weight");
        let (experts, ffn, shared) = match shape {
            FfnShape::Dense { ffn } => {
                return Ok(Ffn::Dense(Dense::read(inv, block, hidden, ffn)?));
            }
            FfnShape::Experts { experts, ffn, shared, .. } => (experts, ffn, shared),
        };
        let (ffn_gate_exps, ffn_up_exps) = gate_up_exps(inv, block, hidden, ffn, experts)?;
        Ok(Ffn::Experts(Box::new(Experts {
            ffn_gate_inp: inv.matrix(&name("ffn_gate_inp"), hidden, experts)?,
            ffn_gate_exps,
            ffn_up_exps,
            ffn_down_exps: inv.experts(&name("ffn_down_exps"), ffn, hidden, experts)?,
            ffn_gate_inp_shexp: inv.matrix(&name("ffn_gate_inp_shexp"), hidden, 1)?,
            ffn_gate_shexp: inv.matrix(&name("ffn_gate_shexp"), hidden, shared)?,
            ffn_up_shexp: inv.matrix(&name("ffn_up_shexp"), hidden, shared)?,
            ffn_down_shexp: inv.matrix(&name("ffn_down_shexp"), shared, hidden)?,
        })))
    }

    pub(crate) fn try_map<U, E>(&self, f: impl FnMut(&TensorSpec) -> Result<U, E>) -> Result<Ffn<U>, E> {
        Ok(match self {
            Ffn::Dense(d) => Ffn::Dense(d.try_map(f)?),
            Ffn::Experts(e) => Ffn::Experts(Box::new(e.try_map(f)?)),
        })
    }
}

impl Ffn<Weight> {
    /// Adds the feed-forward layer of `x` (already normed) to the residual stream `r`.
    pub(crate) fn record(&self, plan: &mut PlanBuilder, x: Act, r: Act, top_k: usize) -> Result<()> {
        match self {
            Ffn::Dense(w) => {
                let h = plan.gated_mat_mul(x, &w.ffn_gate, &w.ffn_up, Activation::Silu)?;
                plan.mat_mul_add(h, &w.ffn_down, r)?;
            }
            Ffn::Experts(w) => {
                let [router, gate] = plan.mat_mul(x, [&w.ffn_gate_inp, &w.ffn_gate_inp_shexp])?;
                let routes = plan.route(router, RouterKind::SoftmaxRenormalised, top_k)?;
                let h = plan.gated_mat_mul(x, &w.ffn_gate_shexp, &w.ffn_up_shexp, Activation::Silu)?;
                let [out] = plan.mat_mul(h, [&w.ffn_down_shexp])?;
                let op = ExpertsOp {
                    x,
                    routes,
                    gate: w.ffn_gate_exps.id,
                    up: w.ffn_up_exps.id,
                    down: w.ffn_down_exps.id,
                    activation: Activation::Silu,
                    shared: Some(SharedExpert { out, gate }),
                    residual: Some(r),
                    sums: ExpertSums::default(),
                    out: r,
                };
                plan.experts(op, [&w.ffn_gate_exps, &w.ffn_up_exps, &w.ffn_down_exps])?;
            }
        }
        Ok(())
    }
}
