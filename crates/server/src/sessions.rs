//! `/v1/sessions`: conversations that last, and how a chat request continues one.
//!
//! Clients of the chat API send the whole conversation each time. With a `session_id` the server has it already: it
//! compares the messages with the session's turns and reads only the last message. A client may leave out earlier
//! messages. A client that went back (regenerated an answer, edited a question) has the later turns retracted. Messages
//! of another conversation are refused, because no answer to them would be right.

use super::body;
use super::fail::Fail;
use super::memory::place_name;
use super::request::SessionMessage;
use super::state::ServerState;
use super::types::{ChatMessage, ChatRequest};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use haversack::session::TurnView;
use haversack::{Client, ConversationView, Error, History, VIEW_TURNS_MAX};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// The session that a request continues, ready for its last message; `None` where it names none.
pub async fn bind(
    server: &ServerState,
    request: &ChatRequest,
) -> Result<Option<SessionMessage>, Fail> {
    let (session, is_hint) = match (&request.session_id, &request.prompt_cache_key) {
        (Some(id), _) => (id.clone(), false),
        (None, Some(key)) => (name_of_key(key), true),
        (None, None) => return Ok(None),
    };
    if !server.has_sessions && is_hint {
        return Ok(None);
    }
    let (opening, history, text) = match parts(&request.messages) {
        Ok(parts) => parts,
        Err(_) if is_hint => return Ok(None),
        Err(fail) => return Err(fail),
    };
    match server.client().rewind(&session, opening, history).await {
        Ok(true) => Ok(Some(SessionMessage { session, text })),
        Err(Error::Closed) => Err(Fail::stopping()),
        Ok(false) | Err(_) if is_hint => Ok(None),
        Ok(false) => Err(Fail::status(
            StatusCode::CONFLICT,
            "session_id: the messages differ from the turns of this session; accepted: its last turns, or the last message alone",
        )),
        Err(error) => Err(error.into()),
    }
}

/// The system text, the turns before, and the last message.
fn parts(messages: &[ChatMessage]) -> Result<(String, History, String), Fail> {
    let wrong = || {
        Fail::param(
            "messages",
            "accepted in a session: a system message, then user and assistant in turn, ending with the user",
        )
    };
    let mut opening = String::new();
    let mut rest = messages;
    while let [first, others @ ..] = rest
        && matches!(first.role.as_str(), "system" | "developer")
    {
        if !opening.is_empty() {
            opening.push('\n');
        }
        opening.push_str(&first.text());
        rest = others;
    }
    let Some((last, before)) = rest.split_last().filter(|(last, _)| last.role == "user") else {
        return Err(wrong());
    };
    let mut history = Vec::new();
    let pairs = before.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return Err(wrong());
    }
    for pair in pairs {
        match pair {
            [user, assistant] if user.role == "user" && assistant.role == "assistant" => {
                history.push((user.text(), assistant.text()));
            }
            _ => return Err(wrong()),
        }
    }
    Ok((opening, history, last.text()))
}

/// A valid session name for any key.
fn name_of_key(key: &str) -> String {
    let hash = Sha256::digest(key.as_bytes());
    let hex: String = hash[..16].iter().map(|b| format!("{b:02x}")).collect();
    format!("key-{hex}")
}

#[derive(Debug, Deserialize)]
pub struct CreateRequest {
    pub id: String,
    /// What never leaves: instructions, and what the conversation is about.
    #[serde(default)]
    pub persistent: String,
    /// The part of it that is never condensed.
    #[serde(default)]
    pub verbatim: String,
}

#[derive(Debug, Deserialize)]
pub struct ForkRequest {
    pub id: String,
}

#[derive(Debug, Deserialize)]
pub struct FactRequest {
    pub text: String,
    /// The number of a fact that no longer holds.
    pub supersedes: Option<u64>,
}

type Server = State<Arc<ServerState>>;

