//! How far a benchmark is, and how long it will still take.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// In a pipe, long runs say this often how far they are; short ones are quiet.
const SAY_EVERY: Duration = Duration::from_secs(30);

/// A bar on a terminal, a line now and then elsewhere.
pub(super) struct Countdown {
    what: &'static str,
    bar: Option<ProgressBar>,
    total: usize,
    done: usize,
    started: Instant,
    said: Instant,
}

impl Countdown {
    /// Counts to `total` pieces of about equal length.
    pub(super) fn new(what: &'static str, total: usize) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(total as u64).with_message(what);
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let now = Instant::now();
        Self { what, bar, total, done: 0, started: now, said: now }
    }

    /// One piece is done.
    pub(super) fn step(&mut self) {
        self.done += 1;
        match &self.bar {
            Some(bar) => bar.inc(1),
            None if self.said.elapsed() >= SAY_EVERY => {
                self.said = Instant::now();
                let left = remaining(self.started.elapsed(), self.done, self.total);
                say!("{}: {} of {}, about {} left", self.what, self.done, self.total, words(left));
            }
            None => {}
        }
    }

    /// Prints a line without tearing the bar.
    pub(super) fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say!("{text}")),
            None => say!("{text}"),
        }
    }
}

impl Drop for Countdown {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// The time that the rest will take if it goes on as it went.
fn remaining(elapsed: Duration, done: usize, total: usize) -> Duration {
    let share = total.saturating_sub(done) as f64 / done.max(1) as f64;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * share).unwrap_or(Duration::MAX)
}

/// A duration to the precision of an estimate.
pub(super) fn words(time: Duration) -> String {
    match time.as_secs() {
        0..120 => format!("{} s", time.as_secs()),
        s @ 120..7200 => format!("{} min", (s + 30) / 60),
        s => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates() {
        let seconds = Duration::from_secs;
        assert_eq!(remaining(seconds(30), 10, 40), seconds(90));
        assert_eq!(remaining(seconds(30), 40, 40), seconds(0));
        assert_eq!(remaining(seconds(30), 0, 1), seconds(30));
        for (time, text) in [(0, "0 s"), (119, "119 s"), (3570, "60 min"), (7380, "2 h 3 min")] {
            assert_eq!(words(seconds(time)), text);
        }
    }
}
