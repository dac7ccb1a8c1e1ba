//! What is handed out and comes back to be freed: handles and texts.

use std::ffi::c_char;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A text that is handed out: UTF-8, ending with a zero byte that it does not count.
pub(crate) struct Text(String);

impl Text {
    /// A zero byte inside becomes U+FFFD: C would see the end there.
    pub fn new(text: String) -> Text {
        match text.contains('\0') {
            true => Text::with_length(text.replace('\0', "\u{fffd}")),
            false => Text::with_length(text),
        }
    }

    /// The same with zero bytes, for a text whose length is handed out too.
    pub fn with_length(mut text: String) -> Text {
        text.push('\0');
        Text(text)
    }

    pub fn bytes(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }

    pub fn len(&self) -> usize {
        self.0.len() - 1
    }
}

/// A handle for the caller.
pub(crate) fn boxed<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Drops what a handle points to. A panic ends here.
///
/// # Safety
/// Null, or a handle of [`boxed`] that no call uses.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: not null, and as the caller promises.
        let owned = unsafe { Box::from_raw(handle) };
        let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
    }
}
