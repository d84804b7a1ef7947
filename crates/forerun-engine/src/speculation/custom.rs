//! Drafters of the engine's caller: whatever one of them does, the engine and its requests go on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Result;
use crate::runner::Runner;
use crate::speculation::{Ask, Drafter, DrafterKind, View};

/// A drafter that is left out for good once it has panicked, or failed where there is no request to blame. Every session
/// waits while it runs: a panic that went through would end them all.
pub(crate) struct Custom {
    kind: DrafterKind,
    drafter: Box<dyn Drafter>,
    left_out: bool,
}

impl Custom {
    pub(crate) fn new(drafter: Box<dyn Drafter>) -> Self {
        Self { kind: drafter.kind(), drafter, left_out: false }
    }

    /// What the call gives; `None` when the drafter is left out.
    fn call<T>(&mut self, f: impl FnOnce(&mut dyn Drafter) -> T) -> Option<T> {
        if self.left_out {
            return None;
        }
        // What a panic leaves behind in the drafter is not looked at again, and the device's steps are whole.
        let result = catch_unwind(AssertUnwindSafe(|| f(&mut *self.drafter)));
        self.left_out = result.is_err();
        result.ok()
    }

    fn left_out_on_failure(&mut self, f: impl FnOnce(&mut dyn Drafter) -> Result<()>) {
        self.left_out |= self.call(f).is_some_and(|result| result.is_err());
    }
}

impl Drafter for Custom {
    fn kind(&self) -> DrafterKind {
        self.kind
    }

    fn begin(&mut self, request: View<'_>, kept: usize) {
        self.call(|d| d.begin(request, kept));
    }

    fn before_step(&mut self, device: &mut Runner, request: View<'_>, rows: usize) -> Result<()> {
        self.left_out_on_failure(|d| d.before_step(device, request, rows));
        Ok(())
    }

    fn before_snapshot(&mut self, device: &mut Runner, request: View<'_>) -> Result<()> {
        self.left_out_on_failure(|d| d.before_snapshot(device, request));
        Ok(())
    }

    fn context(&self, slot: u32) -> u64 {
        if self.left_out {
            return 0;
        }
        catch_unwind(AssertUnwindSafe(|| self.drafter.context(slot))).unwrap_or(0)
    }

    fn draft(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()> {
        self.call(|d| d.draft(device, asks)).unwrap_or_else(|| {
            asks.iter_mut().for_each(|ask| ask.drafts.clear());
            Ok(())
        })
    }
}
