//! How a function of the interface runs: a panic becomes an error, and a result is written to the caller's place.

use crate::error::{Failure, haversack_error, haversack_status};
use crate::pointer::write_optional;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Runs the body of a function. A failure, or a panic, becomes a status and, where the caller asks for one, an error.
pub(crate) fn guard(
    error: *mut *mut haversack_error,
    body: impl FnOnce() -> Result<(), Failure>,
) -> haversack_status {
    // After a panic the caller has a status and no result: nothing that it broke is looked at.
    let ended = catch_unwind(AssertUnwindSafe(body));
    let failed = match ended {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => Some(Failure {
            status: haversack_status::Internal,
            text: format!("the library panicked: {}", words(&*panic)),
        }),
    };
    let status = failed.as_ref().map_or(haversack_status::Ok, |f| f.status);
    if !error.is_null() {
        let made = failed.map_or(ptr::null_mut(), |failure| {
            Box::into_raw(Box::new(haversack_error::from(failure)))
        });
        // SAFETY: it is not null, so the caller points to a place for an error.
        unsafe { error.write(made) };
    }
    status
}

/// The same for a function that has a result: it is written to `place`. A null place is an error before anything is done.
///
/// # Safety
/// `place` is null, or it points to a place for a `T`.
pub(crate) unsafe fn returning<T>(
    place: *mut T,
    name: &str,
    error: *mut *mut haversack_error,
    body: impl FnOnce() -> Result<T, Failure>,
) -> haversack_status {
    guard(error, || {
        if place.is_null() {
            return Err(Failure::argument(name, "it is null"));
        }
        let value = body()?;
        // SAFETY: not null, and as the caller promises.
        unsafe { place.write(value) };
        Ok(())
    })
}

/// The same for a result that the caller may leave out.
///
/// # Safety
/// As of [`returning`].
pub(crate) unsafe fn returning_optional<T>(
    place: *mut T,
    error: *mut *mut haversack_error,
    body: impl FnOnce() -> Result<T, Failure>,
) -> haversack_status {
    guard(error, || {
        let value = body()?;
        // SAFETY: as the caller promises.
        unsafe { write_optional(place, value) };
        Ok(())
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason is known")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{haversack_error_free, haversack_error_status, haversack_error_text};
    use std::ffi::CStr;

    #[test]
    fn a_panic_becomes_an_error() {
        for panics in [
            || -> Result<(), Failure> { panic!("this panic is part of a test") },
            || panic!("this panic is part of {}", "a test"),
        ] {
            let mut error = ptr::null_mut();
            let status = guard(&mut error, panics);
            assert_eq!(status, haversack_status::Internal);
            // SAFETY: made just now.
            unsafe {
                assert_eq!(haversack_error_status(error), status);
                let text = CStr::from_ptr(haversack_error_text(error));
                assert!(
                    text.to_str().unwrap().ends_with("part of a test"),
                    "{text:?}"
                );
                haversack_error_free(error);
            }
            assert_eq!(guard(ptr::null_mut(), panics), status);
        }
    }

    #[test]
    fn a_call_that_was_done_leaves_no_error() {
        let mut error = ptr::dangling_mut();
        assert_eq!(guard(&mut error, || Ok(())), haversack_status::Ok);
        assert!(error.is_null());
        // SAFETY: null is allowed.
        unsafe {
            assert_eq!(haversack_error_status(error), haversack_status::Ok);
            assert_eq!(CStr::from_ptr(haversack_error_text(error)), c"");
            haversack_error_free(error);
        }
    }

    #[test]
    fn a_zero_byte_does_not_end_the_text_of_an_error() {
        let mut error = ptr::null_mut();
        guard(&mut error, || Err(Failure::argument("name", "a\0b")));
        // SAFETY: made just now.
        unsafe {
            let text = CStr::from_ptr(haversack_error_text(error));
            assert_eq!(text.to_str().unwrap(), "name: a\u{fffd}b");
            haversack_error_free(error);
        }
    }
}
