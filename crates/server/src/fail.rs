//! Errors as clients of this API expect them: a status, and one JSON object that says what is wrong in a line.

use super::limits;
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use haversack::engine::StepError;
use haversack::scheduler::SubmitError;
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
        Fail::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
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
            ..Fail::status(status, "no model of this name is served")
        }
    }

    pub fn method() -> Fail {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Fail::status(status, "this path does not take this method")
    }

    /// All places are taken.
    pub fn busy() -> Fail {
        let status = StatusCode::TOO_MANY_REQUESTS;
        Fail::new(
            status,
            "rate_limit_error",
            "all places in the queue are taken",
        )
    }

    pub fn stopping() -> Fail {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Fail::new(status, "server_error", "the server is stopping")
    }

    pub fn internal(message: impl Into<String>) -> Fail {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Fail::new(status, "server_error", message)
    }

    pub fn refused(refused: &SubmitError) -> Fail {
        match refused {
            SubmitError::QueueFull(_) => Fail::busy(),
            SubmitError::PromptTooLong { .. } => Fail {
                code: Some("context_length_exceeded"),
                ..Fail::param("messages", refused.to_string())
            },
            SubmitError::Session(error) => super::sessions::fail(error),
            SubmitError::MemoryPromised { .. } => {
                let status = StatusCode::SERVICE_UNAVAILABLE;
                Fail::new(status, "server_error", refused.to_string())
            }
            SubmitError::Step(
                StepError::Window { .. }
                | StepError::NarrowWindow { .. }
                | StepError::PolicyPerSequence { .. }
                | StepError::NotProbed
                | StepError::TooManyTokens { .. },
            ) => Fail::param("context", refused.to_string()),
            SubmitError::Step(_) => Fail::internal(refused.to_string()),
            _ => Fail::bad(refused.to_string()),
        }
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

impl IntoResponse for Fail {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if again.contains(&self.status) {
            let seconds = HeaderValue::from(limits::RETRY_SECONDS);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}
