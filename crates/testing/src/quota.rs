//! How much of a sweep a run takes: a part of it in the usual one, all of it in the long form (`HAVERSACK_LONG=1`, which
//! `.ci/long sweeps` sets).

pub fn is_long() -> bool {
    std::env::var_os("HAVERSACK_LONG").is_some_and(|value| value == "1")
}

/// Of the long form, or of the usual one.
pub fn quota<T>(usual: T, long: T) -> T {
    if is_long() { long } else { usual }
}
