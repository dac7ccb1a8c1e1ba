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

/// A conversation in tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedChat {
    pub ids: Vec<u32>,
    /// After how many of the ids other conversations are likely to depart from this one: behind the system message, and
    /// before the last message of the user. Ascending; only where a special token begins or ends, because the tokens
    /// before it are the same whatever follows.
    pub borders: Vec<usize>,
}

/// Ids of the messages as the model's template lays them out. Whatever the messages, their fields and the variables say,
/// they cannot contain a special token.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>, ChatError> {
    encode(template, tokenizer, messages, options, &[]).map(|chat| chat.ids)
}

/// The same, with the borders of messages.
pub fn encode_chat_with_borders(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<EncodedChat, ChatError> {
    let is_system = |m: &Message| matches!(m.role.as_str(), "system" | "developer");
    let first = messages.iter().position(|m| !is_system(m));
    let last = messages.iter().rposition(|m| m.role == "user");
    let mut before: Vec<usize> = first.into_iter().chain(last).collect();
    before.dedup();
    encode(template, tokenizer, messages, options, &before)
}

/// `before`: the messages before which there is a border.
fn encode(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
    before: &[usize],
) -> Result<EncodedChat, ChatError> {
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
    let mut guarded: Vec<Message> = messages.iter().map(guard_message).collect();
    let options = RenderOptions {
        variables: guard_all(&options.variables),
        ..options.clone()
    };
    let text = template.render(&guarded, &options)?;
    // A template may write anything anywhere: what it writes for another message shows where that begins.
    let mut departures = Vec::with_capacity(before.len());
    for &i in before.iter().rev() {
        guarded.truncate(i + 1);
        guarded[i].content = guard.to_string();
        if let Ok(other) = template.render(&guarded, &options) {
            let bytes = text.bytes().zip(other.bytes());
            departures.push(bytes.take_while(|(a, b)| a == b).count());
        }
    }
    let mut borders = vec![0; departures.len()];
    // Templates that write BOS themselves would otherwise get it twice.
    let has_bos = tokenizer
        .bos()
        .and_then(|id| tokenizer.piece_raw(id))
        .is_some_and(|bos| text.as_bytes().starts_with(bos));
    let mut begins = |byte: usize, ids: usize| {
        let behind = departures.iter().zip(&mut borders);
        behind
            .filter(|(departure, _)| byte <= **departure)
            .for_each(|(_, border)| *border = ids);
    };
    let ids = tokenizer.encode_rendered(&text, !has_bos, guard, &mut begins)?;
    borders.retain(|&border| border > 0);
    borders.sort_unstable();
    borders.dedup();
    Ok(EncodedChat { ids, borders })
}
