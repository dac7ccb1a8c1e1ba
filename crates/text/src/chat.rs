//! A conversation as token ids: template, guards, tokenizer.

use super::template::{ChatTemplate, Message, RenderOptions, TemplateError, Variable};
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

/// Ids of the messages as the model's template lays them out. Whatever the messages, their fields and the variables say,
/// they cannot contain a special token.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>, ChatError> {
    let mut texts = Vec::new();
    for message in messages {
        texts.extend([message.role.as_str(), message.content.as_str()]);
        for (_, value) in &message.fields {
            value.texts(&mut texts);
        }
    }
    for (_, value) in &options.variables {
        value.texts(&mut texts);
    }
    let guard = guard::choose(texts.iter().copied()).ok_or(ChatError::NoGuard)?;
    let change = |text: &str| tokenizer.guard(text, guard);
    let guard_all = |given: &[(String, Variable)]| {
        let change_one =
            |(name, value): &(String, Variable)| (name.clone(), value.map_texts(&change));
        given.iter().map(change_one).collect()
    };
    let guard_message = |m: &Message| Message {
        role: change(&m.role),
        content: change(&m.content),
        fields: guard_all(&m.fields),
    };
    let guarded: Vec<Message> = messages.iter().map(guard_message).collect();
    let options = RenderOptions {
        variables: guard_all(&options.variables),
        ..options.clone()
    };
    let text = template.render(&guarded, &options)?;
    // Templates that write BOS themselves would otherwise get it twice.
    let has_bos = tokenizer
        .bos()
        .and_then(|id| tokenizer.piece_raw(id))
        .is_some_and(|bos| text.as_bytes().starts_with(bos));
    Ok(tokenizer.encode_rendered(&text, !has_bos, guard)?)
}
