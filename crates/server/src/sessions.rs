//! `/v1/sessions`: conversations that last, and how a chat request goes on with one.
//!
//! Clients of the chat API send the whole conversation each time. With a `session_id` the server has it already: what the
//! client sends again is compared with what was said, and only the last message is read. A client that leaves out what was
//! said before is as welcome; one that went back (an answer made anew, a question edited) has the turns behind that taken
//! back; one that tells of another conversation is refused, because no answer to it would be right.

use super::request;
use super::fail::Fail;
use super::memory::place_name;
use super::types::{ChatMessage, ChatRequest};
use super::{Shared, limits};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use haversack::engine::Runtime;
use haversack::memory::clock::now_ms;
use haversack::scheduler::Scheduler;
use haversack::session::{SessionError, SessionId, Sessions, TurnView};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// A message of a session.
pub struct Bound {
    pub session: String,
    pub text: String,
}

/// What was said, in pairs of question and answer.
type History = Vec<(String, String)>;

/// The session that a request goes on with, ready for its last message; `None` where it names none.
pub async fn bind(shared: &Shared, request: &ChatRequest) -> Result<Option<Bound>, Fail> {
    let (session, is_hint) = match (&request.session_id, &request.prompt_cache_key) {
        (Some(id), _) => (id.clone(), false),
        (None, Some(key)) => (name_of_key(key), true),
        (None, None) => return Ok(None),
    };
    let has_sessions = shared.has_sessions;
    if !has_sessions && is_hint {
        return Ok(None);
    }
    let (opening, history, text) = match parts(&request.messages) {
        Ok(parts) => parts,
        Err(_) if is_hint => return Ok(None),
        Err(fail) => return Err(fail),
    };
    let name = session.clone();
    let bound = shared.hall.with(move |desk| {
        let now = now_ms();
        if desk.sessions().is_some_and(|s| s.exists(&name)) {
            let bound = desk.with_open(&name, |runtime, sessions, id| {
                go_back_to(runtime, sessions, id, &history)
            });
            return match bound {
                // Its turn opens it, once there is room.
                Err(error) if error.is_cannot_fit() && history.is_empty() => Ok(true),
                bound => bound,
            };
        }
        desk.create_session(&name, "", &opening, now)?;
        desk.with_open(&name, |runtime, sessions, id| {
            for (question, answer) in &history {
                sessions.tell(runtime, id, question, answer, now)?;
            }
            Ok(true)
        })
    });
    match bound.await.ok_or_else(Fail::stopping)? {
        Ok(true) => Ok(Some(Bound { session, text })),
        Ok(false) | Err(_) if is_hint => Ok(None),
        Ok(false) => Err(Fail::status(
            StatusCode::CONFLICT,
            "session_id: the messages are not what was said in this session; accepted: its last turns, or the last message alone",
        )),
        Err(error) => Err(fail(&error)),
    }
}

/// Takes back what was said behind the history. `false`: it was never said here.
fn go_back_to(
    runtime: &mut Runtime,
    sessions: &mut Sessions,
    id: SessionId,
    history: &[(String, String)],
) -> Result<bool, SessionError> {
    if history.is_empty() {
        return Ok(true);
    }
    let turns = sessions.turns(id)?.into_iter().filter(|t| !t.is_state);
    let numbers: Vec<u64> = turns.map(|turn| turn.number).collect();
    for behind in 0..numbers.len() {
        let end = numbers.len() - behind;
        let Some(start) = end.checked_sub(history.len()) else {
            return Ok(false);
        };
        let mut pairs = numbers[start..end].iter().zip(history);
        let is_it = pairs.try_fold(true, |so_far, (&number, (question, answer))| {
            let turn = sessions.turn(id, number)?;
            let said = turn.text == question.trim() && turn.answer.starts_with(answer.trim());
            Ok::<bool, SessionError>(so_far && said)
        })?;
        if is_it {
            for _ in 0..behind {
                sessions.retract(runtime, id)?;
            }
            return Ok(true);
        }
    }
    Ok(false)
}

