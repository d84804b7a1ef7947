//! Automatic depth against every fixed depth and plain decoding, on simulated machines and texts.
//!
//! Time is counted at the machine's true costs; the control sees them with noise and outliers. Luck with outliers then
//! decides nothing, and a run is the same every time.

use super::*;

/// Costs in plain steps.
struct Machine {
    name: &'static str,
    step: fn(usize) -> f64,
    draft: fn(usize) -> f64,
}

const MACHINES: [Machine; 5] = [
    Machine { name: "flat", step: |rows| 1.0 + 0.02 * (rows - 1) as f64, draft: |k| 0.04 * k as f64 },
    Machine { name: "flat, free drafts", step: |rows| 1.0 + 0.02 * (rows - 1) as f64, draft: |_| 1e-4 },
    Machine { name: "sloped", step: |rows| 1.0 + 0.12 * (rows - 1) as f64, draft: |k| 0.06 * k as f64 },
    Machine { name: "linear", step: |rows| rows as f64, draft: |k| 0.05 * k as f64 },
    Machine {
        name: "tiles of eight",
        step: |rows| if rows == 1 { 1.0 } else { 0.9 + 0.45 * rows.div_ceil(8) as f64 },
        draft: |k| 0.03 * k as f64,
    },
];

/// Chance that a draft at a position (from 0) is accepted, in the given part (0 to 1) of the text.
struct Text {
    name: &'static str,
    chance: fn(usize, f64) -> f64,
}

const TEXTS: [Text; 10] = [
    Text { name: "0", chance: |_, _| 0.0 },
    Text { name: "0.3", chance: |_, _| 0.3 },
    Text { name: "0.6", chance: |_, _| 0.6 },
    Text { name: "0.8", chance: |_, _| 0.8 },
    Text { name: "0.95", chance: |_, _| 0.95 },
    Text { name: "decaying", chance: |position, _| 0.9 * 0.88f64.powi(position as i32) },
    Text { name: "rising", chance: |position, _| if position == 0 { 0.5 } else { 0.97 } },
    Text { name: "0.95 then 0", chance: |_, part| if part < 0.5 { 0.95 } else { 0.0 } },
    Text { name: "0 then 0.95", chance: |_, part| if part < 0.5 { 0.0 } else { 0.95 } },
    Text { name: "0.8 then 0.3", chance: |_, part| if part < 0.5 { 0.8 } else { 0.3 } },
];

struct Noise(u64);

impl Noise {
    /// Uniform in [0, 1): splitmix64.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A measurement of `seconds`: 5 % of noise, one in twenty ten times too long.
    fn measure(&mut self, seconds: f64) -> f64 {
        let outlier = if self.uniform() < 0.05 { 10.0 } else { 1.0 };
        seconds * outlier * (0.975 + 0.05 * self.uniform())
    }
}

/// Plain steps that `tokens` tokens take when `choose` gives the depths and `round` sees what came of them. Whether a token
/// is guessed is a property of the text: all depths meet the same luck.
fn run(
    machine: &Machine,
    text: &Text,
    (tokens, seed): (usize, u64),
    mut choose: impl FnMut() -> usize,
    mut round: impl FnMut(usize, usize),
) -> f64 {
    let mut noise = Noise(seed);
    let luck: Vec<f64> = (0..tokens + MAX_DRAFT).map(|_| noise.uniform()).collect();
    let (mut at, mut time) = (0, 0.0);
    while at < tokens {
        let depth = choose();
        let part = at as f64 / tokens as f64;
        let accepted = (0..depth).take_while(|&i| luck[at + i] < (text.chance)(i, part)).count();
        time += (machine.step)(depth + 1) + if depth > 0 { (machine.draft)(depth) } else { 0.0 };
        at += accepted + 1;
        round(depth, accepted);
    }
    // Tokens beyond the end are not paid for, so that deep rounds do not look slow.
    time * tokens as f64 / at as f64
}

