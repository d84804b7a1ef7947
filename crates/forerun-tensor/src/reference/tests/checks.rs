//! What is refused, with which words, and that a refused step changes nothing.

use super::*;
use crate::builder::State;
use crate::plan::{AttentionOp, AttentionShape, DeltaNetOp, DeltaShape, Gate, RopeKvOp, RopeSpec};
use crate::{KvId, PlanId, StateId, StateSpec, Ticket, WeightId};

const SHAPE: DeltaShape =
    DeltaShape { key_heads: 1, value_heads: 1, key_dim: 1, value_dim: 1, conv: 1, interleaved: true };
const HEADS: AttentionShape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 3, value_dim: 3, q_stride: 3 };

/// Three tokens; attention over 8 positions (a ring has a window of 4), a delta net with a tape of 2, and a sampler.
fn everything(ring: bool) -> (ReferenceBackend, PlanId) {
    let mut b = ReferenceBackend::new();
    let table = matrix(&mut b, 3, 3, &noise(5, 9));
    let (one, conv) = (matrix(&mut b, 1, 3, &[1.0, 0.5, 0.1]), matrix(&mut b, 3, 1, &[1.0; 3]));
    let unit = vector(&mut b, &[1.0]);
    let cache = kv(&mut b, kv_spec(8, ring, 1, 3, KvType::F32));
    let spec = StateSpec { slots: 2, shape: SHAPE, tape: 2 };
    let state = State { id: b.new_state(&spec).unwrap(), spec };
    let p = plan(&mut b, &table, |r, x| {
        let rope = r.rope(RopeSpec { frequencies: vec![0.1], scale: 1.0 });
        let (q, k, v) = (Some(x), Some(x), Some(x));
        let [q_norm, k_norm] = [None; 2];
        let (eps, advance) = (1e-6, 0);
        let op = RopeKvOp {
            q,
            k,
            v,
            q_norm,
            k_norm,
            v_norm: true,
            eps,
            shape: HEADS,
            rope,
            kv: cache.id,
            advance,
        };
        r.rope_kv(op, [None, None], &cache)?;
        let op = AttentionOp {
            q: x,
            gate: Gate::None,
            kv: cache.id,
            shape: HEADS,
            scale: 1.0,
            causal: true,
            window: ring.then_some(4),
            advance,
            out: x,
        };
        let qkv = r.attention(op, &cache)?;
        let [z] = r.mat_mul(qkv, [&one])?;
        let op = DeltaNetOp {
            qkv,
            z,
            alpha: z,
            beta: z,
            conv: conv.id,
            dt_bias: unit.id,
            a: unit.id,
            norm: unit.id,
            state: state.id,
            shape: SHAPE,
            eps,
            out: z,
        };
        let y = r.delta_net(op, [&conv, &unit, &unit, &unit], &state)?;
        r.output(y);
        let logits = r.select(qkv)?;
        r.sample(logits, None, true)?;
        Ok(())
    });
    (b, p)
}

fn step(seqs: &[SeqRows], tokens: &[u32]) -> StepRows {
    StepRows { seqs: seqs.to_vec(), tokens: tokens.to_vec(), out: vec![] }
}

