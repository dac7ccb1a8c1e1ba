#![forbid(unsafe_code)]
//! What lives longer than a step: requests that share every pass over the weights ([`scheduler`]), and conversations that
//! are kept in files ([`session`]). The scheduler uses sessions; sessions know no scheduler.

pub mod scheduler;
pub mod session;