fn fixed(machine: &Machine, text: &Text, run_of: (usize, u64), depth: usize) -> f64 {
    run(machine, text, run_of, || depth, |_, _| {})
}

fn automatic(machine: &Machine, text: &Text, run_of: (usize, u64), costs: &mut StepCosts) -> f64 {
    let auto = std::cell::RefCell::new(AutoDepth::new());
    let costs = std::cell::RefCell::new(costs);
    let mut noise = Noise(!run_of.1);
    run(
        machine,
        text,
        run_of,
        || auto.borrow_mut().choose(&costs.borrow(), DrafterKind::Mtp, MAX_DRAFT),
        |depth, accepted| {
            let mut costs = costs.borrow_mut();
            costs.record_step(depth + 1, noise.measure((machine.step)(depth + 1)));
            if depth > 0 {
                costs.record_draft(DrafterKind::Mtp, depth, noise.measure((machine.draft)(depth)));
            }
            auto.borrow_mut().record(depth, accepted);
        },
    )
}

/// Costs as an engine knows them that has run a few requests.
fn known(machine: &Machine) -> StepCosts {
    let mut costs = StepCosts::new();
    for seed in 0..3 {
        automatic(machine, &TEXTS[4], (300, seed), &mut costs);
    }
    costs
}

const SEEDS: u64 = 8;

/// Automatic depth against the others over several runs.
struct Compared {
    /// Speed as a share of the best fixed depth's, all runs together.
    of_best: f64,
    /// Speed as a share of plain decoding's in the worst run.
    of_plain: f64,
}

fn compare(machine: &Machine, text: &Text, tokens: usize, costs: &dyn Fn() -> StepCosts) -> Compared {
    let mut auto = 0.0;
    let mut by_depth = [0.0; MAX_DRAFT + 1];
    let mut of_plain = f64::INFINITY;
    for seed in 0..SEEDS {
        let mine = automatic(machine, text, (tokens, seed), &mut costs());
        let theirs: [f64; MAX_DRAFT + 1] = std::array::from_fn(|k| fixed(machine, text, (tokens, seed), k));
        auto += mine;
        by_depth.iter_mut().zip(theirs).for_each(|(sum, time)| *sum += time);
        of_plain = of_plain.min(theirs[0] / mine);
    }
    Compared { of_best: by_depth.into_iter().fold(f64::INFINITY, f64::min) / auto, of_plain }
}

/// Fails with every pair of machine and text for which `wrong` finds something to say.
fn for_all(tokens: usize, cold: bool, wrong: impl Fn(&Compared) -> Option<String>) {
    let mut failures = Vec::new();
    for machine in &MACHINES {
        let warm = known(machine);
        let costs = || if cold { StepCosts::new() } else { warm.clone() };
        for text in &TEXTS {
            if let Some(what) = wrong(&compare(machine, text, tokens, &costs)) {
                failures.push(format!("{}, text {}: {what}", machine.name, text.name));
            }
        }
    }
    assert!(failures.is_empty(), "{tokens} tokens, cold {cold}:\n{}", failures.join("\n"));
}

#[test]
fn is_never_much_slower_than_plain() {
    for (tokens, cold) in [(200, true), (200, false), (2000, true), (2000, false)] {
        for_all(tokens, cold, |found| {
            (found.of_plain < 0.97).then(|| format!("{:.3} of plain", found.of_plain))
        });
    }
}

/// Less is asked where there is less to learn from: of a short request, and of one that has to find out what the machine can
/// do and, while it has gained nothing, may not lose much in trying.
#[test]
fn comes_close_to_the_best_fixed_depth() {
    for (tokens, cold, share) in [(2000, false, 0.95), (2000, true, 0.93), (400, false, 0.92)] {
        for_all(tokens, cold, |found| {
            (found.of_best < share).then(|| format!("{:.3} of the best depth", found.of_best))
        });
    }
}
