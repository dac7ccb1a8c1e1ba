//! `/v1/device`: how hot the device is, what the engine changed because of it, and a way to set it where the device
//! has no sensors to read.

use super::body::JsonBody;
use super::fail::Fail;
use super::json::list;
use super::state::Server;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use haversack::Owner;
use haversack::engine::device::Thermal;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub struct ThermalRequest {
    /// A state, or `null` for what the sensors say.
    thermal: Option<String>,
}

pub async fn show(State(server): Server) -> Json<Value> {
    let metrics = server.engine.metrics();
    let changes = list(
        metrics.last_device_changes,
        |(when, what)| json!({ "seconds": when.as_secs_f64(), "what": what }),
    );
    Json(json!({
        "thermal": metrics.thermal.map(Thermal::name),
        "rung": metrics.throttle_level,
        "changes": changes,
    }))
}

/// For the operator of the server: it slows down every owner.
pub async fn tell(
    State(server): Server,
    Extension(owner): Extension<Owner>,
    JsonBody(ThermalRequest { thermal }, _): JsonBody<ThermalRequest>,
) -> Result<Json<Value>, Fail> {
    if !owner.is_unnamed() {
        let why = "the device is set by the owner without a name";
        return Err(Fail::status(StatusCode::FORBIDDEN, why));
    }
    let known = |name: String| {
        let mut states = Thermal::ALL.into_iter();
        states.find(|state| state.name() == name).ok_or_else(|| {
            let names = Thermal::ALL.map(Thermal::name).join(", ");
            Fail::param("thermal", format!("accepted: {names}, or null"))
        })
    };
    let thermal = thermal.map(known).transpose()?;
    server.client().set_thermal(thermal);
    Ok(Json(json!({ "thermal": thermal.map(Thermal::name) })))
}
