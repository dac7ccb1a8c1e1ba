//! A conversation as token ids: template, guards, tokenizer.

use super::template::{ChatTemplate, Message, RenderOptions, TemplateError};
use super::tokenizer::{TokenizeError, Tokenizer, guard};

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(transparent)]
    Template(#[from] TemplateError),
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    #[error("the messages use every noncharacter from U+FDD0 to U+FDEF")]
    NoGuard,
}

/// Ids of the messages as the model's template lays them out. Whatever the messages say, they
/// cannot contain a special token.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>, ChatError> {
    let texts = messages
        .iter()
        .flat_map(|m| [m.role.as_str(), m.content.as_str()]);
    let guard = guard::choose(texts).ok_or(ChatError::NoGuard)?;
    let guarded: Vec<Message> = messages
        .iter()
        .map(|m| Message {
            role: tokenizer.guard(&m.role, guard),
            content: tokenizer.guard(&m.content, guard),
        })
        .collect();
    let text = template.render(&guarded, options)?;
    // Templates that write BOS themselves would otherwise get it twice.
    let has_bos = tokenizer
        .bos()
        .and_then(|id| tokenizer.piece_raw(id))
        .is_some_and(|bos| text.as_bytes().starts_with(bos));
    Ok(tokenizer.encode_rendered(&text, !has_bos, guard)?)
}
