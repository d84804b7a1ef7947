//! Room for recursion: parsing a template, and dropping the values it builds, recurses as deep as the template says.

use std::thread;

use crate::TextError;

/// Address space for the values that a template can build with the fuel it has; only what is used becomes memory.
const BASE: usize = 256 << 20;
/// Stack for each byte of a template, more than a level of its expressions needs.
const PER_BYTE: usize = 4 << 10;

/// Runs a function on a stack that is deep enough for a template of so many bytes.
pub(super) fn deep<T: Send>(bytes: usize, f: impl FnOnce() -> T + Send) -> Result<T, TextError> {
    let failed = |message: String| TextError::Template { line: 0, message };
    let size = bytes.saturating_mul(PER_BYTE).saturating_add(BASE);
    thread::scope(|scope| {
        let thread =
            thread::Builder::new().name("chat template".into()).stack_size(size).spawn_scoped(scope, f);
        let thread = thread.map_err(|e| failed(format!("no thread with a stack of {size} bytes: {e}")))?;
        thread.join().map_err(|_| failed("the template engine panicked".into()))
    })
}
