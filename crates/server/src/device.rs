//! `/v1/device`: how hot the device is, what the engine changed because of it, and a way to set it where the device
//! has no sensors to read.

use super::body;
use super::fail::Fail;
use super::state::ServerState;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use haversack::engine::device::Thermal;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Debug, Deserialize)]
pub struct ThermalRequest {
    /// A state, or `null` for what the sensors say.
    thermal: Option<String>,
}

pub async fn show(State(server): State<Arc<ServerState>>) -> Response {
    let metrics = server.engine.metrics();
    let changes: Vec<Value> = metrics
        .last_device_changes
        .iter()
        .map(|(when, what)| json!({ "seconds": when.as_secs_f64(), "what": what }))
        .collect();
    Json(json!({
        "thermal": metrics.thermal.map(Thermal::name),
        "rung": metrics.throttle_level,
        "changes": changes,
    }))
    .into_response()
}

pub async fn tell(
    State(server): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let ThermalRequest { thermal } = body::read(&headers, body).await?;
    let thermal = match thermal {
        None => None,
        Some(name) => {
            let known = Thermal::ALL.into_iter().find(|state| state.name() == name);
            let wrong = || {
                let names = Thermal::ALL.map(Thermal::name).join(", ");
                Fail::param("thermal", format!("accepted: {names}, or null"))
            };
            Some(known.ok_or_else(wrong)?)
        }
    };
    server.client().set_thermal(thermal);
    Ok(Json(json!({ "thermal": thermal.map(Thermal::name) })).into_response())
}
