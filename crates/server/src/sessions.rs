//! `/v1/sessions`: conversations that last, and how a chat request continues one.
//!
//! Clients of the chat API send the whole conversation each time. With a `session_id` the server has it already: it
//! compares the messages with the session's beginning and turns and reads only the last message. A client may leave out earlier
//! messages. A client that went back (regenerated an answer, edited a question) has the later turns retracted. Messages
//! of another conversation are refused, because no answer to them would be right.

use super::body::{JsonBody, QueuePlace};
use super::fail::{Fail, require};
use super::json::list as json_list;
use super::limits;
use super::memory::place_name;
use super::request::SessionMessage;
use super::state::{Server, ServerState};
use super::tools::{self, CALL_BEGIN, TOOLS_BEGIN, ToolSet};
use super::types::{ChatMessage, ChatRequest};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use haversack::memory::clock::now_ms;
use haversack::scheduler::Request;
use haversack::session::search::SessionSearch;
use haversack::session::{
    FactView, ListedSession, SessionError, SessionName, SessionRead, SessionSettings, SessionTexts,
    TurnView,
};
use haversack::text::template::Message;
use haversack::{Client, ConversationView, Error, History, Owner, Rewound, VIEW_TURNS_MAX};
use serde::Deserialize;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What the facts and turns of a session file may take for each of its bytes, as records and as text.
const SEARCHED_BYTES: usize = 2;

/// The session that a request continues, ready for its last message; `None` where it names none.
pub async fn bind(
    server: &ServerState,
    owner: Owner,
    request: &ChatRequest,
) -> Result<Option<SessionMessage>, Fail> {
    let Some(session) = request.session_id.clone() else {
        return Ok(None);
    };
    let given = GivenConversation::new(&request.messages)?;
    let text = given.text.clone();
    let own = SessionSettings {
        auto_facts: request.auto_facts,
        dates: request.dates,
        ..SessionSettings::default()
    };
    let differs = |what| {
        let message = format!("session_id: the {what}");
        Err(Fail::status(StatusCode::CONFLICT, message))
    };
    match continue_with(server, owner.session(&session), given, own).await? {
        Rewound::Same | Rewound::Absent => Ok(Some(SessionMessage { session, text })),
        Rewound::OtherSystem => differs(
            "system message differs from the one that this session began with; accepted: the same, or none",
        ),
        Rewound::Other => differs(
            "messages differ from the turns of this session; accepted: its last turns, or the last message alone",
        ),
    }
}

/// Makes `history` what was said last in a session, which is created with `own` settings if there is none.
async fn continue_with(
    server: &ServerState,
    session: SessionName<'_>,
    given: GivenConversation,
    own: SessionSettings,
) -> Result<Rewound, Error> {
    let client = server.client();
    let GivenConversation {
        opening,
        history,
        times_ms,
        ..
    } = given;
    // Clients write a call in their own way: what was said before it is compared.
    let said = |(question, answer): &(String, String)| {
        let said = answer.split(CALL_BEGIN).next().unwrap_or_default();
        (question.clone(), said.to_owned())
    };
    let system = opening.clone();
    let rewind = || {
        let history = history.iter().map(said).collect();
        client.rewind(session, system.clone(), history)
    };
    let rewound = rewind().await?;
    if rewound != Rewound::Absent {
        return Ok(rewound);
    }
    let (now, turns, times) = (now_ms(), history.clone(), times_ms.clone());
    let turn_bytes = |(question, answer): &(String, String)| question.len() + answer.len();
    let bytes = opening.len() + history.iter().map(turn_bytes).sum::<usize>();
    let read = told(server, bytes, move |texts, go_on| {
        Ok(SessionRead::Create {
            opening: texts.opening_with("", &opening, now, own)?,
            history: texts.dated_history(&turns, &times, own, go_on)?,
        })
    });
    // It began when the first message was said.
    let began = times_ms.iter().flatten().next().copied();
    let request = read_request(server, session, read.await?, began.unwrap_or(now));
    match client.read(request).await {
        // Another request created it meanwhile.
        Err(Error::Session(error)) if error.is_taken() => rewind().await,
        created => created.map(|_| Rewound::Same),
    }
}

