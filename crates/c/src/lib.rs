//! The C interface: what [`haversack::Engine`], its conversations and answers do, as functions on opaque handles.
//!
//! It decides nothing and keeps no global state but the count of its heap. Every function checks its pointers and texts, calls
//! the library, and returns a status; a panic becomes one too. Nothing of the caller's is ever called, so nothing of it runs on the
//! engine's thread. Names are those of the header `bindings/c/haversack.h`, which `.ci/bindings` makes from this crate.
//!
//! The only `unsafe` is reading and writing through the caller's pointers. What the caller owes is the same everywhere and is
//! said once, here and at the top of the header:
//!
//! - a handle came from this library, was not freed, and is not freed while another thread uses it;
//! - a text ends with a zero byte; a pointer to a structure or a result points to one, or is null where that is allowed.
//!
//! ```text
//! pointer.rs   null, UTF-8, ranges      error.rs   status and text
//! options.rs   what callers fill in     owned.rs   what is handed out and freed
//! call.rs      panics, results
//! engine.rs, conversation.rs, answer.rs, lists.rs   the functions
//! ```

// Names as C has them.
#![allow(non_camel_case_types)]
#![warn(missing_docs)]

mod answer;
mod call;
mod conversation;
mod engine;
mod error;
mod lists;
mod options;
mod owned;
mod pointer;

use haversack::memory::CountedHeap;
use std::ffi::c_char;

/// The memory limit covers what the library allocates.
#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

/// Of the library that is linked; `HAVERSACK_VERSION` is that of the header. Static: never freed. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn haversack_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
