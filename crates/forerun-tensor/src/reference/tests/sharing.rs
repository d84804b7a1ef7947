//! Plans compute the same with shared buffers as with one for each result.

use proptest::prelude::*;

use super::*;
use crate::builder::{Ring, State};
use crate::plan::{
    Act, Activation, AttentionOp, AttentionShape, DeltaNetOp, DeltaShape, ExpertSums, ExpertsOp, Gate, Ids,
    Plan, RopeKvOp, RopeSpec, RouterKind, RowSet, SharedExpert,
};
use crate::{RingSpec, StateSpec};

/// Columns of every buffer that operators are strung together by.
const COLS: usize = 8;
const HEADS: AttentionShape = AttentionShape { heads: 2, kv_heads: 1, key_dim: 4, value_dim: 4, q_stride: 4 };
const DELTA: DeltaShape =
    DeltaShape { key_heads: 1, value_heads: 2, key_dim: 3, value_dim: 4, conv: 3, interleaved: true };

/// What plans are recorded over.
struct World {
    backend: ReferenceBackend,
    kv: Kv,
    state: State,
    ring: Ring,
    seed: u64,
}

impl World {
    fn new() -> Self {
        let mut backend = ReferenceBackend::new();
        let kv = kv(&mut backend, kv_spec(64, false, 1, 4, KvType::F32));
        let spec = StateSpec { slots: 2, shape: DELTA, tape: 4 };
        let state = State { id: backend.new_state(&spec).unwrap(), spec };
        let spec = RingSpec { slots: 2, capacity: 64, cols: COLS };
        let ring = Ring { id: backend.new_ring(&spec).unwrap(), spec };
        Self { backend, kv, state, ring, seed: 0 }
    }

    fn weight(&mut self, experts: usize, rows: usize, cols: usize) -> Weight {
        self.seed += 1;
        stack(&mut self.backend, experts, rows, cols, &noise(self.seed, experts * rows * cols))
    }

    fn product(&mut self, b: &mut PlanBuilder, x: Act, cols: usize, rows: usize) -> Result<Act> {
        let w = self.weight(1, rows, cols);
        Ok(b.mat_mul(x, [&w])?[0])
    }

    fn attention(&mut self, b: &mut PlanBuilder, x: Act) -> Result<Act> {
        let w = [8, 4, 4].map(|rows| self.weight(1, rows, COLS));
        let [q, k, v] = b.mat_mul(x, w.each_ref())?;
        let rope = b.rope(RopeSpec { frequencies: vec![1.0], scale: 1.0 });
        let (shape, kv, eps) = (HEADS, self.kv.id, 1e-6);
        let op = RopeKvOp {
            q: Some(q),
            k: Some(k),
            v: Some(v),
            q_norm: None,
            k_norm: None,
            v_norm: true,
            eps,
            shape,
            rope,
            kv,
            advance: 0,
        };
        b.rope_kv(op, [None, None], &self.kv)?;
        let gate = Gate::Separate(x);
        let op =
            AttentionOp { q, gate, kv, shape, scale: 1.0, causal: true, window: None, advance: 0, out: q };
        b.attention(op, &self.kv)
    }

    fn delta_net(&mut self, b: &mut PlanBuilder, x: Act) -> Result<Act> {
        let w = [DELTA.conv_cols(), DELTA.value_cols(), 2, 2].map(|rows| self.weight(1, rows, COLS));
        let [qkv, z, alpha, beta] = b.mat_mul(x, w.each_ref())?;
        let conv = self.weight(1, DELTA.conv_cols(), DELTA.conv);
        let [dt, a, norm] = [2, 2, 4].map(|n| self.weight(1, 1, n));
        let (state, shape) = (self.state.id, DELTA);
        let op = DeltaNetOp {
            qkv,
            z,
            alpha,
            beta,
            conv: conv.id,
            dt_bias: dt.id,
            a: a.id,
            norm: norm.id,
            state,
            shape,
            eps: 1e-6,
            out: z,
        };
        b.delta_net(op, [&conv, &dt, &a, &norm], &self.state)
    }

    fn experts(&mut self, b: &mut PlanBuilder, x: Act, shared: Act, out: Act) -> Result<()> {
        let logits = self.product(b, x, COLS, 3)?;
        let routes = b.route(logits, RouterKind::SoftmaxRenormalised, 2)?;
        let gate = self.product(b, x, COLS, 1)?;
        let w = [(5, COLS), (5, COLS), (COLS, 5)].map(|(rows, cols)| self.weight(3, rows, cols));
        let op = ExpertsOp {
            x,
            routes,
            gate: w[0].id,
            up: w[1].id,
            down: w[2].id,
            activation: Activation::Silu,
            shared: Some(SharedExpert { out: shared, gate }),
            residual: Some(out),
            sums: ExpertSums::default(),
            out,
        };
        b.experts(op, w.each_ref())
    }

