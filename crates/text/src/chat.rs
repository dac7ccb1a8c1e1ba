//! A conversation as token ids: template, guards, tokenizer.

use super::template::{ChatTemplate, Message, RenderOptions, TemplateError, Variable};
use super::tokenizer::{TokenizeError, Tokenizer, guard};
use std::ops::Range;

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
    /// The messages in the order in which the template writes them. Those that say nothing are not among them, nor any from
    /// the first one on whose text the template changed so that it cannot be found.
    pub messages: Vec<MessageSpan>,
}

impl EncodedChat {
    /// The same without its first token.
    pub fn remove_first(&mut self) {
        let before = |at: usize| at.saturating_sub(1);
        self.ids.drain(..self.ids.len().min(1));
        self.borders.iter_mut().for_each(|at| *at = before(*at));
        self.borders.retain(|&at| at > 0);
        for message in &mut self.messages {
            message.start = before(message.start);
            message.content = before(message.content.start)..before(message.content.end);
        }
    }
}

/// Where a message is in the tokens of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSpan {
    pub speaker: Speaker,
    /// The first token of the header that the template writes before it.
    pub start: usize,
    /// What it says. Tokens outside of all contents are the template's own.
    pub content: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaker {
    System,
    User,
    /// The assistant, or a tool.
    Other,
}

impl Speaker {
    fn of(role: &str) -> Speaker {
        match role {
            "system" | "developer" => Speaker::System,
            "user" => Speaker::User,
            _ => Speaker::Other,
        }
    }
}

/// Ids of the messages as the model's template lays them out. Whatever the messages, their fields and the variables say,
/// they cannot contain a special token.
pub fn encode_chat(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<Vec<u32>, ChatError> {
    encode(template, tokenizer, messages, options, None).map(|chat| chat.ids)
}

/// The same, with the borders of messages and where each is.
pub fn encode_chat_with_borders(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
) -> Result<EncodedChat, ChatError> {
    let is_system = |m: &Message| Speaker::of(&m.role) == Speaker::System;
    let first = messages.iter().position(|m| !is_system(m));
    let last = messages.iter().rposition(|m| m.role == "user");
    let mut before: Vec<usize> = first.into_iter().chain(last).collect();
    before.dedup();
    encode(template, tokenizer, messages, options, Some(&before))
}

/// `before`: the messages before which there is a border; `None`: neither borders nor spans are wanted.
fn encode(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Message],
    options: &RenderOptions,
    before: Option<&[usize]>,
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
    let taken = guard.to_string();
    let mark = guard::choose(texts.iter().copied().chain([&taken[..]]));
    let contents = mark
        .filter(|_| before.is_some())
        .and_then(|mark| contents(template, &guarded, &options, mark, &text));
    let before = before.unwrap_or_default();
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
    let mut places = Vec::new();
    let mut begins = |byte: usize, ids: usize| {
        places.push((byte, ids));
        let behind = departures.iter().zip(&mut borders);
        behind
            .filter(|(departure, _)| byte <= **departure)
            .for_each(|(_, border)| *border = ids);
    };
    let ids = tokenizer.encode_rendered(&text, !has_bos, guard, &mut begins)?;
    borders.retain(|&border| border > 0);
    borders.sort_unstable();
    borders.dedup();
    let walk = TokenWalk {
        tokenizer,
        ids: &ids,
        text: &text,
        guard,
        places: &places,
        byte: 0,
        token: 0,
        ahead: 0,
    };
    let messages = match contents {
        Some(contents) => walk.messages(messages, &contents),
        None => Vec::new(),
    };
    Ok(EncodedChat {
        ids,
        borders,
        messages,
    })
}

