#![forbid(unsafe_code)]
//! The compiled part of the Python package: engines, conversations and answers as plain classes that take and return numbers, texts
//! and tuples. What Python programs see is written in Python on top of it, in `bindings/python`.
//!
//! No call holds the GIL while it waits, and signals come through: Ctrl-C ends the wait. Nothing of Python runs on the engine's
//! thread. Errors, panics included, become `haversack.Error` by their kind. A process that was forked has no engine, and its
//! handles say so.

mod answer;
mod conversation;
mod engine;
mod process;
mod prompt;
mod wait;

use haversack::memory::CountedHeap;
use pyo3::prelude::*;

/// The memory limit covers what the library allocates.
#[global_allocator]
static HEAP: CountedHeap = CountedHeap;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::answer::NativeAnswer;
    #[pymodule_export]
    use crate::conversation::NativeConversation;
    #[pymodule_export]
    use crate::engine::{NativeEngine, plan};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("version", env!("CARGO_PKG_VERSION"))
    }
}
