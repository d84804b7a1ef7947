//! Every operator on random shapes: the CPU backend is close to the reference backend, and has one result, to the bit, on
//! every instruction set and any number of threads.

mod drafting;
mod parts;
mod sums;

use std::num::NonZeroUsize;

use forerun_cpu::{CpuBackend, CpuConfig, Isa};
use forerun_quant::{TensorType, random_rows};
use forerun_tensor::reference::ReferenceBackend;
use forerun_tensor::{
    Act, Activation, AttentionOp, AttentionShape, Backend, DeltaNetOp, DeltaShape, ExpertSums, ExpertsOp,
    Gate, Ids, Kv, KvId, KvSpec, KvType, OutRow, Pick, PlanBuilder, RopeId, RopeKvOp, RopeSpec, RouterKind,
    RowSet, Scale, SeqRows, SharedExpert, State, StateId, StateSpec, StepOut, StepRows, Weight, WeightData,
    WeightId, WeightUse,
};

const MAX_ROWS: usize = 40;
const MAX_OUT: usize = 8;
const SLOTS: u32 = 3;
const VOCABULARY: usize = 37;
const TAPE: usize = 12;
const CONTEXT: usize = 97;

/// Numbers that look random and are the same in every run.
#[derive(Clone)]
struct Rng(u64, u32);

impl Rng {
    fn next(&mut self) -> u32 {
        self.1 += 1;
        forerun_tensor::noise::word(self.0, 0, self.1)
    }
    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }
    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
    fn yes(&mut self) -> bool {
        self.below(2) == 1
    }
}

/// A buffer with its columns.
#[derive(Clone, Copy)]
struct Buf(Act, usize);

/// A backend that is being given a small model, and the plan that is recorded on it. Equal seeds make equal plans.
struct Recorder<'a> {
    backend: &'a mut dyn Backend,
    plan: PlanBuilder,
    rng: Rng,
    /// Type of the matrices.
    ty: TensorType,
    kv: KvType,
}

impl Recorder<'_> {
    fn load(&mut self, ty: TensorType, [experts, rows, cols]: [usize; 3], usage: WeightUse) -> WeightData {
        let gap = if experts > 1 { 3 } else { 0 };
        let bytes =
            random_rows(ty, experts * (rows + gap), cols, u64::from(self.rng.next())).expect("blocks");
        let expert_stride = (rows + gap) * ty.row_bytes(cols).expect("blocks");
        WeightData { name: "w".into(), ty, rows, cols, experts, expert_stride, bytes: bytes.into(), usage }
    }

    fn give(&mut self, data: &WeightData) -> Weight {
        let id = self.backend.load(data).expect("load").id;
        Weight { id, rows: data.rows, cols: data.cols, experts: data.experts }
    }

    fn stack(&mut self, experts: usize, rows: usize, cols: usize) -> Weight {
        let data = self.load(self.ty, [experts, rows, cols], WeightUse::Matrix);
        self.give(&data)
    }

    /// A vector of `shift` and a third of noise.
    fn vector(&mut self, len: usize, shift: f32) -> Weight {
        let mut data = self.load(TensorType::F32, [1, 1, len], WeightUse::Vector);
        let scale = (len as f32).sqrt() * 0.3;
        let values = data.bytes.as_chunks::<4>().0.iter().map(|b| shift + scale * f32::from_le_bytes(*b));
        data.bytes = values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>().into();
        self.give(&data)
    }

    /// Columns that the type's products can read.
    fn width(&mut self) -> usize {
        let block = self.ty.block_elements();
        if block == 1 {
            1 + self.rng.below(150)
        } else {
            block * (1 + self.rng.below(if block > 32 { 2 } else { 5 }))
        }
    }

    /// A product of `x` with a new matrix.
    fn product(&mut self, x: Buf, rows: usize) -> Buf {
        let w = self.stack(1, rows, x.1);
        Buf(self.plan.mat_mul(x.0, [&w]).expect("mat_mul")[0], rows)
    }

    fn embed(&mut self, cols: usize, ids: Ids) -> Buf {
        let usage = self.rng.of(&[WeightUse::Table, WeightUse::TiedTable]);
        let data = self.load(self.ty, [1, VOCABULARY, cols], usage);
        let table = self.give(&data);
        let scale = self.rng.of(&[1.0, 5.5]);
        // Rows of deviation 1/√cols would leave products near 0.
        Buf(self.plan.embed(&table, ids, scale).expect("embed"), cols)
    }

    fn input(&mut self) -> Buf {
        let cols = self.width();
        let x = self.embed(cols, Ids::Step);
        Buf(self.plan.rms_norm(x.0, None, 1e-6).expect("norm"), cols)
    }

    fn tap(&mut self, x: Buf) {
        self.plan.output(x.0);
    }

    fn rope(&mut self, dim: usize) -> RopeId {
        let pairs = self.rng.of(&[0, dim / 8, dim / 2]);
        let frequencies = (0..pairs).map(|i| 0.7 / (1 + 3 * i) as f64).collect();
        let scale = self.rng.of(&[1.0, 1.1]);
        self.plan.rope(RopeSpec { frequencies, scale })
    }
}

