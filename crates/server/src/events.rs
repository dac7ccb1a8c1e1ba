//! `/v1/events`: alerts and changes that the device made necessary, as they happen.

use haversack::alerts::Change;
use super::answer::streamed;
use super::fail::Fail;
use super::owner::Notice;
use super::{Shared, limits};
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream;
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{Receiver, error::RecvError};

/// How often somebody who listens is asked to go, when the server stops.
const LOOK: Duration = Duration::from_millis(250);

struct Listener {
    shared: Arc<Shared>,
    notices: Receiver<Notice>,
    ready: VecDeque<Bytes>,
    spoke: Instant,
    _place: OwnedSemaphorePermit,
}

pub async fn events(State(shared): State<Arc<Shared>>) -> Result<Response, Fail> {
    let place = shared.listeners.clone().try_acquire_owned();
    let place = place.map_err(|_| Fail::busy())?;
    let notices = shared.hall.notices();
    // What holds already comes first.
    let raised = shared.hall.seen().alerts;
    let ready = raised.into_iter().map(|raised| {
        let change = Change {
            alert: raised.alert,
            is_raised: true,
            words: raised.words,
        };
        event(&Notice::Alert(raised.since, change))
    });
    let listener = Listener {
        ready: ready.collect(),
        notices,
        spoke: Instant::now(),
        _place: place,
        shared,
    };
    Ok(streamed(stream::unfold(listener, async |mut listener| {
        let bytes = listener.next().await?;
        Some((bytes, listener))
    })))
}

impl Listener {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.spoke = Instant::now();
                return Some(bytes);
            }
            if self.shared.hall.is_stopping() {
                return None;
            }
            match tokio::time::timeout(LOOK, self.notices.recv()).await {
                Ok(Ok(notice)) => self.ready.push_back(event(&notice)),
                Ok(Err(RecvError::Lagged(missed))) => {
                    let event = json!({ "missed": missed });
                    self.ready.push_back(format!("data: {event}\n\n").into());
                }
                Ok(Err(RecvError::Closed)) => return None,
                Err(_) if self.spoke.elapsed() >= limits::SILENCE => {
                    self.ready.push_back(": still there\n\n".into());
                }
                Err(_) => {}
            }
        }
    }
}

fn event(notice: &Notice) -> Bytes {
    let (kind, data) = match notice {
        Notice::Alert(when, change) => (
            "alert",
            json!({
                "name": change.alert.name(),
                "raised": change.is_raised,
                "words": change.words,
                "seconds": when.as_secs_f64(),
            }),
        ),
        Notice::Device(when, what) => (
            "device",
            json!({ "what": what, "seconds": when.as_secs_f64() }),
        ),
    };
    format!("event: {kind}\ndata: {data}\n\n").into()
}