/// The system's text, the turns before, and the last message.
fn parts(messages: &[ChatMessage]) -> Result<(String, History, String), Fail> {
    let wrong = || {
        Fail::param(
            "messages",
            "accepted in a session: a system message, then user and assistant in turn, and at last the user",
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

/// A name for whatever clients call it.
fn name_of_key(key: &str) -> String {
    let hash = Sha256::digest(key.as_bytes());
    let hex: String = hash[..16].iter().map(|b| format!("{b:02x}")).collect();
    format!("key-{hex}")
}

#[derive(Debug, Deserialize)]
pub struct Create {
    pub id: String,
    /// What never leaves: instructions, and what the conversation is about.
    #[serde(default)]
    pub persistent: String,
    /// A part of it that stays word for word, however long the rest gets.
    #[serde(default)]
    pub verbatim: String,
}

#[derive(Debug, Deserialize)]
pub struct Fork {
    pub id: String,
}

#[derive(Debug, Deserialize)]
pub struct Fact {
    pub text: String,
    /// The number of a fact that does not hold any more.
    pub supersedes: Option<u64>,
}

pub async fn list(State(shared): State<Arc<Shared>>) -> Result<Response, Fail> {
    let listed = ask_desk(&shared, |desk| sessions(desk)?.list()).await?;
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
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let given: Create = request::read(&headers, body).await?;
    let view = ask_desk(&shared, move |desk| {
        desk.create_session(&given.id, &given.verbatim, &given.persistent, now_ms())?;
        view(desk, &given.id)
    });
    Ok((StatusCode::CREATED, Json(view.await?)).into_response())
}

pub async fn show(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, Fail> {
    let view = ask_desk(&shared, move |desk| view(desk, &id)).await?;
    Ok(Json(view).into_response())
}

pub async fn delete(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, Fail> {
    let name = id.clone();
    ask_desk(&shared, move |desk| desk.delete_session(&name)).await?;
    Ok(Json(json!({ "id": id, "object": "session", "deleted": true })).into_response())
}

pub async fn fork(
    State(shared): State<Arc<Shared>>,
    Path(from): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let Fork { id } = request::read(&headers, body).await?;
    let view = ask_desk(&shared, move |desk| {
        desk.fork_session(&from, &id)?;
        view(desk, &id)
    });
    Ok((StatusCode::CREATED, Json(view.await?)).into_response())
}

pub async fn add_fact(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let Fact { text, supersedes } = request::read(&headers, body).await?;
    let number = ask_desk(&shared, move |desk| {
        desk.with_open(&id, |runtime, sessions, id| match supersedes {
            Some(fact) => sessions.supersede(runtime, id, fact, &text, now_ms()),
            None => sessions.add_fact(runtime, id, &text, now_ms()),
        })
    });
    let number = number.await?;
    Ok((StatusCode::CREATED, Json(json!({ "number": number }))).into_response())
}

pub async fn revoke_fact(
    State(shared): State<Arc<Shared>>,
    Path((id, number)): Path<(String, u64)>,
) -> Result<Response, Fail> {
    ask_desk(&shared, move |desk| {
        desk.with_open(&id, |runtime, sessions, id| {
            sessions.revoke(runtime, id, number)
        })
    })
    .await?;
    Ok(Json(json!({ "number": number, "revoked": true })).into_response())
}

/// The next answer sees this turn, wherever it is.
pub async fn recall(
    State(shared): State<Arc<Shared>>,
    Path((id, number)): Path<(String, u64)>,
) -> Result<Response, Fail> {
    ask_desk(&shared, move |desk| {
        desk.with_open(&id, |_, sessions, id| sessions.recall(id, number))
    })
    .await?;
    Ok(Json(json!({ "turn": number, "wanted": true })).into_response())
}

/// Takes the last turn back.
pub async fn retract(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
) -> Result<Response, Fail> {
    let turn = ask_desk(&shared, move |desk| {
        desk.with_open(&id, |runtime, sessions, id| sessions.retract(runtime, id))
    });
    Ok(Json(json!({ "retracted": turn.await? })).into_response())
}

async fn ask_desk<T: Send + 'static>(
    shared: &Shared,
    go: impl FnOnce(&mut Scheduler) -> Result<T, SessionError> + Send + 'static,
) -> Result<T, Fail> {
    if shared.hall.is_stopping() {
        return Err(Fail::stopping());
    }
    let done = shared.hall.with(go).await.ok_or_else(Fail::stopping)?;
    done.map_err(|error| fail(&error))
}

fn sessions(desk: &Scheduler) -> Result<&Sessions, SessionError> {
    desk.sessions().ok_or(SessionError::NoSessions)
}

/// All there is to know about a session.
fn view(desk: &mut Scheduler, name: &str) -> Result<Value, SessionError> {
    desk.with_open(name, |runtime, sessions, id| {
        let stats = sessions.stats(runtime, id)?;
        let facts: Vec<Value> = sessions
            .facts(id)?
            .into_iter()
            .map(|(number, text)| json!({ "number": number, "text": text }))
            .collect();
        let turns = sessions.turns(id)?;
        let last = turns.len().saturating_sub(limits::TURNS_SHOWN);
        let numbers: Vec<u64> = turns[last..].iter().map(|turn| turn.number).collect();
        let turns: Result<Vec<Value>, SessionError> = numbers
            .into_iter()
            .map(|number| Ok(turn_json(&sessions.turn(id, number)?)))
            .collect();
        Ok(json!({
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
            "unsaved": stats.unsaved,
            "condensed": stats.condensed,
            "facts": facts,
            "turns": turns?,
        }))
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

/// What a client is told.
pub fn fail(error: &SessionError) -> Fail {
    let status = match error {
        SessionError::NoSuchSession { .. }
        | SessionError::NoSuchFact { .. }
        | SessionError::NoSuchTurn { .. } => StatusCode::NOT_FOUND,
        SessionError::Answering { .. } | SessionError::Open { .. } => StatusCode::CONFLICT,
        SessionError::NoSessions => StatusCode::NOT_IMPLEMENTED,
        _ if error.is_cannot_fit() => StatusCode::SERVICE_UNAVAILABLE,
        SessionError::Step(_) | SessionError::Io { .. } | SessionError::Generate(_) => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
        _ => StatusCode::BAD_REQUEST,
    };
    Fail::status(status, error.to_string())
}
