//! The operators, as data. A [`Plan`] is a list of them over activation buffers; it is recorded once by a model through
//! [`crate::PlanBuilder`], which checks every shape, and interpreted by every backend.
//!
//! No operator holds anything that changes from step to step: tokens, slots, positions and counts come from the step's
//! [`crate::StepRows`], which a device keeps in a small fixed buffer, so a captured graph replays as it is.
//!
//! Row invariance holds for every operator: row i of an output depends on row i of its inputs, the weights and the row's
//! own sequence, and every sum has an order that only shapes and absolute positions decide.

mod op;

use std::sync::Arc;

use crate::backend::{KvId, RingId, StateId, WeightId};
use crate::sums::SumsId;

macro_rules! local {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);
        impl $name {
            /// Index within its plan.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

local!(
    /// An activation buffer of a plan: float32 `[rows, cols]`, device memory.
    Act
);
local!(
    /// The experts chosen for each row: `[rows, top_k]` ids and weights, in rank order.
    Routes
);
local!(
    /// A rotary embedding of a plan.
    RopeId
);
local!(
    /// Token ids that a plan's own [`Op::Sample`] chose.
    Picks
);
local!(
    /// The token ids of a reduced head's rows, ascending.
    TokenMap
);

/// Which rows a buffer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// Every row of the step.
    Step,
    /// The output rows only.
    Out,
}

/// Where an embedding takes its token ids from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// The step's own tokens (rows: `Step`).
    Step,
    /// Tokens that an earlier operator of this plan chose (rows: `Out`); a chain of drafts never leaves the device.
    Picked(Picks),
}

/// The function applied to the gate of a gated product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU in its tanh approximation.
    GeluTanh,
}

/// One product of a [`Op::MatMul`]: `out = W·x`, or `residual + W·x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The matrix `[out cols, x cols]`.
    pub weight: WeightId,
    /// Result.
    pub out: Act,
    /// Added to the product (one rounding after the complete sum). May be `out` itself.
    pub residual: Option<Act>,
}

/// Rotary embedding: dim `p` of a head pairs with `p + pairs` for p < pairs; further dims pass unchanged. Angle = position
/// times frequency, in float64; its cosine and sine are rounded to float32 and multiplied by `scale` when that is not 1.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Frequency of each pair, radians per position; the number of pairs is its length.
    pub frequencies: Vec<f64>,
    /// Factor on cosine and sine (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Query heads; a multiple of `kv_heads`. Query head h reads KV head h / (heads / kv_heads).
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a query or key vector.
    pub key_dim: usize,
    /// Elements of a value vector.
    pub value_dim: usize,
    /// Elements from one query head to the next in `q`: `key_dim`, or twice that when each head's query is followed by
    /// its gate.
    pub q_stride: usize,
}

/// Operands of [`Op::RopeKv`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeKvOp {
    /// Queries `[rows, heads · q_stride]`, normed and rotated in place; `None` when only K/V are made.
    pub q: Option<Act>,
    /// Keys `[rows, kv_heads · key_dim]`; `None` when the layer writes no K/V of its own.
    pub k: Option<Act>,
    /// Values `[rows, kv_heads · value_dim]`; `Some` exactly when `k` is. May be the same buffer as `k`.
    pub v: Option<Act>,
    /// Gain of the per-head RMS norm of queries `[key_dim]`; `None` for no norm.
    pub q_norm: Option<WeightId>,
    /// Gain of the per-head RMS norm of keys `[key_dim]`; `None` for no norm.
    pub k_norm: Option<WeightId>,
    /// Whether values get a per-head RMS norm without gain.
    pub v_norm: bool,
    /// Epsilon of the norms.
    pub eps: f32,
    /// Heads.
    pub shape: AttentionShape,
    /// The rotary embedding.
    pub rope: RopeId,
    /// Cache that K and V are written to, at the row's slot and position.
    pub kv: KvId,
    /// Added to every row's position (the j-th link of a recorded draft chain uses j).
    pub advance: u32,
}

/// The sigmoid gate of an attention output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// No gate.
    None,
    /// Each query head is followed by its gate inside `q` (`q_stride` = 2 · key_dim; value_dim = key_dim).
    Interleaved,
    /// A buffer of its own `[rows, heads · value_dim]`.
    Separate(Act),
}