fn norms(r: &mut Recorder<'_>) {
    let x = r.input();
    let gain = r.vector(x.1, 1.0);
    let scale = r.vector(1, 1.3);
    let y = Buf(r.plan.rms_norm(x.0, Some(&gain), 1e-5).expect("norm"), x.1);
    r.tap(y);
    let factor = r.rng.of(&[Scale::Weight(&scale), Scale::Constant(0.7)]);
    r.plan.rms_norm_into(x.0, None, 1e-6, Some(y.0), Some(factor), y.0).expect("norm");
    r.tap(y);
    r.plan.rms_norm_into(y.0, Some(&gain), 1e-6, Some(x.0), None, y.0).expect("norm");
    r.tap(y);
}

fn products(r: &mut Recorder<'_>) {
    let x = r.input();
    let rows = [1 + r.rng.below(20), 16, 1 + r.rng.below(90)];
    let w = rows.map(|n| r.stack(1, n, x.1));
    let y = r.plan.mat_mul(x.0, [&w[0], &w[1], &w[2]]).expect("mat_mul");
    y.into_iter().zip(rows).for_each(|(y, n)| r.tap(Buf(y, n)));
    let hidden = r.width();
    for activation in [Activation::Silu, Activation::GeluTanh] {
        let (gate, up) = (r.stack(1, hidden, x.1), r.stack(1, hidden, x.1));
        let h = Buf(r.plan.gated_mat_mul(x.0, &gate, &up, activation).expect("gated"), hidden);
        r.tap(h);
        let down = r.stack(1, x.1, hidden);
        r.plan.mat_mul_add(h.0, &down, x.0).expect("mat_mul_add");
        r.tap(x);
    }
}

fn attention(r: &mut Recorder<'_>) {
    let x = r.input();
    let key_dim = r.rng.of(&[16, 48, 80, 256]);
    let gate_kind = r.rng.below(3);
    let value_dim = if gate_kind == 1 { key_dim } else { r.rng.of(&[16, 40, 48, 80, 256]) };
    let kv_heads = 1 + r.rng.below(3);
    let heads = kv_heads * r.rng.of(&[1, 2, 3, 5]);
    let q_stride = if gate_kind == 1 { 2 * key_dim } else { key_dim };
    let shape = AttentionShape { heads, kv_heads, key_dim, value_dim, q_stride };
    let ring = r.rng.yes();
    let window =
        if ring { Some(1 + r.rng.below(20) as u32) } else { r.rng.of(&[None, None, Some(7), Some(33)]) };
    let spec = KvSpec {
        slots: SLOTS as usize,
        capacity: if ring { 64 } else { CONTEXT },
        ring,
        heads: kv_heads,
        key_dim,
        value_dim,
        ty: r.kv,
        block: r.rng.of(&[8, 16, 24, 64]),
    };
    let kv = Kv { id: r.backend.new_kv(&spec).expect("kv"), spec };
    let q = r.product(x, heads * q_stride);
    let k = r.product(x, kv_heads * key_dim);
    let v = if value_dim == key_dim && r.rng.yes() { k } else { r.product(x, kv_heads * value_dim) };
    let gate = match gate_kind {
        0 => Gate::None,
        1 => Gate::Interleaved,
        _ => Gate::Separate(r.product(x, heads * value_dim).0),
    };
    let norms = [r.vector(key_dim, 1.0), r.vector(key_dim, 1.0)];
    let norms = [r.rng.yes().then_some(&norms[0]), r.rng.yes().then_some(&norms[1])];
    let rope = r.rope(key_dim);
    let advance = r.rng.of(&[0, 0, 1]);
    let v_norm = r.rng.yes();
    for step in 0..=advance {
        // The second time, queries are in place already.
        let op = RopeKvOp {
            q: (step == advance).then_some(q.0),
            k: Some(k.0),
            v: Some(v.0),
            q_norm: None,
            k_norm: None,
            v_norm,
            eps: 1e-6,
            shape,
            rope,
            kv: KvId(0),
            advance: step,
        };
        r.plan.rope_kv(op, norms, &kv).expect("rope_kv");
    }
    r.tap(q);
    let op = AttentionOp {
        q: q.0,
        gate,
        kv: KvId(0),
        shape,
        scale: 1.0 / (key_dim as f32).sqrt(),
        causal: advance == 1 || r.rng.below(3) > 0,
        window,
        advance,
        out: q.0,
    };
    let y = Buf(r.plan.attention(op, &kv).expect("attention"), heads * value_dim);
    r.tap(y);
    if (heads * value_dim).is_multiple_of(r.ty.block_elements()) {
        let z = r.product(y, 19);
        r.tap(z);
    }
}

