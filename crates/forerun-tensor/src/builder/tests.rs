use super::*;
use crate::backend::{KvId, KvSpec, KvType, RingId, RingSpec};
use crate::plan::{Activation, AttentionShape, SharedExpert};
use crate::sums::{SumsId, SumsSpec};

fn weight(rows: usize, cols: usize, experts: usize) -> Weight {
    Weight { id: WeightId(0), rows, cols, experts }
}

fn kv(ring: bool) -> Kv {
    let (heads, key_dim, value_dim, ty) = (1, 4, 4, KvType::F16);
    let spec = KvSpec { slots: 1, capacity: 8, ring, heads, key_dim, value_dim, ty, block: 8 };
    Kv { id: KvId(0), spec }
}

const SHAPE: AttentionShape = AttentionShape { heads: 2, kv_heads: 1, key_dim: 4, value_dim: 4, q_stride: 4 };

fn attention(q: Act) -> AttentionOp {
    AttentionOp {
        q,
        gate: Gate::None,
        kv: KvId(0),
        shape: SHAPE,
        scale: 1.0,
        causal: true,
        window: None,
        advance: 0,
        out: q,
    }
}

type Record = fn(&mut PlanBuilder, Act, Act) -> Result<()>;

/// `x` has 8 columns of every row, `o` 8 columns of the output rows.
#[test]
fn operands_that_do_not_fit_are_refused() {
    let refused: &[(&str, Record)] = &[
        ("embed: the table is a stack", |b, _, _| b.embed(&weight(4, 8, 2), Ids::Step, 1.0).map(drop)),
        ("rms_norm: gain has 7 elements, expected 8", |b, x, _| {
            b.rms_norm(x, Some(&weight(1, 7, 1)), 0.0).map(drop)
        }),
        ("rms_norm: buffers of different shape", |b, x, o| b.rms_norm_into(x, None, 0.0, None, None, o)),
        ("rms_norm: groups of 3 of 8 columns", |b, x, _| {
            b.rms_norm_groups(x, &weight(1, 3, 1), 0.0, None, None).map(drop)
        }),
        ("rms_norm: gain has 8 elements, expected 4", |b, x, _| {
            b.rms_norm_groups(x, &weight(2, 4, 1), 0.0, None, None).map(drop)
        }),
        ("rms_norm: scale has 2 elements, expected 1", |b, x, _| {
            b.rms_norm_into(x, None, 0.0, None, Some(Scale::Weight(&weight(1, 2, 1))), x)
        }),
        ("mat_mul: weight of 7 columns for an input of 8", |b, x, _| {
            b.mat_mul(x, [&weight(2, 7, 1)]).map(drop)
        }),
        ("mat_mul: result", |b, x, o| b.mat_mul_add(x, &weight(8, 8, 1), o)),
        ("mat_mul: result", |b, x, _| b.mat_mul_add(x, &weight(8, 8, 1), x)),
        ("gated_mat_mul: gate [3, 8] and up [4, 8]", |b, x, _| {
            b.gated_mat_mul(x, &weight(3, 8, 1), &weight(4, 8, 1), Activation::Silu).map(drop)
        }),
        ("attention: 2 query heads for 0 KV heads", |b, x, _| {
            let shape = AttentionShape { kv_heads: 0, ..SHAPE };
            b.attention(AttentionOp { shape, ..attention(x) }, &kv(false)).map(drop)
        }),
        ("attention: window of Some(0)", |b, x, _| {
            b.attention(AttentionOp { window: Some(0), ..attention(x) }, &kv(false)).map(drop)
        }),
        ("attention: window of None", |b, x, _| b.attention(attention(x), &kv(true)).map(drop)),
        ("attention: heads of 4/4 elements 4 apart", |b, x, _| {
            b.attention(AttentionOp { gate: Gate::Interleaved, ..attention(x) }, &kv(false)).map(drop)
        }),
        ("attention: gate has Out rows", |b, x, o| {
            b.attention(AttentionOp { gate: Gate::Separate(o), ..attention(x) }, &kv(false)).map(drop)
        }),
        ("route: 9 of 8 experts", |b, x, _| b.route(x, RouterKind::SoftmaxRenormalised, 9).map(drop)),
        ("experts: the router has 8 columns, expected 2", |b, x, _| {
            let routes = b.route(x, RouterKind::SoftmaxRenormalised, 1)?;
            experts(b, x, routes, 2, None)
        }),
        ("experts: the shared expert's gate has 8 columns, expected 1", |b, x, _| {
            let routes = b.route(x, RouterKind::SoftmaxRenormalised, 1)?;
            experts(b, x, routes, 8, Some(SharedExpert { out: x, gate: x }))
        }),
        ("select: x has Out rows", |b, _, o| b.select(o).map(drop)),
        ("softcap: cap 0", |b, x, _| b.softcap(x, 0.0)),
        ("multiply: a buffer by itself", |b, x, _| b.multiply(x, Activation::Silu, x, 0)),
        ("multiply: 8 columns from 1 on of 8", |b, x, _| {
            let by = b.act(RowSet::Step, 8);
            b.multiply(x, Activation::Silu, by, 1)
        }),
        ("multiply: the factor has Out rows", |b, x, o| b.multiply(x, Activation::Silu, o, 0)),
        ("sample: token ids Some([3, 3])", |b, _, _| b.token_map([1, 3, 3].into()).map(drop)),
        ("sample: logits has 8 columns, expected 2", |b, _, o| {
            let map = b.token_map([1, 3].into())?;
            b.sample(o, Some(map), true).map(drop)
        }),
        ("concat: no parts", |b, _, _| b.concat(&[]).map(drop)),
        ("concat: a part has Out rows", |b, x, o| b.concat(&[x, o]).map(drop)),
        ("keep: x has 8 columns, expected 7", |b, x, _| {
            let spec = RingSpec { slots: 1, capacity: 4, cols: 7 };
            b.keep(x, &Ring { id: RingId(0), spec }, 0)
        }),
        ("sample: logits of step rows", |b, x, _| b.sample(x, None, true).map(drop)),
    ];
    for (message, record) in refused {
        let mut b = PlanBuilder::new(4, 4);
        let (x, o) = (b.act(RowSet::Step, 8), b.act(RowSet::Out, 8));
        let error = record(&mut b, x, o).expect_err(message).to_string();
        assert!(error.starts_with(&format!("operator {message}")), "{error}, expected {message}");
    }
}

