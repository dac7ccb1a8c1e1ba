//! Waiting without the GIL, with signals coming through, and errors as exceptions.

use haversack::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Duration;

/// How often Python is asked for signals while a call waits: Ctrl-C is heard this late at most.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Wakes a thread that is parked in [`SLICE`]s.
pub(crate) struct Unpark(pub Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Does what may block on a thread of its own. A signal ends the wait, and what comes of the work is dropped.
pub(crate) fn work<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let (done, result) = channel();
    let spawned = thread::Builder::new().spawn(move || done.send(work()).map_err(drop));
    spawned.map_err(|error| raise(py, Error::Thread(error)))?;
    let mut result = Some(result);
    loop {
        // A receiver is not shared between threads: it goes there and comes back.
        let waiting = result.take();
        let (received, waiting) = py.detach(move || {
            let received = waiting.as_ref().map(|result| result.recv_timeout(SLICE));
            (received, waiting)
        });
        result = waiting;
        match received {
            Some(Ok(result)) => return result.map_err(|error| raise(py, error)),
            Some(Err(RecvTimeoutError::Timeout)) => py.check_signals()?,
            Some(Err(RecvTimeoutError::Disconnected)) | None => return Err(panicked(py)),
        }
    }
}

/// The exception of an error's kind.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let name = match error.kind() {
        ErrorKind::InvalidInput => "InvalidInput",
        ErrorKind::NotFound => "NotFound",
        ErrorKind::Conflict => "Conflict",
        ErrorKind::Busy => "Busy",
        ErrorKind::TooLarge => "TooLarge",
        ErrorKind::OutOfMemory => "OutOfMemory",
        ErrorKind::Unsupported => "Unsupported",
        ErrorKind::Cancelled => "Cancelled",
        ErrorKind::Closed => "Closed",
        ErrorKind::Io => "Io",
        // `Internal`, and kinds that this package does not have yet.
        _ => "Internal",
    };
    exception(py, name, error.to_string())
}

/// What a call answers that panicked.
pub(crate) fn panicked(py: Python<'_>) -> PyErr {
    exception(py, "Internal", "the library panicked".to_owned())
}

/// One of the classes of `haversack._errors`.
pub(crate) fn exception(py: Python<'_>, name: &str, text: String) -> PyErr {
    static ERRORS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module = ERRORS.get_or_try_init(py, || {
        PyModule::import(py, "haversack._errors").map(Bound::unbind)
    });
    let class =
        module.and_then(|module| Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?));
    match class {
        Ok(class) => PyErr::from_type(class, (text,)),
        // Without the package around it.
        Err(_) => PyRuntimeError::new_err(text),
    }
}