/// After three committed rows of slot 0 and two undecided ones.
#[test]
fn bad_steps_are_refused_and_change_nothing() {
    let draft = step(&[seq(0, 3, 2, 0, false)], &[1, 2]);
    let next = step(&[seq(0, 4, 1, 1, true)], &[0]);
    let want = {
        let (mut b, p) = everything(false);
        run(&mut b, p, &rows(0, &[0, 1, 2]));
        run(&mut b, p, &draft);
        run(&mut b, p, &next)
    };
    let noisy = |temperature| Pick::Noise { temperature, seed: 0, position: 0 };
    let bad = [
        (step(&[], &[]), "0 rows"),
        (step(&[seq(0, 4, 65, 1, true)], &[0; 65]), "65 rows, expected 1 to 64"),
        (step(&[seq(0, 4, 2, 1, true)], &[0]), "sequences of 2 rows for 1 tokens"),
        (step(&[seq(0, 4, 1, 1, true), seq(0, 5, 1, 0, true)], &[0, 0]), "slot 0 twice"),
        (step(&[seq(0, 0, 1, 1, true)], &[0]), "replay of 1 rows at position 0"),
        (step(&[seq(0, u32::MAX, 1, 1, true)], &[0]), "slot 0: 1 rows at position 4294967295"),
        (step(&[seq(0, 4, 1, 1, true)], &[3]), "token 3, expected one below 3"),
        (step(&[seq(2, 0, 1, 0, true)], &[0]), "slot 2, expected one of the KV cache's 2"),
        (step(&[seq(0, 4, 5, 1, true)], &[0; 5]), "position 8, expected one below the capacity of 8"),
        (step(&[seq(0, 6, 1, 1, true)], &[0]), "sees position 5"),
        (step(&[seq(1, 1, 1, 0, true)], &[0]), "sees position 0"),
        (step(&[seq(0, 5, 1, 3, true)], &[0]), "replay of 3 rows, expected at most 2"),
        (step(&[seq(0, 4, 1, 2, true)], &[0]), "position 4 after a replay of 2, but the state stands at 3"),
        (step(&[seq(0, 4, 3, 1, false)], &[0; 3]), "3 undecided rows, expected at most 2"),
        (with_out(next.clone(), 1, Pick::Greedy), "output rows"),
        (with_out(with_out(next.clone(), 0, Pick::None), 0, Pick::None), "output rows"),
        (with_out(next.clone(), 0, Pick::Given(3)), "given token 3, expected one below 3"),
        (with_out(next.clone(), 0, noisy(0.0)), "temperature 0"),
        (with_out(next.clone(), 0, noisy(9e-5)), "temperature 0.00009"),
        (with_out(next.clone(), 0, noisy(f32::NAN)), "temperature NaN"),
        (with_out(next.clone(), 0, noisy(f32::INFINITY)), "temperature inf"),
    ];
    let (mut b, p) = everything(false);
    run(&mut b, p, &rows(0, &[0, 1, 2]));
    run(&mut b, p, &draft);
    for (step, message) in &bad {
        let error = try_run(&mut b, p, step).unwrap_err().to_string();
        assert!(error.contains(message), "{step:?}: {error}, expected {message}");
    }
    assert_eq!(run(&mut b, p, &next), want);
}

/// 8 positions and a window of 4 leave room for steps of 5 rows; a sixth overwrites a key that the first still sees.
#[test]
fn a_chunk_too_long_for_its_ring_is_refused() {
    let (mut b, p) = everything(true);
    run(&mut b, p, &rows(0, &[0, 1, 2, 0]));
    run(&mut b, p, &rows(4, &[0, 1, 2, 0, 1]));
    let error = try_run(&mut b, p, &rows(9, &[0; 6])).unwrap_err().to_string();
    assert!(
        error.contains("position 9 sees position 6, which a cache of 8 positions does not hold"),
        "{error}"
    );
    run(&mut b, p, &rows(9, &[0; 5]));
}

#[test]
fn a_restarted_slot_has_no_history() {
    let (mut b, p) = everything(false);
    run(&mut b, p, &rows(0, &[0, 1, 2, 0, 1]));
    let first = run(&mut b, p, &rows(0, &[2]));
    let (mut fresh, q) = everything(false);
    assert_eq!(run(&mut fresh, q, &rows(0, &[2])), first);
    // Positions 1 and 2 belong to the old sequence.
    let error = try_run(&mut b, p, &rows(3, &[0])).unwrap_err().to_string();
    assert!(error.contains("the row at position 3 sees position 1"), "{error}");
}

