//! What a draft block uses beside the model's operators: concatenation, rings, mapped heads, queries of output rows only.

use std::collections::HashMap;

use forerun_tensor::{PlanId, Ring, RingId, RingSpec};

use super::*;

/// Steps whose output rows are few: in some no sequence has any, in some one has all.
fn sparse_script(rng: &mut Rng) -> Vec<StepRows> {
    let mut steps = script(rng);
    for step in &mut steps {
        let (mut first, mut silent) = (0, Vec::new());
        for seq in &step.seqs {
            if rng.below(3) == 0 {
                silent.push(first..first + seq.rows);
            }
            first += seq.rows;
        }
        step.out.retain(|o| rng.below(3) > 0 && !silent.iter().any(|s| s.contains(&o.row)));
    }
    steps
}

/// Keys and values of every row, queries and gates of output rows.
fn output_attention(r: &mut Recorder<'_>) {
    let x = r.input();
    let last = Buf(r.plan.select(x.0).expect("select"), x.1);
    let key_dim = r.rng.of(&[7, 16, 33, 48, 80]);
    let gate_kind = r.rng.below(3);
    let value_dim = if gate_kind == 1 { key_dim } else { r.rng.of(&[5, 16, 40, 64]) };
    let kv_heads = 1 + r.rng.below(3);
    let heads = kv_heads * r.rng.of(&[1, 2, 3, 5]);
    let q_stride = if gate_kind == 1 { 2 * key_dim } else { key_dim };
    let shape = AttentionShape { heads, kv_heads, key_dim, value_dim, q_stride };
    let spec = KvSpec {
        slots: SLOTS as usize,
        capacity: CONTEXT,
        ring: false,
        heads: kv_heads,
        key_dim,
        value_dim,
        ty: r.kv,
        block: r.rng.of(&[8, 16, 24, 64]),
    };
    let kv = Kv { id: r.backend.new_kv(&spec).expect("kv"), spec };
    let (k, v) = (r.product(x, kv_heads * key_dim), r.product(x, kv_heads * value_dim));
    let q = r.product(last, heads * q_stride);
    let gate = match gate_kind {
        0 => Gate::None,
        1 => Gate::Interleaved,
        _ => Gate::Separate(r.product(last, heads * value_dim).0),
    };
    let norms = [r.vector(key_dim, 1.0), r.vector(key_dim, 1.0)];
    let norms = if r.rng.yes() { norms.each_ref().map(Some) } else { [None, None] };
    let rope = r.rope(key_dim);
    for (q, kv_of) in [(None, Some((k.0, v.0))), (Some(q.0), None)] {
        let op = RopeKvOp {
            q,
            k: kv_of.map(|(k, _)| k),
            v: kv_of.map(|(_, v)| v),
            q_norm: None,
            k_norm: None,
            v_norm: false,
            eps: 1e-6,
            shape,
            rope,
            kv: kv.id,
            advance: 0,
        };
        r.plan.rope_kv(op, norms, &kv).expect("rope_kv");
    }
    r.tap(q);
    let op = AttentionOp {
        q: q.0,
        gate,
        kv: kv.id,
        shape,
        scale: 1.0 / (key_dim as f32).sqrt(),
        causal: r.rng.below(3) > 0,
        window: r.rng.of(&[None, None, Some(1), Some(7), Some(33)]),
        advance: 0,
        out: q.0,
    };
    let y = Buf(r.plan.attention(op, &kv).expect("attention"), heads * value_dim);
    r.tap(y);
    if (heads * value_dim).is_multiple_of(r.ty.block_elements()) {
        let z = r.product(y, 19);
        r.tap(z);
    }
}

#[test]
fn attention_of_output_rows_agrees() {
    check_steps("attention of output rows", (output_attention, sparse_script), 36, cached_bound);
}

/// Parts of different width, of step rows and of output rows, one buffer twice; a product reads the whole.
fn concat(r: &mut Recorder<'_>) {
    let x = r.input();
    let n = r.width();
    let y = r.product(x, n);
    let all = Buf(r.plan.concat(&[y.0, x.0, y.0]).expect("concat"), 2 * n + x.1);
    r.tap(all);
    let z = r.product(all, 23);
    r.tap(z);
    let (x, z) = (r.plan.select(x.0).expect("select"), r.plan.select(z.0).expect("select"));
    let out = r.plan.concat(&[z, x]).expect("concat");
    r.plan.output(out);
}

#[test]
fn concatenations_agree() {
    check_steps("concat", (concat, sparse_script), 18, products_bound);
}

