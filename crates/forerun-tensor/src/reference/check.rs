//! What a plan and a step must be before anything is touched.

use std::collections::HashMap;

use super::cache::Positions;
use super::{ReferenceBackend, Row, step_rows};
use crate::backend::{KvId, RingId};
use crate::error::{Result, TensorError};
use crate::plan::{Act, AttentionOp, DeltaNetOp, Ids, Op, Plan, RouterKind};
use crate::step::{Pick, StepRows};

fn fail<T>(message: String) -> Result<T> {
    Err(TensorError::Step(message))
}

/// Whether this backend gave every handle of the plan.
pub(super) fn plan(backend: &ReferenceBackend, plan: &Plan) -> Result<()> {
    for op in plan.ops() {
        let wrong = |message: String| Err(TensorError::Plan { op: op.name(), message });
        for w in op.weights() {
            if backend.weights.get(w.0 as usize).is_none() {
                return wrong(format!("unknown {w:?}, expected one of {} weights", backend.weights.len()));
            }
        }
        if let Some(sums) = op.sums().into_iter().find(|s| backend.sums.get(s.0 as usize).is_none()) {
            return wrong(format!("unknown {sums:?}, expected one of {} sums", backend.sums.len()));
        }
        match op {
            Op::RopeKv(crate::plan::RopeKvOp { kv, .. }) | Op::Attention(AttentionOp { kv, .. })
                if backend.kvs.get(kv.0 as usize).is_none() =>
            {
                return wrong(format!("unknown {kv:?}, expected one of {} KV caches", backend.kvs.len()));
            }
            Op::DeltaNet(d) if backend.states.get(d.state.0 as usize).is_none() => {
                return wrong(format!(
                    "unknown {:?}, expected one of {} states",
                    d.state,
                    backend.states.len()
                ));
            }
            Op::Keep { ring, .. } | Op::Recall { ring, .. }
                if backend.rings.get(ring.0 as usize).is_none() =>
            {
                return wrong(format!("unknown {ring:?}, expected one of {} rings", backend.rings.len()));
            }
            Op::Route(r) => {
                if let RouterKind::SoftmaxRenormalisedScaled(w) = r.kind {
                    let (found, experts) = (backend.weight(w).elements(), plan.act(r.logits).cols);
                    if found != experts {
                        return wrong(format!("{found} scales, expected one for each of {experts} experts"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A step played through on the positions alone.
struct Dry<'a> {
    backend: &'a ReferenceBackend,
    plan: &'a Plan,
    step: &'a StepRows,
    written: HashMap<(KvId, usize), Positions<()>>,
    kept: HashMap<(RingId, usize), Positions<()>>,
}

/// Whether every token, slot, position and replay of the step exists.
pub(super) fn step(backend: &ReferenceBackend, plan: &Plan, step: &StepRows) -> Result<()> {
    step.check(plan)?;
    let mut dry = Dry { backend, plan, step, written: HashMap::new(), kept: HashMap::new() };
    for op in plan.ops() {
        match op {
            Op::Embed { table, ids, .. } => dry.embed(backend.weight(*table).rows(), *ids)?,
            Op::RopeKv(op) => {
                if let Some(act) = op.k.or(op.q) {
                    dry.positions(op.kv, act, op.advance, op.k.is_some())?;
                }
            }
            Op::Attention(op) => dry.attention(op)?,
            Op::DeltaNet(op) => dry.delta_net(op)?,
            Op::Keep { first: 1.., .. } => {}
            Op::Keep { x, ring, ahead, .. } => dry.keep(*ring, *x, *ahead)?,
            Op::Recall { ring, out } => dry.recall(*ring, *out)?,
            Op::Sample { logits, map: None, .. } => dry.given(plan.act(*logits).cols)?,
            _ => {}
        }
    }
    Ok(())
}

impl Dry<'_> {
    fn rows(&self, act: Act) -> Vec<Row> {
        step_rows(self.plan.act(act).rows, self.step)
    }

    fn embed(&self, vocabulary: usize, ids: Ids) -> Result<()> {
        let unknown = match ids {
            Ids::Step => self.step.tokens.iter().find(|id| **id as usize >= vocabulary),
            Ids::Picked(_) if self.step.out.iter().any(|o| o.pick == Pick::None) => {
                return fail(
                    "an output row without a pick, expected a token that later operators embed".into(),
                );
            }
            Ids::Picked(_) => return self.given(vocabulary),
        };
        unknown.map_or(Ok(()), |id| fail(format!("token {id}, expected one below {vocabulary}")))
    }

    fn given(&self, vocabulary: usize) -> Result<()> {
        for out in &self.step.out {
            if let Pick::Given(id) = out.pick
                && id as usize >= vocabulary
            {
                return fail(format!("row {}: given token {id}, expected one below {vocabulary}", out.row));
            }
        }
        Ok(())
    }

    /// Checks where the rows of `act` stand in a cache, and notes that they are written.
    fn positions(&mut self, kv: KvId, act: Act, advance: u32, write: bool) -> Result<()> {
        let cache = &self.backend.kvs[kv.0 as usize];
        for row in self.rows(act) {
            let Some(held) = cache.slots.get(row.slot) else {
                return fail(format!(
                    "slot {}, expected one of the KV cache's {}",
                    row.slot,
                    cache.slots.len()
                ));
            };
            let pos = row.pos + advance as usize;
            if !cache.spec.ring && pos >= cache.spec.capacity {
                return fail(format!(
                    "slot {}: position {pos}, expected one below the capacity of {}",
                    row.slot, cache.spec.capacity
                ));
            }
            if write {
                self.written.entry((kv, row.slot)).or_insert_with(|| held.places()).put(pos, ());
            }
        }
        Ok(())
    }

    fn keep(&mut self, ring: RingId, act: Act, ahead: u32) -> Result<()> {
        let slots = &self.backend.rings[ring.0 as usize].slots;
        for row in self.rows(act) {
            let Some(held) = slots.get(row.slot) else {
                return fail(format!("slot {}, expected one of the ring's {}", row.slot, slots.len()));
            };
            let kept = self.kept.entry((ring, row.slot)).or_insert_with(|| held.places());
            kept.put(row.pos + ahead as usize, ());
        }
        Ok(())
    }

    fn recall(&self, ring: RingId, act: Act) -> Result<()> {
        let slots = &self.backend.rings[ring.0 as usize].slots;
        for row in self.rows(act) {
            let held = slots.get(row.slot).is_some_and(|held| match self.kept.get(&(ring, row.slot)) {
                Some(kept) => kept.get(row.pos).is_some(),
                None => held.get(row.pos).is_some(),
            });
            if !held {
                return fail(format!("slot {}: position {} is not in the ring", row.slot, row.pos));
            }
        }
        Ok(())
    }

    fn attention(&mut self, op: &AttentionOp) -> Result<()> {
        self.positions(op.kv, op.q, op.advance, false)?;
        let cache = &self.backend.kvs[op.kv.0 as usize];
        let mut checked = (usize::MAX, 0);
        for row in self.rows(op.q) {
            let mut visible = row.visible(op);
            if checked.0 == row.slot {
                // Rows ascend, so what an earlier row of the slot saw is known to be there.
                visible.start = visible.start.max(checked.1);
            }
            checked = (row.slot, visible.end);
            let written = self.written.get(&(op.kv, row.slot));
            let held = |pos: usize| match written {
                Some(written) => written.get(pos).is_some(),
                None => cache.slots[row.slot].get(pos).is_some(),
            };
            if let Some(missing) = visible.into_iter().find(|p| !held(*p)) {
                return fail(format!(
                    "slot {}: the row at position {} sees position {missing}, which a cache of {} positions does not hold",
                    row.slot, row.pos, cache.spec.capacity
                ));
            }
        }
        Ok(())
    }

    fn delta_net(&self, op: &DeltaNetOp) -> Result<()> {
        let cache = &self.backend.states[op.state.0 as usize];
        for seq in &self.step.seqs {
            let slot = seq.slot;
            let Some(state) = cache.slots.get(slot as usize) else {
                return fail(format!("slot {slot}, expected one of the state's {}", cache.slots.len()));
            };
            if !seq.commit && seq.rows as usize > cache.spec.tape {
                let tape = cache.spec.tape;
                return fail(format!("slot {slot}: {} undecided rows, expected at most {tape}", seq.rows));
            }
            if seq.pos == 0 {
                continue;
            }
            let (stands, tape) = state.as_ref().map_or((0, 0), |s| (s.pos, s.tape.len()));
            if seq.replay as usize > tape {
                return fail(format!("slot {slot}: replay of {} rows, expected at most {tape}", seq.replay));
            }
            if stands + seq.replay as usize != seq.pos as usize {
                return fail(format!(
                    "slot {slot}: rows at position {} after a replay of {}, but the state stands at {stands}",
                    seq.pos, seq.replay
                ));
            }
        }
        Ok(())
    }
}