fn delta_net(r: &mut Recorder<'_>) {
    let x = r.input();
    let key_heads = 1 + r.rng.below(3);
    let shape = DeltaShape {
        key_heads,
        value_heads: key_heads * r.rng.of(&[1, 2, 3]),
        key_dim: r.rng.of(&[16, 20, 48, 80]),
        value_dim: r.rng.of(&[16, 24, 48, 80]),
        conv: 1 + r.rng.below(4),
        interleaved: r.rng.yes(),
    };
    let spec = StateSpec { slots: SLOTS as usize, shape, tape: TAPE };
    let state = State { id: r.backend.new_state(&spec).expect("state"), spec };
    let [qkv, z, alpha, beta] = [shape.conv_cols(), shape.value_cols(), shape.value_heads, shape.value_heads]
        .map(|n| r.product(x, n));
    let vectors = [
        r.vector(shape.conv_cols() * shape.conv, 0.0),
        r.vector(shape.value_heads, 0.0),
        r.vector(shape.value_heads, -1.0),
        r.vector(shape.value_dim, 1.0),
    ];
    let none = WeightId(0);
    let op = DeltaNetOp {
        qkv: qkv.0,
        z: z.0,
        alpha: alpha.0,
        beta: beta.0,
        conv: none,
        dt_bias: none,
        a: none,
        norm: none,
        state: StateId(0),
        shape,
        eps: 1e-6,
        out: z.0,
    };
    let y = r.plan.delta_net(op, vectors.each_ref(), &state).expect("delta_net");
    let y = Buf(y, shape.value_cols());
    r.tap(y);
    if shape.value_cols().is_multiple_of(r.ty.block_elements()) {
        let out = r.product(y, 21);
        r.tap(out);
    }
}

fn experts(r: &mut Recorder<'_>) {
    let x = r.input();
    let n = 1 + r.rng.below(12);
    let top_k = 1 + r.rng.below(n.min(5));
    let router = r.load(TensorType::F32, [1, n, x.1], WeightUse::Matrix);
    let router = r.give(&router);
    let logits = r.plan.mat_mul(x.0, [&router]).expect("router")[0];
    let kind = if r.rng.yes() {
        RouterKind::SoftmaxRenormalised
    } else {
        RouterKind::SoftmaxRenormalisedScaled(r.vector(n, 1.0).id)
    };
    let routes = r.plan.route(logits, kind, top_k).expect("route");
    let hidden = r.width();
    let (gate, up, down) = (r.stack(n, hidden, x.1), r.stack(n, hidden, x.1), r.stack(n, x.1, hidden));
    let shared = r.rng.yes().then(|| {
        let (out, gate) = (r.product(x, x.1), r.product(x, 1));
        SharedExpert { out: out.0, gate: gate.0 }
    });
    let op = ExpertsOp {
        x: x.0,
        routes,
        gate: gate.id,
        up: up.id,
        down: down.id,
        activation: r.rng.of(&[Activation::Silu, Activation::GeluTanh]),
        shared,
        residual: r.rng.yes().then_some(x.0),
        sums: ExpertSums::default(),
        out: r.plan.act(RowSet::Step, x.1),
    };
    r.plan.experts(op, [&gate, &up, &down]).expect("experts");
    r.tap(Buf(op.out, x.1));
    let z = r.product(Buf(op.out, x.1), 33);
    r.tap(z);
}

