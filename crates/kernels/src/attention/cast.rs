//! Scratch memory is floats; parts of it hold bytes and integers.

/// Floats as room for bytes.
pub(super) fn bytes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: any bytes are floats and the other way round, and there are four to a float.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats)) }
}

/// Floats as room for integers.
pub(super) fn words_mut(floats: &mut [f32]) -> &mut [i32] {
    // SAFETY: any four bytes are either; size and alignment are the same.
    unsafe { std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), floats.len()) }
}

/// Floats as bytes.
pub(super) fn bytes_of(floats: &[f32]) -> &[u8] {
    // SAFETY: as for `bytes_mut`.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats)) }
}

/// Floats as integers.
pub(super) fn words_of(floats: &[f32]) -> &[i32] {
    // SAFETY: as for `words_mut`.
    unsafe { std::slice::from_raw_parts(floats.as_ptr().cast(), floats.len()) }
}
