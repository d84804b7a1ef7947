//! What a model needs: memory to be loaded, and bytes to be moved by a step.

use std::fmt;

use forerun_tensor::{AttentionShape, Backend, DeltaShape, KvType, WeightUse};
use sysinfo::System;

use crate::caches::CacheConfig;
use crate::dflash::DFlash;
use crate::error::Result;
use crate::model::blank_plan_bytes;
use crate::spec::ModelSpec;
use crate::tensors::TensorSpec;

/// Bytes of memory that a loaded model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Weights in the backend's layout. Tables that stay in the file's mapping are not counted.
    pub weights: u64,
    /// KV caches.
    pub kv: u64,
    /// Delta-net states and tapes.
    pub states: u64,
    /// Activations of the largest step.
    pub activations: u64,
}

/// Bytes as people read them.
pub(crate) fn gib(bytes: u64) -> String {
    const MIB: f64 = 1048576.0;
    let mib = bytes as f64 / MIB;
    if mib < 1024.0 { format!("{mib:.1} MiB") } else { format!("{:.1} GiB", mib / 1024.0) }
}

impl MemoryNeed {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.weights, self.kv, self.states, self.activations].into_iter().fold(0, u64::saturating_add)
    }
}

impl fmt::Display for MemoryNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weights, kv, states, activations] =
            [self.weights, self.kv, self.states, self.activations].map(gib);
        let total = gib(self.total());
        write!(f, "{total} (weights {weights}, KV cache {kv}, states {states}, activations {activations})")
    }
}

/// Bytes that a step must move at least: its share of the memory bandwidth is the floor of its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepBytes {
    /// Weights read, in the file's types: every matrix once, embedding rows only, of experts the distinct ones.
    pub weights: u64,
    /// K and V read.
    pub kv: u64,
    /// Delta-net states read and written.
    pub states: u64,
}

impl StepBytes {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.kv).saturating_add(self.states)
    }
}

/// Expected number of distinct experts among `experts` when each of `rows` rows draws `top_k` uniformly.
fn distinct_experts(experts: usize, top_k: usize, rows: usize) -> f64 {
    let missed = 1.0 - top_k as f64 / experts as f64;
    experts as f64 * (1.0 - missed.powi(rows.min(i32::MAX as usize) as i32))
}