    /// Records the operator that `pick` names over some of `acts`, which gain its results.
    fn record(&mut self, b: &mut PlanBuilder, acts: &mut [Vec<Act>; 2], pick: [usize; 4]) -> Result<()> {
        let [kind, x, y, z] = pick;
        let (set, kind) = (kind % 2, kind / 2);
        let [x, y, z] = [x, y, z].map(|i| acts[set][i % acts[set].len()]);
        let new = match (kind, set) {
            (0, _) => b.rms_norm(x, None, 1e-6)?,
            (1, _) => return b.rms_norm_into(x, None, 1e-6, Some(y), None, z),
            (2, _) => {
                let w = [COLS; 2].map(|rows| self.weight(1, rows, COLS));
                let [first, second] = b.mat_mul(x, w.each_ref())?;
                acts[set].push(first);
                second
            }
            (3, _) if x != y => {
                let w = self.weight(1, COLS, COLS);
                return b.mat_mul_add(x, &w, y);
            }
            (4, _) => {
                let w = [5; 2].map(|rows| self.weight(1, rows, COLS));
                let hidden = b.gated_mat_mul(x, &w[0], &w[1], Activation::GeluTanh)?;
                self.product(b, hidden, 5, COLS)?
            }
            (5, _) => return b.softcap(x, 2.0),
            (6, _) => {
                let wide = b.concat(&[x, y, x])?;
                self.product(b, wide, 3 * COLS, COLS)?
            }
            (7, _) => return self.experts(b, x, y, z),
            (8, _) => {
                b.output(x);
                return Ok(());
            }
            (9, 0) => {
                b.keep(x, &self.ring, 0)?;
                b.recall(&self.ring)
            }
            (10, 0) => self.attention(b, x)?,
            (11, 0) => self.delta_net(b, x)?,
            (12, 0) => {
                let out = b.select(x)?;
                acts[1].push(out);
                return Ok(());
            }
            _ => {
                let table = self.weight(1, COLS, COLS);
                let ids = if set == 0 {
                    Ids::Step
                } else {
                    let result = kind % 2 == 0;
                    Ids::Picked(b.sample(x, None, result)?)
                };
                b.embed(&table, ids, 1.0)?
            }
        };
        acts[set].push(new);
        Ok(())
    }
}

/// Runs two steps of the plan that `picks` names; the outputs as text, since they may hold NaN, and the plan.
fn outputs(picks: &[[usize; 4]], finish: fn(PlanBuilder) -> Plan) -> (Vec<String>, Plan) {
    let mut world = World::new();
    let mut b = PlanBuilder::new(8, 8);
    let table = world.weight(1, COLS, COLS);
    let x = b.embed(&table, Ids::Step, 1.0).unwrap();
    let mut acts = [vec![x], vec![b.select(x).unwrap()]];
    for pick in picks {
        world.record(&mut b, &mut acts, *pick).unwrap();
    }
    for of_set in &acts {
        b.output(of_set[of_set.len() / 2]);
    }
    let plan = finish(b);
    let id = world.backend.prepare(plan.clone()).unwrap();
    let steps = [rows(0, &[1, 2, 3]), rows(3, &[4, 5])];
    let outputs = steps.map(|s| {
        let step = with_out(with_out(s, 0, Pick::Greedy), 1, Pick::Given(3));
        format!("{:?}", run(&mut world.backend, id, &step))
    });
    (outputs.into(), plan)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sharing_changes_no_result(
        picks in prop::collection::vec(prop::array::uniform4(0..1000_usize), 1..40)
    ) {
        let picks: Vec<_> = picks.into_iter().map(|[kind, x, y, z]| [kind % 28, x, y, z]).collect();
        let (alone, plan) = outputs(&picks, PlanBuilder::finish_unshared);
        let (shared, fewer) = outputs(&picks, PlanBuilder::finish);
        prop_assert_eq!(alone, shared);
        prop_assert!(fewer.acts().len() <= plan.acts().len());
    }
}

#[test]
fn a_deep_plan_needs_no_more_buffers_than_a_shallow_one() {
    let buffers = |layers: usize| {
        let mut b = PlanBuilder::new(4, 4);
        let w = Weight { id: crate::WeightId(0), rows: COLS, cols: COLS, experts: 1 };
        let x = b.embed(&w, Ids::Step, 1.0).unwrap();
        for _ in 0..layers {
            let y = b.rms_norm(x, None, 1e-6).unwrap();
            let [y] = b.mat_mul(y, [&w]).unwrap();
            b.mat_mul_add(y, &w, x).unwrap();
        }
        b.output(x);
        b.finish().acts().len()
    };
    for layers in [3, 50] {
        assert_eq!(buffers(layers), buffers(2), "{layers} layers");
    }
}

#[test]
fn logits_of_the_result_and_what_is_read_first_keep_their_buffers() {
    let mut b = PlanBuilder::new(4, 4);
    let w = Weight { id: crate::WeightId(0), rows: COLS, cols: COLS, experts: 1 };
    let given = b.act(RowSet::Out, COLS);
    let x = b.embed(&w, Ids::Step, 1.0).unwrap();
    let logits = b.select(x).unwrap();
    b.sample(logits, None, true).unwrap();
    for _ in 0..3 {
        let other = b.select(x).unwrap();
        b.output(other);
    }
    b.output(given);
    let plan = b.finish();
    // The step's rows, and of the output rows: the logits, what was given, and one for the three others.
    assert_eq!(plan.acts().len(), 4);
    let writers = |act| plan.ops().iter().filter(|op| op.writes().contains(&act)).count();
    for op in plan.ops() {
        if let crate::Op::Sample { logits, .. } = op {
            assert_eq!(writers(*logits), 1);
        }
    }
}
