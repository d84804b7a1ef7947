//! Memory for vectors: 64-byte aligned, zeroed, on huge pages where that helps; allocation may fail.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use forerun_tensor::{Result, TensorError};

const ALIGN: usize = 64;
const HUGE: usize = 2 << 20;

/// A fixed-length buffer of plain numbers.
pub(crate) struct Buffer<T> {
    ptr: NonNull<T>,
    len: usize,
    layout: Layout,
    _owns: PhantomData<T>,
}

/// Types for which all-zero bytes are a value.
pub(crate) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for i8 {}
impl Plain for u16 {}
impl Plain for i32 {}
impl Plain for f32 {}
impl Plain for f64 {}

// SAFETY: the buffer owns its memory, and its elements are plain numbers.
unsafe impl<T: Plain> Send for Buffer<T> {}
// SAFETY: as above; shared access is read-only.
unsafe impl<T: Plain> Sync for Buffer<T> {}

impl<T: Plain> Buffer<T> {
    /// A zeroed buffer. `what` names its purpose should memory be short.
    pub(crate) fn new(len: usize, what: &str) -> Result<Self> {
        let fail = |reason: &str| TensorError::Memory {
            what: what.to_owned(),
            need: (len as u64).saturating_mul(size_of::<T>() as u64),
            reason: reason.to_owned(),
        };
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| fail("more than can be addressed"))?;
        let align = if bytes >= HUGE { HUGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes.max(ALIGN), align)
            .map_err(|_| fail("more than can be addressed"))?;
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let ptr = NonNull::new(raw.cast::<T>()).ok_or_else(|| fail("the system has no more"))?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE {
            // SAFETY: the range is this buffer's own. Advice changes no content; a refusal is harmless.
            unsafe { libc::madvise(raw.cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Self { ptr, len, layout, _owns: PhantomData })
    }

    /// The first element, for access that the borrow checker cannot follow.
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.ptr.as_ptr()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.ptr.as_ptr().cast(), self.layout) };
    }
}

impl<T: Plain> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` initialised elements live as long as the buffer.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Plain> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