/// Operands of [`Op::Attention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOp {
    /// Queries as [`Op::RopeKv`] left them.
    pub q: Act,
    /// Gate of the output.
    pub gate: Gate,
    /// The cache that is read, this step's rows included.
    pub kv: KvId,
    /// Heads.
    pub shape: AttentionShape,
    /// Factor on the scores.
    pub scale: f32,
    /// Whether a row sees only positions up to its own; otherwise it sees every row that its sequence has in this step
    /// (a drafted block) and all before.
    pub causal: bool,
    /// With w, a key at position p counts for a query at position q only when q − p < w.
    pub window: Option<u32>,
    /// Added to every row's position.
    pub advance: u32,
    /// Result `[rows, heads · value_dim]`.
    pub out: Act,
}

/// Heads of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaShape {
    /// Key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a key vector.
    pub key_dim: usize,
    /// Elements of a value vector.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv: usize,
    /// Whether value head v reads key head v mod key_heads (GGUF order) rather than v / (value_heads / key_heads).
    pub interleaved: bool,
}

impl DeltaShape {
    /// Columns of the convolution: `[Q | K | V]`.
    #[must_use]
    pub fn conv_cols(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }
    /// Columns of the values.
    #[must_use]
    pub fn value_cols(&self) -> usize {
        self.value_heads * self.value_dim
    }
    /// The key head that serves value head `v`.
    #[must_use]
    pub fn key_head(&self, v: usize) -> usize {
        if self.interleaved { v % self.key_heads } else { v / (self.value_heads / self.key_heads) }
    }
}

/// Operands of [`Op::DeltaNet`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNetOp {
    /// `attn_qkv · x`: `[rows, conv_cols]`, before the convolution.
    pub qkv: Act,
    /// Output gate z `[rows, value_cols]`.
    pub z: Act,
    /// `ssm_alpha · x` `[rows, value_heads]`.
    pub alpha: Act,
    /// `ssm_beta · x` `[rows, value_heads]`.
    pub beta: Act,
    /// Convolution taps `[conv_cols, conv]`, oldest first.
    pub conv: WeightId,
    /// `ssm_dt.bias` `[value_heads]`.
    pub dt_bias: WeightId,
    /// `ssm_a` `[value_heads]` (negative decay rates).
    pub a: WeightId,
    /// Gain of the output norm `[value_dim]`.
    pub norm: WeightId,
    /// State and tape.
    pub state: StateId,
    /// Heads.
    pub shape: DeltaShape,
    /// Epsilon of both the L2 norms and the output norm.
    pub eps: f32,
    /// Result `[rows, value_cols]`.
    pub out: Act,
}

/// How router logits become expert weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterKind {
    /// Softmax over all experts, the `top_k` largest (ties to the lower id), renormalised to sum 1.
    SoftmaxRenormalised,
    /// The same, then each weight is multiplied by its expert's entry of this vector `[experts]`.
    SoftmaxRenormalisedScaled(WeightId),
}

/// Operands of [`Op::Route`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteOp {
    /// Router logits `[rows, experts]`.
    pub logits: Act,
    /// Rule.
    pub kind: RouterKind,
    /// Experts per row.
    pub top_k: usize,
    /// Result.
    pub out: Routes,
}

/// The expert that every row runs beside the routed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its output `[rows, cols]`.
    pub out: Act,
    /// Logit of its sigmoid gate `[rows, 1]`.
    pub gate: Act,
}

/// A factor on the rows of a buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Factor {
    /// The only element of this vector.
    Weight(WeightId),
    /// A constant.
    Constant(f32),
}

/// Where the inputs of experts are added up, each expert's rows by themselves ([`Op::Collect`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertSums {
    /// What gates and ups read.
    pub input: Option<SumsId>,
    /// What downs read.
    pub hidden: Option<SumsId>,
}

/// Operands of [`Op::Experts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertsOp {
    /// Input `[rows, cols]`.
    pub x: Act,
    /// Which experts each row runs.
    pub routes: Routes,
    /// Stacked gates `[experts][hidden, cols]`.
    pub gate: WeightId,
    /// Stacked ups `[experts][hidden, cols]`.
    pub up: WeightId,
    /// Stacked downs `[experts][cols out, hidden]`.
    pub down: WeightId,
    /// Function of the gate.
    pub activation: Activation,
    /// Shared expert, added after the routed ones.
    pub shared: Option<SharedExpert>,
    /// Added last. May be `out` itself.
    pub residual: Option<Act>,
    /// Sums of squares of what the weights read; the builder sets them.
    pub sums: ExpertSums,
    /// Result `[rows, cols out]`.
    pub out: Act,
}

