//! Tokens of a conversation, piece by piece: the opening, a question, the ending of an answer, a fact.
//!
//! Chat templates render whole conversations. A session appends to tokens that are already read, so a piece is what a
//! longer conversation has beyond a shorter one; that the shorter one is a prefix is checked each time. Where a template
//! has no place for a system message, an exchange of its own says the same. A piece begins and ends with the template's
//! markers, so no marker is ever without its other half.

use super::date::undated;
use super::record::TurnRecord;
use haversack_engine::model::Model;
use haversack_text::chat::{ChatError, encode_chat};
use haversack_text::detokenize::{DetokenizeOptions, Detokenizer};
use haversack_text::template::{Message, RenderOptions};
use std::sync::{Arc, OnceLock};

#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(transparent)]
    Chat(#[from] ChatError),
    #[error("the model's chat template does not continue a conversation where it ended")]
    NotAPrefix,
}

/// The answer in an exchange that replaces a system message.
const NOTED: &str = "Noted.";

/// The pieces of one model's conversations. Constant pieces are rendered once.
pub struct ChatLayout {
    model: Arc<Model>,
    /// An exchange, and its ending.
    before: OnceLock<Vec<u32>>,
    ending: OnceLock<Vec<u32>>,
    /// Number of tokens before and after the text of a question, and of a fact.
    question_marks: OnceLock<(usize, usize)>,
    fact_marks: OnceLock<(usize, usize)>,
}

impl ChatLayout {
    pub fn new(model: Arc<Model>) -> ChatLayout {
        ChatLayout {
            model,
            before: OnceLock::new(),
            ending: OnceLock::new(),
            question_marks: OnceLock::new(),
            fact_marks: OnceLock::new(),
        }
    }

    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// The beginning of a conversation: the persistent text, or what the template writes without one. The time is for
    /// templates that write the date.
    pub fn opening(&self, persistent: &str, now_ms: u64) -> Result<Vec<u32>, LayoutError> {
        let system = Message::new("system", persistent);
        let with = |rest: &[Message]| {
            let system = (!persistent.is_empty()).then(|| system.clone());
            system.into_iter().chain(rest.to_vec()).collect::<Vec<_>>()
        };
        let question = [Message::new("user", "a")];
        let longer = self.ids_at(now_ms, &with(&question), true)?;
        if persistent.is_empty() {
            // The common prefix of two different questions, without the question's marker.
            let other = self.ids_at(now_ms, &[Message::new("user", "7")], true)?;
            let same = common(&longer, &other);
            let (marker, _) = self.question_marks()?;
            return Ok(longer[..same.saturating_sub(marker)].to_vec());
        }
        match self.ids_at(now_ms, &with(&[]), false) {
            Ok(alone)
                if !alone.is_empty()
                    && longer.starts_with(&alone)
                    && self.says(&alone, persistent) =>
            {
                Ok(alone)
            }
            _ => {
                let exchange = [
                    Message::new("user", persistent),
                    Message::new("assistant", NOTED),
                ];
                Ok(self.ids_at(now_ms, &exchange, false)?)
            }
        }
    }

    /// A question and the marker that begins the answer.
    pub fn question(&self, text: &str) -> Result<Vec<u32>, LayoutError> {
        self.beyond(&[Message::new("user", text)], true)
    }

    /// A fact in the middle of a conversation.
    pub fn fact(&self, text: &str) -> Result<Vec<u32>, LayoutError> {
        match self.beyond(&[Message::new("system", text)], false) {
            Ok(ids) if self.says(&ids, text) => Ok(ids),
            _ => self.beyond(
                &[Message::new("user", text), Message::new("assistant", NOTED)],
                false,
            ),
        }
    }

    /// The text of a question, without its markers.
    pub fn question_text(&self, tokens: &[u32]) -> Result<String, LayoutError> {
        Ok(self.text_within(tokens, self.question_marks()?))
    }

    /// The text of an answer as its client received it: without its ending, and without control tokens.
    pub fn answer_text(&self, tokens: &[u32]) -> Result<String, LayoutError> {
        let said = tokens.len().saturating_sub(self.ending()?.len());
        let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
        let mut text = String::new();
        for &id in &tokens[..said] {
            detokenizer.push(self.model.tokenizer(), id, &mut text);
        }
        detokenizer.finish(&mut text);
        Ok(text.trim().to_owned())
    }

    /// The text of a fact, without its markers.
    pub fn fact_text(&self, tokens: &[u32]) -> Result<String, LayoutError> {
        let marks = match self.fact_marks.get() {
            Some(marks) => *marks,
            None => {
                let marks = around(&self.fact("a")?, &self.fact("7")?);
                *self.fact_marks.get_or_init(|| marks)
            }
        };
        Ok(self.text_within(tokens, marks))
    }

