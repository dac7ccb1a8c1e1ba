//! One file per command. A command takes its arguments, prints, and returns an error for `main` to
//! print.

pub mod bench;
pub mod chat;
pub mod compare;
pub mod completions;
pub mod doctor;
pub mod inspect;
pub mod man;
pub mod models;
pub mod pack;
pub mod perplexity;
pub mod plan;
pub mod pull;
pub mod rm;
pub mod run;
pub mod score;
pub mod serve;
pub mod session;
pub mod session_file;
pub mod session_search;
pub mod start;
pub mod tokenize;
pub mod verify;
