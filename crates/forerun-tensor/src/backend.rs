//! What a device must be able to do: hold weights and caches, prepare plans, run steps.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use forerun_quant::TensorType;

use crate::error::{Result, TensorError};
use crate::plan::Plan;
use crate::step::{StepOut, StepRows};
use crate::sums::{Sums, SumsId, SumsSpec};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    };
}

handle!(
    /// A weight that a backend holds.
    WeightId
);
handle!(
    /// A KV cache (one layer, every slot) that a backend holds.
    KvId
);
handle!(
    /// A delta-net state with its tape (one layer, every slot) that a backend holds.
    StateId
);
handle!(
    /// A ring of rows (every slot) that a backend holds.
    RingId
);
handle!(
    /// A prepared plan.
    PlanId
);
handle!(
    /// A submitted step that has not been waited for.
    Ticket
);

/// Bytes with shared ownership: a range of a mapped file or of a vector.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// `range` of `owner`; `None` when the range is not inside it.
    #[must_use]
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        let len = (*owner).as_ref().len();
        (range.start <= range.end && range.end <= len).then_some(Self { owner, range })
    }

    /// A part of these bytes; `None` when the range is not inside them.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (start, end) =
            (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        (start <= end && end <= self.range.end).then(|| Self { owner: self.owner.clone(), range: start..end })
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(v: Vec<u8>) -> Self {
        let range = 0..v.len();
        Self { owner: Arc::new(v), range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.range.len())
    }
}

/// How operators will use a weight; a backend chooses its layout by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightUse {
    /// The matrix of a product: `out[row] = W[row] · x`.
    Matrix,
    /// An embedding table: only single rows are gathered. May stay in the file's mapping.
    Table,
    /// Both (a tied embedding and head).
    TiedTable,
    /// Norm gains, biases, convolution taps: small, held as float32.
    Vector,
}

/// A weight as a file holds it: `experts` matrices of `rows` × `cols`, each row `row_bytes(cols)` long.
#[derive(Clone, Debug)]
pub struct WeightData {
    /// The tensor's name in its file, for messages.
    pub name: String,
    /// Block type of the rows.
    pub ty: TensorType,
    /// Output rows (of one expert).
    pub rows: usize,
    /// Input columns.
    pub cols: usize,
    /// Number of stacked matrices; 1 for a dense weight.
    pub experts: usize,
    /// Bytes from one expert's first row to the next's (a fused gate/up tensor has more than `rows` rows between).
    pub expert_stride: usize,
    /// Row data, starting at the first expert's first row.
    pub bytes: SharedBytes,
    /// What it is for.
    pub usage: WeightUse,
}

impl WeightData {
    /// Bytes of a row.
    ///
    /// # Errors
    /// When the type is no weight type or the columns are no whole blocks.
    pub fn row_bytes(&self) -> Result<usize> {
        self.ty.row_bytes(self.cols).filter(|_| self.ty.is_weight()).ok_or_else(|| {
            self.wrong(
                format!("{} columns of type {}", self.cols, self.ty),
                format!("whole blocks of {}", self.ty.block_elements()),
            )
        })
    }

    /// Checks that the bytes hold every row of every expert.
    ///
    /// # Errors
    /// Names the tensor, its bytes and what its shape needs.
    pub fn check(&self) -> Result<()> {
        let matrix = self.row_bytes()?.checked_mul(self.rows);
        let last = self.experts.checked_sub(1).and_then(|e| e.checked_mul(self.expert_stride));
        match matrix.zip(last).and_then(|(m, l)| m.checked_add(l)) {
            Some(need) if need <= self.bytes.len() => Ok(()),
            need => {
                Err(self
                    .wrong(format!("{} bytes", self.bytes.len()), format!("{need:?} bytes for its shape")))
            }
        }
    }

    fn wrong(&self, found: String, expected: String) -> TensorError {
        TensorError::Weight { name: self.name.clone(), found, expected }
    }
}

/// The answer to [`Backend::load`].
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Handle for plans.
    pub id: WeightId,
    /// Whether the backend goes on reading the bytes it was given; when not, their pages may be released.
    pub keeps_source: bool,
    /// Bytes of memory that the backend itself holds for the weight.
    pub held: u64,
}

/// Element type of a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats.
    F32,
    /// Blocks of 32 elements of a head (the last may be shorter): a 16-bit float scale d = |largest| / 127 and 8-bit
    /// integers x / d, rounded to the nearest (ties to even) and kept within ±127; all 0 when d is 0.
    Q8_0,
}