#[test]
fn unknown_handles_are_refused() {
    let (mut b, p) = everything(false);
    assert!(b.submit(PlanId(9), &rows(0, &[0])).unwrap_err().to_string().contains("unknown PlanId(9)"));
    assert!(b.wait(Ticket(9), &mut StepOut::default()).is_err());
    let ticket = b.submit(p, &rows(0, &[0])).unwrap();
    b.wait(ticket, &mut StepOut::default()).unwrap();
    assert!(b.wait(ticket, &mut StepOut::default()).is_err(), "a step is taken once");

    let mut other = ReferenceBackend::new();
    let table = matrix(&mut other, 1, 3, &[0.0; 3]);
    let far = Weight { id: WeightId(7), rows: 1, cols: 3, experts: 1 };
    let cache = Kv { id: KvId(3), spec: kv_spec(8, false, 1, 3, KvType::F16) };
    let mut refuse = |f: &dyn Fn(&mut PlanBuilder, crate::plan::Act) -> Result<()>, message: &str| {
        let mut builder = PlanBuilder::new(1, 1);
        let x = builder.embed(&table, crate::plan::Ids::Step, 1.0).unwrap();
        f(&mut builder, x).unwrap();
        let error = other.prepare(builder.finish()).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    };
    refuse(
        &|r, x| r.mat_mul(x, [&far]).map(drop),
        "operator mat_mul: unknown WeightId(7), expected one of 1",
    );
    let op = |q| AttentionOp {
        q,
        gate: Gate::None,
        kv: cache.id,
        shape: HEADS,
        scale: 1.0,
        causal: true,
        window: None,
        advance: 0,
        out: q,
    };
    refuse(
        &|r, x| r.attention(op(x), &cache).map(drop),
        "operator attention: unknown KvId(3), expected one of 0",
    );
    let spec = StateSpec { slots: 1, shape: SHAPE, tape: 1 };
    let state = State { id: StateId(4), spec };
    let one = Weight { id: table.id, rows: 1, cols: 1, experts: 1 };
    refuse(
        &|r, x| {
            let z = r.act(crate::plan::RowSet::Step, 1);
            let [conv, dt_bias, a, norm] = [table.id; 4];
            let op = DeltaNetOp {
                qkv: x,
                z,
                alpha: z,
                beta: z,
                conv,
                dt_bias,
                a,
                norm,
                state: state.id,
                shape: SHAPE,
                eps: 0.0,
                out: z,
            };
            r.delta_net(op, [&table, &one, &one, &one], &state).map(drop)
        },
        "operator delta_net: unknown StateId(4), expected one of 0",
    );
}

#[test]
fn weights_and_caches_of_impossible_shape_are_refused() {
    let mut b = ReferenceBackend::new();
    let data = WeightData {
        name: "blk.0.w".into(),
        ty: TensorType::F32,
        rows: 2,
        cols: 3,
        experts: 2,
        expert_stride: 24,
        bytes: vec![0; 47].into(),
        usage: WeightUse::Matrix,
    };
    let error = b.load(&data).unwrap_err().to_string();
    assert!(error.contains("`blk.0.w`") && error.contains("47 bytes"), "{error}");
    assert!(b.load(&WeightData { rows: usize::MAX, ..data.clone() }).is_err());
    assert!(b.load(&WeightData { ty: TensorType::Q4_K, ..data }).is_err());

    let good = kv_spec(8, false, 1, 4, KvType::F16);
    b.new_kv(&good).unwrap();
    let bad = [
        KvSpec { slots: 0, ..good.clone() },
        KvSpec { capacity: 0, ..good.clone() },
        KvSpec { heads: 0, ..good.clone() },
        KvSpec { key_dim: 0, ..good.clone() },
        KvSpec { block: 0, ..good.clone() },
        KvSpec { block: 12, ..good },
    ];
    bad.iter().for_each(|spec| assert!(b.new_kv(spec).is_err(), "{spec:?}"));
    for shape in [DeltaShape { conv: 0, ..SHAPE }, DeltaShape { key_heads: 2, value_heads: 3, ..SHAPE }] {
        assert!(b.new_state(&StateSpec { slots: 1, shape, tape: 1 }).is_err(), "{shape:?}");
    }
}