/// A ring between two norms: its rows are read as they were written, and a product reads them.
fn kept(r: &mut Recorder<'_>) {
    let x = r.input();
    let spec = RingSpec { slots: SLOTS as usize, capacity: MAX_ROWS, cols: x.1 };
    let ring = Ring { id: r.backend.new_ring(&spec).expect("ring"), spec };
    r.plan.keep(x.0, &ring, 0).expect("keep");
    let y = Buf(r.plan.recall(&ring), x.1);
    r.tap(y);
    let z = r.product(y, 17);
    r.tap(z);
}

#[test]
fn kept_rows_agree() {
    check_steps("keep and recall", (kept, sparse_script), 12, products_bound);
}

/// Ascending ids below `limit`, about one of three; 3 is there or not.
fn some_ids(rng: &mut Rng, limit: u32) -> Vec<u32> {
    let with_three = rng.yes();
    (0..limit).filter(|id| if *id == 3 { with_three } else { rng.below(3) == 0 || *id == 5 }).collect()
}

/// A reduced head, the embedding of what it chose, and a reduced head of several parts.
fn mapped_choices(r: &mut Recorder<'_>) {
    let x = r.input();
    let last = Buf(r.plan.select(x.0).expect("select"), x.1);
    let ids = some_ids(&mut r.rng, VOCABULARY as u32);
    let logits = r.product(last, ids.len());
    let map = r.plan.token_map(ids.into()).expect("ids");
    let picks = r.plan.sample(logits.0, Some(map), false).expect("sample");
    let next = r.embed(x.1, Ids::Picked(picks));
    r.tap(next);
    let next = Buf(r.plan.rms_norm(next.0, None, 1e-6).expect("norm"), x.1);
    let ids = some_ids(&mut r.rng, 15_000);
    assert!(ids.len() > 4096, "more than one unit of the sampler's work");
    let logits = r.product(next, ids.len());
    let map = r.plan.token_map(ids.into()).expect("ids");
    r.plan.sample(logits.0, Some(map), true).expect("sample");
}

#[test]
fn mapped_choices_agree() {
    check("mapped choices", mapped_choices, 12, chosen_bound);
}

/// Columns that stand for tokens 2, 7 and 11, of known logits.
#[test]
fn mapped_columns_are_their_tokens() {
    let (values, ids) = ([1.0_f32, 1.5, 1.5], [2_u32, 7, 11]);
    let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
    let mut plan = PlanBuilder::new(1, 1);
    let table = floats(&mut cpu, 1, &values);
    let x = plan.embed(&table, Ids::Step, 1.0).expect("embed");
    let logits = plan.select(x).expect("select");
    let map = plan.token_map(ids.into()).expect("ids");
    plan.sample(logits, Some(map), true).expect("sample");
    let plan = cpu.prepare(plan.finish()).expect("prepare");
    let mut pick = |pick| {
        let step = StepRows { out: vec![OutRow { row: 0, pick, logits: true }], ..one_row(0, 0, &[0]) };
        let out = submit(&mut cpu, plan, &step);
        assert_eq!(out.logits, values);
        (out.picked[0].token, out.picked[0].logit)
    };
    assert_eq!(pick(Pick::Greedy), (7, 1.5));
    assert_eq!(pick(Pick::Given(2)), (2, 1.0));
    assert_eq!(pick(Pick::Given(11)), (11, 1.5));
    for outside in [0, 8, 12, u32::MAX] {
        let (token, logit) = pick(Pick::Given(outside));
        assert!(token == outside && logit.is_nan(), "{token}: {logit}");
    }
    for position in 0..100 {
        let value = |i: usize| values[i] / 0.7 + forerun_tensor::noise::gumbel(5, position, ids[i]);
        let best = (0..3).max_by(|a, b| value(*a).total_cmp(&value(*b))).expect("a column");
        let noisy = Pick::Noise { temperature: 0.7, seed: 5, position };
        assert_eq!(pick(noisy), (ids[best], values[best]), "position {position}");
    }
}

/// A table of float32 rows.
fn floats(backend: &mut dyn Backend, rows: usize, values: &[f32]) -> Weight {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let cols = values.len() / rows;
    let data = WeightData {
        name: "w".into(),
        ty: TensorType::F32,
        rows,
        cols,
        experts: 1,
        expert_stride: bytes.len(),
        bytes: bytes.into(),
        usage: WeightUse::Table,
    };
    Weight { id: backend.load(&data).expect("load").id, rows, cols, experts: 1 }
}

fn one_row(slot: u32, pos: u32, tokens: &[u32]) -> StepRows {
    let seqs = vec![SeqRows { slot, pos, rows: tokens.len() as u32, replay: 0, commit: true }];
    StepRows { seqs, tokens: tokens.to_vec(), out: vec![] }
}

fn submit(backend: &mut dyn Backend, plan: PlanId, step: &StepRows) -> StepOut {
    let ticket = backend.submit(plan, step).unwrap_or_else(|e| panic!("{e}"));
    let mut out = StepOut::default();
    backend.wait(ticket, &mut out).expect("wait");
    out
}

