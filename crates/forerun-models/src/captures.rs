//! What a step of a model leaves behind besides its results.

use forerun_tensor::{Act, PlanBuilder, Ring, Weight};

use crate::error::Result;

/// Hidden states that a plan copies out, `[rows of the step, H]` each. [`forerun_tensor::StepOut::taps`] has them in this
/// order: embedding, layers ascending, normed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Taps {
    /// The input of the first layer.
    pub embedding: bool,
    /// Outputs of these layers (the residual stream after them, before any final norm).
    pub layers: Vec<usize>,
    /// The output of the last layer after `output_norm`.
    pub normed: bool,
}

/// What a step leaves behind besides its results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Captures<'a> {
    /// Copied out.
    pub(crate) taps: Option<&'a Taps>,
    /// Hidden states after `output_norm`, for an MTP block.
    pub(crate) hidden: Option<&'a Ring>,
    /// Outputs of these layers side by side, for a DFlash drafter.
    pub(crate) features: Option<(&'a [usize], &'a Ring)>,
}

impl Captures<'_> {
    /// `x` is the input of the first layer.
    pub(crate) fn embedding(&self, plan: &mut PlanBuilder, x: Act) {
        if self.taps.is_some_and(|t| t.embedding) {
            plan.output(x);
        }
    }

    /// `x` is the output of layer `i`.
    pub(crate) fn layer(&self, plan: &mut PlanBuilder, i: usize, x: Act) -> Result<()> {
        if self.taps.is_some_and(|t| t.layers.contains(&i)) {
            plan.output(x);
        }
        if let Some((layers, ring)) = self.features
            && let Some(part) = layers.iter().position(|l| *l == i)
        {
            plan.keep_part(x, ring, part * (ring.spec.cols / layers.len()))?;
        }
        Ok(())
    }

    /// Output rows of `RMS(x, output_norm)`; where it is captured, every row is normed.
    pub(crate) fn normed_output(
        &self,
        plan: &mut PlanBuilder,
        x: Act,
        output_norm: &Weight,
        eps: f32,
    ) -> Result<Act> {
        let tapped = self.taps.is_some_and(|t| t.normed);
        if !tapped && self.hidden.is_none() {
            let last = plan.select(x)?;
            return Ok(plan.rms_norm(last, Some(output_norm), eps)?);
        }
        let hidden = plan.rms_norm(x, Some(output_norm), eps)?;
        if tapped {
            plan.output(hidden);
        }
        if let Some(ring) = self.hidden {
            plan.keep(hidden, ring, 0)?;
        }
        Ok(plan.select(hidden)?)
    }
}
