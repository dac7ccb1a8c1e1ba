//! Handles belong to the process that made them: a child of `fork` has their memory, but not the engine's thread.

use crate::wait::exception;
use pyo3::prelude::*;

/// A handle, and the process that it works in.
pub(crate) struct InProcess<T: Send> {
    /// `None` while it is dropped.
    handle: Option<T>,
    process: u32,
}

impl<T: Send> InProcess<T> {
    pub fn new(handle: T) -> InProcess<T> {
        InProcess {
            handle: Some(handle),
            process: std::process::id(),
        }
    }

    /// The handle, unless this is another process.
    pub fn get(&self, py: Python<'_>) -> PyResult<&T> {
        let handle = self.handle.as_ref();
        let handle = handle.filter(|_| self.process == std::process::id());
        handle.ok_or_else(|| {
            let text = format!(
                "the engine is in process {}, which this one was forked from; open one here",
                self.process
            );
            exception(py, "Unsupported", text)
        })
    }
}

impl<T: Send> Drop for InProcess<T> {
    fn drop(&mut self) {
        let handle = self.handle.take();
        if self.process == std::process::id() {
            // The last handle waits until conversations are saved.
            Python::attach(|py| py.detach(|| drop(handle)));
        } else {
            // It would wait for a thread that is not here.
            std::mem::forget(handle);
        }
    }
}
