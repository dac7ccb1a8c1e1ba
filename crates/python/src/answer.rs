//! An answer on its way: pieces of text, then a report.

use crate::process::InProcess;
use crate::wait::{SLICE, Unpark, panicked, raise};
use haversack::engine::runtime::Finish;
use haversack::{Answer, AnswerStopper, AnswerStream, ContextSeen};
use pyo3::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

/// Of an answer: turn, tokens, visible, hidden, spilled, cached, recomputed, evicted, recalled turns, bytes, milliseconds to the first
/// token, milliseconds.
type ReportFields = (Option<u64>, Seen, Vec<u64>, u64, Option<f64>, f64);
type Seen = (usize, u64, u64, u64, u64, u64, u64);

#[pyclass(frozen, name = "Answer", module = "haversack._native")]
pub(crate) struct NativeAnswer {
    stream: InProcess<Mutex<AnswerStream>>,
    /// Beside the lock, which a reader holds while it waits.
    stopper: AnswerStopper,
}

impl NativeAnswer {
    pub fn new(answer: Answer) -> NativeAnswer {
        NativeAnswer {
            stopper: answer.stopper(),
            stream: InProcess::new(Mutex::new(answer.into_stream())),
        }
    }
}

#[pymethods]
impl NativeAnswer {
    /// The next piece; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let stream = self.stream.get(py)?;
        loop {
            let polled = py.detach(|| {
                let waker = Waker::from(Arc::new(Unpark(thread::current())));
                let mut stream = locked(stream);
                let polled = catch_unwind(AssertUnwindSafe(|| {
                    stream.poll_next(&mut Context::from_waker(&waker))
                }));
                if matches!(polled, Ok(Poll::Pending)) {
                    thread::park_timeout(SLICE);
                }
                polled.map_err(drop)
            });
            match polled {
                Ok(Poll::Ready(piece)) => {
                    return piece.transpose().map_err(|error| raise(py, error));
                }
                Ok(Poll::Pending) => py.check_signals()?,
                Err(()) => return Err(panicked(py)),
            }
        }
    }

    /// Ends the answer where it is; what is left of it still comes.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.stream.get(py)?;
        self.stopper.stop();
        Ok(())
    }

    /// Why it ended; `None` while it goes on.
    fn finish(&self, py: Python<'_>) -> PyResult<Option<&'static str>> {
        let stream = self.stream.get(py)?;
        let finish = py.detach(|| locked(stream).finish());
        Ok(finish.map(|finish| match finish {
            Finish::Stop => "stop",
            Finish::Repetition => "repetition",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }))
    }

    fn report(&self, py: Python<'_>) -> PyResult<ReportFields> {
        let stream = self.stream.get(py)?;
        let report = py.detach(|| locked(stream).report().clone());
        let tokens = report.tokens;
        let (turn, seen, recalled) = match &report.context {
            ContextSeen::Completion(held) => {
                let (rows, reused) = (held.usage.rows as u64, held.reused as u64);
                let seen = (tokens, rows, 0, 0, reused, 0, held.usage.evicted());
                (None, seen, Vec::new())
            }
            ContextSeen::Turn { number, context } => {
                let (cached, again) = (context.cached, context.recomputed);
                let seen = (
                    tokens,
                    context.kept,
                    context.masked,
                    context.spilled,
                    cached,
                    again,
                    context.evicted,
                );
                (*number, seen, context.recalled.clone())
            }
        };
        let first = report.first_token.map(|time| time.as_secs_f64());
        Ok((
            turn,
            seen,
            recalled,
            report.bytes(),
            first,
            report.time.as_secs_f64(),
        ))
    }
}

/// A reader that panicked left nothing half done.
fn locked(stream: &Mutex<AnswerStream>) -> MutexGuard<'_, AnswerStream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}
