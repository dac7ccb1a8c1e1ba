//! The worker threads: spin, then park.
pub struct Pool;
