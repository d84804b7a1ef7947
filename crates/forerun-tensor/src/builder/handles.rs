//! What plans are recorded over: things of a device, with their shapes.

use crate::backend::{KvId, KvSpec, RingId, RingSpec, StateId, StateSpec, WeightId};

/// A loaded weight with its shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// Handle.
    pub id: WeightId,
    /// Output rows (of one expert); 1 for a vector.
    pub rows: usize,
    /// Input columns.
    pub cols: usize,
    /// Stacked matrices.
    pub experts: usize,
}

/// An allocated KV cache with its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kv {
    /// Handle.
    pub id: KvId,
    /// Shape.
    pub spec: KvSpec,
}

/// An allocated delta-net state with its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Handle.
    pub id: StateId,
    /// Shape.
    pub spec: StateSpec,
}

/// An allocated ring with its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Handle.
    pub id: RingId,
    /// Shape.
    pub spec: RingSpec,
}

/// A factor on normed rows, as [`crate::PlanBuilder`] takes it.
#[derive(Clone, Copy, Debug)]
pub enum Scale<'a> {
    /// A vector of one element.
    Weight(&'a Weight),
    /// A constant.
    Constant(f32),
}
