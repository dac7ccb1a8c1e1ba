#![forbid(unsafe_code)]
//! HTTP for an engine: the OpenAI API, sessions, metrics and the page.
//!
//! ```text
//! HTTP → auth (host, origin, key) → body → types → request (checked, tokens) → haversack::Client → answer (document or events)
//!                                                  sessions ──────────────────┘
//! ```
//!
//! The engine computes on its own thread; the HTTP thread never waits for a step except for the answer itself. A request
//! that finds no place in the queue is refused at once. Limits are in [`limits`]; no text of a prompt or an answer is
//! logged, and no endpoint takes a path.

mod answer;
mod auth;
mod body;
mod chat;
mod completions;
mod device;
mod embeddings;
mod encoder;
mod events;
mod fail;
mod json;
mod limits;
mod memory;
mod metrics;
mod page;
mod request;
mod responses;
mod sessions;
mod state;
mod stream;
mod structured;
mod tool_calls;
mod tools;
mod types;

pub use auth::Auth;
pub use state::ServerState;

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Json, Router};
use fail::Fail;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use state::Server;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Path, method and handler of every endpoint. `openapi.json` describes them.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<Arc<ServerState>>)> {
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

fn router(server: Arc<ServerState>) -> Router {
    let guard = axum::middleware::from_fn_with_state(server.auth.clone(), auth::guard);
    let routes = routes().into_iter();
    routes
        .fold(Router::new(), |router, (path, _, answers)| {
            router.route(path, answers)
        })
        .fallback(async || Fail::not_found())
        .method_not_allowed_fallback(async || Fail::method())
        .layer(guard)
        .with_state(server)
}

async fn health(State(server): Server) -> Json<Value> {
    let metrics = server.engine.metrics();
    let is_stopping = server.client().is_stopping();
    Json(json!({
        "status": if is_stopping { "stopping" } else { "ok" },
        "active": metrics.active,
        "waiting": metrics.waiting,
    }))
}

async fn models(State(server): Server) -> Json<Value> {
    let data = [model_json(&server)];
    Json(json!({ "object": "list", "data": data }))
}

async fn model(State(server): Server, Path(id): Path<String>) -> Result<Json<Value>, Fail> {
    match id == server.model_name {
        true => Ok(Json(model_json(&server))),
        false => Err(Fail::no_model()),
    }
}

fn model_json(server: &ServerState) -> Value {
    json!({
        "id": server.model_name,
        "object": "model",
        "created": server.created,
        "owned_by": "haversack",
    })
}

/// Serves until `stop` ends; then finishes the answers under way, for at most [`limits::STOP_TIME`].
pub async fn serve(
    listener: TcpListener,
    server: Arc<ServerState>,
    stop: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let app = router(server.clone());
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
                        // Out of file descriptors, or the client left early: the next one may succeed.
                        Err(error) => {
                            log::warn!("a connection could not be accepted: {error}");
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
    server.client().stop();
    drop(listener);
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(limits::STOP_TIME) => log::warn!("the server stopped before all answers were complete"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_endpoint_is_described_and_every_description_is_served() {
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
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
    fn every_reference_in_the_description_resolves() {
        fn references<'a>(of: &'a Value, into: &mut Vec<&'a str>) {
            match of {
                Value::Object(map) => {
                    into.extend(map.get("$ref").and_then(Value::as_str));
                    map.values().for_each(|value| references(value, into));
                }
                Value::Array(items) => items.iter().for_each(|item| references(item, into)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(OPENAPI).unwrap();
        let mut found = Vec::new();
        references(&document, &mut found);
        assert!(found.len() > 50);
        for reference in found {
            let place = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(place).is_some(), "{reference}");
        }
    }
}
