//! The seam between models and devices: operators recorded as a [`Plan`], the [`Backend`] that runs them, and the
//! reference backend in plain loops.
//!
//! A model never calls a device. It records a [`Plan`] once per shape of step; a backend prepares the plan (allocates,
//! schedules, captures a graph) and then submits it for many steps, each of which uploads one small [`StepRows`].

pub mod backend;
pub mod builder;
pub mod error;
mod liveness;
pub mod math;
pub mod noise;
pub mod plan;
pub mod reference;
pub mod step;
pub mod sums;

pub use backend::{
    Backend, BackendInfo, KvId, KvSpec, KvType, Loaded, PlanId, RingId, RingSpec, SharedBytes, StateId,
    StateSpec, Ticket, WeightData, WeightId, WeightUse,
};
pub use builder::{Kv, PlanBuilder, Ring, Scale, State, Weight};
pub use error::{Result, TensorError};
pub use plan::{
    Act, Activation, AttentionOp, AttentionShape, DeltaNetOp, DeltaShape, ExpertSums, ExpertsOp, Factor,
    Gate, Ids, Op, Picks, Plan, Product, RopeId, RopeKvOp, RopeSpec, RouteOp, RouterKind, Routes, RowSet,
    SharedExpert, TokenMap,
};
pub use step::{OutRow, Pick, Picked, SeqRows, StepOut, StepRows};
pub use sums::{Collection, Sums, SumsId, SumsSpec};
