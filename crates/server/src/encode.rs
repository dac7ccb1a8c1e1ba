//! Messages and tools as tokens, through the model's own template.

use super::fail::{Fail, require};
use super::tools::{self, ToolSet};
use super::types::ChatMessage;
use haversack::engine::Model;
use haversack::text::chat::{EncodedChat, encode_chat_with_borders};
use haversack::text::template::RenderOptions;

/// The messages in tokens, with the tools in front of them or wherever the template puts them.
pub fn encode(
    model: &Model,
    messages: &[ChatMessage],
    tools: Option<&ToolSet>,
) -> Result<EncodedChat, Fail> {
    let has_some = !messages.is_empty();
    require(has_some, "messages", "accepted: at least one message")?;
    let template = model.template();
    let knows_tools = template.knows_tools();
    let messages = tools::messages(messages, tools, knows_tools)?;
    let mut options = RenderOptions::to_answer(haversack::memory::clock::since_1970());
    if let Some(tools) = tools.filter(|_| knows_tools) {
        options.variables.push(("tools".into(), tools.variable()));
    }
    encode_chat_with_borders(template, model.tokenizer(), &messages, &options)
        .map_err(|error| Fail::param("messages", error.to_string()))
}
