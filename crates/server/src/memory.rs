//! `/v1/memory`: where every byte is, and every token of the owner that asks, between two steps. It contains no text of
//! prompts or answers.

use super::fail::Fail;
use super::json::list;
use super::state::Server;
use axum::Extension;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use haversack::engine::device::Thermal;
use haversack::scheduler::memory_report::{SequenceOwner, SequenceReport, form_name};
use haversack::scheduler::token_map::{BlockSource, TokenMap};
use haversack::session::report::{SessionReport, TurnReport};
use haversack::session::turns::{Turn, TurnPlace};
use haversack::{MemoryReport, Metrics, Owner};
use serde_json::{Map, Value, json};
use std::time::Duration;

pub async fn show(
    State(server): Server,
    Extension(owner): Extension<Owner>,
) -> Result<Response, Fail> {
    let report = server.memory_report(owner).await?;
    let mut document = report_json(&report);
    document["keeps_sessions"] = json!(server.has_sessions);
    if report.others > 0 {
        document["others"] = json!(report.others);
    }
    document["model"] = json!(server.model_name);
    let client = server.client();
    add_metrics(&mut document, &client.metrics(), client.now());
    document["batch"]["queue"] = json!(client.options().queue);
    let headers = [
        (header::CONTENT_TYPE, "application/json"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, document.to_string()).into_response())
}

fn add_metrics(document: &mut Value, metrics: &Metrics, now: Duration) {
    let seconds = |when: Duration| now.saturating_sub(when).as_secs();
    document["alerts"] = list(&metrics.alerts, |raised| {
        json!({
            "name": raised.alert.name(),
            "words": raised.words,
            "seconds": seconds(raised.since),
        })
    });
    let change =
        |(when, what): &(Duration, String)| json!({ "seconds_ago": seconds(*when), "what": what });
    document["device"] = json!({
        "thermal": metrics.thermal.map(Thermal::name),
        "rung": metrics.throttle_level,
        "changes": list(&metrics.last_device_changes, change),
    });
    let [sampled, read] = metrics.speed.map(|speed| (speed * 10.0).round() / 10.0);
    document["tokens_per_second"] = json!({ "sampled": sampled, "read": read });
}

fn report_json(report: &MemoryReport) -> Value {
    let ledger = &report.ledger;
    let part = |name: &str, bytes: usize| json!({ "part": name, "bytes": bytes });
    // From exact to coarse.
    let mut zones = report.zones.clone();
    zones.sort_by_key(|zone| zone.zone);
    let blocks = zones.iter().map(|zone| {
        json!({
            "part": "blocks",
            "zone": zone.zone.name(),
            "codec": form_name(zone.form),
            "bytes": zone.bytes,
            "file_bytes": zone.file_bytes,
        })
    });
    let others = [
        part("ahead", ledger.kv_ahead),
        part("tables", ledger.tables),
        part("scratch", ledger.scratch),
        part("side", ledger.side),
        part("heap", ledger.heap),
        part("promised", ledger.kv_promised + report.promised_bytes),
    ];
    let sequences = report.sequences.iter();
    let (sessions, requests): (Vec<_>, Vec<_>) =
        sequences.partition(|shown| shown.owner.session().is_some());
    json!({
        "object": "memory",
        "budget_bytes": ledger.budget,
        "held_bytes": ledger.total(),
        "peak_bytes": ledger.peak,
        "idle_bytes": report.idle_bytes,
        "weights_bytes": report.weights_bytes,
        "file_bytes": ledger.kv_file,
        "parts": blocks.chain(others).collect::<Value>(),
        "batch": {
            "active": report.active,
            "most": report.pace.batch,
            "waiting": report.waiting,
            "chunk": report.pace.chunk,
            "threads": report.threads,
        },
        "sessions": list(sessions, shown_json),
        "requests": list(requests, shown_json),
        "left_off": report.left_off,
    })
}

fn shown_json(shown: &SequenceReport) -> Value {
    let zones = list(&shown.zones, |zone| {
        json!({
            "zone": zone.zone.name(),
            "codec": form_name(zone.form),
            "bytes": zone.bytes + zone.file_bytes,
        })
    });
    let mut document = json!({
        "is_active": shown.is_active,
        "position": shown.position,
        "bytes": shown.bytes,
        "zones": zones,
        "strips": list(&shown.token_maps, strip_json),
        "layers_left_off": shown.layers_left_off,
    });
    match &shown.owner {
        SequenceOwner::Request(ticket) => document["number"] = json!(ticket.number()),
        SequenceOwner::Session(session) => add_session(&mut document, session),
    }
    document
}

fn add_session(document: &mut Value, session: &SessionReport) {
    document["id"] = json!(session.stats.name);
    document["turns"] = list(&session.turns, turn_json);
    document["turns_left_off"] = json!(session.turns_left_off);
    document["turns_said"] = json!(session.stats.turns);
    document["plan"] = json!(session.plan);
    document["condensed"] = json!(session.stats.condensed.as_ref().map(ToString::to_string));
    document["unsaved"] = json!(session.stats.unsaved.as_ref().map(ToString::to_string));
    document["file_bytes"] = json!(session.stats.file_bytes);
}

fn turn_json(seen: &TurnReport) -> Value {
    let mut turn = json!({
        "number": seen.turn.number,
        "start": seen.turn.span.start,
        "tokens": seen.turn.tokens(),
        "place": place_name(&seen.turn),
        "is_pinned": seen.turn.is_pinned,
        "is_excluded": seen.turn.is_excluded,
        "is_state": seen.turn.is_state,
        "relevance": seen.rank.map(|rank| rank.score()),
    });
    if let Some(rank) = seen.rank {
        turn["ranked_by"] = json!(rank.by.name());
    }
    turn
}

/// Where a turn is, as the API calls it.
pub fn place_name(turn: &Turn) -> &'static str {
    match turn.place {
        TurnPlace::Live if turn.is_visible => "visible",
        TurnPlace::Live => "hidden",
        TurnPlace::Spilled => "spilled",
        TurnPlace::Ids => "ids",
    }
}

fn strip_json(strip: &TokenMap) -> Value {
    let mut tokens = Map::new();
    for (lies, &count) in BlockSource::ALL.iter().zip(&strip.tokens) {
        if count > 0 {
            tokens.insert(lies.name().into(), json!(count));
        }
    }
    let runs = strip.runs.iter();
    let runs = runs.map(|(tokens, lies)| json!([tokens, lies.name()]));
    json!({
        "layers": ranges(&strip.layers),
        "window": strip.shape.window,
        "codecs": {
            "sinks": "f16",
            "recent": form_name(strip.shape.near),
            "rest": form_name(strip.shape.far),
        },
        "tokens": tokens,
        "runs": runs.collect::<Value>(),
    })
}

/// First and last of each run of numbers.
fn ranges(layers: &[usize]) -> Vec<[usize; 2]> {
    let mut found: Vec<[usize; 2]> = Vec::new();
    for &layer in layers {
        match found.last_mut() {
            Some(last) if last[1] + 1 == layer => last[1] = layer,
            _ => found.push([layer, layer]),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_grouped_in_ranges() {
        assert_eq!(ranges(&[]), Vec::<[usize; 2]>::new());
        assert_eq!(ranges(&[0, 1, 2, 4, 6, 7]), [[0, 2], [4, 4], [6, 7]]);
    }
}