/// Product of sizes that stays at the largest number instead of overflowing.
fn product<const N: usize>(sizes: [usize; N]) -> u64 {
    sizes.iter().fold(1, |n, s| n.saturating_mul(*s as u64))
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Bytes of one position of one layer.
fn kv_position_bytes(s: &AttentionShape, ty: KvType) -> usize {
    s.kv_heads * (ty.vector_bytes(s.key_dim) + ty.vector_bytes(s.value_dim))
}

/// Bytes of one sequence's state of one layer, tape not counted: S and the convolution's history.
fn state_bytes(s: &DeltaShape) -> u64 {
    product([4, s.value_heads, s.key_dim, s.value_dim]) + product([4, s.conv - 1, s.conv_cols()])
}

/// Bytes of a row on the tape: convolution input, k, v, g and β.
fn tape_row_bytes(s: &DeltaShape) -> usize {
    4 * (2 * s.conv_cols() + 2 * s.value_heads)
}

impl ModelSpec {
    /// Bytes of K and V that one sequence with `positions` tokens needs to go on: in sliding layers, those of its window.
    #[must_use]
    pub fn kv_bytes(&self, positions: usize, ty: KvType) -> u64 {
        sum(self.caches.iter().map(|c| {
            let seen = c.window.map_or(positions, |w| w.min(positions));
            product([seen, kv_position_bytes(&c.shape, ty)])
        }))
    }

    /// Bytes of the KV caches of one slot.
    fn kv_cache_bytes(&self, caches: &CacheConfig) -> u64 {
        sum(self
            .caches
            .iter()
            .map(|c| product([caches.kv_spec(c).capacity, kv_position_bytes(&c.shape, caches.kv)])))
    }

    /// Bytes of the delta-net states of one sequence, tapes not counted.
    #[must_use]
    pub fn state_bytes(&self) -> u64 {
        sum(self.delta.iter().map(state_bytes))
    }

    /// Memory that the model takes on a backend.
    ///
    /// # Errors
    /// When the caches are configured out of range.
    pub fn memory(&self, backend: &dyn Backend, caches: &CacheConfig) -> Result<MemoryNeed> {
        caches.validate()?;
        let held = |t: &TensorSpec| backend.weight_bytes(t.ty, t.rows, t.cols, t.experts, t.usage);
        let tape = sum(self.delta.iter().map(|s| product([caches.tape, tape_row_bytes(s)])));
        let states = self.state_bytes().saturating_add(tape);
        Ok(MemoryNeed {
            weights: sum(self.tensors.iter().map(held)),
            kv: self.kv_cache_bytes(caches).saturating_mul(caches.slots as u64),
            states: states.saturating_mul(caches.state_slots() as u64),
            activations: blank_plan_bytes(self, backend, caches)?,
        })
    }

    /// Bytes of the weights that a backend goes on reading where the source has them.
    pub(crate) fn kept_bytes(&self, backend: &dyn Backend) -> u64 {
        let held = |t: &TensorSpec| backend.weight_bytes(t.ty, t.rows, t.cols, t.experts, t.usage);
        sum(self.tensors.iter().filter(|t| held(t) == 0).map(TensorSpec::bytes))
    }

    /// Bytes that drafting `links` tokens one after the other must move at least: the MTP block and the head for each,
    /// `head_rows` rows of it where it is reduced. 0 without a block.
    #[must_use]
    pub fn draft_bytes(&self, links: usize, head_rows: Option<usize>) -> u64 {
        let Some(mtp) = &self.mtp else { return 0 };
        let head = mtp.shared_head_head.as_ref().unwrap_or(self.architecture.head().0);
        let is_head = |t: &TensorSpec| Some(t) == mtp.shared_head_head.as_ref();
        let own = mtp.tensors().into_iter().filter(|t| !is_head(t)).map(|t| self.weight_bytes_read(t, 1));
        let head = head.row_bytes().saturating_mul(head_rows.unwrap_or(head.rows).min(head.rows) as u64);
        sum(own).saturating_add(head).saturating_mul(links as u64)
    }

    /// Bytes that a step must move: `rows` rows shared evenly by `sequences` sequences that each have `positions` tokens
    /// in their caches. Experts are taken to be routed uniformly at random.
    #[must_use]
    pub fn step_bytes(&self, rows: usize, sequences: usize, positions: usize, kv: KvType) -> StepBytes {
        let weights = sum(self.tensors.iter().map(|t| self.weight_bytes_read(t, rows)));
        StepBytes {
            weights,
            kv: self.kv_bytes(positions, kv).saturating_mul(sequences as u64),
            states: self.state_bytes().saturating_mul(2 * sequences as u64),
        }
    }

    fn weight_bytes_read(&self, t: &TensorSpec, rows: usize) -> u64 {
        let embedding = t.row_bytes().saturating_mul(rows.min(t.rows) as u64);
        match t.usage {
            WeightUse::Table => embedding,
            // As a head the whole table is read, the embedding rows with it.
            WeightUse::TiedTable => t.bytes(),
            _ if t.experts > 1 => (distinct_experts(t.experts, self.experts_per_row(), rows)
                * t.expert_bytes() as f64)
                .round() as u64,
            _ => t.bytes(),
        }
    }
}

impl DFlash<TensorSpec, ()> {
    /// Memory that the drafter takes on a backend, `features` bytes of it for the ring of features.
    pub(crate) fn memory(&self, backend: &dyn Backend, caches: &CacheConfig, features: u64) -> MemoryNeed {
        let held = |t: &&TensorSpec| backend.weight_bytes(t.ty, t.rows, t.cols, t.experts, t.usage);
        let position = kv_position_bytes(&self.params.attention, caches.kv);
        let kv = product([caches.slots, caches.capacity(), position, self.blocks.len()]);
        MemoryNeed { weights: sum(self.tensors().iter().map(held)), kv, states: 0, activations: features }
    }

    /// Bytes that drafting a block must move at least: the drafter without its context, and the head.
    #[must_use]
    pub fn block_bytes(&self, model: &ModelSpec) -> u64 {
        let head = self.output.as_ref().unwrap_or(model.architecture.head().0);
        let all = self.file_bytes().saturating_sub(self.fc.bytes());
        all.saturating_sub(self.output.as_ref().map_or(0, TensorSpec::bytes)).saturating_add(head.bytes())
    }
}

/// Memory that this machine can still give, within the limit of its control group; `None` where the system does not say.
pub(crate) fn available() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    // What a control group counts as used includes the pages of mapped files, which can be dropped: only its total tells.
    let limit = system.cgroup_limits().map_or(u64::MAX, |g| g.total_memory);
    Some(system.available_memory()).filter(|a| *a > 0).map(|a| a.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinct_experts_of_uniform_routing() {
        for (experts, top_k, rows, expected) in
            [(8, 3, 1, 3.0), (8, 8, 5, 8.0), (4, 1, 2, 1.75), (256, 8, 0, 0.0)]
        {
            assert!(
                (distinct_experts(experts, top_k, rows) - expected).abs() < 1e-9,
                "{experts} {top_k} {rows}"
            );
        }
    }

    #[test]
    fn memory_reads_in_binary_units() {
        assert_eq!(gib(512 * 1024), "0.5 MiB");
        assert_eq!(gib(3 << 29), "1.5 GiB");
    }
}