/// A head, a chain of one draft, and another head.
fn choices(r: &mut Recorder<'_>) {
    let x = r.input();
    let last = Buf(r.plan.select(x.0).expect("select"), x.1);
    r.tap(last);
    let logits = r.product(last, VOCABULARY);
    let picks = r.plan.sample(logits.0, None, false).expect("sample");
    let next = r.embed(x.1, Ids::Picked(picks));
    r.tap(next);
    let next = Buf(r.plan.rms_norm(next.0, None, 1e-6).expect("norm"), x.1);
    // More ids than one unit of the sampler's work.
    let logits = r.product(next, 9001);
    if r.rng.yes() {
        r.plan.softcap(logits.0, 3.0).expect("softcap");
    }
    r.plan.sample(logits.0, None, true).expect("sample");
}

/// Steps of every form: several sequences, chunks and single rows, rows on the tape of which some or none are kept.
fn script(rng: &mut Rng) -> Vec<StepRows> {
    let mut at = [(0, 0); SLOTS as usize];
    let mut steps = Vec::new();
    for _ in 0..7 {
        let mut step = StepRows::default();
        for slot in 0..SLOTS {
            let (base, taped) = at[slot as usize];
            let room = MAX_ROWS - step.tokens.len();
            if room == 0 || (rng.below(4) == 0 && slot > 0) {
                continue;
            }
            let mut replay = rng.below(taped + 1);
            let mut pos = base + replay;
            let commit = rng.yes();
            let most = room.min(if commit { 36 } else { TAPE });
            let rows = if rng.below(3) == 0 { 1 } else { 1 + rng.below(most) };
            if pos + rows + 2 > CONTEXT {
                (pos, replay) = (0, 0);
            }
            let seq = SeqRows { slot, pos: pos as u32, rows: rows as u32, replay: replay as u32, commit };
            step.seqs.push(seq);
            step.tokens.extend((0..rows).map(|_| rng.below(VOCABULARY) as u32));
            at[slot as usize] = if commit { (pos + rows, 0) } else { (pos, rows) };
        }
        let rows = step.tokens.len();
        for row in (0..rows as u32).filter(|r| rows <= MAX_OUT || r % (rows.div_ceil(MAX_OUT) as u32) == 0) {
            let noise = Pick::Noise {
                temperature: rng.of(&[0.3, 0.8, 2.0]),
                seed: u64::from(rng.next()),
                position: row,
            };
            let pick = rng.of(&[Pick::Greedy, noise, noise, Pick::Given(3)]);
            step.out.push(OutRow { row, pick, logits: rng.yes() });
        }
        steps.push(step);
    }
    steps
}