impl KvType {
    /// Bytes of one head's vector of `dim` elements.
    #[must_use]
    pub fn vector_bytes(self, dim: usize) -> usize {
        match self {
            KvType::F16 => 2 * dim,
            KvType::F32 => 4 * dim,
            KvType::Q8_0 => dim + 2 * dim.div_ceil(32),
        }
    }
}

/// The KV cache of one attention layer for every slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvSpec {
    /// Number of independent sequences.
    pub slots: usize,
    /// Positions each slot can hold. With a ring this is the ring's length, and position p lives at p mod capacity.
    pub capacity: usize,
    /// Whether old positions are overwritten (sliding-window layers).
    pub ring: bool,
    /// KV heads.
    pub heads: usize,
    /// Elements of a key vector.
    pub key_dim: usize,
    /// Elements of a value vector.
    pub value_dim: usize,
    /// Element type.
    pub ty: KvType,
    /// Keys are combined in blocks of this many absolute positions (a multiple of 8, at least 8). Part of the
    /// arithmetic: changing it may change bits.
    pub block: usize,
}

impl KvSpec {
    /// Checks that every size is positive and the block is one that backends have.
    ///
    /// # Errors
    /// Names the size that is wrong.
    pub fn check(&self) -> Result<()> {
        let sizes = [self.slots, self.capacity, self.heads, self.key_dim, self.value_dim];
        if sizes.contains(&0) {
            return Err(TensorError::Cache(format!("{self:?}, expected every size to be at least 1")));
        }
        if self.block == 0 || !self.block.is_multiple_of(8) {
            return Err(TensorError::Cache(format!(
                "blocks of {} positions, expected a multiple of 8",
                self.block
            )));
        }
        Ok(())
    }
}

/// The delta-net state of one layer for every slot: float32 `S [value_heads, key_dim, value_dim]`, the
/// last conv − 1 rows of convolution input, and a tape of the newest rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpec {
    /// Number of independent sequences.
    pub slots: usize,
    /// Shape of the heads.
    pub shape: crate::plan::DeltaShape,
    /// Rows that the tape holds: the most rows of one sequence that an uncommitted step may carry.
    pub tape: usize,
}

impl StateSpec {
    /// Checks that every size is positive and the value heads share the key heads evenly.
    ///
    /// # Errors
    /// Names the size that is wrong.
    pub fn check(&self) -> Result<()> {
        let s = &self.shape;
        if [self.slots, s.key_heads, s.value_heads, s.key_dim, s.value_dim, s.conv].contains(&0) {
            return Err(TensorError::Cache(format!(
                "{self:?}, expected every size but the tape to be at least 1"
            )));
        }
        if !s.value_heads.is_multiple_of(s.key_heads) {
            let (found, heads) = (s.value_heads, s.key_heads);
            return Err(TensorError::Cache(format!(
                "{found} value heads, expected a multiple of {heads} key heads"
            )));
        }
        Ok(())
    }
}

/// Rows that outlive a step, by slot and absolute position: a drafter's view of the model's hidden states. Position p lives
/// at p mod capacity, float32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingSpec {
    /// Number of independent sequences.
    pub slots: usize,
    /// Positions a slot holds: the newest ones.
    pub capacity: usize,
    /// Elements of a row.
    pub cols: usize,
}

impl RingSpec {
    /// Checks that every size is positive.
    ///
    /// # Errors
    /// Names the sizes.
    pub fn check(&self) -> Result<()> {
        if [self.slots, self.capacity, self.cols].contains(&0) {
            return Err(TensorError::Cache(format!("{self:?}, expected every size to be at least 1")));
        }
        Ok(())
    }

    /// Bytes of all of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        [self.slots, self.capacity, self.cols].iter().fold(4, |n, s| n.saturating_mul(*s as u64))
    }
}

/// What a backend is and what its results are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// `"reference"`, `"cpu"`, `"cuda"`.
    pub name: &'static str,
    /// Results with equal arithmetic ids are comparable bit for bit.
    pub arithmetic_id: String,
    /// One line for people: instruction set and threads, or the card.
    pub detail: String,
}

/// A device that holds weights and caches and runs recorded plans.
///
/// Handles are valid for the backend that gave them and live as long as it does. Plans of one backend run one after
/// the other in the order of submission. A step's results are a function of the plan, the weights and, per sequence, its
/// rows and its own cache: never of other sequences in the step, of the slot, of row counts or of threads.
pub trait Backend: Send {
    /// What this backend is.
    fn info(&self) -> &BackendInfo;

