//! Tests of every kernel of every backend: one program, because each costs a link.

mod attention;
mod kv_codecs;
mod kv_error_feedback;
mod matmul;
mod matmul_formats;
mod ops;
mod threads;
