//! The thread pool: one parallel region per step.
//!
//! # Who runs a region
//!
//! The thread that submits a step opens a region and runs its closure; workers that come while it is open run the same
//! closure beside it. Nobody waits for a worker to come: the closure's work is claimed piece by piece (see
//! [`crate::phases`]), so the submitter alone gets it all done. When its own call has returned it closes the region, which
//! keeps out whoever has not entered, and waits for those inside to leave, since the closure lives on its stack.
//!
//! One word holds whether the region is open, how many workers are inside, and the region's number. Entering is a
//! compare-and-swap from "open, n inside" to "open, n + 1 inside", so no worker enters a closed region, and one that
//! entered is seen by the submitter's closing. The number keeps a worker from entering a region twice.
//!
//! # What happens before what
//!
//! - Opening releases what the submitter wrote (the job, counters set to zero); entering acquires it.
//! - Leaving releases what a worker did; the submitter acquires it when it sees nobody inside. Further changes of the word
//!   are read-modify-writes, so the last one carries every leaving with it.
//!
//! # Waiting
//!
//! A waiting thread spins for 50 µs and then sleeps at a [`Gate`]. Between "nothing to do yet" and sleep nothing is lost:
//! a sleeper counts itself before it looks for the last time, a waker makes its change before it looks for sleepers, and
//! with a fence between the two steps of each at least one of them sees the other. A waker that sees a sleeper passes
//! through its lock before it notifies, and a sleeper holds the lock from its last look until it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps. Longer would hang beside a busy process; shorter would sleep within a step.
pub(crate) const SPIN: Duration = Duration::from_micros(50);

/// Where threads wait for what others do.
#[derive(Default)]
pub(crate) struct Gate {
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Gate {
    /// Whether `ready` became true while spinning.
    pub(crate) fn spin(ready: impl Fn() -> bool) -> bool {
        let mut start = None;
        loop {
            for _ in 0..64 {
                if ready() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
                return false;
            }
        }
    }

    /// Sleeps until `ready`, which reads with acquire order what a waker wrote before [`Gate::wake`].
    pub(crate) fn sleep(&self, ready: impl Fn() -> bool) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while !ready() {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Spins, then sleeps.
    pub(crate) fn wait(&self, ready: impl Fn() -> bool) {
        if !Self::spin(&ready) {
            self.sleep(ready);
        }
    }

    /// Lets sleepers look again. The caller has made the change that they wait for.
    pub(crate) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }
}

/// A job as the workers see it.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize) -> bool,
}

// SAFETY: the pointer is to a `Sync` closure that outlives the region (see `Pool::run`).
unsafe impl Send for Job {}

/// Bits of [`Region::word`]: how many workers are inside, whether it is open, and the region's number above.
const INSIDE: u64 = OPEN - 1;
const OPEN: u64 = 1 << 16;
const NUMBER: u32 = 17;

/// The region that runs now, or the last one.
#[derive(Default)]
struct Region {
    word: AtomicU64,
    job: Mutex<Option<Job>>,
    /// Workers wait here for the next region.
    start: Gate,
    /// The submitter waits here for workers to leave.
    end: Gate,
    quit: AtomicBool,
}

impl Region {
    /// For the submitter, when nobody is inside: without the open bit no worker changes the word.
    fn open(&self, job: Job) {
        *self.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER).wrapping_add(1);
        self.word.store(number << NUMBER | OPEN, Ordering::Release);
        self.start.wake();
    }

    /// Keeps out who has not entered and waits for the others to leave.
    fn close(&self) {
        if self.word.fetch_and(!OPEN, Ordering::AcqRel) & INSIDE > 0 {
            self.end.wait(|| self.word.load(Ordering::Acquire) & INSIDE == 0);
        }
    }

    /// Waits for a region other than `last` and enters it; its number, or `None` when the pool is dropped. `spin`: whether
    /// to spin before sleeping.
    fn enter(&self, last: u64, spin: bool) -> Option<u64> {
        loop {
            let next = || {
                let word = self.word.load(Ordering::Relaxed);
                (word & OPEN > 0 && word >> NUMBER != last).then_some(word)
            };
            let ready = || self.quit.load(Ordering::Acquire) || next().is_some();
            if !(spin && Gate::spin(ready)) {
                self.start.sleep(ready);
            }
            if self.quit.load(Ordering::Acquire) {
                return None;
            }
            while let Some(word) = next() {
                if self
                    .word
                    .compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok()
                {
                    return Some(word >> NUMBER);
                }
            }
        }
    }

    fn leave(&self) {
        let before = self.word.fetch_sub(1, Ordering::Release);
        if before & (OPEN | INSIDE) == 1 {
            self.end.wake();
        }
    }
}

