//! The text of an answer, and the calls in it.

use haversack::engine::runtime::Finish;
use haversack::grammar::{AnswerPart, CallReader, Functions};

/// The text of one choice as it comes, and the calls in it where there may be any.
#[derive(Default)]
pub struct ChoiceText {
    reader: Option<CallReader>,
    /// Bytes received.
    received: usize,
    /// Calls sent.
    pub calls: usize,
    /// Characters of tokens whose log-probabilities were sent.
    pub offset: usize,
}

impl ChoiceText {
    pub fn new(callable: Option<&Functions>) -> ChoiceText {
        ChoiceText {
            reader: callable.cloned().map(CallReader::new),
            ..ChoiceText::default()
        }
    }

    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.received += text.len();
        match &mut self.reader {
            Some(reader) => reader.push(text.as_bytes()),
            None if text.is_empty() => Vec::new(),
            None => vec![AnswerPart::Text(text.to_owned())],
        }
    }

    /// With the whole text: the engine or the reader may have held some of it back.
    pub fn finish(&mut self, text: &str) -> Vec<AnswerPart> {
        let mut parsed = self.push(text.get(self.received..).unwrap_or_default());
        if let Some(reader) = &mut self.reader {
            parsed.extend(reader.finish());
        }
        parsed
    }

    pub fn finish_reason(&self, finish: Finish) -> &'static str {
        let called = self
            .reader
            .as_ref()
            .is_some_and(|reader| reader.calls() > 0);
        match finish {
            Finish::Stop if called => "tool_calls",
            finish => finish.name(),
        }
    }
}
