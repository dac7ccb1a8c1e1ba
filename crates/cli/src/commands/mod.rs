//! One file per command. A command takes its arguments, prints, and returns an error for `main` to
//! print.

pub mod inspect;
pub mod pull;
pub mod tokenize;
pub mod verify;