/// Threads that wait for steps. The calling thread is thread 0 of every region.
pub(crate) struct Pool {
    region: Arc<Region>,
    threads: usize,
    workers: Vec<JoinHandle<()>>,
}

/// Ends the process when a region panics: others would wait for ever for the work that the thread had claimed.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("forerun: a kernel panicked; this is a bug");
            std::process::abort();
        }
    }
}

impl Pool {
    /// Starts `threads − 1` workers; at most 1024 threads.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let mut pool = Self { region: Arc::default(), threads, workers: Vec::new() };
        for thread in 1..threads {
            let region = pool.region.clone();
            let worker = std::thread::Builder::new()
                .name(format!("forerun-{thread}"))
                .spawn(move || Self::work(&region, thread))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    fn work(region: &Region, thread: usize) {
        let (mut last, mut useful) = (0, true);
        while let Some(number) = region.enter(last, useful) {
            last = number;
            let job = *region.job.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(job) = job {
                let _guard = AbortOnPanic;
                // SAFETY: the closure lives until `run` returns, and this thread is inside the region until `leave`,
                // which `run` waits for.
                useful = unsafe { (job.call)(job.data, thread) };
            }
            region.leave();
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f(thread)` on the calling thread, which is thread 0, and on every worker that comes before that call has
    /// returned; returns when all of them have. What the calls do together must not depend on who comes. `f` returns
    /// whether it was of use, that is whether the worker should wait wide awake for the next region.
    pub(crate) fn run<F: Fn(usize) -> bool + Sync>(&mut self, f: F) {
        unsafe fn call<F: Fn(usize) -> bool>(data: *const (), thread: usize) -> bool {
            // SAFETY: `data` is the `&F` of the `run` below, which is still on its stack.
            unsafe { (*data.cast::<F>())(thread) }
        }
        if self.threads == 1 {
            f(0);
            return;
        }
        // The exclusive borrow makes this the only submitter, and the last region is closed and empty.
        self.region.open(Job { data: (&raw const f).cast(), call: call::<F> });
        {
            let _guard = AbortOnPanic;
            f(0);
        }
        self.region.close();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.region.quit.store(true, Ordering::Release);
        self.region.start.wake();
        for worker in self.workers.drain(..) {
            // A worker cannot have panicked: that ends the process.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_ends_when_everybody_who_entered_has_left() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).expect("threads");
            for region in 0..300 {
                if region % 50 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let (inside, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let seen: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                pool.run(|thread| {
                    inside.fetch_add(1, Ordering::Relaxed);
                    seen[thread].fetch_add(1, Ordering::Relaxed);
                    while next.fetch_add(1, Ordering::Relaxed) < 50 {
                        std::hint::spin_loop();
                    }
                    inside.fetch_sub(1, Ordering::Relaxed);
                    region % 2 == 0
                });
                assert_eq!(inside.into_inner(), 0);
                assert_eq!(seen[0].load(Ordering::Relaxed), 1, "the submitter runs every region");
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) <= 1), "{seen:?}");
            }
        }
    }

    #[test]
    fn workers_take_part() {
        let mut pool = Pool::new(3).expect("threads");
        let came = AtomicUsize::new(0);
        for _ in 0..3 {
            came.store(0, Ordering::Relaxed);
            pool.run(|_| {
                came.fetch_add(1, Ordering::Relaxed);
                // All wait for all: this ends only when every worker enters.
                Gate::default().wait(|| {
                    std::thread::yield_now();
                    came.load(Ordering::Relaxed) == 3
                });
                true
            });
        }
    }
}
