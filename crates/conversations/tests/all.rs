//! Tests of the scheduler and sessions: one program, because each costs a link.

mod common;
mod condense;
mod damage;
mod many;
mod many_sessions;
mod memory_report;
mod prefix;
mod rebuild;
mod recall;
mod session;
mod session_fuzz;