type Record = fn(&mut Recorder<'_>);
type Script = fn(&mut Rng) -> Vec<StepRows>;

/// What every step of a case gives on a backend.
fn run(
    backend: &mut dyn Backend,
    (record, script): (Record, Script),
    seed: u64,
    ty: TensorType,
    kv: KvType,
) -> Vec<StepOut> {
    let plan = PlanBuilder::new(MAX_ROWS, MAX_OUT);
    let mut r = Recorder { backend, plan, rng: Rng(seed, 0), ty, kv };
    record(&mut r);
    let Recorder { backend, plan, mut rng, .. } = r;
    let plan = backend.prepare(plan.finish()).expect("prepare");
    let one = |step: &StepRows| {
        let ticket = backend.submit(plan, step).unwrap_or_else(|e| panic!("{e}"));
        let mut out = StepOut::default();
        backend.wait(ticket, &mut out).expect("wait");
        out
    };
    script(&mut rng).iter().map(one).collect()
}

fn nmse(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "lengths");
    let square = |x: f64| x * x;
    let error: f64 = got.iter().zip(want).map(|(g, w)| square(f64::from(*g) - f64::from(*w))).sum();
    let nmse = error / want.iter().map(|w| square(f64::from(*w))).sum::<f64>().max(1e-30);
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

fn bits(out: &[StepOut]) -> Vec<u32> {
    let mut all = Vec::new();
    for o in out {
        for p in &o.picked {
            all.extend([p.token, p.logit.to_bits(), p.log_sum.to_bits(), u32::from(p.nan)]);
        }
        all.extend(o.logits.iter().chain(o.taps.iter().flatten()).map(|v| v.to_bits()));
    }
    all
}

fn compare(what: &str, got: &[StepOut], want: &[StepOut], bound: f64, tokens: bool) {
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        for (tap, (got, want)) in got.taps.iter().zip(&want.taps).enumerate() {
            let e = nmse(got, want);
            assert!(e <= bound, "{what}: step {i}, tap {tap}: NMSE {e:.1e}, bound {bound:.0e}");
        }
        if tokens {
            let e = nmse(&got.logits, &want.logits);
            assert!(e <= bound, "{what}: step {i}: NMSE of the logits {e:.1e}");
            for (got, want) in got.picked.iter().zip(&want.picked) {
                assert_eq!(got.token, want.token, "{what}: step {i}");
                assert!((got.log_sum - want.log_sum).abs() < 1e-4, "{what}: step {i}: {got:?} for {want:?}");
            }
        }
    }
}

/// The NMSE that a case may have against the reference; `None` where the two need not agree.
type Bound = fn(TensorType, KvType) -> Option<f64>;

/// Activations of integer products are rounded to 8 bits: the reference only guards against plain mistakes there.
fn products_bound(ty: TensorType, _: KvType) -> Option<f64> {
    Some(if ty.is_integer_dot() { 3e-3 } else { 1e-10 })
}

/// A cache rounds; a value near the middle of two may go the other way.
fn cached_bound(ty: TensorType, kv: KvType) -> Option<f64> {
    let rounding = match kv {
        KvType::F32 => 0.0,
        KvType::F16 => 1e-7,
        KvType::Q8_0 => 1e-5,
    };
    products_bound(ty, kv).map(|b| b.max(rounding))
}

/// Rounded activations may choose another token, and then nothing after it is alike.
fn chosen_bound(ty: TensorType, kv: KvType) -> Option<f64> {
    if ty.is_integer_dot() { None } else { products_bound(ty, kv) }
}

fn check(name: &str, record: Record, cases: u64, bound: Bound) {
    check_steps(name, (record, script), cases, bound);
}

/// As [`check`], on steps of another script.
fn check_steps(name: &str, case_of: (Record, Script), cases: u64, bound: Bound) {
    use TensorType as T;
    for case in 0..cases {
        let ty = [T::F32, T::F16, T::BF16, T::Q8_0, T::Q4_0, T::IQ4_NL][case as usize % 6];
        let kv = [KvType::F32, KvType::F16, KvType::Q8_0][(case / 3) as usize % 3];
        let what = format!("{name}, case {case}, {ty}, cache {kv:?}");
        let mut first: Option<Vec<StepOut>> = None;
        for isa in Isa::ALL.into_iter().filter(|i| i.is_available()) {
            for threads in 1..=3 {
                let config =
                    CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa), ..CpuConfig::default() };
                let mut cpu = CpuBackend::new(&config).unwrap_or_else(|e| panic!("{e}"));
                let out = run(&mut cpu, case_of, case, ty, kv);
                match &first {
                    None => {
                        if let Some(bound) = bound(ty, kv) {
                            let want = run(&mut ReferenceBackend::new(), case_of, case, ty, kv);
                            compare(&what, &out, &want, bound, !ty.is_integer_dot());
                        }
                        first = Some(out);
                    }
                    Some(first) => {
                        assert!(bits(&out) == bits(first), "{what}: {isa}, {threads} threads: other bits")
                    }
                }
            }
        }
    }
}

#[test]
fn norms_agree() {
    check("norms", norms, 12, products_bound);
}

#[test]
fn products_agree() {
    check("products", products, 18, products_bound);
}