/// Makes tokens of texts of this many bytes on a thread that may block. It stops where the client leaves.
async fn told<T: Send + 'static>(
    server: &ServerState,
    bytes: usize,
    make: impl FnOnce(&SessionTexts, &mut dyn FnMut() -> ControlFlow<()>) -> Result<T, SessionError>
    + Send
    + 'static,
) -> Result<T, Error> {
    let here = Arc::new(());
    let gone = Arc::downgrade(&here);
    let texts = server.client().texts()?.clone();
    let made = server.admission.run(bytes, move || {
        let go_on = &mut || match gone.strong_count() {
            0 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        make(&texts, go_on)
    });
    let made = made.await?;
    drop(here);
    Ok(made?)
}

fn read_request(
    server: &ServerState,
    session: SessionName<'_>,
    read: SessionRead,
    now_ms: u64,
) -> Request {
    Request {
        owner: session.owner.user(0),
        deadline: Some(server.client().now() + limits::REQUEST_TIME),
        ..Request::read(session.name, read, now_ms)
    }
}

/// Makes the tools of a request what every answer of its session sees, in place of those of an earlier request.
pub async fn tell_tools(
    server: &ServerState,
    session: SessionName<'_>,
    tools: &ToolSet,
) -> Result<(), Fail> {
    let (client, text) = (server.client(), tools.description());
    let states = client.states(session).await?;
    let known = states
        .iter()
        .find(|(_, text)| text.starts_with(TOOLS_BEGIN));
    if known.is_some_and(|(_, known)| known == text.trim()) {
        return Ok(());
    }
    let instead = known.map(|(number, _)| *number);
    let state = told(server, text.len(), move |texts, _| texts.state(&text)).await?;
    let read = SessionRead::State { state, instead };
    client
        .read(read_request(server, session, read, now_ms()))
        .await?;
    Ok(())
}

/// A conversation as a client gives it. Calls and their results are text.
struct GivenConversation {
    /// The system text.
    opening: String,
    /// The turns before the last message, and when they were said.
    history: History,
    times_ms: Vec<Option<u64>>,
    /// The last message.
    text: String,
}

impl GivenConversation {
    fn new(messages: &[ChatMessage]) -> Result<GivenConversation, Fail> {
        check_times(messages)?;
        let times_ms = question_times(messages);
        let (opening, history, text) = parts(messages)?;
        Ok(GivenConversation {
            opening,
            times_ms: times_ms.into_iter().take(history.len()).collect(),
            history,
            text,
        })
    }
}

/// A clock of a client may be ahead by this much.
const AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

/// Times of messages are of the past, and in order.
fn check_times(messages: &[ChatMessage]) -> Result<(), Fail> {
    let (mut last, max) = (0, now_ms().saturating_add(AHEAD_MS));
    for time in messages.iter().filter_map(|message| message.time_ms) {
        let accepted = match time {
            _ if time > max => "time_ms: accepted: milliseconds since 1970, not in the future",
            _ if time < last => "time_ms: accepted: not before that of an earlier message",
            _ => "",
        };
        require(accepted.is_empty(), "messages", accepted)?;
        last = time;
    }
    Ok(())
}

/// When the questions of a conversation were said; results of calls that follow each other are one question.
fn question_times(messages: &[ChatMessage]) -> Vec<Option<u64>> {
    let before = std::iter::once(None).chain(messages.iter().map(Some));
    let questions = messages.iter().zip(before).filter(|(message, before)| {
        let is_result = message.role == "tool";
        let goes_on = is_result && before.is_some_and(|before| before.role == "tool");
        message.role == "user" || is_result && !goes_on
    });
    questions.map(|(message, _)| message.time_ms).collect()
}

/// The system text, the turns before, and the last message.
fn parts(messages: &[ChatMessage]) -> Result<(String, History, String), Fail> {
    const ACCEPTED: &str = "accepted in a session: a system message, then user and assistant in turn, ending with the user";
    let wrong = || Fail::param("messages", ACCEPTED);
    let mut opening = String::new();
    let messages = tools::messages(messages, None, false)?;
    let mut rest = &messages[..];
    while let [first, others @ ..] = rest
        && first.role == "system"
    {
        if !opening.is_empty() {
            opening.push('\n');
        }
        opening.push_str(&first.content);
        rest = others;
    }
    let Some((last, before)) = rest.split_last().filter(|(last, _)| last.role == "user") else {
        return Err(wrong());
    };
    let turn = |pair: &[Message]| match pair {
        [user, assistant] if user.role == "user" && assistant.role == "assistant" => {
            Ok((user.content.clone(), assistant.content.clone()))
        }
        _ => Err(wrong()),
    };
    let history: Result<History, Fail> = before.chunks(2).map(turn).collect();
    Ok((opening, history?, last.content.clone()))
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
    /// Delete the session that has this name first.
    #[serde(default)]
    pub replace: bool,
    /// Tokens of turns in memory, of an answer, of the persistent text; bytes of the file.
    pub capacity: Option<u64>,
    pub answer_max: Option<u64>,
    pub persistent_max: Option<u64>,
    pub quota_bytes: Option<u64>,
    /// `all`, `threshold=F` or `top-k=N`.
    pub relevance: Option<String>,
    /// Lasting facts are found in what the user says, and added.
    pub auto_facts: Option<bool>,
    /// The date goes before what the user says.
    pub dates: Option<bool>,
}

impl CreateRequest {
    fn settings(&self) -> Result<SessionSettings, Fail> {
        let count = |name, value: Option<u64>| match value {
            Some(0) => Err(Fail::param(name, "accepted: at least 1")),
            value => Ok(value.map(|n| usize::try_from(n).unwrap_or(usize::MAX))),
        };
        let relevance = self.relevance.as_deref().map(str::parse).transpose();
        Ok(SessionSettings {
            capacity: count("capacity", self.capacity)?,
            answer_max: count("answer_max", self.answer_max)?,
            persistent_max: count("persistent_max", self.persistent_max)?,
            relevance: relevance.map_err(|text: String| Fail::param("relevance", text))?,
            quota_bytes: self.quota_bytes,
            auto_facts: self.auto_facts,
            dates: self.dates,
        })
    }
}

#[derive(Debug, Deserialize)]
pub struct ForkRequest {
    pub id: String,
}

#[derive(Debug, Deserialize)]
pub struct SearchRequest {
    /// That a session has, in any case, in its name and its texts.
    pub words: String,
}

#[derive(Debug, Deserialize)]
pub struct FactRequest {
    pub text: String,
    /// The number of a fact that no longer holds.
    pub supersedes: Option<u64>,
    /// The turn that says it.
    pub found_in: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct StateRequest {
    pub text: String,
    /// The number of the state that no longer holds.
    pub replaces: Option<u64>,
}

/// Whose sessions these are.
type Whose = Extension<Owner>;
type Answer = Result<Json<Value>, Fail>;
type Created = Result<(StatusCode, Json<Value>), Fail>;

pub async fn list(State(server): Server, whose: Whose) -> Answer {
    let listed = running(&server)?.list(whose.0).await?;
    let data = json_list(&listed.sessions, listed_json);
    let removed = json_list(&listed.removed, |gone| {
        json!({
            "id": gone.name,
            "file_bytes": gone.bytes,
            "reason": gone.cause.name(),
            "time_ms": gone.time_ms,
        })
    });
    Ok(Json(
        json!({ "object": "list", "data": data, "removed": removed }),
    ))
}

fn listed_json(one: &ListedSession) -> Value {
    json!({
        "id": one.name,
        "object": "session",
        "file_bytes": one.bytes,
        "is_open": one.is_open,
        "saved_ms": one.saved_ms,
    })
}

/// The sessions that have all words, with the place where they are. Files are read one at a time, each after the budget
/// had room for what it may hold; no session is opened for it.
pub async fn search(
    State(server): Server,
    whose: Whose,
    JsonBody(SearchRequest { words }, _): JsonBody<SearchRequest>,
) -> Answer {
    let search = SessionSearch::new(words.split_whitespace());
    if search.words().is_empty() || words.len() > limits::SEARCH_BYTES {
        let max = limits::SEARCH_BYTES;
        return Err(Fail::param(
            "words",
            format!("accepted: words, at most {max} bytes"),
        ));
    }
    let client = running(&server)?;
    let sessions = client.list(whose.0).await?.sessions;
    let (texts, heap) = (client.texts()?, client.heap().clone());
    let layout = texts.layout().clone();
    let folder = texts
        .folder(whose.0)
        .ok_or_else(|| Error::from(SessionError::NoSessions))?;
    let here = Arc::new(());
    let gone = Arc::downgrade(&here);
    let searched = server.admission.run(limits::BODY_BYTES, move || {
        let (mut data, mut skipped) = (Vec::new(), Vec::new());
        for one in sessions {
            if gone.strong_count() == 0 {
                break;
            }
            // What the name has need not be in the texts.
            let rest = search.without(&one.name);
            if rest.words().is_empty() {
                data.push(listed_json(&one));
                continue;
            }
            let bytes = usize::try_from(one.bytes).unwrap_or(usize::MAX);
            let needs = bytes.saturating_mul(SEARCHED_BYTES);
            let found = match heap.reserve_beside(needs, limits::LONG_FREE_SHARE) {
                Err(full) => Err(full.to_string()),
                Ok(_reserved) => {
                    let found = rest.in_session(&folder, &layout, &one.name);
                    found.map_err(|error| error.to_string())
                }
            };
            match found {
                Ok(None) => {}
                Ok(Some(found)) => {
                    let mut listed = listed_json(&one);
                    let (kind, number, text) = (found.kind, found.number, found.text);
                    listed["match"] = json!({ "kind": kind, "number": number, "text": text });
                    data.push(listed);
                }
                Err(reason) => skipped.push(json!({ "id": one.name, "reason": reason })),
            }
        }
        json!({ "object": "list", "data": data, "skipped": skipped })
    });
    let searched = searched.await?;
    drop(here);
    Ok(Json(searched))
}

pub async fn create(
    State(server): Server,
    whose: Whose,
    _: QueuePlace,
    JsonBody(given, permit): JsonBody<CreateRequest>,
) -> Created {
    let (client, now) = (running(&server)?, now_ms());
    let own = given.settings()?;
    let CreateRequest {
        id,
        persistent,
        verbatim,
        replace,
        ..
    } = given;
    let opening = told(&server, permit.bytes, move |texts, _| {
        texts.opening_with(&verbatim, &persistent, now, own)
    })
    .await?;
    drop(permit);
    let name = whose.session(&id);
    if replace {
        client.make_way(name).await?;
    }
    let read = SessionRead::create(opening);
    client.read(read_request(&server, name, read, now)).await?;
    let view = client.view(name, VIEW_TURNS_MAX).await?;
    Ok((StatusCode::CREATED, Json(view_json(&view))))
}

pub async fn show(State(server): Server, whose: Whose, Path(id): Path<String>) -> Answer {
    let view = running(&server)?.view(whose.session(&id), VIEW_TURNS_MAX);
    let view = view.await?;
    Ok(Json(view_json(&view)))
}

pub async fn delete(State(server): Server, whose: Whose, Path(id): Path<String>) -> Answer {
    running(&server)?.delete(whose.session(&id)).await?;
    let deleted = json!({ "id": id, "object": "session", "deleted": true });
    Ok(Json(deleted))
}

pub async fn fork(
    State(server): Server,
    whose: Whose,
    Path(from): Path<String>,
    JsonBody(ForkRequest { id }, _): JsonBody<ForkRequest>,
) -> Created {
    let view = running(&server)?.fork(whose.session(&from), id).await?;
    Ok((StatusCode::CREATED, Json(view_json(&view))))
}

pub async fn add_fact(
    State(server): Server,
    whose: Whose,
    Path(id): Path<String>,
    _: QueuePlace,
    JsonBody(asked, permit): JsonBody<FactRequest>,
) -> Created {
    let FactRequest {
        text,
        supersedes,
        found_in,
    } = asked;
    check_said(&text)?;
    let client = running(&server)?;
    let fact = told(&server, permit.bytes, move |texts, _| texts.fact(&text)).await?;
    drop(permit);
    let read = SessionRead::Fact {
        fact,
        supersedes,
        found_in,
    };
    let number = client
        .read(read_request(&server, whose.session(&id), read, now_ms()))
        .await?;
    Ok((StatusCode::CREATED, Json(json!({ "number": number }))))
}

/// A fact or a state says something.
fn check_said(text: &str) -> Result<(), Fail> {
    match text.trim().is_empty() {
        true => Err(Fail::param("text", "it is empty; accepted: some words")),
        false => Ok(()),
    }
}

pub async fn revoke_fact(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let revoked = running(&server)?.revoke_fact(whose.session(&id), number);
    revoked.await?;
    Ok(Json(json!({ "number": number, "revoked": true })))
}

pub async fn add_state(
    State(server): Server,
    whose: Whose,
    Path(id): Path<String>,
    _: QueuePlace,
    JsonBody(StateRequest { text, replaces }, permit): JsonBody<StateRequest>,
) -> Created {
    check_said(&text)?;
    let client = running(&server)?;
    let state = told(&server, permit.bytes, move |texts, _| texts.state(&text)).await?;
    drop(permit);
    let read = SessionRead::State {
        state,
        instead: replaces,
    };
    let number = client
        .read(read_request(&server, whose.session(&id), read, now_ms()))
        .await?;
    Ok((StatusCode::CREATED, Json(json!({ "number": number }))))
}

pub async fn delete_state(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let deleted = running(&server)?.delete_state(whose.session(&id), number);
    deleted.await?;
    Ok(Json(json!({ "number": number, "deleted": true })))
}

pub async fn recall(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    running(&server)?.recall(whose.session(&id), number).await?;
    Ok(Json(json!({ "turn": number, "wanted": true })))
}

pub async fn pin(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let done = running(&server)?.pin(whose.session(&id), number, true);
    done.await?;
    Ok(Json(json!({ "turn": number, "is_pinned": true })))
}

pub async fn unpin(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let done = running(&server)?.pin(whose.session(&id), number, false);
    done.await?;
    Ok(Json(json!({ "turn": number, "is_pinned": false })))
}

pub async fn exclude(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let done = running(&server)?.exclude(whose.session(&id), number, true);
    done.await?;
    Ok(Json(json!({ "turn": number, "is_excluded": true })))
}

pub async fn include(
    State(server): Server,
    whose: Whose,
    Path((id, number)): Path<(String, u64)>,
) -> Answer {
    let done = running(&server)?.exclude(whose.session(&id), number, false);
    done.await?;
    Ok(Json(json!({ "turn": number, "is_excluded": false })))
}

pub async fn retract(State(server): Server, whose: Whose, Path(id): Path<String>) -> Answer {
    let turn = running(&server)?.retract(whose.session(&id)).await?;
    Ok(Json(json!({ "retracted": turn })))
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
    let numbered = |(number, text): &(u64, String)| json!({ "number": number, "text": text });
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
        "capacity": stats.capacity,
        "auto_facts": view.settings.auto_facts.unwrap_or(false),
        "dates": view.settings.dates.unwrap_or(false),
        "turns_said": stats.turns,
        "file_bytes": stats.file_bytes,
        "unsaved": stats.unsaved.as_ref().map(ToString::to_string),
        "condensed": stats.condensed.as_ref().map(ToString::to_string),
        "facts": json_list(&view.facts, fact_json),
        "states": json_list(&view.states, numbered),
        "turns": json_list(&view.turns, turn_json),
    })
}

fn fact_json(fact: &FactView) -> Value {
    let mut json = json!({ "number": fact.number, "text": fact.text });
    if let Some(turn) = fact.found_in {
        json["found_in"] = json!(turn);
    }
    json
}

fn turn_json(view: &TurnView) -> Value {
    let turn = &view.turn;
    json!({
        "number": turn.number,
        "is_state": turn.is_state,
        "is_part": turn.is_part,
        "place": place_name(turn),
        "is_pinned": turn.is_pinned,
        "is_excluded": turn.is_excluded,
        "tokens": turn.tokens(),
        "time_ms": view.time_ms,
        "question": view.text,
        "answer": view.answer,
    })
}