fn experts(
    b: &mut PlanBuilder,
    x: Act,
    routes: Routes,
    n: usize,
    shared: Option<SharedExpert>,
) -> Result<()> {
    let (gate, down) = (weight(4, 8, n), weight(8, 4, n));
    let op = ExpertsOp {
        x,
        routes,
        gate: gate.id,
        up: gate.id,
        down: down.id,
        activation: Activation::Silu,
        shared,
        residual: Some(x),
        sums: ExpertSums::default(),
        out: x,
    };
    b.experts(op, [&gate, &gate, &down])
}

/// Weights that read one input add it up once, where they are collected.
#[test]
fn products_of_a_collection_add_up_what_they_read() {
    let weight = |id, rows, cols, experts| Weight { id: WeightId(id), rows, cols, experts };
    let (q, k, gate) = (weight(1, 8, 8, 1), weight(2, 4, 8, 1), weight(3, 6, 8, 1));
    let (up, down) = (weight(4, 6, 8, 1), weight(5, 8, 6, 1));
    let (gates, downs) = (weight(6, 4, 8, 3), weight(7, 8, 4, 3));
    let mut collection = Collection::default();
    for (w, sums) in [(q, 0), (k, 0), (up, 1), (down, 2), (gates, 3), (downs, 4)] {
        collection.insert(w.id, SumsId(sums), SumsSpec { matrices: w.experts, cols: w.cols });
    }
    let mut b = PlanBuilder::new(4, 4).collecting(Arc::new(collection.clone()));
    let x = b.act(RowSet::Step, 8);
    b.mat_mul(x, [&q, &k]).expect("products");
    let h = b.gated_mat_mul(x, &gate, &up, Activation::Silu).expect("a gated product");
    b.mat_mul_add(h, &down, x).expect("a product");
    let [logits] = b.mat_mul(x, [&weight(8, 3, 8, 1)]).expect("a router");
    let routes = b.route(logits, RouterKind::SoftmaxRenormalised, 2).expect("routes");
    let [gate, up] = [gates.id; 2];
    let (activation, sums, down) = (Activation::Silu, ExpertSums::default(), downs.id);
    let op = ExpertsOp { x, routes, gate, up, down, activation, shared: None, residual: None, sums, out: x };
    b.experts(op, [&gates, &gates, &downs]).expect("experts");
    let plan = b.finish_unshared();
    let found: Vec<(&str, Vec<u32>)> =
        plan.ops().iter().map(|op| (op.name(), op.sums().iter().map(|s| s.0).collect())).collect();
    let collect = |sums| ("collect", vec![sums]);
    let product = |name| (name, vec![]);
    let wanted = [
        collect(0),
        product("mat_mul"),
        collect(1),
        product("gated_mat_mul"),
        collect(2),
        product("mat_mul"),
        product("mat_mul"),
        product("route"),
        ("experts", vec![3, 4]),
    ];
    assert_eq!(found, wanted);

    collection.insert(q.id, SumsId(0), SumsSpec { matrices: 2, cols: 8 });
    let mut b = PlanBuilder::new(4, 4).collecting(Arc::new(collection));
    let x = b.act(RowSet::Step, 8);
    let error = b.mat_mul(x, [&q]).expect_err("sums of another shape").to_string();
    assert!(error.starts_with("operator mat_mul: SumsSpec"), "{error}");
}
