//! An answer on its way: pieces of text as they come, then a report. Dropping it cancels the request.

use crate::client::{AnswerEvents, AnswerStopper, Client};
use crate::error::Error;
use crate::report::{AnswerEvent, Report};
use haversack_engine::runtime::Finish;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A blocking iterator over the pieces of an answer.
///
/// ```no_run
/// # fn main() -> Result<(), haversack::Error> {
/// # let engine = haversack::Engine::open("model.gguf").start()?;
/// let mut answer = engine.complete("Once upon a time").send()?;
/// for piece in answer.by_ref() {
///     print!("{}", piece?);
/// }
/// println!("\n{}", answer.report());
/// # Ok(())
/// # }
/// ```
pub struct Answer(Progress);

/// The same as futures, for any async runtime.
pub struct AnswerStream(Progress);

struct Progress {
    /// `None` once the last event was received.
    events: Option<AnswerEvents>,
    /// Bytes of the text that were returned.
    returned: usize,
    finish: Option<Finish>,
    report: Report,
    stopper: AnswerStopper,
    /// The engine runs as long as an answer is read.
    _client: Arc<Client>,
}

impl Progress {
    /// What an event means to a reader: `None` where it has nothing to show yet.
    fn take(&mut self, event: Option<(usize, AnswerEvent)>) -> Option<Result<String, Error>> {
        match event {
            Some((_, AnswerEvent::Token { text, .. })) => {
                self.report.tokens += 1;
                self.returned += text.len();
                Some(Ok(text)).filter(|piece| piece.as_ref().is_ok_and(|text| !text.is_empty()))
            }
            Some((_, AnswerEvent::PromptRead { .. } | AnswerEvent::SessionRead { .. })) => None,
            Some((
                _,
                AnswerEvent::Finished {
                    text,
                    finish,
                    report,
                },
            )) => {
                self.events = None;
                self.finish = Some(finish);
                self.report = report;
                let rest = text.get(self.returned..).unwrap_or_default();
                (!rest.is_empty()).then(|| Ok(rest.to_owned()))
            }
            Some((_, AnswerEvent::Failed(error))) => {
                self.events = None;
                Some(Err(error))
            }
            None => {
                self.events = None;
                Some(Err(Error::CutOff))
            }
        }
    }
}

impl Answer {
    pub(crate) fn new(client: Arc<Client>, events: AnswerEvents) -> Answer {
        Answer(Progress {
            stopper: events.stopper(),
            events: Some(events),
            returned: 0,
            finish: None,
            report: Report::default(),
            _client: client,
        })
    }

    /// Blocks until the answer has ended and returns what is left of its text.
    pub fn text(&mut self) -> Result<String, Error> {
        self.collect()
    }

    /// Why the answer ended; `None` while it goes on, or where it failed.
    pub fn finish(&self) -> Option<Finish> {
        self.0.finish
    }

    /// What the answer saw, what left memory for it, what it cost. Complete once the answer has ended.
    pub fn report(&self) -> &Report {
        &self.0.report
    }

    /// What ends this answer from another thread, while this one waits for a piece. The last piece and the report still come.
    pub fn stopper(&self) -> AnswerStopper {
        self.0.stopper.clone()
    }

    /// The same answer as futures.
    pub fn into_stream(self) -> AnswerStream {
        AnswerStream(self.0)
    }
}

impl Iterator for Answer {
    type Item = Result<String, Error>;

    fn next(&mut self) -> Option<Result<String, Error>> {
        while let Some(events) = &mut self.0.events {
            let event = events.recv();
            if let Some(piece) = self.0.take(event) {
                return Some(piece);
            }
        }
        None
    }
}

impl AnswerStream {
    /// The next piece of text. `None`: the answer has ended.
    pub async fn next(&mut self) -> Option<Result<String, Error>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// [`AnswerStream::next`] for a future of your own.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<String, Error>>> {
        while let Some(events) = &mut self.0.events {
            let Poll::Ready(event) = events.poll_next(cx) else {
                return Poll::Pending;
            };
            if let Some(piece) = self.0.take(event) {
                return Poll::Ready(Some(piece));
            }
        }
        Poll::Ready(None)
    }

    /// Waits until the answer has ended and returns what is left of its text.
    pub async fn text(&mut self) -> Result<String, Error> {
        let mut text = String::new();
        while let Some(piece) = self.next().await {
            text += &piece?;
        }
        Ok(text)
    }

    /// See [`Answer::stopper`].
    pub fn stopper(&self) -> AnswerStopper {
        self.0.stopper.clone()
    }

    /// See [`Answer::finish`].
    pub fn finish(&self) -> Option<Finish> {
        self.0.finish
    }

    /// See [`Answer::report`].
    pub fn report(&self) -> &Report {
        &self.0.report
    }
}
