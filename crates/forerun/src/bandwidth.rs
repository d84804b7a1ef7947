//! The read bandwidth of this machine's memory, measured as a step uses it: every thread reads its own part once.

use std::hint::black_box;
use std::time::Instant;

/// Bytes of the buffer: several times a large last-level cache.
const BYTES: usize = 1 << 30;

/// A buffer to read; touched once when made, so that its pages exist.
pub(crate) struct Bandwidth {
    buffer: Vec<u64>,
    threads: usize,
}

impl Bandwidth {
    pub(crate) fn new(threads: usize) -> Self {
        Self { buffer: (0..BYTES as u64 / 8).collect(), threads: threads.max(1) }
    }

    /// Reads the whole buffer once; bytes per second.
    pub(crate) fn measure(&self) -> f64 {
        let part = self.buffer.len().div_ceil(self.threads);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for words in self.buffer.chunks(part) {
                scope.spawn(move || black_box(sum(words)));
            }
        });
        BYTES as f64 / start.elapsed().as_secs_f64()
    }
}

/// Four parts side by side, so that the processor has several streams to fetch ahead of, with independent sums in each.
fn sum(words: &[u64]) -> u64 {
    const LANES: usize = 8;
    let quarter = words.len() / 4 / LANES * LANES;
    let part = |i: usize| &words[i * quarter..(i + 1) * quarter];
    let mut lanes = [[0u64; LANES]; 4];
    let parts = [part(0), part(1), part(2), part(3)].map(|p| p.as_chunks::<LANES>().0);
    for i in 0..quarter / LANES {
        for (lanes, part) in lanes.iter_mut().zip(parts) {
            for (lane, word) in lanes.iter_mut().zip(&part[i]) {
                *lane = lane.wrapping_add(*word);
            }
        }
    }
    lanes.iter().flatten().fold(0, |a, b| a.wrapping_add(*b))
}