pub async fn list(State(server): Server) -> Result<Response, Fail> {
    let listed = running(&server)?.list().await?;
    let data: Vec<Value> = listed
        .iter()
        .map(|one| {
            json!({
                "id": one.name,
                "object": "session",
                "file_bytes": one.bytes,
                "is_open": one.is_open,
            })
        })
        .collect();
    Ok(Json(json!({ "object": "list", "data": data })).into_response())
}

pub async fn create(
    State(server): Server,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let given: CreateRequest = body::read(&headers, body).await?;
    let view = running(&server)?.create(&given.id, given.verbatim, given.persistent);
    let view = view_json(&view.await?);
    Ok((StatusCode::CREATED, Json(view)).into_response())
}

pub async fn show(State(server): Server, Path(id): Path<String>) -> Result<Response, Fail> {
    let view = running(&server)?.view(&id, VIEW_TURNS_MAX).await?;
    Ok(Json(view_json(&view)).into_response())
}

pub async fn delete(State(server): Server, Path(id): Path<String>) -> Result<Response, Fail> {
    running(&server)?.delete(&id).await?;
    Ok(Json(json!({ "id": id, "object": "session", "deleted": true })).into_response())
}

pub async fn fork(
    State(server): Server,
    Path(from): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let ForkRequest { id } = body::read(&headers, body).await?;
    let view = running(&server)?.fork(&from, id).await?;
    Ok((StatusCode::CREATED, Json(view_json(&view))).into_response())
}

pub async fn add_fact(
    State(server): Server,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let FactRequest { text, supersedes } = body::read(&headers, body).await?;
    let number = running(&server)?.add_fact(&id, text, supersedes).await?;
    Ok((StatusCode::CREATED, Json(json!({ "number": number }))).into_response())
}

pub async fn revoke_fact(
    State(server): Server,
    Path((id, number)): Path<(String, u64)>,
) -> Result<Response, Fail> {
    running(&server)?.revoke_fact(&id, number).await?;
    Ok(Json(json!({ "number": number, "revoked": true })).into_response())
}

pub async fn recall(
    State(server): Server,
    Path((id, number)): Path<(String, u64)>,
) -> Result<Response, Fail> {
    running(&server)?.recall(&id, number).await?;
    Ok(Json(json!({ "turn": number, "wanted": true })).into_response())
}

pub async fn retract(State(server): Server, Path(id): Path<String>) -> Result<Response, Fail> {
    let turn = running(&server)?.retract(&id).await?;
    Ok(Json(json!({ "retracted": turn })).into_response())
}

/// The client, unless the server is stopping.
fn running(server: &ServerState) -> Result<&Client, Fail> {
    let client = server.client();
    match client.is_stopping() {
        true => Err(Fail::stopping()),
        false => Ok(client),
    }
}

fn view_json(view: &ConversationView) -> Value {
    let stats = &view.stats;
    let facts = view.facts.iter();
    let facts = facts.map(|(number, text)| json!({ "number": number, "text": text }));
    let turns = view.turns.iter().map(turn_json);
    json!({
        "id": stats.name,
        "object": "session",
        "position": stats.position,
        "tokens": {
            "persistent": stats.persistent,
            "visible": stats.visible,
            "hidden": stats.hidden,
            "spilled": stats.spilled,
            "ids": stats.ids,
            "forgotten": stats.forgotten,
        },
        "turns_said": stats.turns,
        "file_bytes": stats.file_bytes,
        "unsaved": stats.unsaved.as_ref().map(ToString::to_string),
        "condensed": stats.condensed.as_ref().map(ToString::to_string),
        "facts": facts.collect::<Vec<Value>>(),
        "turns": turns.collect::<Vec<Value>>(),
    })
}

fn turn_json(view: &TurnView) -> Value {
    let turn = &view.turn;
    json!({
        "number": turn.number,
        "is_state": turn.is_state,
        "place": place_name(turn),
        "is_pinned": turn.is_pinned,
        "tokens": turn.tokens(),
        "time_ms": view.time_ms,
        "question": view.text,
        "answer": view.answer,
    })
}