    /// The question and the answer of a turn, without markers and date; of a state or a part of a message there is no answer.
    pub fn turn_texts(&self, turn: &TurnRecord) -> Result<(String, String), LayoutError> {
        let (asked, answered) = turn.tokens.split_at(turn.question as usize);
        let text = match answered.is_empty() {
            true => self.fact_text(asked)?,
            false => self.question_text(asked)?,
        };
        let text = match turn.is_dated {
            true => undated(&text).to_owned(),
            false => text,
        };
        Ok((text, self.answer_text(answered)?))
    }

    fn text_within(&self, tokens: &[u32], (front, back): (usize, usize)) -> String {
        let text = tokens.get(front..tokens.len().saturating_sub(back));
        let text = self.model.tokenizer().decode(text.unwrap_or(tokens));
        text.unwrap_or_default().trim().to_owned()
    }

    /// What follows an answer that has no end marker of its own, the marker included.
    pub fn ending(&self) -> Result<&[u32], LayoutError> {
        if let Some(ending) = self.ending.get() {
            return Ok(ending);
        }
        let asked = self.ids(&[Message::new("user", "a")], true)?;
        let answered = |text| {
            let exchange = [Message::new("user", "a"), Message::new("assistant", text)];
            self.ids(&exchange, false)
        };
        let (one, other) = (answered("yes")?, answered("no")?);
        if !one.starts_with(&asked) {
            return Err(LayoutError::NotAPrefix);
        }
        // The common suffix of two different answers; an answer has at least one token.
        let alike = common_end(&one[asked.len()..], &other[asked.len().min(other.len())..]);
        let alike = alike.min(one.len() - asked.len() - 1);
        let ending = one[one.len() - alike..].to_vec();
        Ok(self.ending.get_or_init(|| ending))
    }

    /// Number of marker tokens before and after the text of a question.
    fn question_marks(&self) -> Result<(usize, usize), LayoutError> {
        if let Some(marks) = self.question_marks.get() {
            return Ok(*marks);
        }
        let marks = around(&self.question("a")?, &self.question("7")?);
        Ok(*self.question_marks.get_or_init(|| marks))
    }

    /// What messages add to a conversation of one exchange.
    fn beyond(&self, more: &[Message], generate: bool) -> Result<Vec<u32>, LayoutError> {
        let mut messages = vec![Message::new("user", "a"), Message::new("assistant", "b")];
        let before = match self.before.get() {
            Some(before) => before,
            None => {
                let ids = self.ids(&messages, false)?;
                self.before.get_or_init(|| ids)
            }
        };
        messages.extend_from_slice(more);
        let after = self.ids(&messages, generate)?;
        match after.strip_prefix(&before[..]) {
            Some(piece) if !piece.is_empty() => Ok(piece.to_vec()),
            _ => Err(LayoutError::NotAPrefix),
        }
    }

    /// Whether the tokens contain the text: templates may leave out messages.
    fn says(&self, ids: &[u32], text: &str) -> bool {
        let tokenizer = self.model.tokenizer();
        let bytes: Vec<u8> = ids
            .iter()
            .filter_map(|&id| tokenizer.piece_raw(id))
            .flatten()
            .copied()
            .collect();
        // Vocabularies differ in how they write spaces: compare one word.
        let word = text.split_whitespace().next_back().unwrap_or_default();
        let found = bytes
            .windows(word.len().max(1))
            .any(|w| w == word.as_bytes());
        word.is_empty() || found || !word.is_ascii()
    }

    /// Pieces after the opening do not depend on the time.
    fn ids(&self, messages: &[Message], generate: bool) -> Result<Vec<u32>, ChatError> {
        self.ids_at(0, messages, generate)
    }

    fn ids_at(
        &self,
        now_ms: u64,
        messages: &[Message],
        generate: bool,
    ) -> Result<Vec<u32>, ChatError> {
        let options = RenderOptions {
            add_generation_prompt: generate,
            now_unix_seconds: (now_ms / 1000) as i64,
            ..RenderOptions::default()
        };
        let (template, tokenizer) = (self.model.template(), self.model.tokenizer());
        encode_chat(template, tokenizer, messages, &options)
    }
}

/// Lengths of the common prefix and suffix: the markers around the text.
fn around(one: &[u32], other: &[u32]) -> (usize, usize) {
    (common(one, other), common_end(one, other))
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn common_end(a: &[u32], b: &[u32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}
