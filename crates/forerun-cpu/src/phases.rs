//! The parallel phases of a step: units of work that threads claim.
//!
//! A phase is over when its units are finished, whoever ran them: a counter says how many are. Every thread has a share of
//! the units and draws from it first, so that its counter stays in its own cache and it meets the same weights in every step;
//! who has run out draws from the shares of others. A thread that comes late finds the units of a phase finished and passes;
//! one that was preempted holds the others up only while it has a claim that it has not reported as finished.
//!
//! # Why a late thread does no harm
//!
//! - It draws from a phase's counter only what nobody has, and a finished phase has nothing left: the number of its units
//!   is the same for every thread, whenever it asks. So it may depend on the step, and on what earlier phases of the same
//!   step computed if no later phase of that step changes it; nothing else may be read between phases.
//! - Steps are regions of the pool: none begins while a thread is in the one before, so no thread meets another step's
//!   counters. All carry the number of their step and count as zero in any other, so nobody has to reset them, which would
//!   fetch them from the caches of others.
//!
//! # What happens before what
//!
//! Who runs units releases them with its addition to `finished`; the additions of a phase are one release sequence (each
//! is a read-modify-write of the one before). Who
//! passes has read the full count with acquire order. So whatever any unit of a phase read or wrote happens before
//! everything that any thread does in a later phase, also for a thread that ran nothing of the phases between.
//!
//! # Leaving
//!
//! Where threads share a core, a worker that waits for a unit of the thread it displaced spins in vain, and wakes at the
//! end of the phase only to displace it again. So a worker pays for spinning in vain out of what it has worked: its
//! [`Credit`] goes from step to step, and without credit it leaves a step, that is, runs nothing more of it. The
//! submitter never leaves, so every step ends.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::pool::{Gate, SPIN};

/// A count within a step: the step's number in the high half, the count in the low one.
#[derive(Default)]
#[repr(align(64))]
struct Counter(AtomicU64);

impl Counter {
    /// The count of step `step` in a value.
    fn count(value: u64, step: u32) -> usize {
        if (value >> 32) as u32 == step { value as u32 as usize } else { 0 }
    }

    fn load(&self, step: u32) -> usize {
        Self::count(self.0.load(Ordering::Acquire), step)
    }

    /// Adds finished units; returns how many there are. Releases what the units did and acquires what those before did.
    fn add(&self, step: u32, units: usize) -> usize {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let count = Self::count(now, step) + units;
            let added = u64::from(step) << 32 | count as u64;
            match self.0.compare_exchange_weak(now, added, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return count,
                Err(changed) => now = changed,
            }
        }
    }

    /// Draws up to `grain` units of a share of `len` in step `step`.
    fn draw(&self, step: u32, len: usize, grain: usize) -> Option<Range<usize>> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let first = Self::count(now, step);
            if first >= len {
                return None;
            }
            let next = (first + grain).min(len);
            let drawn = u64::from(step) << 32 | next as u64;
            match self.0.compare_exchange_weak(now, drawn, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(first..next),
                Err(changed) => now = changed,
            }
        }
    }
}

/// The phases of a step.
pub(crate) struct Phases {
    /// By phase, how many units are finished.
    finished: Vec<Counter>,
    /// Where drawing from each thread's share stands, `[phase][thread]`.
    shares: Vec<Counter>,
    threads: usize,
    /// Number of the step, which wraps around.
    step: u32,
    gate: Gate,
}

impl Phases {
    /// For steps of at most `count` phases on so many threads.
    pub(crate) fn new(count: usize, threads: usize) -> Self {
        Self {
            finished: (0..count).map(|_| Counter::default()).collect(),
            shares: (0..count * threads).map(|_| Counter::default()).collect(),
            threads,
            step: 0,
            gate: Gate::default(),
        }
    }

    /// Before a step.
    pub(crate) fn reset(&mut self) {
        self.step = self.step.wrapping_add(1);
    }
}

