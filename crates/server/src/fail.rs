//! Errors as clients of the OpenAI API expect them: a status, and one JSON object that says in a line what is wrong.

use super::limits;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use haversack::scheduler::SubmitError;
use haversack::{Error, ErrorKind};
use serde_json::json;

#[derive(Debug)]
pub struct Fail {
    status: StatusCode,
    kind: &'static str,
    /// The word that clients look for, where there is one.
    code: Option<&'static str>,
    /// The parameter that is wrong, if it is one.
    param: Option<&'static str>,
    message: String,
}

impl Fail {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Fail {
        Fail {
            status,
            kind,
            code: match status {
                StatusCode::UNAUTHORIZED => Some("invalid_api_key"),
                StatusCode::TOO_MANY_REQUESTS => Some("rate_limit_exceeded"),
                _ => None,
            },
            param: None,
            message: message.into(),
        }
    }

    pub fn bad(message: impl Into<String>) -> Fail {
        Fail::status(StatusCode::BAD_REQUEST, message)
    }

    pub fn param(param: &'static str, message: impl Into<String>) -> Fail {
        Fail {
            param: Some(param),
            ..Fail::bad(message)
        }
    }

    pub fn status(status: StatusCode, message: impl Into<String>) -> Fail {
        Fail::new(status, "invalid_request_error", message)
    }

    pub fn not_found() -> Fail {
        Fail::status(StatusCode::NOT_FOUND, "there is nothing at this path")
    }

    pub fn no_model() -> Fail {
        let status = StatusCode::NOT_FOUND;
        Fail {
            code: Some("model_not_found"),
            param: Some("model"),
            ..Fail::status(status, "this server has no model of that name")
        }
    }

    pub fn no_key() -> Fail {
        Fail::status(StatusCode::UNAUTHORIZED, "the API key is missing or wrong")
    }

    pub fn method() -> Fail {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Fail::status(status, "this path does not accept this method")
    }

    pub fn busy() -> Fail {
        let (status, kind) = (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error");
        Fail::new(status, kind, "all places in the queue are taken")
    }

    pub fn no_memory() -> Fail {
        let message = "there is no memory for the body now";
        Fail::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    pub fn stopping() -> Fail {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Fail::new(status, "server_error", "the server is stopping")
    }

    pub fn internal(message: impl Into<String>) -> Fail {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Fail::new(status, "server_error", message)
    }

    /// The object alone, for a stream that has begun.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            },
        })
    }
}

/// Refuses the request for this parameter.
pub fn refuse<T>(param: &'static str, message: impl Into<String>) -> Result<T, Fail> {
    Err(Fail::param(param, message))
}

/// [`refuse`]s what is not so.
pub fn require(is_so: bool, param: &'static str, message: impl Into<String>) -> Result<(), Fail> {
    match is_so {
        true => Ok(()),
        false => refuse(param, message),
    }
}

/// The status for each kind of error.
fn status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::InvalidInput | ErrorKind::TooLarge => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Conflict => StatusCode::CONFLICT,
        ErrorKind::Busy => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        ErrorKind::OutOfMemory | ErrorKind::Closed => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        let (kind, text) = (error.kind(), error.to_string());
        let status = status(kind);
        let refused = match &error {
            Error::Submit(refused) => Some(&**refused),
            _ => None,
        };
        let of_session = matches!(error, Error::Session(_));
        let is_damaged = matches!(&error, Error::Session(error) if error.is_damage());
        match refused {
            _ if kind == ErrorKind::Busy => Fail::busy(),
            _ if kind == ErrorKind::Closed => Fail::stopping(),
            _ if status == StatusCode::INTERNAL_SERVER_ERROR => {
                let hint = "; it can be deleted, or created again with \"replace\": true";
                let hint = if is_damaged { hint } else { "" };
                Fail::internal(format!("{text}{hint}"))
            }
            Some(SubmitError::PromptTooLong { .. }) => Fail {
                code: Some("context_length_exceeded"),
                ..Fail::param("messages", text)
            },
            Some(SubmitError::Step(_)) if kind == ErrorKind::InvalidInput => {
                Fail::param("context", text)
            }
            Some(SubmitError::Session(_)) => Fail::status(status, text),
            _ if of_session || status.is_client_error() => Fail::status(status, text),
            _ => Fail::new(status, "server_error", text),
        }
    }
}

impl IntoResponse for Fail {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if [429, 503].contains(&self.status.as_u16()) {
            let seconds = HeaderValue::from(limits::RETRY_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
