//! Speed of products by instruction set, weight type and number of input rows, and whether instruction sets agree.
//!
//! `cargo run --release -p forerun-cpu --example products [-- THREADS [COPIES]]`
//!
//! Weights are COPIES matrices of 6144 × 2048 (too many for any cache); times are the process's own CPU seconds per thread,
//! so that other processes disturb them little.

use std::num::NonZeroUsize;

use forerun_cpu::{CpuBackend, CpuConfig, Isa};
use forerun_quant::{TensorType, random_rows};
use forerun_tensor::{
    Backend, Ids, OutRow, Pick, PlanBuilder, SeqRows, StepOut, StepRows, Weight, WeightData, WeightUse,
};

const ROWS: usize = 6144;
const COLS: usize = 2048;
const TYPES: [TensorType; 6] = [
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::Q8_0,
    TensorType::IQ4_XS,
    TensorType::BF16,
];

fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `t` is a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut t) };
    t.tv_sec as f64 + 1e-9 * t.tv_nsec as f64
}

fn weight(ty: TensorType, rows: usize, cols: usize, seed: u64, usage: WeightUse) -> WeightData {
    let bytes = random_rows(ty, rows, cols, seed).expect("rows of whole blocks");
    let expert_stride = bytes.len();
    WeightData {
        name: format!("w{seed}"),
        ty,
        rows,
        cols,
        experts: 1,
        expert_stride,
        bytes: bytes.into(),
        usage,
    }
}

fn load(backend: &mut dyn Backend, data: &WeightData) -> Weight {
    let loaded = backend.load(data).expect("load");
    Weight { id: loaded.id, rows: data.rows, cols: data.cols, experts: 1 }
}

/// CPU seconds of a step, and the logits of a small product for comparison.
fn measure(isa: Isa, threads: usize, ty: TensorType, copies: usize, rows: usize) -> (f64, Vec<f32>) {
    let config = CpuConfig { threads: NonZeroUsize::new(threads), isa: Some(isa) };
    let mut backend = CpuBackend::new(&config).expect("backend");
    let table = load(&mut backend, &weight(TensorType::F32, 512, COLS, 1, WeightUse::Table));
    let matrices: Vec<Weight> = (0..copies)
        .map(|i| load(&mut backend, &weight(ty, ROWS, COLS, 2 + i as u64, WeightUse::Matrix)))
        .collect();
    let mut b = PlanBuilder::new(rows, rows.min(16));
    let x = b.embed(&table, Ids::Step, 1.0).expect("embed");
    let mut last = x;
    for m in &matrices {
        [last] = b.mat_mul(x, [m]).expect("product");
    }
    let out = b.select(last).expect("select");
    b.sample(out, None, true).expect("sample");
    let plan = backend.prepare(b.finish()).expect("plan");
    let step = StepRows {
        seqs: vec![SeqRows { slot: 0, pos: 0, rows: rows as u32, replay: 0, commit: true }],
        tokens: (0..rows as u32).map(|i| i * 37 % 512).collect(),
        out: (0..rows.min(16) as u32).map(|row| OutRow { row, pick: Pick::Greedy, logits: true }).collect(),
    };
    let mut result = StepOut::default();
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = cpu_seconds();
        let ticket = backend.submit(plan, &step).expect("submit");
        best = best.min(cpu_seconds() - start);
        backend.wait(ticket, &mut result).expect("wait");
    }
    (best / threads as f64, result.logits)
}

fn main() {
    let mut args = std::env::args().skip(1).map(|a| a.parse::<usize>().expect("a number"));
    let (threads, copies) = (args.next().unwrap_or(1), args.next().unwrap_or(24));
    for isa in Isa::ALL.into_iter().filter(|i| i.is_available() && *i >= Isa::Avx512) {
        println!("{isa}, {threads} threads");
        for ty in TYPES {
            print!("  {:<7}", ty.name());
            for rows in [1, 2, 4, 8, 16, 64, 512] {
                let few = if rows > 16 { 4 } else { copies };
                let (seconds, logits) = measure(isa, threads, ty, few, rows);
                let elements = (few * ROWS * COLS) as f64;
                let bytes = elements / COLS as f64 * ty.row_bytes(COLS).unwrap_or(0) as f64;
                let reference = if [4, 16, 64].contains(&rows) {
                    measure(Isa::Avx2, 1, ty, few, rows).1
                } else {
                    Vec::new()
                };
                let equal = logits.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits());
                let differs = if equal { "" } else { " DIFFERS" };
                if rows <= 16 {
                    print!(" {rows}: {:.1} GB/s{differs}", bytes / seconds / 1e9);
                } else {
                    print!(" {rows}: {:.0} GMAC/s{differs}", elements * rows as f64 / seconds / 1e9);
                }
            }
            println!();
        }
    }
}
