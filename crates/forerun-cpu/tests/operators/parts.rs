//! Parts of rows: norms of groups of columns, gates on some columns of another buffer, and windows over rings.

use super::*;

/// Norms of groups, then gates on parts of the normed row, and products of what they leave.
fn parts(r: &mut Recorder<'_>) {
    let x = r.input();
    let (group, groups) = (r.rng.of(&[24, 32, 40, 256]), 1 + r.rng.below(4));
    let wide = r.product(x, group * groups);
    let gain = r.vector(group, 1.0);
    let residual = r.product(x, wide.1);
    let normed = r.plan.rms_norm_groups(wide.0, &gain, 1e-6, None, None).expect("norm");
    r.tap(Buf(normed, wide.1));
    let scale = Some(Scale::Constant(0.7));
    let all = r.plan.rms_norm_groups(wide.0, &gain, 1e-6, Some(residual.0), scale).expect("norm");
    r.tap(Buf(all, wide.1));
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let cols = r.width().min(wide.1) / r.ty.block_elements() * r.ty.block_elements();
        if cols == 0 {
            continue;
        }
        let gate = r.product(x, cols);
        let first = r.rng.below(wide.1 - cols + 1);
        r.plan.multiply(gate.0, activation, all, first).expect("multiply");
        r.tap(gate);
        let after = r.product(gate, 21);
        r.tap(after);
    }
}

#[test]
fn parts_agree() {
    check("parts", parts, 18, products_bound);
}

/// A ring keeps what the first row of a step sees while the others are written, or the step is refused.
#[test]
fn steps_that_would_overwrite_what_they_see_are_refused() {
    let ty = KvType::F32;
    let spec =
        KvSpec { slots: 1, capacity: 16, ring: true, heads: 1, key_dim: 8, value_dim: 8, ty, block: 8 };
    let shape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 8, value_dim: 8, q_stride: 8 };
    let backends: [Box<dyn Backend>; 2] = [
        Box::new(CpuBackend::new(&CpuConfig::default()).expect("a backend")),
        Box::new(ReferenceBackend::new()),
    ];
    for mut backend in backends {
        let kv = Kv { id: backend.new_kv(&spec).expect("kv"), spec: spec.clone() };
        let plan = PlanBuilder::new(16, 2);
        let mut r = Recorder { backend: &mut *backend, plan, rng: Rng(1, 0), ty: TensorType::F32, kv: ty };
        let x = r.embed(8, Ids::Step);
        let rope = r.plan.rope(RopeSpec { frequencies: vec![], scale: 1.0 });
        let (q, k) = (r.product(x, 8).0, r.product(x, 8).0);
        let op = RopeKvOp {
            q: Some(q),
            k: Some(k),
            v: Some(k),
            q_norm: None,
            k_norm: None,
            v_norm: true,
            eps: 1e-6,
            shape,
            rope,
            kv: kv.id,
            advance: 0,
        };
        r.plan.rope_kv(op, [None, None], &kv).expect("rope_kv");
        let (gate, window) = (Gate::None, Some(9));
        let op =
            AttentionOp { q, gate, kv: kv.id, shape, scale: 1.0, causal: true, window, advance: 0, out: q };
        let o = r.plan.attention(op, &kv).expect("attention");
        r.plan.output(o);
        let Recorder { plan, .. } = r;
        let plan = backend.prepare(plan.finish()).expect("prepare");
        let mut run = |pos, rows: u32| {
            let seqs = vec![SeqRows { slot: 0, pos, rows, replay: 0, commit: true }];
            backend.submit(plan, &StepRows { seqs, tokens: vec![3; rows as usize], out: vec![] }).map(drop)
        };
        for (pos, rows) in [(0, 8), (8, 8), (16, 8), (24, 1)] {
            run(pos, rows).unwrap_or_else(|e| panic!("{rows} rows at {pos}: {e}"));
        }
        run(25, 9).expect_err("nine rows behind nine positions in a ring of 16");
        run(25, 8).unwrap_or_else(|e| panic!("{e}"));
    }
}
