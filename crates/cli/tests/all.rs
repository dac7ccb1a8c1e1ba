//! Tests of the command and its server, as users meet them: one program, because each costs a link.

mod api;
mod bad_input;
mod bounded;
mod chat;
mod chat_commands;
mod common;
mod compare;
mod contract;
mod endurance;
mod fuzz;
mod models;
mod packed_model;
mod page;
mod page_chats;
mod plan;
mod pressure;
mod questions;
mod recorded;
mod reference;
mod sampling;
mod serve;
mod serve_sessions;
mod session_file;
mod terminal;
mod tools;
mod watch;