/// An operator. Each says how it is meant to run on CUDA, where one captured graph holds a whole step.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[r] = scale · table[id of row r]`; no multiplication when scale is 1. A token id outside the table is an error
    /// of the step. CUDA: one warp a row decodes the quantised row.
    Embed {
        /// `[vocabulary, cols]`.
        table: WeightId,
        /// Where ids come from.
        ids: Ids,
        /// Factor.
        scale: f32,
        /// Result.
        out: Act,
    },
    /// `y = (x / √(mean(x²) + eps)) · weight`, then `residual + y` where there is a residual, then that times `scale` where
    /// there is one. Every run of `group` columns is normed by itself; the sum of its squares has 16 lanes (index in the
    /// run mod 16, fused multiply-add) and the fixed tree. CUDA: fused into the neighbouring product's prologue or epilogue
    /// where it pays.
    RmsNorm {
        /// Input.
        x: Act,
        /// Gain `[group]`, the same for every run; `None` for 1.
        weight: Option<WeightId>,
        /// Columns that are normed together: all, or a divisor.
        group: usize,
        /// Epsilon.
        eps: f32,
        /// Added to the normed row. May be `out` itself.
        residual: Option<Act>,
        /// Factor on the sum.
        scale: Option<Factor>,
        /// Result. May be `x` itself.
        out: Act,
    },
    /// Products of one input with one or more weights (q, k, v; the gates of a delta net). The dot product of each weight
    /// type is normative (`forerun_quant`). CUDA: one launch over the rows of all weights.
    MatMul {
        /// Input.
        x: Act,
        /// The products.
        products: Vec<Product>,
    },
    /// `out = activation(gate · x) ⊙ (up · x)`. CUDA: one launch, both halves in one block's epilogue.
    GatedMatMul {
        /// Input.
        x: Act,
        /// Gate weight.
        gate: WeightId,
        /// Up weight.
        up: WeightId,
        /// Function of the gate.
        activation: Activation,
        /// Result.
        out: Act,
    },
    /// Per-head norms and rotary of queries and keys, and the cache write. K and V are rounded to the cache's type; no
    /// operator reads them otherwise. CUDA: one launch, a warp per head.
    RopeKv(RopeKvOp),
    /// Grouped-query attention over the cache. Scores are sums over the head's elements in ascending order; keys
    /// are combined in blocks of fixed absolute positions, in ascending order, each with its own maximum; keys outside
    /// the window or after the row are selected away. CUDA: a block per (KV head, key block), then an ordered combine.
    Attention(AttentionOp),
    /// The gated delta net from the projections to the gated norm: convolution, SiLU, L2 norms, gates, recurrence with
    /// replay of the tape, `RMS(o) · SiLU(z)`. CUDA: one launch, a block per (sequence, value head).
    DeltaNet(DeltaNetOp),
    /// Router. CUDA: runs in the prologue of the experts; ids stay on the device.
    Route(RouteOp),
    /// Routed experts: `Σ weight · down(act(gate·x) ⊙ up·x)` in rank order (the first a product, then fused
    /// multiply-adds), then the shared expert times its sigmoid gate, then the residual. CUDA: grouped by expert on the
    /// device, two launches, results scattered by rank and added in order, no atomics.
    Experts(ExpertsOp),
    /// `sums[c] += Σ x[r][c]²`, in float64, rows ascending, and counts the rows. It reads activations as they are before any
    /// quantisation. Only plans that collect have it. CUDA: a block per range of columns; the sums stay on the device until
    /// [`crate::Backend::sums`] fetches them.
    Collect {
        /// Buffer.
        x: Act,
        /// Sums of its columns.
        sums: SumsId,
    },
    /// The output rows of a step buffer. CUDA: a gather.
    Select {
        /// `Step` rows.
        x: Act,
        /// `Out` rows.
        out: Act,
    },
    /// `x = cap · tanh(x / cap)` in place.
    Softcap {
        /// Buffer.
        x: Act,
        /// Cap.
        cap: f32,
    },
    /// `x = activation(x) ⊙ by[first..first + cols of x]` in place: a gate on a part of another buffer's columns (of the
    /// inputs of all layers that of one). CUDA: in the epilogue of the product that makes `x`.
    Multiply {
        /// Buffer.
        x: Act,
        /// Function of it.
        activation: Activation,
        /// The other factor, with the same rows.
        by: Act,
        /// First of its columns.
        first: usize,
    },
    /// Token choice and normaliser of every output row, by its [`crate::Pick`]. The exponentials of the normaliser are
    /// summed in 16 lanes (column mod 16) and the fixed tree. CUDA: bit-equal to the host's; ids can feed [`Ids::Picked`].
    Sample {
        /// Logits, `Out` rows.
        logits: Act,
        /// Token id of each column; `None` when it is the column's index. Noise belongs to the id.
        map: Option<TokenMap>,
        /// The chosen ids.
        picks: Picks,
        /// Whether this is the plan's result ([`crate::StepOut::picked`]); links of a draft chain are not.
        result: bool,
    },
    /// The columns of several buffers side by side. CUDA: the parts' producers write in place.
    Concat {
        /// Buffers with the same rows, left to right.
        parts: Vec<Act>,
        /// Result.
        out: Act,
    },
    /// Writes every row of a buffer to columns of a ring, at its slot and position + `ahead` (a draft's own hidden state
    /// stands where the model's will). A row may be written part by part, that of column 0 first. CUDA: fused into
    /// the producer's epilogue.
    Keep {
        /// Buffer.
        x: Act,
        /// Ring.
        ring: RingId,
        /// First column of the ring's row.
        first: usize,
        /// Added to every row's position.
        ahead: u32,
    },
    /// Reads the ring's row of every step row's slot and position. CUDA: a gather.
    Recall {
        /// Ring.
        ring: RingId,
        /// Result, `Step` rows.
        out: Act,
    },
    /// Copies a buffer to [`crate::StepOut::taps`]`[slot]`.
    Output {
        /// Buffer.
        x: Act,
        /// Index among the taps.
        slot: usize,
    },
}