    /// Bytes that the backend would hold for a weight of this shape, its source not counted.
    fn weight_bytes(&self, ty: TensorType, rows: usize, cols: usize, experts: usize, usage: WeightUse)
    -> u64;

    /// Takes a weight, repacking it for this device.
    ///
    /// # Errors
    /// When the bytes do not match the shape, or memory is short.
    fn load(&mut self, weight: &WeightData) -> Result<Loaded>;

    /// Allocates a KV cache. Its content is undefined until written; positions are never read before they were written.
    ///
    /// # Errors
    /// When memory is short or the shape is not supported.
    fn new_kv(&mut self, spec: &KvSpec) -> Result<KvId>;

    /// Allocates a delta-net state. A sequence whose step starts at position 0 starts from zero.
    ///
    /// # Errors
    /// When memory is short or the shape is not supported.
    fn new_state(&mut self, spec: &StateSpec) -> Result<StateId>;

    /// Allocates a ring. A row is never read before it was written.
    ///
    /// # Errors
    /// When memory is short or the shape is not supported.
    fn new_ring(&mut self, spec: &RingSpec) -> Result<RingId>;

    /// Allocates sums of squares, all 0.
    ///
    /// # Errors
    /// When memory is short or the shape is not supported.
    fn new_sums(&mut self, spec: &SumsSpec) -> Result<SumsId>;

    /// Fetches what the steps so far have added up.
    ///
    /// # Errors
    /// When the sums are unknown, or the device failed.
    fn sums(&mut self, sums: SumsId) -> Result<Sums>;

    /// Bytes that [`Backend::prepare`] would hold for a plan.
    fn plan_bytes(&self, plan: &Plan) -> u64;

    /// Makes a plan ready to run: allocates its activations, orders its work, captures graphs.
    ///
    /// # Errors
    /// When memory is short, a handle is unknown, or the device lacks an operator.
    fn prepare(&mut self, plan: Plan) -> Result<PlanId>;

    /// Starts a step. The rows are checked against the plan and the caches before anything is touched.
    ///
    /// # Errors
    /// When the step does not fit. The caches are then unchanged.
    fn submit(&mut self, plan: PlanId, rows: &StepRows) -> Result<Ticket>;

    /// Waits for a step and takes its results. Buffers in `out` are reused.
    ///
    /// # Errors
    /// When the ticket is unknown or the device failed.
    fn wait(&mut self, ticket: Ticket, out: &mut StepOut) -> Result<()>;

    /// A prepared plan and the time spent in each of its operators so far, where the backend takes it.
    fn profile(&self, plan: PlanId) -> Option<(&Plan, Vec<Duration>)> {
        let _ = plan;
        None
    }

    /// Copies the committed delta-net state of one slot to another in every state of this backend; the tape of `to` is
    /// emptied. Slots beyond those of the KV caches serve as snapshots.
    ///
    /// # Errors
    /// When a slot does not exist, or `from` has rows on its tape that no step has settled.
    fn copy_state(&mut self, from: u32, to: u32) -> Result<()>;

    /// Copies the row of one position from one slot of a ring to another: what a drafter needs beside a snapshot of the
    /// state.
    ///
    /// # Errors
    /// When the ring or a slot does not exist.
    fn copy_ring(&mut self, ring: RingId, from: u32, to: u32, pos: u32) -> Result<()>;

    /// Copies the KV rows of positions `0..positions` of one slot to another in every cache of this backend.
    ///
    /// # Errors
    /// When a slot or position does not exist.
    fn copy_kv(&mut self, from: u32, to: u32, positions: u32) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_stay_inside_their_owner() {
        let all = SharedBytes::from(vec![0, 1, 2, 3, 4, 5]);
        let part = all.slice(1..5).unwrap();
        assert_eq!(*part, [1, 2, 3, 4]);
        assert_eq!(*part.slice(1..3).unwrap(), [2, 3]);
        assert!(part.slice(4..4).unwrap().is_empty());
        for range in [0..5, 5..5, 0..usize::MAX, usize::MAX..usize::MAX] {
            assert!(part.slice(range.clone()).is_none(), "{range:?}");
        }
        assert!(SharedBytes::new(Arc::new(vec![0_u8; 2]), 0..3).is_none());
    }

    #[test]
    fn cache_bytes_of_a_vector() {
        let table =
            [(KvType::F16, 80, 160), (KvType::F32, 80, 320), (KvType::Q8_0, 80, 86), (KvType::Q8_0, 64, 68)];
        for (ty, dim, bytes) in table {
            assert_eq!(ty.vector_bytes(dim), bytes, "{ty:?}");
        }
    }
}
