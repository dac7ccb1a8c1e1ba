//! `/v1/device`: what the device says, what followed from it, and a way to say it for devices that cannot be asked.

use super::fail::Fail;
use super::{Shared, request};
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
pub struct Told {
    /// A state, or `null`: what the device says.
    thermal: Option<String>,
}

pub async fn show(State(shared): State<Arc<Shared>>) -> Response {
    let seen = shared.hall.seen();
    let changes: Vec<Value> = seen
        .last_changes
        .iter()
        .map(|(when, what)| json!({ "seconds": when.as_secs_f64(), "what": what }))
        .collect();
    Json(json!({
        "thermal": seen.thermal.map(Thermal::name),
        "rung": seen.rung,
        "changes": changes,
    }))
    .into_response()
}

pub async fn tell(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let Told { thermal } = request::read(&headers, body).await?;
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
    shared.hall.tell_thermal(thermal);
    Ok(Json(json!({ "thermal": thermal.map(Thermal::name) })).into_response())
}
