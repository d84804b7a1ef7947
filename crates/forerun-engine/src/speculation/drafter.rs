//! What a drafter is.

use crate::error::Result;
use crate::runner::Runner;
use crate::sampling::SamplingParams;
use crate::speculation::DrafterKind;

/// A request as drafters see it. What crosses this line is tokens.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The request's slot in every cache.
    pub slot: u32,
    /// Every verified token: the prompt, then what was generated.
    pub tokens: &'a [u32],
    /// How many of them the model has run. A request that generates has all run but the last.
    pub run: usize,
    /// How the request samples.
    pub sampling: &'a SamplingParams,
}

/// A request that wants drafts.
#[derive(Debug)]
pub struct Ask<'a> {
    /// The request.
    pub request: View<'a>,
    /// The most drafts wanted, at least 1.
    pub depth: usize,
    /// A chain of guesses ends before one that the drafter holds less likely than this.
    pub confidence: f32,
    /// Filled by the drafter: the tokens it expects next.
    pub drafts: &'a mut Vec<u32>,
}

/// Runs ahead of the model. No draft can change a request's text: it counts only when the model chooses the same token, so
/// a drafter may be as inexact as it likes. One that fails is left out, and one that panics is left out for good.
///
/// One drafter serves every slot of its engine, so that one step of a device can draft for many requests. All sessions wait
/// while it is called: a drafter that blocks stops them, and one that calls its engine waits for itself. The device is
/// lent for steps of draft blocks ([`Runner::mtp_step`]); a step of the model itself would write into the caches that the
/// requests stand on.
pub trait Drafter: Send {
    /// What it is called in requests and statistics.
    fn kind(&self) -> DrafterKind;

    /// A request begins. Its slot still holds what the first `kept` tokens left there.
    fn begin(&mut self, request: View<'_>, kept: usize);

    /// The model is about to run `rows` tokens of the request that it has not run yet.
    ///
    /// # Errors
    /// When the device fails. A drafter of the caller's is then left out for good; with the engine's own the step fails.
    fn before_step(&mut self, device: &mut Runner, request: View<'_>, rows: usize) -> Result<()> {
        let _ = (device, request, rows);
        Ok(())
    }

    /// What the model has run of the request is about to be kept for later requests of the slot.
    ///
    /// # Errors
    /// As [`Drafter::before_step`].
    fn before_snapshot(&mut self, device: &mut Runner, request: View<'_>) -> Result<()> {
        let _ = (device, request);
        Ok(())
    }

    /// Verified tokens that the drafter has made keys and values of since the slot's request began, where it does so.
    fn context(&self, slot: u32) -> u64 {
        let _ = slot;
        0
    }

    /// Drafts for every request that asks. Where it has no guess it leaves `drafts` empty.
    ///
    /// # Errors
    /// When it cannot. Its requests then go on without this drafter.
    fn draft(&mut self, device: &mut Runner, asks: &mut [Ask<'_>]) -> Result<()>;
}