#[test]
fn attention_agrees() {
    check("attention", attention, 48, cached_bound);
}

#[test]
fn delta_nets_agree() {
    check("delta net", delta_net, 24, products_bound);
}

#[test]
fn experts_agree() {
    check("experts", experts, 24, products_bound);
}

#[test]
fn choices_agree() {
    check("choices", choices, 12, chosen_bound);
}

/// A sequence goes on in another slot as it would have in its own, in caches that are rings too.
#[test]
fn copied_caches_go_on_alike() {
    for (record, case) in (0..12).flat_map(|case| [(attention as Record, case), (delta_net, case)]) {
        let kv = [KvType::F32, KvType::F16, KvType::Q8_0][case as usize % 3];
        let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
        let plan = PlanBuilder::new(MAX_ROWS, MAX_OUT);
        let ty = TensorType::BF16;
        let mut r = Recorder { backend: &mut cpu, plan, rng: Rng(case, 0), ty, kv };
        record(&mut r);
        let Recorder { plan, .. } = r;
        let plan = cpu.prepare(plan.finish()).expect("prepare");
        let run = |cpu: &mut CpuBackend, slot, pos, rows: u32| {
            let seqs = vec![SeqRows { slot, pos, rows, replay: 0, commit: true }];
            let tokens = (pos..pos + rows).map(|p| p * 5 % VOCABULARY as u32).collect();
            let ticket = cpu.submit(plan, &StepRows { seqs, tokens, out: vec![] }).expect("submit");
            let mut out = StepOut::default();
            cpu.wait(ticket, &mut out).expect("wait");
            bits(&[out])
        };
        run(&mut cpu, 1, 0, 13);
        for pos in [0, 40] {
            run(&mut cpu, 0, pos, 40);
        }
        cpu.copy_state(0, 1).expect("copy_state");
        cpu.copy_kv(0, 1, 80).expect("copy_kv");
        assert!(run(&mut cpu, 0, 80, 9) == run(&mut cpu, 1, 80, 9), "case {case}, cache {kv:?}");
    }
}

/// A plan or a step that cannot run is refused before anything is touched.
#[test]
fn what_cannot_run_is_refused() {
    let mut cpu = CpuBackend::new(&CpuConfig::default()).expect("a backend");
    let (ty, kv) = (TensorType::F32, KvType::F16);
    let mut r =
        Recorder { backend: &mut cpu, plan: PlanBuilder::new(MAX_ROWS, MAX_OUT), rng: Rng(1, 0), ty, kv };
    choices(&mut r);
    let Recorder { plan, .. } = r;
    let plan = cpu.prepare(plan.finish()).expect("prepare");
    let step = |pick| StepRows {
        seqs: vec![SeqRows { slot: 0, pos: 0, rows: 1, replay: 0, commit: true }],
        tokens: vec![1],
        out: vec![OutRow { row: 0, pick, logits: false }],
    };
    for (bad, wanted) in [
        (step(Pick::None), "without a pick"),
        (step(Pick::Given(VOCABULARY as u32)), "expected a token below"),
        (StepRows { tokens: vec![VOCABULARY as u32], ..step(Pick::Greedy) }, "of the vocabulary"),
    ] {
        let error = cpu.submit(plan, &bad).expect_err(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
    }
    cpu.submit(plan, &step(Pick::Greedy)).expect("a good step");

    let shape = AttentionShape { heads: 1, kv_heads: 1, key_dim: 8, value_dim: 8, q_stride: 8 };
    let spec =
        KvSpec { slots: 1, capacity: 8, ring: false, heads: 1, key_dim: 8, value_dim: 8, ty: kv, block: 8 };
    let cache = Kv { id: KvId(9), spec };
    let mut plan = PlanBuilder::new(4, 2);
    let q = plan.act(RowSet::Step, 8);
    let (kv, gate, scale) = (cache.id, Gate::None, 1.0);
    let (causal, window, advance, out) = (true, None, 0, q);
    let op = AttentionOp { q, gate, kv, shape, scale, causal, window, advance, out };
    plan.attention(op, &cache).expect("attention");
    let error = cpu.prepare(plan.finish()).expect_err("no such cache").to_string();
    assert!(error.contains("unknown KvId(9)"), "{error}");
}
