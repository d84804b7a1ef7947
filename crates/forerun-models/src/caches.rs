//! Shapes of the caches that a model and its drafters keep.

use forerun_tensor::{AttentionShape, DeltaShape, KvSpec, KvType, RingSpec, StateSpec};

use crate::error::{ModelError, Result};

/// Shapes of the caches.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheConfig {
    /// Independent sequences.
    pub slots: usize,
    /// Further slots that only delta-net states have: room for snapshots.
    pub snapshots: usize,
    /// Positions that a sequence can hold.
    pub context: usize,
    /// Element type of K and V.
    pub kv: KvType,
    /// Positions of a key block: a multiple of 8, at least 8. Part of the arithmetic.
    pub kv_block: usize,
    /// Rows of one sequence that an uncommitted step may carry.
    pub tape: usize,
    /// The most rows of a step.
    pub chunk: usize,
    /// Bytes that the model may take on the device; `None` for what this machine has available.
    pub memory: Option<u64>,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            slots: 1,
            snapshots: 0,
            context: 4096,
            kv: KvType::F16,
            kv_block: 64,
            tape: 16,
            chunk: 512,
            memory: None,
        }
    }
}

impl CacheConfig {
    pub(crate) fn validate(&self) -> Result<()> {
        const MOST_SLOTS: usize = 1 << 16;
        const MOST_CONTEXT: usize = 1 << 30;
        let in_range = |option, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(ModelError::Option {
                option,
                found: value.to_string(),
                expected: format!("{least} to {most}"),
            })
        };
        in_range("slots", self.slots, 1, MOST_SLOTS)?;
        in_range("snapshots", self.snapshots, 0, MOST_SLOTS)?;
        in_range("context", self.context, 1, MOST_CONTEXT)?;
        in_range("tape", self.tape, 1, 1 << 12)?;
        in_range("chunk", self.chunk, 1, 1 << 16)?;
        if !(8..=1 << 16).contains(&self.kv_block) || !self.kv_block.is_multiple_of(8) {
            let (found, expected) = (self.kv_block.to_string(), "a multiple of 8, at least 8".to_owned());
            return Err(ModelError::Option { option: "kv_block", found, expected });
        }
        Ok(())
    }

    /// Positions of a KV cache: the context in whole blocks.
    pub(crate) fn capacity(&self) -> usize {
        self.context.next_multiple_of(self.kv_block)
    }

    pub(crate) fn state_slots(&self) -> usize {
        self.slots + self.snapshots
    }

    /// The cache of an attention layer. Sliding attention keeps a ring of its window and the largest step in whole blocks:
    /// a ring of exactly the window would lose keys that are still seen when a step's last rows are rejected.
    pub(crate) fn kv_spec(&self, layer: &KvLayer) -> KvSpec {
        let shape = &layer.shape;
        let step = self.chunk.max(self.tape).max(16);
        let ring = layer.window.map(|w| w.saturating_add(step).next_multiple_of(self.kv_block));
        let ring = ring.filter(|ring| *ring < self.capacity());
        KvSpec {
            slots: self.slots,
            capacity: ring.unwrap_or(self.capacity()),
            ring: ring.is_some(),
            heads: shape.kv_heads,
            key_dim: shape.key_dim,
            value_dim: shape.value_dim,
            ty: self.kv,
            block: self.kv_block,
        }
    }

    /// Hidden states that wait to become pairs: those of the largest step, and as many guesses ahead as a step may carry.
    pub(crate) fn ring_spec(&self, hidden: usize) -> RingSpec {
        let capacity = self.chunk + 2 * self.tape.max(16);
        RingSpec { slots: self.state_slots(), capacity, cols: hidden }
    }

    pub(crate) fn state_spec(&self, shape: &DeltaShape) -> StateSpec {
        StateSpec { slots: self.state_slots(), shape: *shape, tape: self.tape }
    }
}

/// An attention layer that needs a KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Heads.
    pub shape: AttentionShape,
    /// Positions that a row sees, its own included; `None` for all.
    pub window: Option<usize>,
}

impl KvLayer {
    /// A layer whose rows see every position before them.
    #[must_use]
    pub fn full(shape: AttentionShape) -> Self {
        Self { shape, window: None }
    }
}