/// Time that a worker may still spin in vain, in nanoseconds. What it works is added, up to [`Credit::MOST`]; sleep counts
/// for nothing.
#[derive(Clone, Copy)]
pub(crate) struct Credit(i64);

impl Credit {
    const MOST: i64 = 1_000_000;
    /// What a worker without credit gets for each step that it stays out of: enough to try again every ten or so.
    const ALLOWANCE: i64 = 5_000;

    fn earn(self, worked: Duration) -> Self {
        Self(self.0.saturating_add(worked.as_nanos().min(1 << 60) as i64).min(Self::MOST))
    }

    fn pay(self, vain: Duration) -> Self {
        Self(self.0 - vain.as_nanos() as i64)
    }

    fn is_used_up(self) -> bool {
        self.0 < 0
    }
}

impl Default for Credit {
    fn default() -> Self {
        Self(Self::MOST)
    }
}

/// A thread's way through the phases of a step.
pub(crate) struct Walk<'a> {
    phases: &'a Phases,
    thread: usize,
    next: Cell<usize>,
    left: Cell<bool>,
    credit: Cell<Credit>,
    /// Since when it works without sleep.
    awake: Cell<Instant>,
}

impl<'a> Walk<'a> {
    /// `thread` is 0 for the submitter.
    pub(crate) fn new(phases: &'a Phases, thread: usize, credit: Credit) -> Self {
        let stays_out = thread > 0 && credit.is_used_up();
        let credit = if stays_out { Credit(credit.0 + Credit::ALLOWANCE) } else { credit };
        Self {
            phases,
            thread,
            next: Cell::new(0),
            left: Cell::new(stays_out),
            credit: Cell::new(credit),
            awake: Cell::new(Instant::now()),
        }
    }

    /// Whether this thread has left the step.
    pub(crate) fn left(&self) -> bool {
        self.left.get()
    }

    /// One phase: `f` runs for units that this thread claims, `grain` at a time. Returns when the units of all threads are
    /// finished, or this thread leaves.
    pub(crate) fn phase(&self, units: usize, grain: usize, mut f: impl FnMut(usize)) {
        if self.left() {
            return;
        }
        let index = self.next.get();
        self.next.set(index + 1);
        let threads = self.phases.threads;
        if threads == 1 {
            (0..units).for_each(f);
            return;
        }
        let (finished, step) = (&self.phases.finished[index], self.phases.step);
        let over = || finished.load(step) >= units;
        if over() {
            return;
        }
        let shares = &self.phases.shares[index * threads..][..threads];
        let size = units.div_ceil(threads);
        let mut mine = 0;
        for owner in (self.thread..threads).chain(0..self.thread) {
            let start = (owner * size).min(units);
            let len = size.min(units - start);
            while let Some(claim) = shares[owner].draw(step, len, grain) {
                mine += claim.len();
                claim.for_each(|unit| f(start + unit));
            }
        }
        if mine > 0 && finished.add(step, mine) == units {
            self.phases.gate.wake();
        } else if !Gate::spin(over) {
            self.wait(over);
        }
    }

    /// After spinning in vain.
    fn wait(&self, over: impl Fn() -> bool) {
        if self.thread == 0 {
            self.phases.gate.sleep(over);
            return;
        }
        let worked = self.awake.get().elapsed().saturating_sub(SPIN);
        let credit = self.credit.get().earn(worked).pay(SPIN);
        self.credit.set(credit);
        if credit.is_used_up() {
            self.left.set(true);
            return;
        }
        self.phases.gate.sleep(over);
        self.awake.set(Instant::now());
    }