/// Position and token of each place of a slot's ring.
#[derive(Default)]
struct Places(HashMap<(u32, usize), (usize, u32)>);

impl Places {
    /// A written position ends its sequence: those after it are another's.
    fn put(&mut self, slot: u32, pos: usize, token: u32) {
        self.0.retain(|(s, _), (p, _)| *s != slot || *p < pos);
        self.0.insert((slot, pos % CAPACITY), (pos, token));
    }

    fn get(&self, slot: u32, pos: usize) -> Option<u32> {
        self.0.get(&(slot, pos % CAPACITY)).filter(|(at, _)| *at == pos).map(|(_, token)| *token)
    }

    /// One past the last position of a slot.
    fn end(&self, slot: u32) -> usize {
        self.0.iter().filter(|((s, _), _)| *s == slot).map(|(_, (p, _))| p + 1).max().unwrap_or(0)
    }
}

const CAPACITY: usize = 7;
const AHEAD: usize = 3;

/// Plans over one ring: writing every row, writing output rows further ahead, reading.
fn ring_plans(backend: &mut dyn Backend) -> [PlanId; 3] {
    let rows: Vec<f32> = (0..VOCABULARY as i32).flat_map(|t| [t, -t, 2 * t].map(|v| v as f32)).collect();
    let table = floats(backend, VOCABULARY, &rows);
    let spec = RingSpec { slots: SLOTS as usize, capacity: CAPACITY, cols: 3 };
    let ring = Ring { id: backend.new_ring(&spec).expect("ring"), spec };
    [0, 1, 2].map(|kind| {
        let mut plan = PlanBuilder::new(MAX_ROWS, MAX_OUT);
        let x = plan.embed(&table, Ids::Step, 1.0).expect("embed");
        match kind {
            0 => plan.keep(x, &ring, 0).expect("keep"),
            1 => {
                let out = plan.select(x).expect("select");
                plan.keep(out, &ring, AHEAD as u32).expect("keep");
            }
            _ => {
                let y = plan.recall(&ring);
                plan.output(y);
            }
        }
        backend.prepare(plan.finish()).expect("prepare")
    })
}

/// Random writes, copies and reads against a map of places.
fn play(backend: &mut dyn Backend, seed: u64) {
    let [keep, ahead, recall] = ring_plans(backend);
    let (mut rng, mut places) = (Rng(seed, 0), Places::default());
    for _ in 0..60 {
        let (slot, other) = (rng.below(3) as u32, rng.below(3) as u32);
        let pos = rng.below(4 + places.end(slot));
        let tokens: Vec<u32> = (0..1 + rng.below(CAPACITY)).map(|_| rng.below(VOCABULARY) as u32).collect();
        let mut step = one_row(slot, pos as u32, &tokens);
        match rng.below(3) {
            0 => {
                // A row of another slot comes after them.
                step.seqs.push(SeqRows {
                    slot: (slot + 1) % SLOTS,
                    pos: 9,
                    rows: 1,
                    replay: 0,
                    commit: true,
                });
                step.tokens.push(1);
                submit(backend, keep, &step);
                tokens.iter().enumerate().for_each(|(i, t)| places.put(slot, pos + i, *t));
                places.put((slot + 1) % SLOTS, 9, 1);
            }
            1 => {
                let out = OutRow { row: tokens.len() as u32 - 1, pick: Pick::None, logits: false };
                submit(backend, ahead, &StepRows { out: vec![out], ..step });
                places.put(slot, pos + tokens.len() - 1 + AHEAD, tokens[tokens.len() - 1]);
            }
            _ => {
                if let Some(token) = places.get(slot, pos) {
                    backend.copy_ring(RingId(0), slot, other, pos as u32).expect("copy_ring");
                    if slot != other {
                        places.put(other, pos, token);
                    }
                }
            }
        }
        for (slot, pos) in (0..SLOTS).flat_map(|s| (0..50).map(move |p| (s, p))) {
            let Some(token) = places.get(slot, pos) else { continue };
            let out = submit(backend, recall, &one_row(slot, pos as u32, &[0]));
            let token = token as f32;
            assert_eq!(out.taps[0], [token, -token, 2.0 * token], "seed {seed}, slot {slot}, position {pos}");
        }
    }
}

#[test]
fn rings_hold_what_was_written_last() {
    for seed in 0..8 {
        let threads = NonZeroUsize::new(1 + seed as usize % 3);
        let config = CpuConfig { threads, ..CpuConfig::default() };
        play(&mut CpuBackend::new(&config).expect("a backend"), seed);
        play(&mut ReferenceBackend::new(), seed);
    }
}

