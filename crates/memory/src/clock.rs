//! What time it is.

use std::time::{Duration, SystemTime};

/// Since 1970; a clock that stands before that is at its beginning.
pub fn since_1970() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

pub fn now_ms() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}
