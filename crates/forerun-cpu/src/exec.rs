//! Running a prepared plan: every thread walks the operators, each of which is a sequence of phases (see
//! [`crate::phases`]).

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forerun_tensor::{Act, Op, Plan, Result, RowSet, WeightId};

use crate::act::ActBuf;
use crate::caches::{KvCache, RingCache, StateCache};
use crate::isa::Isa;
use crate::matmul::{Columns, Matrix, PAIR, Space};
use crate::memory::Buffer;
use crate::ops::{self, Scratch};
use crate::phases::{Credit, Phases, Walk};
use crate::pool::Pool;
use crate::sums::SumsStore;
use crate::view::{Rows, View};

/// Units `0..total` that threads claim in runs.
pub(crate) struct Claims {
    next: AtomicUsize,
    total: usize,
    grain: usize,
}

impl Claims {
    pub(crate) fn new(total: usize, grain: usize) -> Self {
        Self { next: AtomicUsize::new(0), total, grain: grain.max(1) }
    }

    pub(crate) fn next(&self) -> Option<Range<usize>> {
        let first = self.next.fetch_add(self.grain, Ordering::Relaxed);
        (first < self.total).then(|| first..(first + self.grain).min(self.total))
    }
}

/// A weight as held: a matrix, or a vector decoded to float32.
pub(crate) enum Weight {
    Matrix(Matrix),
    Vector(Vec<f32>),
}

/// What a plan owns.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) acts: Vec<ActBuf>,
    pub(crate) scratch: Scratch,
    /// What [`forerun_tensor::Op::Output`] brings out, `[rows, cols]` each.
    pub(crate) taps: Vec<Buffer<f32>>,
    phases: Phases,
    /// Nanoseconds that the submitter spent in each operator, when the backend profiles.
    times: Vec<AtomicU64>,
}

/// The most phases that one operator has.
const PHASES: usize = 8;

impl Prepared {
    /// Time spent in each operator so far.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.times.iter().map(|t| Duration::from_nanos(t.load(Ordering::Relaxed))).collect()
    }

    pub(crate) fn new(plan: Plan, acts: Vec<ActBuf>, scratch: Scratch, threads: usize) -> Result<Self> {
        // Attention over long contexts runs in rounds; its phases are bounded by the context (see `ops::attention`).
        let phases = plan.ops().len() * PHASES + scratch.attention_rounds * 2;
        let times = plan.ops().iter().map(|_| AtomicU64::new(0)).collect();
        let outputs =
            plan.ops().iter().filter_map(|op| if let Op::Output { x, .. } = op { Some(*x) } else { None });
        let taps = outputs
            .map(|x| Buffer::new(plan.rows_of(plan.act(x).rows) * plan.act(x).cols, "taps"))
            .collect::<Result<_>>()?;
        Ok(Self { plan, acts, scratch, taps, phases: Phases::new(phases, threads), times })
    }

    /// Makes ready for a step.
    pub(crate) fn begin(&mut self) {
        self.phases.reset();
    }
}

/// Everything operators share in a step.
pub(crate) struct Ctx<'a> {
    pub(crate) isa: Isa,
    pub(crate) profile: bool,
    pub(crate) plan: &'a Plan,
    pub(crate) acts: &'a [ActBuf],
    pub(crate) scratch: &'a Scratch,
    pub(crate) taps: &'a [Buffer<f32>],
    pub(crate) view: &'a View<'a>,
    pub(crate) weights: &'a [Weight],
    pub(crate) kvs: &'a [KvCache],
    pub(crate) states: &'a [StateCache],
    pub(crate) rings: &'a [RingCache],
    pub(crate) sums: &'a [SumsStore],
}

impl Ctx<'_> {
    pub(crate) fn act(&self, act: Act) -> &ActBuf {
        &self.acts[act.index()]
    }

    /// Number of rows that a buffer has in this step.
    pub(crate) fn rows(&self, act: Act) -> usize {
        self.rows_of(act).rows.len()
    }

    /// Rows that a buffer has in this step.
    pub(crate) fn rows_of(&self, act: Act) -> &Rows {
        match self.plan.act(act).rows {
            RowSet::Step => &self.view.all,
            RowSet::Out => &self.view.out,
        }
    }

    pub(crate) fn cols(&self, act: Act) -> usize {
        self.plan.act(act).cols
    }

    pub(crate) fn matrix(&self, id: WeightId) -> &Matrix {
        match &self.weights[id.0 as usize] {
            Weight::Matrix(m) => m,
            Weight::Vector(_) => unreachable!("prepare checks that products use matrices"),
        }
    }

    pub(crate) fn vector(&self, id: WeightId) -> &[f32] {
        match &self.weights[id.0 as usize] {
            Weight::Vector(v) => v,
            Weight::Matrix(_) => unreachable!("prepare checks that norms use vectors"),
        }
    }
}

/// A thread's part in a region.
pub(crate) struct Worker<'a> {
    threads: usize,
    walk: Walk<'a>,
    local: RefCell<Local>,
}

/// Memory of one thread.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) weights: Vec<f32>,
    pub(crate) floats: Vec<f32>,
    pub(crate) more: Vec<f32>,
    pub(crate) space: Space,
    /// Results of two products.
    pub(crate) results: [Vec<Columns>; 2],
}

/// Room for a product's results of `rows` input rows.
pub(crate) fn room(results: &mut Vec<Columns>, rows: usize) -> &mut [Columns] {
    if results.len() < rows {
        results.resize(rows, [0.0; PAIR]);
    }
    &mut results[..rows]
}

impl Worker<'_> {
    /// Runs `f` once for each unit, on whichever thread claims it, and returns when all are finished. The number of units
    /// is the same whenever a thread asks within the step.
    pub(crate) fn for_each(&self, units: usize, f: impl FnMut(usize, &mut Local)) {
        self.for_each_grain(units, 1, f);
    }

    /// The same, claiming `grain` consecutive units at a time.
    pub(crate) fn for_each_grain(&self, units: usize, grain: usize, mut f: impl FnMut(usize, &mut Local)) {
        let local = &mut *self.local.borrow_mut();
        self.walk.phase(units, grain, |unit| f(unit, local));
    }

    /// A grain that leaves every thread several claims.
    pub(crate) fn grain(&self, units: usize, most: usize) -> usize {
        (units / (self.threads * 8)).clamp(1, most)
    }
}

thread_local! {
    /// Scratch memory outlives a step.
    static LOCAL: RefCell<Local> = RefCell::default();
    static CREDIT: Cell<Credit> = Cell::default();
}

/// Runs a step, for which `prepared` was made ready.
pub(crate) fn run(pool: &mut Pool, prepared: &Prepared, ctx: &Ctx<'_>) {
    let threads = pool.threads();
    pool.run(|thread| {
        let walk = Walk::new(&prepared.phases, thread, CREDIT.get());
        let worker = Worker { threads, walk, local: RefCell::new(LOCAL.take()) };
        for (op, time) in ctx.plan.ops().iter().zip(&prepared.times) {
            if worker.walk.left() {
                break;
            }
            let started = (ctx.profile && thread == 0).then(Instant::now);
            ops::run(op, ctx, &worker);
            if let Some(started) = started {
                time.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }
        LOCAL.set(worker.local.into_inner());
        CREDIT.set(worker.walk.credit());
        !worker.walk.left()
    });
}
