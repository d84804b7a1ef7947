//! Caches that allocate what is written and remember what that was.

use std::collections::BTreeMap;

use crate::backend::{KvSpec, KvType, RingSpec, StateSpec};

/// What one slot holds at each absolute position, in the addressing of a cache of `capacity` positions.
///
/// Position p lives at p mod capacity, so writing p loses whatever had that place. It also ends the sequence: positions
/// after p were rejected, or belong to an earlier sequence of the slot.
#[derive(Clone)]
pub(super) struct Positions<T> {
    capacity: usize,
    at: BTreeMap<usize, T>,
}

impl<T> Positions<T> {
    fn new(capacity: usize) -> Self {
        Self { capacity, at: BTreeMap::new() }
    }

    pub(super) fn put(&mut self, pos: usize, value: T) {
        let _later = self.at.split_off(&pos);
        let mut same_place = pos;
        while let Some(earlier) = same_place.checked_sub(self.capacity) {
            self.at.remove(&earlier);
            same_place = earlier;
        }
        self.at.insert(pos, value);
    }

    pub(super) fn get(&self, pos: usize) -> Option<&T> {
        self.at.get(&pos)
    }

    pub(super) fn get_mut(&mut self, pos: usize) -> Option<&mut T> {
        self.at.get_mut(&pos)
    }

    /// The places without their content.
    pub(super) fn places(&self) -> Positions<()> {
        Positions { capacity: self.capacity, at: self.at.keys().map(|p| (*p, ())).collect() }
    }
}

/// Key and value of each head at one position.
pub(super) type KvRow = Vec<[Vec<f64>; 2]>;

/// Keys and values of a layer, every slot.
pub(super) struct KvCache {
    pub(super) spec: KvSpec,
    pub(super) slots: Vec<Positions<KvRow>>,
}

impl KvCache {
    pub(super) fn new(spec: &KvSpec) -> Self {
        Self { spec: spec.clone(), slots: vec![Positions::new(spec.capacity); spec.slots] }
    }

    /// Writes a position, rounded through the cache's type.
    pub(super) fn put(&mut self, slot: usize, pos: usize, row: KvRow) {
        let ty = self.spec.ty;
        self.slots[slot].put(pos, row.iter().map(|kv| kv.each_ref().map(|v| rounded(ty, v))).collect());
    }

    /// Copies the first `positions` positions that are still there.
    pub(super) fn copy(&mut self, from: usize, to: usize, positions: usize) {
        let mut copy = self.slots[from].clone();
        let _later = copy.at.split_off(&positions);
        self.slots[to] = copy;
    }
}

/// Rows by position, every slot.
pub(super) struct RingCache {
    pub(super) cols: usize,
    pub(super) slots: Vec<Positions<Vec<f64>>>,
}

impl RingCache {
    pub(super) fn new(spec: &RingSpec) -> Self {
        Self { cols: spec.cols, slots: vec![Positions::new(spec.capacity); spec.slots] }
    }
}

/// A vector rounded through a cache type.
pub(super) fn rounded(ty: KvType, v: &[f64]) -> Vec<f64> {
    match ty {
        KvType::F32 => v.iter().map(|x| f64::from(*x as f32)).collect(),
        KvType::F16 => v.iter().map(|x| half::f16::from_f32(*x as f32).to_f64()).collect(),
        KvType::Q8_0 => v.chunks(32).flat_map(rounded_block).collect(),
    }
}

fn rounded_block(block: &[f64]) -> Vec<f64> {
    let amax = block.iter().fold(0.0_f64, |a, x| a.max(x.abs()));
    let d = half::f16::from_f32((amax / 127.0) as f32).to_f64();
    let level = |x: &f64| if d == 0.0 { 0.0 } else { (x / d).round_ties_even().clamp(-127.0, 127.0) };
    block.iter().map(|x| d * level(x)).collect()
}

/// A row on the tape: its projections before the convolution, and its gates.
#[derive(Clone)]
pub(super) struct TapeRow {
    /// `[conv_cols]`.
    pub(super) qkv: Vec<f64>,
    /// exp(g) of each value head.
    pub(super) decay: Vec<f64>,
    /// β of each value head.
    pub(super) beta: Vec<f64>,
}

/// The delta-net state of one sequence at its last committed boundary, and the rows since.
#[derive(Clone)]
pub(super) struct SeqState {
    /// Rows that the state has seen: the position it stands at.
    pub(super) pos: usize,
    /// `[value head][key dim][value dim]`.
    pub(super) s: Vec<Vec<Vec<f64>>>,
    /// The last `conv − 1` rows of projections, oldest first.
    pub(super) history: Vec<Vec<f64>>,
    pub(super) tape: Vec<TapeRow>,
}

impl SeqState {
    /// The state of a sequence that has not begun.
    pub(super) fn zero(spec: &StateSpec) -> Self {
        let s = &spec.shape;
        Self {
            pos: 0,
            s: vec![vec![vec![0.0; s.value_dim]; s.key_dim]; s.value_heads],
            history: vec![vec![0.0; s.conv_cols()]; s.conv - 1],
            tape: Vec::new(),
        }
    }
}

/// States of a layer, every slot; `None` before a slot's first sequence.
pub(super) struct StateCache {
    pub(super) spec: StateSpec,
    pub(super) slots: Vec<Option<SeqState>>,
}

impl StateCache {
    pub(super) fn new(spec: &StateSpec) -> Self {
        Self { spec: spec.clone(), slots: vec![None; spec.slots] }
    }
}