#[test]
fn rings_that_do_not_exist_are_refused() {
    let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
    let [keep, _, recall] = ring_plans(&mut cpu);
    let long = one_row(0, 0, &[1; CAPACITY + 1]);
    for (plan, step, wanted) in [
        (keep, one_row(SLOTS, 0, &[1]), "slot 3"),
        (recall, one_row(SLOTS, 0, &[1]), "slot 3"),
        (keep, long.clone(), "8 rows, the ring has 3 slots of 7 rows"),
        (recall, long, "8 rows, the ring has 3 slots of 7 rows"),
    ] {
        let error = cpu.submit(plan, &step).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    for (from, to) in [(0, SLOTS), (SLOTS, 0)] {
        let error = cpu.copy_ring(RingId(0), from, to, 0).expect_err("no such slot").to_string();
        assert!(error.contains("expected slots below 3"), "{error}");
    }
    let spec = RingSpec { slots: 1, capacity: 2, cols: 3 };
    assert!(cpu.new_ring(&RingSpec { cols: 0, ..spec.clone() }).is_err());
    let far = Ring { id: RingId(9), spec };
    for write in [true, false] {
        let mut plan = PlanBuilder::new(2, 1);
        if write {
            let x = plan.act(RowSet::Step, 3);
            plan.keep(x, &far, 0).expect("keep");
        } else {
            plan.recall(&far);
        }
        let error = cpu.prepare(plan.finish()).expect_err("no such ring").to_string();
        assert!(error.contains("unknown RingId(9)"), "{error}");
    }
}

/// A token that a later operator embeds must be in its table, whoever chose it.
#[test]
fn chosen_tokens_outside_the_table_are_refused() {
    let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
    let mut reference = ReferenceBackend::new();
    let backends: [&mut dyn Backend; 2] = [&mut cpu, &mut reference];
    for backend in backends {
        let table = floats(backend, 4, &[0.5; 8]);
        let mut plan = PlanBuilder::new(1, 1);
        let x = plan.embed(&table, Ids::Step, 1.0).expect("embed");
        let logits = plan.select(x).expect("select");
        let far = plan.token_map([1, 4].into()).expect("ids");
        let picks = plan.sample(logits, Some(far), false).expect("sample");
        let error = plan.embed(&table, Ids::Picked(picks), 1.0).expect_err("token 4").to_string();
        assert!(error.contains("operator embed: token 4 may be chosen, the table has 4 rows"), "{error}");
        let near = plan.token_map([1, 3].into()).expect("ids");
        let picks = plan.sample(logits, Some(near), true).expect("sample");
        plan.embed(&table, Ids::Picked(picks), 1.0).expect("embed");
        let plan = backend.prepare(plan.finish()).expect("prepare");
        let step = |token| StepRows {
            out: vec![OutRow { row: 0, pick: Pick::Given(token), logits: false }],
            ..one_row(0, 0, &[0])
        };
        let error = backend.submit(plan, &step(4)).expect_err("token 4").to_string();
        assert!(error.contains("row 0") && error.contains("below 4"), "{error}");
        assert_eq!(submit(backend, plan, &step(2)).picked[0].token, 2);
    }
}

/// Rows that do not follow what a state has taken in are refused, and the state stays where it was.
#[test]
fn rows_that_do_not_follow_the_state_are_refused() {
    let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
    let (ty, kv) = (TensorType::F32, KvType::F16);
    let mut r =
        Recorder { backend: &mut cpu, plan: PlanBuilder::new(MAX_ROWS, MAX_OUT), rng: Rng(1, 0), ty, kv };
    delta_net(&mut r);
    let Recorder { plan, .. } = r;
    let plan = cpu.prepare(plan.finish()).expect("prepare");
    let mut run = |pos, rows, replay, commit, refused: Option<&str>| {
        let seqs = vec![SeqRows { slot: 0, pos, rows, replay, commit }];
        let step = StepRows { seqs, tokens: vec![1; rows as usize], out: Vec::new() };
        let error = cpu.submit(plan, &step).err().map(|e| e.to_string());
        let as_wanted = match (&error, refused) {
            (Some(found), Some(wanted)) => found.contains(wanted),
            (found, wanted) => found.is_none() && wanted.is_none(),
        };
        assert!(as_wanted, "{rows} rows at {pos}, {replay} replayed: {error:?}, expected {refused:?}");
    };
    run(0, 3, 0, true, None);
    run(2, 1, 0, true, Some("stands at 3"));
    run(4, 1, 0, true, Some("stands at 3"));
    run(3, 4, 0, false, None);
    run(7, 1, 3, true, Some("stands at 3"));
    run(5, 2, 2, true, None);
    run(5, 1, 0, true, Some("stands at 7"));
    run(0, 1, 0, true, None);
    run(1, 1, 0, true, None);
}