/// The bytes of what each message says in a rendered chat, in order, with the number of the message. The template writes the
/// chat once more with a mark for each text, which shows what it writes around them.
fn contents(
    template: &ChatTemplate,
    messages: &[Message],
    options: &RenderOptions,
    mark: char,
    text: &str,
) -> Option<Vec<(usize, Range<usize>)>> {
    let marked = |(i, message): (usize, &Message)| match message.content.trim() {
        "" => message.clone(),
        _ => Message {
            content: format!("{mark}{i}{mark}"),
            ..message.clone()
        },
    };
    let marked: Vec<Message> = messages.iter().enumerate().map(marked).collect();
    let outline = template.render(&marked, options).ok()?;
    // Own text of the template, then by turns a number and own text.
    let mut parts = outline.split(mark);
    let mut at = text
        .strip_prefix(parts.next()?)
        .map(|rest| text.len() - rest.len())?;
    let mut found = Vec::new();
    while let (Some(number), Some(own)) = (parts.next(), parts.next()) {
        let number: usize = number.parse().ok()?;
        let said = &messages.get(number)?.content;
        // Templates cut off white space, and parts of a text now and then.
        let trimmed = [said, said.trim_end(), said.trim_start(), said.trim()];
        let rest = &text[at..];
        let ends = |said: &&str| {
            rest.strip_prefix(said)
                .is_some_and(|rest| rest.starts_with(own))
        };
        let len = match trimmed.into_iter().find(ends) {
            Some(said) => Some(said.len()),
            None => rest.find(own).filter(|_| !own.is_empty()),
        };
        let Some(len) = len else {
            break;
        };
        found.push((number, at..at + len));
        at += len + own.len();
    }
    Some(found)
}

/// Finds the tokens at bytes of a rendered chat, which are asked for in ascending order.
struct TokenWalk<'a> {
    tokenizer: &'a Tokenizer,
    ids: &'a [u32],
    text: &'a str,
    guard: char,
    /// First bytes of special tokens and of the texts between them, with the number of ids before each.
    places: &'a [(usize, usize)],
    /// The last byte that was asked for, and the first token that does not begin before it.
    byte: usize,
    token: usize,
    /// Bytes of the tokens before that one which are beyond the byte.
    ahead: isize,
}

impl TokenWalk<'_> {
    fn messages(
        mut self,
        messages: &[Message],
        contents: &[(usize, Range<usize>)],
    ) -> Vec<MessageSpan> {
        let mut spans: Vec<MessageSpan> = Vec::with_capacity(contents.len());
        for (number, bytes) in contents {
            let before = spans.last().map_or(0, |span| span.content.end);
            let content = self.token_at(bytes.start)..self.token_at(bytes.end);
            spans.push(MessageSpan {
                speaker: Speaker::of(&messages[*number].role),
                start: before + self.header_at(&self.ids[before..content.start]),
                content,
            });
        }
        spans
    }

    /// Where a header begins in what the template writes between two contents: behind the token that ends a message, from
    /// the next special one on.
    fn header_at(&self, own: &[u32]) -> usize {
        let end = own.iter().rposition(|&id| self.tokenizer.is_end(id));
        let from = end.map_or(0, |end| end + 1);
        let marker = own[from..]
            .iter()
            .position(|&id| self.tokenizer.is_control(id));
        from + marker.unwrap_or(0)
    }

    /// The first token that does not begin before this byte.
    fn token_at(&mut self, byte: usize) -> usize {
        let i = self.places.partition_point(|&(first, _)| first <= byte);
        if let Some(&(first, token)) = self.places[..i].last()
            && first >= self.byte
        {
            let is_text = (self.ids.get(token)).is_some_and(|&id| !self.tokenizer.is_control(id));
            // The first piece of a text may have a space more than the text.
            let has_space = is_text && self.tokenizer.add_space_prefix();
            (self.byte, self.token, self.ahead) = (first, token, -isize::from(has_space));
        }
        let text = &self.text[self.byte..byte.max(self.byte)];
        if text.is_empty() {
            return self.token;
        }
        let guards = text.chars().filter(|&c| c == self.guard).count();
        let bytes = text.len() - guards * self.guard.len_utf8();
        self.byte = byte;
        self.ahead -= bytes as isize;
        while self.ahead < 0
            && let Some(&id) = self.ids.get(self.token)
        {
            self.ahead += self.tokenizer.piece_bytes(id).len() as isize;
            self.token += 1;
        }
        self.token
    }
}
