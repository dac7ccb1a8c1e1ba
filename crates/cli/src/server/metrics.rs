//! `/metrics`, as Prometheus reads it.

use super::Shared;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use haversack::device::Thermal;
use std::fmt::Write;
use std::sync::Arc;

pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let seen = shared.hall.seen();
    let ledger = &seen.ledger;
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, u64)]| {
        let _ = writeln!(text, "# HELP haversack_{name} {help}");
        let _ = writeln!(text, "# TYPE haversack_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "haversack_{name}{labels} {value}");
        }
    };
    let bytes = |n: usize| n as u64;
    metric(
        "memory_bytes",
        "gauge",
        "Bytes of the ledger, by account.",
        &[
            (r#"{account="blocks"}"#, bytes(ledger.kv_live)),
            (r#"{account="ahead"}"#, bytes(ledger.kv_ahead)),
            (r#"{account="promised"}"#, bytes(ledger.kv_promised)),
            (r#"{account="tables"}"#, bytes(ledger.tables)),
            (r#"{account="scratch"}"#, bytes(ledger.scratch)),
            (r#"{account="side"}"#, bytes(ledger.side)),
        ],
    );
    let budget = ledger.budget.map_or(0, bytes);
    metric(
        "memory_budget_bytes",
        "gauge",
        "The ceiling; 0 is none.",
        &[("", budget)],
    );
    let peak = bytes(ledger.peak);
    metric(
        "memory_peak_bytes",
        "gauge",
        "The most that the ledger has held.",
        &[("", peak)],
    );
    let (active, waiting) = (seen.active as u64, seen.waiting as u64);
    metric(
        "requests_active",
        "gauge",
        "Requests that are computed.",
        &[("", active)],
    );
    metric(
        "requests_waiting",
        "gauge",
        "Requests that wait.",
        &[("", waiting)],
    );
    metric(
        "requests_total",
        "counter",
        "Requests that ended, by how.",
        &[
            (r#"{end="done"}"#, seen.done),
            (r#"{end="cancelled"}"#, seen.cancelled),
            (r#"{end="failed"}"#, seen.failed),
            (r#"{end="no_place"}"#, seen.refused),
        ],
    );
    let prompts = seen.prompt_tokens;
    metric(
        "prompt_tokens_total",
        "counter",
        "Tokens of prompts.",
        &[("", prompts)],
    );
    metric(
        "tokens_total",
        "counter",
        "Tokens that were sampled.",
        &[("", seen.tokens)],
    );
    metric(
        "steps_total",
        "counter",
        "Passes over the weights.",
        &[("", seen.steps)],
    );
    let stepped = seen.stepped;
    metric(
        "step_sequences_total",
        "counter",
        "Sequences in all of them.",
        &[("", stepped)],
    );
    let heat = |state: Thermal| u64::from(seen.thermal == Some(state));
    let states =
        Thermal::ALL.map(|state| (format!(r#"{{state="{}"}}"#, state.name()), heat(state)));
    let states: Vec<(&str, u64)> = states.iter().map(|(l, v)| (l.as_str(), *v)).collect();
    metric(
        "thermal",
        "gauge",
        "1 for the state the device is in; none where nothing says it.",
        &states,
    );
    metric(
        "rung",
        "gauge",
        "How far down the ladder of heat; 0 is the top.",
        &[("", seen.rung.into())],
    );
    metric(
        "device_changes_total",
        "counter",
        "Changes that the device made necessary.",
        &[("", seen.changes)],
    );
    let kind = "text/plain; version=0.0.4";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