/// Shape of an activation buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActSpec {
    /// Which rows it has.
    pub rows: RowSet,
    /// Columns.
    pub cols: usize,
}

/// A recorded list of operators. Made by [`crate::PlanBuilder`], which guarantees that shapes agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub(crate) ops: Vec<Op>,
    pub(crate) acts: Vec<ActSpec>,
    pub(crate) routes: Vec<usize>,
    pub(crate) ropes: Vec<RopeSpec>,
    pub(crate) maps: Vec<Arc<[u32]>>,
    pub(crate) picks: usize,
    pub(crate) taps: usize,
    pub(crate) max_rows: usize,
    pub(crate) max_out: usize,
}

impl Plan {
    /// The operators, in order.
    #[must_use]
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
    /// Shape of every activation buffer.
    #[must_use]
    pub fn acts(&self) -> &[ActSpec] {
        &self.acts
    }
    /// Shape of one activation buffer.
    #[must_use]
    pub fn act(&self, act: Act) -> ActSpec {
        self.acts[act.index()]
    }
    /// The same plan with taps: before each operator, the buffers that `wanted` names are copied to the next free
    /// [`crate::StepOut::taps`]. For looking into a step.
    #[must_use]
    pub fn tapped(mut self, wanted: impl Fn(&Op) -> Vec<Act>) -> Self {
        for op in std::mem::take(&mut self.ops) {
            for x in wanted(&op) {
                self.ops.push(Op::Output { x, slot: self.taps });
                self.taps += 1;
            }
            self.ops.push(op);
        }
        self
    }

    /// `top_k` of every routing buffer.
    #[must_use]
    pub fn routes(&self) -> &[usize] {
        &self.routes
    }
    /// The rotary embeddings.
    #[must_use]
    pub fn ropes(&self) -> &[RopeSpec] {
        &self.ropes
    }
    /// Token ids of a reduced head's columns, ascending.
    #[must_use]
    pub fn token_map(&self, map: TokenMap) -> &Arc<[u32]> {
        &self.maps[map.index()]
    }

    /// The highest token that a [`Op::Sample`] may choose by itself; `None` when the plan has no such operator, or it has no
    /// columns.
    pub(crate) fn last_token(&self, of: Picks) -> Option<usize> {
        self.ops.iter().find_map(|op| match op {
            Op::Sample { logits, map, picks, .. } if *picks == of => match map {
                Some(map) => self.token_map(*map).last().map(|id| *id as usize),
                None => self.act(*logits).cols.checked_sub(1),
            },
            _ => None,
        })
    }
    /// Number of [`Picks`] buffers.
    #[must_use]
    pub fn picks(&self) -> usize {
        self.picks
    }
    /// Number of taps.
    #[must_use]
    pub fn taps(&self) -> usize {
        self.taps
    }
    /// The most rows a step of this plan may have.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        self.max_rows
    }
    /// The most rows of a row set.
    #[must_use]
    pub fn rows_of(&self, rows: RowSet) -> usize {
        match rows {
            RowSet::Step => self.max_rows,
            RowSet::Out => self.max_out,
        }
    }
    /// The most output rows.
    #[must_use]
    pub fn max_out(&self) -> usize {
        self.max_out
    }
}
