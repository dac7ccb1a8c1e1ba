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

mod admission;
mod answer;
mod auth;
mod begun_answer;
mod body;
mod call_check;
mod chat;
mod choice_text;
mod completions;
mod connections;
mod device;
mod embeddings;
mod encode;
mod encoder;
mod events;
mod fail;
mod json;
mod limits;
mod memory;
mod metrics;
mod page;
mod request;
mod response_items;
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
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Extension, Json, Router};
use connections::{Reserved, WatchedStream};
use fail::Fail;
use haversack::{EngineStatus, Owner};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use state::Server;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

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
        ("/v1/search", "post", post(sessions::search)),
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
            "/v1/sessions/{id}/states",
            "post",
            post(sessions::add_state),
        ),
        (
            "/v1/sessions/{id}/states/{number}",
            "delete",
            delete(sessions::delete_state),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/recall",
            "post",
            post(sessions::recall),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/pin",
            "post",
            post(sessions::pin),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/pin",
            "delete",
            delete(sessions::unpin),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/exclude",
            "post",
            post(sessions::exclude),
        ),
        (
            "/v1/sessions/{id}/turns/{number}/exclude",
            "delete",
            delete(sessions::include),
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

/// Answered without the engine's thread. Says how many requests there are to those who have a key.
async fn health(State(server): Server, owner: Option<Extension<Owner>>) -> Response {
    let health = server.client().health();
    let (status, word) = match health.status {
        EngineStatus::Serving => (StatusCode::OK, "ok"),
        EngineStatus::Stopping => (StatusCode::OK, "stopping"),
        EngineStatus::Ended => (StatusCode::SERVICE_UNAVAILABLE, "failed"),
    };
    let mut document = json!({ "status": word });
    if owner.is_some() {
        document["active"] = json!(health.active);
        document["waiting"] = json!(health.waiting);
    }
    (status, Json(document)).into_response()
}

/// Waits for the end of the engine's thread, which must not end while it serves.
async fn engine_end(server: &ServerState) {
    while server.client().health().status != EngineStatus::Ended {
        tokio::time::sleep(limits::END_CHECK).await;
    }
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
        "sampling": request::usual_json(server.client().model()),
    })
}

fn ended() -> io::Error {
    io::Error::other("the engine's thread has ended")
}

/// Where connections come from.
pub trait ConnectionSource: Send {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection, and the address of its client.
    fn accept(&mut self) -> impl Future<Output = io::Result<(Self::Stream, IpAddr)>> + Send;
}

impl ConnectionSource for TcpListener {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, IpAddr)> {
        let (stream, address) = TcpListener::accept(self).await?;
        let _ = stream.set_nodelay(true);
        Ok((stream, address.ip()))
    }
}

/// Serves until `stop` ends; then finishes the answers under way, for at most [`limits::STOP_TIME`]. Fails where the engine's
/// thread ends before.
pub async fn serve(
    mut listener: impl ConnectionSource,
    server: Arc<ServerState>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let app = router(server.clone());
    let graceful = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    let mut end = std::pin::pin!(engine_end(&server));
    loop {
        let accepted = async {
            let free = server.connections.free_place().await?;
            Some((free, listener.accept().await))
        };
        let (free, accepted) = tokio::select! {
            accepted = accepted => match accepted {
                Some(accepted) => accepted,
                None => break,
            },
            () = &mut stop => break,
            () = &mut end => return Err(ended()),
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            // Out of file descriptors, or the client left early: the next one may succeed.
            Err(error) => {
                log::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (app, watcher) = (app.clone(), graceful.watcher());
        tokio::spawn(async move {
            let Some(place) = free.take(address).await else {
                return;
            };
            let (app, header_time) = match place.is_reserved() {
                true => (app.layer(Extension(Reserved)), limits::RESERVE_TIME),
                false => (app, limits::HEADER_TIME),
            };
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new())
                .keep_alive(!place.is_reserved())
                .header_read_timeout(header_time)
                .max_buf_size(limits::HEADER_BYTES)
                .half_close(false);
            let stream = TokioIo::new(WatchedStream::new(stream, limits::WRITE_TIME));
            let connection = http.serve_connection(stream, TowerToHyperService::new(app));
            if let Err(error) = watcher.watch(connection).await {
                log::debug!("a connection ended: {error}");
            }
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
    use haversack::engine::sample::{Constraint, ConstraintError};
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

    /// Panics on the engine's thread.
    #[derive(Clone, Debug)]
    struct Fault;

    impl Constraint for Fault {
        fn allowed(&mut self) -> Result<&[u32], ConstraintError> {
            panic!("this panic is part of a test")
        }

        fn take(&mut self, _: u32) -> Result<(), ConstraintError> {
            Ok(())
        }

        fn copy(&self) -> Box<dyn Constraint> {
            Box::new(Fault)
        }
    }

    #[test]
    fn a_server_whose_engine_ends_says_so_and_fails() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("tiny.gguf");
        let spec = haversack_testing::models::Spec::named("llama").unwrap();
        spec.write_file(&model).unwrap();
        let engine = haversack::Engine::open(model)
            .memory("64M")
            .start()
            .unwrap();
        let state = ServerState::new(engine.clone(), Auth::default(), "tiny".into(), true);
        let state = Arc::new(state);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().build().unwrap();
        runtime.block_on(async {
            let status = async || health(State(state.clone()), None).await.status();
            assert_eq!(status().await, StatusCode::OK);
            let fault = engine.complete("a").constraint(Box::new(Fault));
            let _answer = fault.await.unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let served = serve(listener, state.clone(), std::future::pending());
            let error = served.await.unwrap_err();
            assert_eq!(error.to_string(), "the engine's thread has ended");
            assert_eq!(status().await, StatusCode::SERVICE_UNAVAILABLE);
        });
    }
}
