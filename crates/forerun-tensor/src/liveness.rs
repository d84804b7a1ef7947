//! Which operators use an activation buffer, and which buffers can be one.
//!
//! A buffer is alive from the operator that first writes it to the last that uses it. Buffers of equal shape that are never
//! alive at the same operator become one, so a plan needs about as much memory as its widest layer, whatever its depth.
//! An operator's results are alive beside all its operands, so only what the model itself recorded in place is in place.

use std::collections::HashMap;

use crate::plan::{Act, ActSpec, Gate, Op, Plan};

/// How an operator uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Reads what is there.
    Read,
    /// The same, as the input of products: backends may keep such buffers in a second, quantised form.
    Multiply,
    /// Writes every row of the step.
    Write,
    /// Changes it in place.
    Update,
}

impl Op {
    /// Activation buffers that the operator reads, those that it changes in place included.
    #[must_use]
    pub fn reads(&self) -> Vec<Act> {
        self.accesses().into_iter().filter(|(_, how)| *how != Access::Write).map(|(act, _)| act).collect()
    }

    /// Activation buffers that the operator writes, those that it changes in place included.
    #[must_use]
    pub fn writes(&self) -> Vec<Act> {
        let writes = |how| matches!(how, Access::Write | Access::Update);
        self.accesses().into_iter().filter(|(_, how)| writes(*how)).map(|(act, _)| act).collect()
    }

    fn accesses(&self) -> Vec<(Act, Access)> {
        let mut found = Vec::new();
        self.clone().each_act(&mut |act, how| found.push((*act, how)));
        found
    }

    /// Calls `f` for every buffer that the operator names.
    fn each_act(&mut self, f: &mut dyn FnMut(&mut Act, Access)) {
        use Access::{Multiply, Read, Update, Write};
        match self {
            Op::Embed { out, .. } | Op::Recall { out, .. } => f(out, Write),
            Op::RmsNorm { x, residual, out, .. } => {
                f(x, Read);
                residual.iter_mut().for_each(|r| f(r, Read));
                f(out, Write);
            }
            Op::MatMul { x, products } => {
                f(x, Multiply);
                for p in products {
                    p.residual.iter_mut().for_each(|r| f(r, Read));
                    f(&mut p.out, Write);
                }
            }
            Op::GatedMatMul { x, out, .. } => {
                f(x, Multiply);
                f(out, Write);
            }
            Op::RopeKv(op) => {
                op.q.iter_mut().for_each(|q| f(q, Update));
                op.k.iter_mut().chain(&mut op.v).for_each(|kv| f(kv, Read));
            }
            Op::Attention(op) => {
                f(&mut op.q, Read);
                if let Gate::Separate(gate) = &mut op.gate {
                    f(gate, Read);
                }
                f(&mut op.out, Write);
            }
            Op::DeltaNet(op) => {
                [&mut op.qkv, &mut op.z, &mut op.alpha, &mut op.beta].into_iter().for_each(|x| f(x, Read));
                f(&mut op.out, Write);
            }
            Op::Route(op) => f(&mut op.logits, Read),
            Op::Experts(op) => {
                f(&mut op.x, Multiply);
                if let Some(s) = &mut op.shared {
                    f(&mut s.out, Read);
                    f(&mut s.gate, Read);
                }
                op.residual.iter_mut().for_each(|r| f(r, Read));
                f(&mut op.out, Write);
            }
            Op::Select { x, out } => {
                f(x, Read);
                f(out, Write);
            }
            Op::Softcap { x, .. } => f(x, Update),
            Op::Multiply { x, by, .. } => {
                f(x, Update);
                f(by, Read);
            }
            Op::Sample { logits: x, .. }
            | Op::Keep { x, .. }
            | Op::Output { x, .. }
            | Op::Collect { x, .. } => f(x, Read),
            Op::Concat { parts, out } => {
                parts.iter_mut().for_each(|p| f(p, Read));
                f(out, Write);
            }
        }
    }
}

/// Operators during which a buffer must keep its own memory.
#[derive(Clone, Copy)]
struct Life {
    first: usize,
    last: usize,
    /// Whether a product reads it.
    multiplied: bool,
}

/// The life of every buffer; `None` for one that nobody uses.
fn lives(plan: &Plan) -> Vec<Option<Life>> {
    let end = plan.ops.len();
    let mut lives: Vec<Option<Life>> = vec![None; plan.acts.len()];
    for (i, op) in plan.ops.iter().enumerate() {
        // A result's logits are read when the step is over.
        let last = if matches!(op, Op::Sample { result: true, .. }) { end } else { i };
        let accesses = op.accesses();
        let (writes, reads): (Vec<_>, Vec<_>) =
            accesses.into_iter().partition(|(_, how)| *how == Access::Write);
        for (act, how) in reads.into_iter().chain(writes) {
            // What is read before it was written comes from outside the plan's order.
            let unborn = if how == Access::Write {
                Life { first: i, last, multiplied: false }
            } else {
                Life { first: 0, last: end, multiplied: false }
            };
            let life = lives[act.index()].get_or_insert(unborn);
            life.last = life.last.max(last);
            life.multiplied |= how == Access::Multiply;
        }
    }
    lives
}

/// Gives buffers of equal shape that are never alive together the same memory, and drops those that nobody uses.
///
/// Products' inputs share among themselves only: a buffer that is one of them once would be quantised wherever it is
/// written.
pub(crate) fn share(plan: &mut Plan) {
    let mut order: Vec<(usize, Life)> =
        lives(plan).into_iter().enumerate().filter_map(|(act, life)| Some((act, life?))).collect();
    order.sort_by_key(|(act, life)| (life.first, *act));
    let mut shared: Vec<ActSpec> = Vec::new();
    // Of each shape: the buffers made so far and the last operator that uses each.
    let mut made: HashMap<(ActSpec, bool), Vec<(Act, usize)>> = HashMap::new();
    let mut new = vec![Act(0); plan.acts.len()];
    for (old, life) in order {
        let spec = plan.acts[old];
        let of_shape = made.entry((spec, life.multiplied)).or_default();
        new[old] = if let Some((act, last)) = of_shape.iter_mut().find(|(_, last)| *last < life.first) {
            *last = life.last;
            *act
        } else {
            let act = Act(shared.len() as u32);
            shared.push(spec);
            of_shape.push((act, life.last));
            act
        };
    }
    plan.acts = shared;
    plan.ops.iter_mut().for_each(|op| op.each_act(&mut |act, _| *act = new[act.index()]));
}
