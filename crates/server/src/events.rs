//! `/v1/events`: alerts and device changes as they happen.

use super::admission::SubscriberPlace;
use super::fail::Fail;
use super::limits;
use super::state::{Server, ServerState};
use super::stream::streamed;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use futures_util::stream;
use haversack::alerts::AlertChange;
use haversack::{Notice, NoticeReceiver, Owner};
use serde_json::json;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a subscriber checks whether the server is stopping.
const STOP_CHECK: Duration = Duration::from_millis(250);

struct Subscriber {
    server: Arc<ServerState>,
    notices: NoticeReceiver,
    ready: VecDeque<Bytes>,
    last_sent: Instant,
    _place: SubscriberPlace,
}

pub async fn events(
    State(server): Server,
    Extension(owner): Extension<Owner>,
) -> Result<Response, Fail> {
    let place = server.subscribers.place(owner)?;
    let notices = server.client().notices();
    // Alerts that are raised already come first.
    let raised = server.engine.metrics().alerts;
    let ready = raised.into_iter().map(|raised| {
        let change = AlertChange {
            alert: raised.alert,
            is_raised: true,
            words: raised.words,
        };
        event(&Notice::Alert(raised.since, change))
    });
    let subscriber = Subscriber {
        ready: ready.collect(),
        notices,
        last_sent: Instant::now(),
        _place: place,
        server,
    };
    let next = async |mut subscriber: Subscriber| {
        let bytes = subscriber.next().await?;
        Some((bytes, subscriber))
    };
    Ok(streamed(stream::unfold(subscriber, next)))
}

impl Subscriber {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.last_sent = Instant::now();
                return Some(bytes);
            }
            if self.server.client().is_stopping() {
                return None;
            }
            match tokio::time::timeout(STOP_CHECK, self.notices.next()).await {
                Ok(Some(notice)) => self.ready.push_back(event(&notice)),
                Ok(None) => return None,
                Err(_) if self.last_sent.elapsed() >= limits::SILENCE => {
                    self.ready.push_back(": still there\n\n".into());
                }
                Err(_) => {}
            }
        }
    }
}

fn event(notice: &Notice) -> Bytes {
    let (kind, data) = match notice {
        Notice::Alert(when, change) => {
            let data = json!({
                "name": change.alert.name(),
                "raised": change.is_raised,
                "words": change.words,
                "seconds": when.as_secs_f64(),
            });
            ("alert", data)
        }
        Notice::Device(when, what) => {
            let data = json!({ "what": what, "seconds": when.as_secs_f64() });
            ("device", data)
        }
        Notice::Missed(missed) => {
            return format!("data: {}\n\n", json!({ "missed": missed })).into();
        }
    };
    format!("event: {kind}\ndata: {data}\n\n").into()
}
