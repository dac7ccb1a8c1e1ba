//! Reading a request's body: a place first, then memory for its bytes and what they may become, then the bytes, within limits
//! on size, time and nesting.

use super::admission::is_long;
use super::fail::Fail;
use super::limits;
use super::state::ServerState;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use haversack::Owner;
use haversack::memory::{HeapBudget, HeapReservation};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// The body of a request, parsed, and what it holds until its text is tokens.
pub struct JsonBody<T>(pub T, pub BodyPermit);

/// A place among the bodies, and memory for what a text may become.
pub struct BodyPermit {
    /// Of the body.
    pub bytes: usize,
    reserved: HeapReservation,
    _place: OwnedSemaphorePermit,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<ServerState>> for JsonBody<T> {
    type Rejection = Fail;

    async fn from_request(
        request: Request,
        server: &Arc<ServerState>,
    ) -> Result<JsonBody<T>, Fail> {
        let (head, body) = request.into_parts();
        check_kind(&head.headers)?;
        let (admission, heap) = (&server.admission, server.client().heap());
        let place = admission.body()?;
        let whole = tokio::time::timeout(limits::BODY_TIME, whole(body, heap)).await;
        let bytes = whole.unwrap_or_else(|_| Err(slow()))?;
        let len = bytes.len();
        // A long body is neither scanned nor parsed on the thread of all connections.
        let (scan, bytes) = match is_long(len) {
            false => (Scan::of(&bytes), bytes),
            true => {
                let scan = move || (Scan::of(&bytes), bytes);
                admission.run(len, scan).await?
            }
        };
        scan.check_depth()?;
        let prepared = PREPARED * len;
        let needs = scan.parsed_bytes(len) + prepared;
        let mut permit = BodyPermit {
            bytes: len,
            reserved: reserve(heap, needs, is_long(len)).await?,
            _place: place,
        };
        let parsed = match is_long(len) {
            false => parse(&bytes),
            true => admission.run(len, move || parse(&bytes)).await?,
        };
        // Counted as a part of the heap from here on.
        permit.reserved.shrink_to(prepared);
        Ok(JsonBody(parsed?, permit))
    }
}

/// There was a place in the queue when the head of the request came: without one its body is not read.
pub struct QueuePlace;

impl FromRequestParts<Arc<ServerState>> for QueuePlace {
    type Rejection = Fail;

