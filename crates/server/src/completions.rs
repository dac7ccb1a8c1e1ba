//! `/v1/completions`: a text, or token ids, goes on.

use super::answer::{Api, answer};
use super::request::Wanted;
use super::fail::Fail;
use super::types::{CompletionRequest, Prompt};
use super::{Shared, request, structured};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use haversack::engine::Model;
use haversack::text::tokenizer::EncodeOptions;
use std::sync::Arc;

pub async fn completions(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fail> {
    let request: CompletionRequest = request::read(&headers, body).await?;
    let here = shared.clone();
    let asked = tokio::task::spawn_blocking(move || {
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
            return Err(Fail::param("tools", "accepted: none; a chat may have some"));
        }
        let model = &here.hall.model;
        let asked = structured::asked(&request.common)?;
        let constraint = asked.map(|(param, shape)| here.constraint(param, &shape));
        let wanted = Wanted {
            prompt: encode(model, request.prompt)?,
            stops: &[],
            top: request.logprobs,
            constraint: constraint.transpose()?,
            callable: None,
        };
        request::ask(&here.hall, wanted, &request.common)
    });
    let asked = asked.await.map_err(|_| Fail::stopping())??;
    answer(shared, Api::Completions, asked).await
}

fn encode(model: &Model, prompt: Prompt) -> Result<Vec<u32>, Fail> {
    let text = match prompt {
        Prompt::Tokens(tokens) => return Ok(tokens),
        Prompt::Text(text) => text,
        Prompt::Texts(mut texts) if texts.len() == 1 => texts.swap_remove(0),
        Prompt::Texts(_) => return Err(Fail::param("prompt", "accepted: one text, or token ids")),
    };
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let tokens = model.tokenizer().encode(&text, options);
    tokens.map_err(|error| Fail::param("prompt", error.to_string()))
}
