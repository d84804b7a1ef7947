//! Sums of squares, against the reference and against sums over inputs that were copied out.

use std::sync::Arc;

use forerun_tensor::{Collection, Sums, SumsId, SumsSpec};

use super::*;

const ROWS: usize = 70;
const EXPERTS: usize = 5;

/// A dense input of `cols` columns and experts of it, their sums, and the tap of the input.
fn sums_of(backend: &mut dyn Backend, cols: usize, hidden: usize, cut: usize) -> ([Sums; 3], Vec<f32>) {
    let shapes = [(1, cols), (EXPERTS, cols), (EXPERTS, hidden)];
    let ids = shapes.map(|(matrices, cols)| backend.new_sums(&SumsSpec { matrices, cols }).expect("sums"));
    let plan = PlanBuilder::new(ROWS, 1);
    let (ty, kv) = (TensorType::F32, KvType::F32);
    let mut r = Recorder { backend, plan, rng: Rng(cols as u64, 0), ty, kv };
    let x = r.embed(cols, Ids::Step);
    let x = Buf(r.plan.rms_norm(x.0, None, 1e-6).expect("norm"), cols);
    let dense = r.stack(1, EXPERTS, cols);
    let (gate, up, down) =
        (r.stack(EXPERTS, hidden, cols), r.stack(EXPERTS, hidden, cols), r.stack(EXPERTS, 9, hidden));
    let mut collection = Collection::default();
    for (w, i) in [(dense, 0), (gate, 1), (up, 1), (down, 2)] {
        collection.insert(w.id, ids[i], SumsSpec { matrices: w.experts, cols: w.cols });
    }
    let mut plan = std::mem::replace(&mut r.plan, PlanBuilder::new(1, 1)).collecting(Arc::new(collection));
    plan.output(x.0);
    let [logits] = plan.mat_mul(x.0, [&dense]).expect("a router");
    let routes = plan.route(logits, RouterKind::SoftmaxRenormalised, 2).expect("routes");
    let op = ExpertsOp {
        x: x.0,
        routes,
        gate: gate.id,
        up: up.id,
        down: down.id,
        activation: Activation::Silu,
        shared: None,
        residual: None,
        sums: ExpertSums::default(),
        out: plan.act(RowSet::Step, 9),
    };
    plan.experts(op, [&gate, &up, &down]).expect("experts");
    let plan = r.backend.prepare(plan.finish()).expect("prepare");
    let mut taps = Vec::new();
    let tokens: Vec<u32> = (0..ROWS as u32).map(|i| i * 7 % VOCABULARY as u32).collect();
    for (i, part) in tokens.chunks(cut).enumerate() {
        let ticket = backend.submit(plan, &StepRows::of_text(part, i * cut, false)).expect("submit");
        let mut out = StepOut::default();
        backend.wait(ticket, &mut out).expect("wait");
        taps.extend_from_slice(&out.taps[0]);
    }
    (ids.map(|id| backend.sums(id).expect("sums")), taps)
}

#[test]
fn sums_agree() {
    // Columns that fill units and registers, and that do not.
    for (cols, hidden) in [(1, 1), (31, 64), (32, 33), (64, 100), (70, 32), (257, 129)] {
        let (wanted, _) = sums_of(&mut ReferenceBackend::new(), cols, hidden, ROWS);
        let mut first = None;
        for isa in Isa::ALL.into_iter().filter(|i| i.is_available()) {
            for (threads, cut) in [(1, ROWS), (2, 16), (3, 33)] {
                let config =
                    CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa), profile: false };
                let mut cpu = CpuBackend::new(&config).expect("a backend");
                let (found, taps) = sums_of(&mut cpu, cols, hidden, cut);
                let what = format!("{cols} and {hidden} columns, {isa}, {threads} threads, steps of {cut}");
                let mut direct = vec![0.0_f64; cols];
                for row in taps.chunks_exact(cols) {
                    direct.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x).powi(2));
                }
                assert!(found[0].squares == direct && found[0].rows == [ROWS as u64], "{what}");
                for (found, wanted) in found.iter().zip(&wanted) {
                    assert_eq!(found.rows, wanted.rows, "{what}");
                    let scale = wanted.squares.iter().fold(0.0, |a: f64, b| a.max(*b));
                    for (x, y) in found.squares.iter().zip(&wanted.squares) {
                        assert!((x - y).abs() <= 1e-6 * scale, "{what}: {x}, expected {y}");
                    }
                }
                assert!(*first.get_or_insert_with(|| found.clone()) == found, "{what}: other bits");
            }
        }
    }
}

#[test]
fn sums_of_no_backend_are_refused() {
    let backends: [Box<dyn Backend>; 2] = [
        Box::new(CpuBackend::new(&CpuConfig::default()).expect("a backend")),
        Box::new(ReferenceBackend::new()),
    ];
    for mut backend in backends {
        backend.sums(SumsId(3)).expect_err("unknown sums");
        for spec in [SumsSpec { matrices: 0, cols: 8 }, SumsSpec { matrices: usize::MAX, cols: 2 }] {
            backend.new_sums(&spec).expect_err("no sums");
        }
        let mut collection = Collection::default();
        let plan = PlanBuilder::new(4, 1);
        let mut r =
            Recorder { backend: &mut *backend, plan, rng: Rng(1, 0), ty: TensorType::F32, kv: KvType::F32 };
        let x = r.embed(8, Ids::Step);
        let w = r.stack(1, 3, 8);
        collection.insert(w.id, SumsId(9), SumsSpec { matrices: 1, cols: 8 });
        let mut plan = r.plan.collecting(Arc::new(collection));
        plan.mat_mul(x.0, [&w]).expect("a product");
        let error = backend.prepare(plan.finish()).expect_err("unknown sums").to_string();
        assert!(error.contains("unknown SumsId(9)"), "{error}");
    }
}
