//! Responses of server-sent events.

use super::begun_answer::BegunAnswer;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::{Stream, StreamExt, stream};
use haversack::{AnswerEvent, Error};
use std::collections::VecDeque;
use std::convert::Infallible;

pub fn streamed(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let body = events.map(Ok::<Bytes, Infallible>);
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream");
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// What an answer still has to send, and where more of it comes from.
pub struct Outbox {
    /// `None` once the answer has ended. Dropped with the stream, so a client that leaves frees what it held.
    events: Option<BegunAnswer>,
    ready: VecDeque<Bytes>,
}

impl Outbox {
    pub fn new(events: BegunAnswer) -> Outbox {
        Outbox {
            events: Some(events),
            ready: VecDeque::new(),
        }
    }

    pub fn push(&mut self, event: impl Into<Bytes>) {
        self.ready.push_back(event.into());
    }

    /// Nothing comes after what is there.
    pub fn end(&mut self) {
        self.events = None;
    }
}

/// Writes an answer as one of the APIs does.
pub trait AnswerWriter: Send + 'static {
    fn outbox(&mut self) -> &mut Outbox;

    /// Of the choice of this number.
    fn receive(&mut self, choice: usize, event: AnswerEvent);
}

/// Sends what the writer makes of its events.
pub fn stream_answer(writer: impl AnswerWriter) -> Response {
    streamed(stream::unfold(writer, async |mut writer| {
        loop {
            let outbox = writer.outbox();
            if let Some(bytes) = outbox.ready.pop_front() {
                return Some((bytes, writer));
            }
            let (choice, event) = match outbox.events.as_mut()?.next().await {
                Some(next) => next,
                None => (0, AnswerEvent::Failed(Error::CutOff)),
            };
            writer.receive(choice, event);
        }
    }))
}
