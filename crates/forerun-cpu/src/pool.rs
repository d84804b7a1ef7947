//! The thread pool: one parallel region per step, in which all threads run the same code and meet at barriers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins before it sleeps. Longer would hang beside a busy process; shorter would sleep within a step.
const SPIN: Duration = Duration::from_micros(50);

/// A barrier for a fixed number of threads.
pub(crate) struct Barrier {
    threads: usize,
    arrived: AtomicUsize,
    generation: AtomicUsize,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Returns when all threads have called it.
    pub(crate) fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let generation = self.generation.load(Ordering::SeqCst);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Release);
            // Sequential consistency: either this thread sees the sleeper, or the sleeper sees the new generation.
            self.generation.store(generation.wrapping_add(1), Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
                self.woken.notify_all();
            }
            return;
        }
        if !self.spin(generation) {
            self.sleep(generation);
        }
    }

    fn passed(&self, generation: usize) -> bool {
        self.generation.load(Ordering::SeqCst) != generation
    }

    /// Whether the barrier opened while spinning.
    fn spin(&self, generation: usize) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..64 {
                if self.passed(generation) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                return false;
            }
        }
    }

    fn sleep(&self, generation: usize) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.passed(generation) {
            guard = self.woken.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A job as the workers see it.
#[derive(Clone, Copy)]
struct Job {
    data: *const (),
    call: unsafe fn(*const (), usize),
}

// SAFETY: the pointer is to a `Sync` closure that outlives the region (see `Pool::run`).
unsafe impl Send for Job {}

struct Shared {
    start: Barrier,
    end: Barrier,
    job: Mutex<Option<Job>>,
    quit: AtomicBool,
}

/// Threads that wait for steps. The calling thread is thread 0 of every region.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: usize,
    workers: Vec<JoinHandle<()>>,
}

/// Ends the process when a region panics: other threads would wait at its barriers for ever.
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
    /// Starts `threads − 1` workers.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            start: Barrier::new(threads),
            end: Barrier::new(threads),
            job: Mutex::new(None),
            quit: AtomicBool::new(false),
        });
        let mut pool = Self { shared, threads: 1, workers: Vec::new() };
        for thread in 1..threads {
            let shared = pool.shared.clone();
            let worker = std::thread::Builder::new()
                .name(format!("forerun-{thread}"))
                .spawn(move || Self::work(&shared, thread));
            match worker {
                Ok(worker) => pool.workers.push(worker),
                Err(e) => {
                    // Workers that already started wait at a barrier that will never fill: they are left behind, asleep.
                    pool.workers.clear();
                    return Err(e);
                }
            }
        }
        pool.threads = threads;
        Ok(pool)
    }

    fn work(shared: &Shared, thread: usize) {
        loop {
            shared.start.wait();
            if shared.quit.load(Ordering::Acquire) {
                return;
            }
            let job = *shared.job.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(job) = job {
                let _guard = AbortOnPanic;
                // SAFETY: the closure lives until `run` has passed the end barrier, which waits for this call.
                unsafe { (job.call)(job.data, thread) };
            }
            shared.end.wait();
        }
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f(thread)` on every thread and returns when all are done.
    pub(crate) fn run<F: Fn(usize) + Sync>(&self, f: F) {
        unsafe fn call<F: Fn(usize)>(data: *const (), thread: usize) {
            // SAFETY: `data` is the `&F` of the `run` below, which is still on its stack.
            unsafe { (*data.cast::<F>())(thread) }
        }
        if self.threads == 1 {
            return f(0);
        }
        let job = Job { data: (&raw const f).cast(), call: call::<F> };
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = Some(job);
        self.shared.start.wait();
        {
            let _guard = AbortOnPanic;
            f(0);
        }
        self.shared.end.wait();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.threads > 1 {
            self.shared.quit.store(true, Ordering::Release);
            self.shared.start.wait();
        }
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
    fn every_thread_runs_every_region_and_barriers_hold() {
        for threads in [1, 2, 3, 5] {
            let pool = Pool::new(threads).expect("threads");
            let barrier = Barrier::new(threads);
            let sum = AtomicUsize::new(0);
            for region in 0..50 {
                if region % 10 == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                pool.run(|_| {
                    for round in 0..20 {
                        sum.fetch_add(1, Ordering::Relaxed);
                        barrier.wait();
                        assert_eq!(sum.load(Ordering::Relaxed), (region * 20 + round + 1) * threads);
                        barrier.wait();
                    }
                });
            }
            assert_eq!(sum.into_inner(), 1000 * threads);
        }
    }

    #[test]
    fn works_beside_busy_threads() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let pool = Pool::new(4).expect("threads");
            let count = AtomicUsize::new(0);
            for _ in 0..200 {
                pool.run(|_| {
                    count.fetch_add(1, Ordering::Relaxed);
                });
            }
            stop.store(true, Ordering::Relaxed);
            assert_eq!(count.into_inner(), 800);
        });
    }
}
