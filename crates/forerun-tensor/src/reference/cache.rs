//! Caches as plain vectors.

use crate::backend::{KvSpec, KvType, StateSpec};
use crate::error::{Result, TensorError};
use crate::step::StepRows;

/// Keys and values of a layer: `[slot][position][head]` vectors.
pub(super) struct KvCache {
    pub(super) spec: KvSpec,
    slots: Vec<Vec<Vec<[Vec<f64>; 2]>>>,
}

/// A vector rounded through a cache type.
fn rounded(ty: KvType, v: &[f64]) -> Vec<f64> {
    match ty {
        KvType::F32 => v.iter().map(|x| f64::from(*x as f32)).collect(),
        KvType::F16 => v.iter().map(|x| half::f16::from_f32(*x as f32).to_f64()).collect(),
        KvType::Q8_0 => v
            .chunks(32)
            .flat_map(|block| {
                let amax = block.iter().fold(0.0_f64, |a, x| a.max(x.abs()));
                let d = half::f16::from_f32((amax / 127.0) as f32).to_f64();
                let level = move |x: &f64| if d == 0.0 { 0.0 } else { (x / d).round_ties_even().clamp(-127.0, 127.0) };
                block.iter().map(move |x| d * level(x))
            })
            .collect(),
    }
}

impl KvCache {
    pub(super) fn new(spec: &KvSpec) -> Self {
        let empty = vec![vec![[Vec::new(), Vec::new()]; spec.heads]; spec.capacity];
        Self { spec: spec.clone(), slots: vec![empty; spec.slots] }
    }

    pub(super) fn put(&mut self, slot: usize, pos: usize, head: usize, k: &[f64], v: &[f64]) {
        let at = pos % self.spec.capacity;
        self.slots[slot][at][head] = [rounded(self.spec.ty, k), rounded(self.spec.ty, v)];
    }

    pub(super) fn get(&self, slot: usize, pos: usize, head: usize) -> (&[f64], &[f64]) {
        let [k, v] = &self.slots[slot][pos % self.spec.capacity][head];
        (k, v)
    }

    pub(super) fn copy(&mut self, from: u32, to: u32, positions: u32) -> Result<()> {
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= self.spec.slots || positions as usize > self.spec.capacity {
            return Err(TensorError::Step(format!("copying {positions} positions of slot {from} to {to}")));
        }
        let part = self.slots[from][..positions as usize].to_vec();
        self.slots[to][..positions as usize].clone_from_slice(&part);
        Ok(())
    }
}

/// A row on the tape: projections before the convolution, and the gates.
#[derive(Clone)]
pub(super) struct TapeRow {
    pub(super) qkv: Vec<f64>,
    pub(super) decay: Vec<f64>,
    pub(super) beta: Vec<f64>,
}

/// The delta-net state of one sequence.
#[derive(Clone)]
pub(super) struct SeqState {
    /// `[value head][key dim][value dim]`.
    pub(super) s: Vec<Vec<Vec<f64>>>,
    /// The last `conv − 1` rows of projections, oldest first.
    pub(super) history: Vec<Vec<f64>>,
    pub(super) tape: Vec<TapeRow>,
}

pub(super) struct StateCache {
    pub(super) spec: StateSpec,
    pub(super) slots: Vec<SeqState>,
}

impl StateCache {
    pub(super) fn new(spec: &StateSpec) -> Self {
        let zero = Self::zero(spec);
        Self { spec: spec.clone(), slots: vec![zero; spec.slots] }
    }

    pub(super) fn zero(spec: &StateSpec) -> SeqState {
        let s = &spec.shape;
        SeqState {
            s: vec![vec![vec![0.0; s.value_dim]; s.key_dim]; s.value_heads],
            history: vec![vec![0.0; s.conv_cols()]; s.conv - 1],
            tape: Vec::new(),
        }
    }

    pub(super) fn check(&self, step: &StepRows) -> Result<()> {
        for seq in &step.seqs {
            let Some(slot) = self.slots.get(seq.slot as usize) else {
                return Err(TensorError::Step(format!("slot {} of {}", seq.slot, self.slots.len())));
            };
            if seq.pos > 0 && seq.replay as usize > slot.tape.len() {
                return Err(TensorError::Step(format!("replay of {} of {} rows", seq.replay, slot.tape.len())));
            }
            if !seq.commit && seq.rows as usize > self.spec.tape {
                return Err(TensorError::Step(format!("{} rows for a tape of {}", seq.rows, self.spec.tape)));
            }
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, from: u32, to: u32) -> Result<()> {
        let count = self.slots.len();
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= count || !self.slots[from].tape.is_empty() {
            return Err(TensorError::Step(format!("copying the state of slot {from} to {to} of {count}")));
        }
        self.slots[to] = self.slots[from].clone();
        Ok(())
    }
}
