//! `/v1/completions`: continues a text, or token ids.

use super::answer::{Api, answer};
use super::fail::Fail;
use super::request::EndpointFields;
use super::state::ServerState;
use super::types::{CompletionPrompt, CompletionRequest};
use super::{body, request, structured};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use haversack::engine::Model;
use haversack::text::tokenizer::EncodeOptions;
use std::sync::Arc;

pub async fn completions(
    State(server): State<Arc<ServerState>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: CompletionRequest = body::read(&headers, body).await?;
    let here = server.clone();
    let checked = tokio::task::spawn_blocking(move || {
        if request.echo.unwrap_or(false) {
            return Err(Fail::param("echo", "accepted: false"));
        }
        if request.suffix.is_some() {
            return Err(Fail::param("suffix", "accepted: none"));
        }
        if request.best_of.is_some_and(|n| n != 1) {
            return Err(Fail::param("best_of", "accepted: 1"));
        }
        if request
            .common
            .tools
            .as_ref()
            .is_some_and(|tools| !tools.is_empty())
        {
            return Err(Fail::param(
                "tools",
                "accepted: none; /v1/chat/completions takes tools",
            ));
        }
        let model = here.client().model();
        let shape = structured::requested(&request.common)?;
        let constraint =
            shape.map(|(param, shape)| structured::constraint(here.client(), param, &shape));
        let fields = EndpointFields {
            prompt: encode(model, request.prompt)?,
            stops: &[],
            top: request.logprobs,
            constraint: constraint.transpose()?,
            callable: None,
        };
        request::completion(here.client(), fields, &request.common)
    });
    let checked = checked.await.map_err(|_| Fail::stopping())??;
    answer(server, Api::Completions, checked).await
}

fn encode(model: &Model, prompt: CompletionPrompt) -> Result<Vec<u32>, Fail> {
    let text = match prompt {
        CompletionPrompt::Tokens(tokens) => return Ok(tokens),
        CompletionPrompt::Text(text) => text,
        CompletionPrompt::Texts(mut texts) if texts.len() == 1 => texts.swap_remove(0),
        CompletionPrompt::Texts(_) => {
            return Err(Fail::param("prompt", "accepted: one text, or token ids"));
        }
    };
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let tokens = model.tokenizer().encode(&text, options);
    tokens.map_err(|error| Fail::param("prompt", error.to_string()))
}
