//! `serve`: the model behind HTTP, for clients that speak the OpenAI API.
//!
//! ```text
//! HTTP → door (host, origin, key) → types → ask (checked, tokens) → owner ⟲ desk, runtime → answer (plain or events)
//! ```
//!
//! One thread owns the runtime and the desk and computes; everything about HTTP is on another and never waits for a step
//! but for its own answer. Whoever has no place in the queue is told so at once. Limits are in [`limits`]; no text of a
//! prompt or of an answer is logged, and no endpoint takes a path.

mod answer;
mod ask;
mod calls;
mod chat;
mod completions;
mod door;
mod embeddings;
mod fail;
mod limits;
mod metrics;
mod owner;
mod responses;
mod shape;
mod tools;
mod types;

pub use door::Door;
pub use embeddings::Encoders;
pub use owner::{Hall, Owner, OwnerOptions};
pub use shape::Grammars;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
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
    /// When the server began, in seconds since 1970.
    pub created: u64,
}

fn router(shared: Arc<Shared>) -> Router {
    let guard = axum::middleware::from_fn_with_state(shared.clone(), door::guard);
    Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(models))
        .route("/v1/models/{id}", get(model))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/embeddings", post(embeddings::embeddings))
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
        false => Fail::not_found().into_response(),
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
