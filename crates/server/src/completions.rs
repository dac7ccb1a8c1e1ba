//! `/v1/completions`: continues a text, or token ids.

use super::answer::{Api, answer};
use super::body::{JsonBody, QueuePlace};
use super::fail::{Fail, refuse, require};
use super::request::EndpointFields;
use super::state::Server;
use super::types::{CompletionPrompt, CompletionRequest};
use super::{request, structured};
use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use haversack::Owner;
use haversack::engine::Model;
use haversack::text::chat::EncodedChat;
use haversack::text::tokenizer::EncodeOptions;

pub async fn completions(
    State(server): Server,
    Extension(owner): Extension<Owner>,
    _: QueuePlace,
    JsonBody(request, permit): JsonBody<CompletionRequest>,
) -> Result<Response, Fail> {
    let shape = structured::requested(&request.common)?;
    let constraint = structured::constraint(&server, shape).await?;
    let here = server.clone();
    let checked = server.admission.run(permit.bytes, move || {
        let _permit = permit;
        let (client, common) = (here.client(), &request.common);
        require(request.echo != Some(true), "echo", "accepted: false")?;
        require(request.suffix.is_none(), "suffix", "accepted: none")?;
        let has_one = request.best_of.is_none_or(|n| n == 1);
        require(has_one, "best_of", "accepted: 1")?;
        let has_tools = common.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let accepted = "accepted: none; /v1/chat/completions takes tools";
        require(!has_tools, "tools", accepted)?;
        let fields = EndpointFields {
            prompt: EncodedChat {
                ids: encode(client.model(), request.prompt)?,
                ..EncodedChat::default()
            },
            top: request.logprobs,
            owner,
            is_structured: constraint.is_some(),
            constraint,
            ..EndpointFields::default()
        };
        request::completion(client, fields, common)
    });
    let checked = checked.await??;
    answer(server, Api::Completions, checked).await
}

fn encode(model: &Model, prompt: CompletionPrompt) -> Result<Vec<u32>, Fail> {
    let text = match prompt {
        CompletionPrompt::Tokens(tokens) => return Ok(tokens),
        CompletionPrompt::Text(text) => text,
        CompletionPrompt::Texts(mut texts) if texts.len() == 1 => texts.swap_remove(0),
        CompletionPrompt::Texts(_) => {
            return refuse("prompt", "accepted: one text, or token ids");
        }
    };
    let options = EncodeOptions {
        add_special: true,
        parse_special: false,
    };
    let tokens = model.tokenizer().encode(&text, options);
    tokens.map_err(|error| Fail::param("prompt", error.to_string()))
}
