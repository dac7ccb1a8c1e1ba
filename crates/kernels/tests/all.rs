//! Tests of every kernel of every backend: one program, because each costs a link.

mod attention;
mod kv_codecs;
mod kv_error_feedback;
mod kv_levels;
mod kv_slots;
mod matmul;
mod matmul_formats;
mod ops;
mod packing;
mod rotation;
// Loom's threads are stacks of its own, which an emulator need not know.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod schedules;
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[path = "schedules/sync.rs"]
mod sync;
mod threads;
