//! The caller's pointers: null is an error, a text is UTF-8, a number has a range. All reading and writing through them is here.

use crate::error::Failure;
use std::ffi::{CStr, c_char};
use std::slice;

/// Longest text that is taken: far more than any context holds, and little enough to be read on the spot.
pub(crate) const TEXT_BYTES_MAX: usize = 64 << 20;

/// What a handle points to.
///
/// # Safety
/// Null, or a handle of this library that is not freed as long as the result is used.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    let found = unsafe { handle.as_ref() };
    found.ok_or_else(|| Failure::argument(name, "it is null"))
}

/// A text of the caller's.
///
/// # Safety
/// Null, or a text that ends with a zero byte and is not changed as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    let found = unsafe { optional_text(text, name) }?;
    found.ok_or_else(|| Failure::argument(name, "it is null"))
}

/// The same where null means that there is none.
///
/// # Safety
/// As of [`text`].
pub(crate) unsafe fn optional_text<'a>(
    text: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and as the caller promises.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    if bytes.len() > TEXT_BYTES_MAX {
        let what = format!("{} bytes; accepted: at most {TEXT_BYTES_MAX}", bytes.len());
        return Err(Failure::argument(name, what));
    }
    let text = str::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| Failure::argument(name, format!("not UTF-8: {error}")))
}

/// What the caller fills in, or its default where the pointer is null.
///
/// # Safety
/// Null, or it points to a structure of this type.
pub(crate) unsafe fn optional<T: Copy>(options: *const T, default: T) -> T {
    // SAFETY: as the caller promises.
    unsafe { options.as_ref() }.copied().unwrap_or(default)
}

/// A list of the caller's; null is an empty one if its length is 0.
///
/// # Safety
/// Null, or it points to `count` values.
pub(crate) unsafe fn list<'a, T>(
    list: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    match (list.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::argument(name, "it is null")),
        (false, LIST_MAX..) => Err(Failure::argument(
            name,
            format!("{count} entries; accepted: less than {LIST_MAX}"),
        )),
        // SAFETY: not null, and as the caller promises; so few values are within an address space.
        _ => Ok(unsafe { slice::from_raw_parts(list, count) }),
    }
}

/// Longer lists are mistakes.
const LIST_MAX: usize = 1 << 16;

/// Writes to a place that the caller may leave out.
///
/// # Safety
/// Null, or it points to a place for a `T`.
pub(crate) unsafe fn write_optional<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: not null, and as the caller promises.
        unsafe { place.write(value) }
    }
}

/// Writes as many values as there is room for; returns how many there are.
///
/// # Safety
/// `place` points to places for `capacity` values, or is null and `capacity` 0.
pub(crate) unsafe fn write_list<T: Copy>(
    place: *mut T,
    capacity: usize,
    values: &[T],
    name: &str,
) -> Result<usize, Failure> {
    if place.is_null() && capacity > 0 {
        return Err(Failure::argument(name, "it is null"));
    }
    for (i, &value) in values.iter().take(capacity).enumerate() {
        // SAFETY: there are `capacity` places, and `i` is less.
        unsafe { place.add(i).write(value) }
    }
    Ok(values.len())
}

/// A number that counts something: 0 means that the caller leaves it out.
pub(crate) fn count(value: i64, max: i64, name: &str) -> Result<Option<usize>, Failure> {
    match value {
        0 => Ok(None),
        value if (1..=max).contains(&value) => Ok(Some(value as usize)),
        value => Err(Failure::argument(
            name,
            format!("{value}; accepted: 1 to {max}, and 0 for the default"),
        )),
    }
}

/// A size in bytes.
pub(crate) fn size(value: i64, name: &str) -> Result<usize, Failure> {
    usize::try_from(value)
        .map_err(|_| Failure::argument(name, format!("{value}; accepted: 0 or more")))
}
