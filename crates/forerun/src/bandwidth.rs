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

/// 32 independent sums, so that loads are not held up by additions.
fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; 32];
    for chunk in words.chunks_exact(32) {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(0, |a, b| a.wrapping_add(*b))
}