    async fn from_request_parts(
        head: &mut Parts,
        server: &Arc<ServerState>,
    ) -> Result<QueuePlace, Fail> {
        let owner = head.extensions.get::<Owner>().copied();
        server.client().check_place(owner.unwrap_or_default())?;
        Ok(QueuePlace)
    }
}

fn check_kind(headers: &HeaderMap) -> Result<(), Fail> {
    let text = |name| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    // What a page of another site sends without asking first has no type, or another one.
    let usual = match headers.contains_key(header::ORIGIN) {
        true => "",
        false => "application/json",
    };
    let kind = text(header::CONTENT_TYPE).unwrap_or(usual);
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let wrong = |accepted| Err(Fail::status(StatusCode::UNSUPPORTED_MEDIA_TYPE, accepted));
    if !kind.eq_ignore_ascii_case("application/json") {
        return wrong("accepted: application/json");
    }
    if text(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
        return wrong("accepted: a body that is not compressed");
    }
    Ok(())
}

/// Waits for the engine to make room, which it does before its next step; then refuses a body that the budget has no
/// room for, and the client is told to try again.
async fn reserve(
    heap: &Arc<HeapBudget>,
    bytes: usize,
    is_long: bool,
) -> Result<HeapReservation, Fail> {
    let until = tokio::time::Instant::now() + limits::BODY_ROOM;
    let free_share = if is_long {
        limits::LONG_FREE_SHARE
    } else {
        0.0
    };
    loop {
        match heap.reserve_beside(bytes, free_share) {
            Ok(reserved) => return Ok(reserved),
            Err(_) if tokio::time::Instant::now() < until => {
                tokio::time::sleep(limits::BODY_ROOM / 40).await;
            }
            Err(_) => return Err(Fail::no_memory()),
        }
    }
}

/// What values of JSON take at most: a node of a map, or a place in a list that grows by doubling.
const OBJECT_BYTES: usize = 704;
const VALUE_BYTES: usize = 72;

/// What each byte of text may take until it is tokens: as the template renders it, in pieces, and as ids.
const PREPARED: usize = 8;

/// All of a body. One that announces too many bytes is refused before it is read, as is one that there is no memory for.
async fn whole(mut body: Body, heap: &Arc<HeapBudget>) -> Result<Vec<u8>, Fail> {
    let max = limits::BODY_BYTES;
    let long = || {
        let message = format!("the body is too long; accepted: at most {max} bytes");
        Fail::status(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    if body.size_hint().lower() > max as u64 {
        return Err(long());
    }
    let announced = body.size_hint().upper();
    let announced = announced.map_or(max, |n| n.min(max as u64) as usize);
    let reserved = reserve(heap, announced, is_long(announced)).await?;
    let mut bytes = Vec::with_capacity(announced);
    drop(reserved);
    loop {
        let frame = tokio::time::timeout(limits::BODY_PAUSE, body.frame()).await;
        match frame.map_err(|_| slow())? {
            None => return Ok(bytes),
            Some(Err(_)) => return Err(Fail::bad("the body ended early")),
            Some(Ok(frame)) => {
                let data = frame.into_data().unwrap_or_default();
                if bytes.len() + data.len() > max {
                    return Err(long());
                }
                bytes.extend_from_slice(&data);
            }
        }
    }
}

fn slow() -> Fail {
    Fail::status(StatusCode::REQUEST_TIMEOUT, "the body took too long")
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fail> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    serde_json::from_slice(bytes).map_err(|error| {
        // Where it is wrong, not what is there: that may be private text.
        let (line, column) = (error.line(), error.column());
        let what = without_values(&error.to_string());
        Fail::bad(match error.is_data() {
            true => format!("the JSON has the wrong fields: {what}"),
            false => format!("the body is not JSON, line {line} column {column}"),
        })
    })
}

/// The message without what it quotes.
fn without_values(message: &str) -> String {
    let mut quoted = false;
    let mut out = String::new();
    for c in message.chars().take(300) {
        if c == '"' {
            quoted = !quoted;
            out.push('"');
        } else if !quoted {
            out.push(c);
        }
    }
    out
}

/// What a text of JSON consists of, strings apart.
struct Scan {
    /// The deepest nesting of brackets.
    depth: usize,
    objects: usize,
    /// At most.
    values: usize,
}

impl Scan {
    fn of(bytes: &[u8]) -> Scan {
        let mut scan = Scan {
            depth: 0,
            objects: 0,
            values: 1,
        };
        let (mut now, mut text, mut escaped) = (0usize, false, false);
        for &b in bytes {
            match b {
                _ if escaped => escaped = false,
                b'\\' if text => escaped = true,
                b'"' => text = !text,
                b'[' | b'{' if !text => {
                    now += 1;
                    scan.depth = scan.depth.max(now);
                    scan.objects += usize::from(b == b'{');
                    scan.values += 1;
                }
                b']' | b'}' if !text => now = now.saturating_sub(1),
                b',' | b':' if !text => scan.values += 1,
                _ => {}
            }
        }
        scan
    }

    fn check_depth(&self) -> Result<(), Fail> {
        let max = limits::JSON_DEPTH;
        if self.depth > max {
            let message = format!("the JSON is nested too deep; accepted: at most {max} levels");
            return Err(Fail::bad(message));
        }
        Ok(())
    }

    /// What parsing such a text of this length takes at most beside the text: its strings, and its values.
    fn parsed_bytes(&self, len: usize) -> usize {
        len + self.objects * OBJECT_BYTES + self.values * VALUE_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ChatRequest;

    #[test]
    fn brackets_are_counted_outside_of_strings() {
        let depth = |bytes: &[u8]| Scan::of(bytes).depth;
        assert_eq!(depth(b"{}"), 1);
        assert_eq!(depth(br#"{"a":[{"b":"]]]{{{{\"[[[["}]}"#), 3);
        assert_eq!(depth(&[b'['; 1000]), 1000);
        assert_eq!(depth(b"]]]]["), 1);
    }

    #[test]
    fn errors_quote_nothing() {
        let of = |body: &str| {
            let fail = parse::<ChatRequest>(body.as_bytes()).unwrap_err();
            fail.json()["error"]["message"].as_str().unwrap().to_owned()
        };
        let told = of(r#"{"messages":[{"role":"user","content":"x"}],"temperature":"my secret"}"#);
        assert!(!told.contains("secret"), "{told}");
        assert!(told.contains("expected f32"), "{told}");
        assert_eq!(
            of(r#"{"messages":"#),
            "the body is not JSON, line 1 column 12"
        );
        assert!(of("[1,2,3]").starts_with("the JSON has the wrong fields"));
        let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
        let told = Scan::of(deep.as_bytes()).check_depth().unwrap_err().json();
        assert!(told.to_string().contains("64 levels"), "{told}");
    }
}
