//! The caches a model runs with, and the memory it needs.

use forerun_tensor::KvType;

/// Sizes of a model's caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Independent sequences.
    pub slots: usize,
    /// Further slots of recurrent state, for snapshots.
    pub snapshots: usize,
    /// Positions per sequence.
    pub context: usize,
    /// Element type of the KV cache.
    pub kv: KvType,
    /// Positions per key block of the attention: part of the arithmetic.
    pub kv_block: usize,
    /// Rows of one sequence that a step may leave undecided.
    pub tape: usize,
    /// The most rows of a step.
    pub chunk: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { slots: 1, snapshots: 0, context: 4096, kv: KvType::F16, kv_block: 64, tape: 16, chunk: 512 }
    }
}

/// Memory that a model needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights, as the backend holds them or as their mapped file.
    pub weights: u64,
    /// KV caches.
    pub kv: u64,
    /// Recurrent states and tapes.
    pub state: u64,
    /// Activations of the largest step.
    pub activations: u64,
}

impl MemoryNeed {
    /// The sum.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.state + self.activations
    }
}
