#![forbid(unsafe_code)]
//! `serve`: the model behind HTTP, for clients that speak the OpenAI API.
//!
//! ```text
//! HTTP → door (host, origin, key) → types → ask (checked, tokens) → owner ⟲ desk → answer (plain or events)
//!                                            sessions ───────────────┘
//! ```
//!
//! One thread owns the desk, with the runtime and the sessions, and computes; everything about HTTP is on another and never waits for a step
//! but for its own answer. Whoever has no place in the queue is told so at once. Limits are in [`limits`]; no text of a
//! prompt or of an answer is logged, and no endpoint takes a path.

mod answer;
mod request;
mod tool_calls;
mod chat;
mod completions;
mod device;
mod auth;
mod embeddings;
mod events;
mod fail;
mod limits;
mod memory;
mod metrics;
mod owner;
mod page;
mod responses;
mod sessions;
mod structured;
mod tools;
mod types;

pub use auth::Door;
pub use embeddings::Encoders;
pub use memory::Gallery;
pub use owner::{Hall, Owner, OwnerOptions};
pub use structured::Grammars;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use fail::Fail;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// What every handler sees.
pub struct Shared {
    pub hall: Hall,
    pub door: Door,
    pub grammars: Grammars,
    pub encoders: Encoders,
    /// Told where a request names none.
    pub model_name: String,
    /// Conversations are kept here.
    pub has_sessions: bool,
    /// When the server began, in seconds since 1970.
    pub created: u64,
    pub gallery: Gallery,
    /// Places for those who listen to events.
    pub listeners: Arc<Semaphore>,
}

impl Shared {
    pub fn listeners() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(limits::LISTENERS))
    }
}

/// What is served where, and by which method. `openapi.json` describes it.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<Arc<Shared>>)> {
    vec![
        ("/", "get", get(page::index)),
        ("/page/{file}", "get", get(page::file)),
        ("/health", "get", get(health)),
        ("/metrics", "get", get(metrics::metrics)),
        ("/openapi.json", "get", get(openapi)),
        ("/v1/models", "get", get(models)),
        ("/v1/models/{id}", "get", get(model)),
        ("/v1/chat/completions", "post", post(chat::chat)),
        ("/v1/completions", "post", post(completions::completions)),
        ("/v1/responses", "post", post(responses::responses)),
        ("/v1/embeddings", "post", post(embeddings::embeddings)),
        ("/v1/memory", "get", get(memory::show)),
        ("/v1/events", "get", get(events::events)),
        ("/v1/device", "get", get(device::show)),
        ("/v1/device", "put", put(device::tell)),
        ("/v1/sessions", "get", get(sessions::list)),
        ("/v1/sessions", "post", post(sessions::create)),
        ("/v1/sessions/{id}", "get", get(sessions::show)),
        ("/v1/sessions/{id}", "delete", delete(sessions::delete)),
        ("/v1/sessions/{id}/fork", "post", post(sessions::fork)),
        ("/v1/sessions/{id}/facts", "post", post(sessions::add_fact)),
        (
            "/v1/sessions/{id}/facts/{number}",
            "delete",
            delete(sessions::revoke_fact),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/recall",
            "post",
            post(sessions::recall),
        ),
        (
            "/v1/sessions/{id}/turns/last",
            "delete",
            delete(sessions::retract),
        ),
    ]
}

const OPENAPI: &str = include_str!("openapi.json");

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

fn router(shared: Arc<Shared>) -> Router {
    let guard = axum::middleware::from_fn_with_state(shared.clone(), auth::guard);
    let routes = routes().into_iter();
    routes
        .fold(Router::new(), |router, (path, _, answers)| {
            router.route(path, answers)
        })
        .fallback(async || Fail::not_found())
        .method_not_allowed_fallback(async || Fail::method())
        .layer(guard)
        .with_state(shared)
}

async fn health(State(shared): State<Arc<Shared>>) -> Response {
    let seen = shared.hall.seen();
    let status = if shared.hall.is_stopping() {
        "stopping"
    } else {
        "ok"
    };
    axum::Json(json!({
        "status": status,
        "active": seen.active,
        "waiting": seen.waiting,
    }))
    .into_response()
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let data = [shared.model_json()];
    axum::Json(json!({ "object": "list", "data": data })).into_response()
}

async fn model(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    match id == shared.model_name {
        true => axum::Json(shared.model_json()).into_response(),
        false => Fail::no_model().into_response(),
    }
}

impl Shared {
    fn model_json(&self) -> serde_json::Value {
        json!({
            "id": self.model_name,
            "object": "model",
            "created": self.created,
            "owned_by": "haversack",
        })
    }
}

/// Answers until `stop` ends; then those under way are finished, for as long as they may.
pub async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let app = router(shared.clone());
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let mut stop = std::pin::pin!(stop);
    loop {
        let place = places.clone().acquire_owned();
        let (place, stream) = tokio::select! {
            place = place => match place {
                Ok(place) => tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => (place, stream),
                        // Out of files, or gone before it was taken: others may fare better soon.
                        Err(error) => {
                            log::warn!("a connection was not taken: {error}");
                            tokio::time::sleep(Duration::from_millis(50)).await;
                            continue;
                        }
                    },
                    () = &mut stop => break,
                },
                Err(_) => break,
            },
            () = &mut stop => break,
        };
        let _ = stream.set_nodelay(true);
        let mut http = hyper::server::conn::http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits::HEADER_TIME)
            .max_buf_size(limits::HEADER_BYTES)
            .half_close(false);
        let service = TowerToHyperService::new(app.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                log::debug!("a connection ended: {error}");
            }
            drop(place);
        });
    }
    shared.hall.stop();
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(limits::STOP_TIME) => log::warn!("answers were cut off at the end"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value as Json;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_served_is_described_and_the_other_way_round() {
        let document: Json = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                described.insert((path.as_str(), method.as_str()));
            }
        }
        let routes = routes();
        let served: BTreeSet<(&str, &str)> = routes
            .iter()
            .map(|(path, method, _)| (*path, *method))
            .collect();
        assert_eq!(described, served);
        assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn every_reference_of_the_description_is_there() {
        fn references<'a>(of: &'a Json, into: &mut Vec<&'a str>) {
            match of {
                Json::Object(map) => {
                    into.extend(map.get("$ref").and_then(Json::as_str));
                    map.values().for_each(|value| references(value, into));
                }
                Json::Array(items) => items.iter().for_each(|item| references(item, into)),
                _ => {}
            }
        }
        let document: Json = serde_json::from_str(OPENAPI).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some(), "{reference}");
        }
    }
}