    /// What the thread has left for the next step.
    pub(crate) fn credit(&self) -> Credit {
        let credit = self.credit.get();
        if self.left() { credit } else { credit.earn(self.awake.get().elapsed()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize};

    use super::*;
    use crate::pool::Pool;

    /// Units of every phase of a step, small numbers that look random.
    fn units(step: usize) -> impl Iterator<Item = usize> {
        (0..30).map(move |phase| (step * 7 + phase * phase * 5) % 11)
    }

    /// Runs steps in which every unit checks that it is the first to run and that the phase before is finished.
    fn steps(pool: &mut Pool, count: usize) {
        let threads = pool.threads();
        let mut phases = Phases::new(60, threads);
        let cells: Vec<AtomicUsize> = (0..11).map(|_| AtomicUsize::new(0)).collect();
        for step in 0..count {
            phases.reset();
            cells.iter().for_each(|c| c.store(0, Ordering::Relaxed));
            pool.run(|thread| {
                let walk = Walk::new(&phases, thread, Credit::default());
                let mut before = 0;
                for (phase, n) in units(step).enumerate() {
                    walk.phase(n, 1 + phase % 3, |unit| {
                        for cell in &cells[..before] {
                            assert!(
                                cell.load(Ordering::Relaxed) >= 100 * phase,
                                "step {step}, phase {phase}"
                            );
                        }
                        let old = cells[unit].swap(100 * (phase + 1) + 99, Ordering::Relaxed);
                        assert!(old < 100 * (phase + 1), "step {step}, phase {phase}: unit {unit} again");
                    });
                    walk.phase(n, 1, |unit| cells[unit].store(100 * (phase + 1), Ordering::Relaxed));
                    before = n;
                }
                true
            });
            let last = units(step).last().unwrap_or(0);
            assert!(cells[..last].iter().all(|c| c.load(Ordering::Relaxed) == 3000));
        }
    }

    #[test]
    fn nobody_waits_for_a_thread_without_a_unit() {
        let mut pool = Pool::new(3).expect("threads");
        let mut phases = Phases::new(8, 3);
        for _ in 0..20 {
            phases.reset();
            let (done, ran) = (AtomicBool::new(false), AtomicUsize::new(0));
            pool.run(|thread| {
                if thread > 0 {
                    Gate::default().wait(|| {
                        std::thread::yield_now();
                        done.load(Ordering::Acquire)
                    });
                }
                let walk = Walk::new(&phases, thread, Credit::default());
                for n in [5, 0, 1, 7] {
                    walk.phase(n, 2, |_| {
                        assert_eq!(thread, 0, "all units are finished when the workers come");
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                }
                done.store(true, Ordering::Release);
                true
            });
            assert_eq!(ran.into_inner(), 13);
        }
    }

    #[test]
    fn a_worker_without_credit_stays_out_and_comes_back() {
        let phases = Phases::new(1, 2);
        let mut credit = Credit::default();
        for _ in 0..=Credit::MOST / 50_000 {
            assert!(!credit.is_used_up());
            credit = credit.pay(Duration::from_micros(50));
        }
        let mut steps = 0;
        while Walk::new(&phases, 1, credit).left() {
            credit = Walk::new(&phases, 1, credit).credit();
            steps += 1;
        }
        assert_eq!(steps, 10);
        assert!(!Walk::new(&phases, 0, Credit(-1)).left(), "the submitter never leaves");
    }

    #[cfg(target_os = "linux")]
    fn pin() {
        // SAFETY: an all-zero set is a value, and it outlives the call.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let core = usize::try_from(libc::sched_getcpu()).unwrap_or(0);
            libc::CPU_SET(core, &mut set);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn pin() {}

    #[test]
    fn steps_of_several_submitters_on_one_core_and_beside_busy_threads() {
        let busy = AtomicBool::new(true);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while busy.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let submitters: Vec<_> = [(1, false), (2, true), (3, true), (4, false)]
                .map(|(threads, pinned)| {
                    scope.spawn(move || {
                        if pinned {
                            pin();
                        }
                        steps(&mut Pool::new(threads).expect("threads"), 100);
                    })
                })
                .into_iter()
                .collect();
            let ends: Vec<_> = submitters.into_iter().map(|s| s.join()).collect();
            busy.store(false, Ordering::Relaxed);
            ends.into_iter().for_each(|end| end.expect("a submitter"));
        });
    }
}
