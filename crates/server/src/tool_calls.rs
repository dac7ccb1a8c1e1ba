//! Tool calls in the text of an answer. Model families write them differently; anything else stays text, and no text is
//! lost.
//!
//! ```text
//! Hermes, Qwen   words <tool_call>{"name": …, "arguments": {…}}</tool_call> <tool_call>…
//! Llama 3        {"name": …, "parameters": {…}}                  and nothing else
//! Mistral        words [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
//! ```
//!
//! Markers may be special tokens, which are not shown: then the whole answer is the JSON.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Opens a list that goes on to the end of the answer.
const LIST: &str = "[TOOL_CALLS]";

/// Functions that may be called. Any other name is not a call: the client could not answer it.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    pub names: Arc<[String]>,
    /// At most one call: text after it is dropped.
    pub once: bool,
}

impl Functions {
    /// Stop strings of the answer.
    pub fn stops(&self) -> &'static [&'static str] {
        match self.once {
            true => &[CLOSE],
            false => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// An object, as the model wrote it.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerPart {
    Text(String),
    Call(ToolCall),
}

/// Separates calls from text, piece by piece. Text is held back while it may be part of a call.
#[derive(Debug, Default)]
pub struct CallParser {
    functions: Functions,
    mode: Mode,
    held: String,
    /// The tag before `held`, and blanks before that: text again if `held` is not a call.
    lead: String,
    /// Text came since the last call: blanks after it are text as well.
    has_text: bool,
    calls: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    /// Nothing but blanks so far, or since a call.
    #[default]
    Blank,
    Text,
    /// After [`OPEN`].
    Tagged,
    /// After [`LIST`].
    Listed,
    /// JSON from the beginning: all of it is calls, or none.
    Whole,
}

impl CallParser {
    pub fn new(functions: Functions) -> CallParser {
        CallParser {
            functions,
            ..CallParser::default()
        }
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The only call is there.
    fn is_over(&self) -> bool {
        self.functions.once && self.calls > 0
    }

    pub fn push(&mut self, text: &str) -> Vec<AnswerPart> {
        self.held.push_str(text);
        let mut parsed = Vec::new();
        while !self.is_over() && self.step(&mut parsed) {}
        if self.is_over() {
            self.held.clear();
        }
        parsed
    }

    /// The answer has ended.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let held = std::mem::take(&mut self.held);
        let mut parsed = Vec::new();
        match self.mode {
            // Blanks around calls are not text.
            Mode::Blank if self.calls > 0 && held.trim().is_empty() => {}
            Mode::Blank | Mode::Text => push_text(&mut parsed, &held),
            Mode::Tagged => self.judge(one(&held), &held, &mut parsed),
            Mode::Listed => self.judge(many(&held), &held, &mut parsed),
            Mode::Whole => self.judge(whole(&held), &held, &mut parsed),
        }
        self.mode = Mode::Blank;
        parsed
    }

    /// `false`: it needs more text.
    fn step(&mut self, parsed: &mut Vec<AnswerPart>) -> bool {
        match self.mode {
            Mode::Blank => {
                let text = self.held.trim_start();
                self.mode = match text.chars().next() {
                    Some('{' | '[') if self.calls == 0 => Mode::Whole,
                    _ if OPEN.starts_with(text) || LIST.starts_with(text) => return false,
                    _ => Mode::Text,
                };
                true
            }
            Mode::Text => {
                let found = [(OPEN, Mode::Tagged), (LIST, Mode::Listed)]
                    .into_iter()
                    .filter_map(|(tag, mode)| Some((self.held.find(tag)?, tag, mode)))
                    .min_by_key(|(at, ..)| *at);
                let Some((at, tag, mode)) = found else {
                    let keep = beginning_of_a_tag(&self.held);
                    let rest = self.held.split_off(self.held.len() - keep);
                    push_text(parsed, &self.held);
                    self.has_text |= !self.held.is_empty();
                    self.held = rest;
                    return false;
                };
                let rest = self.held.split_off(at + tag.len());
                self.lead = std::mem::replace(&mut self.held, rest);
                // Nothing but blanks before a call is not text.
                if self.has_text || !self.lead[..at].trim().is_empty() {
                    let tag = self.lead.split_off(at);
                    push_text(parsed, &std::mem::replace(&mut self.lead, tag));
                }
                self.mode = mode;
                true
            }
            Mode::Tagged => {
                let Some(at) = self.held.find(CLOSE) else {
                    return false;
                };
                let rest = self.held.split_off(at + CLOSE.len());
                let held = std::mem::replace(&mut self.held, rest);
                self.judge(one(&held[..at]), &held, parsed);
                true
            }
            Mode::Listed | Mode::Whole => false,
        }
    }

    /// The calls if all of them are known functions, else their text.
    fn judge(&mut self, calls: Option<Vec<ToolCall>>, held: &str, parsed: &mut Vec<AnswerPart>) {
        let lead = std::mem::take(&mut self.lead);
        let names = &self.functions.names;
        let known = |calls: &Vec<ToolCall>| calls.iter().all(|call| names.contains(&call.name));
        match calls.filter(known) {
            Some(mut calls) => {
                if self.functions.once {
                    calls.truncate(1);
                }
                self.calls += calls.len();
                parsed.extend(calls.into_iter().map(AnswerPart::Call));
                self.mode = Mode::Blank;
                self.has_text = false;
            }
            None => {
                push_text(parsed, &(lead + held));
                self.has_text = true;
                self.mode = Mode::Text;
            }
        }
    }
}

fn push_text(parsed: &mut Vec<AnswerPart>, text: &str) {
    if !text.is_empty() {
        parsed.push(AnswerPart::Text(text.to_owned()));
    }
}

/// Bytes at the end that may begin a tag.
fn beginning_of_a_tag(text: &str) -> usize {
    let longest = |tag: &str| (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n]));
    let longest = [OPEN, LIST].into_iter().filter_map(longest);
    longest.max().unwrap_or(0)
}

#[derive(Deserialize)]
struct Written<'a> {
    name: String,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

impl Written<'_> {
    /// `None` where the arguments are not an object.
    fn call(self) -> Option<ToolCall> {
        let arguments = match self.arguments.or(self.parameters) {
            None => "{}".to_owned(),
            Some(raw) if raw.get().starts_with('{') => raw.get().to_owned(),
            // Some models write the object as a string.
            Some(raw) => {
                let text: String = serde_json::from_str(raw.get()).ok()?;
                let inner: &RawValue = serde_json::from_str(&text).ok()?;
                Some(inner.get().to_owned()).filter(|text| text.starts_with('{'))?
            }
        };
        Some(ToolCall {
            name: self.name,
            arguments,
        })
    }
}

/// `{"name": …, "arguments": …}`
fn one(text: &str) -> Option<Vec<ToolCall>> {
    let written: Written<'_> = serde_json::from_str(text.trim()).ok()?;
    Some(vec![written.call()?])
}

/// A list of calls, not empty; or one call.
fn many(text: &str) -> Option<Vec<ToolCall>> {
    if !text.trim_start().starts_with('[') {
        return one(text);
    }
    let written: Vec<Written<'_>> = serde_json::from_str(text.trim()).ok()?;
    let calls: Option<Vec<ToolCall>> = written.into_iter().map(Written::call).collect();
    calls.filter(|calls| !calls.is_empty())
}

/// A whole answer. Arguments must be there: any other object may have a name too.
fn whole(text: &str) -> Option<Vec<ToolCall>> {
    let text = text.trim();
    let text = text.strip_prefix(LIST).unwrap_or(text);
    let has_arguments = text.contains("\"arguments\"") || text.contains("\"parameters\"");
    many(text).filter(|_| has_arguments)
}

/// An id for a call: nine letters and digits, as some templates require.
pub fn any_id() -> String {
    let mut bits = RandomState::new().hash_one(0u8);
    let digit = |_| {
        let digit = char::from_digit((bits % 36) as u32, 36);
        bits /= 36;
        digit.unwrap_or('0')
    };
    (0..9).map(digit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(once: bool) -> Functions {
        let names = ["go", "stop"].map(str::to_owned).into();
        Functions { names, once }
    }

    /// What is parsed, with adjacent texts joined.
    fn parse(pieces: &[&str]) -> Vec<AnswerPart> {
        parsed_by(CallParser::new(functions(false)), pieces)
    }

    fn parsed_by(mut parser: CallParser, pieces: &[&str]) -> Vec<AnswerPart> {
        let mut parsed: Vec<AnswerPart> = Vec::new();
        let parts = pieces
            .iter()
            .flat_map(|piece| parser.push(piece))
            .collect::<Vec<_>>();
        for part in parts.into_iter().chain(parser.finish()) {
            match (parsed.last_mut(), part) {
                (Some(AnswerPart::Text(before)), AnswerPart::Text(text)) => before.push_str(&text),
                (_, part) => parsed.push(part),
            }
        }
        parsed
    }

    fn text(text: &str) -> AnswerPart {
        AnswerPart::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> AnswerPart {
        AnswerPart::Call(ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    /// The answer, and what is in it; however it is cut into pieces.
    fn cases() -> Vec<(&'static str, Vec<AnswerPart>)> {
        vec![
            ("", vec![]),
            ("hello", vec![text("hello")]),
            (" \n", vec![text(" \n")]),
            ("a < b, <tool", vec![text("a < b, <tool")]),
            (
                "<tool_call>\n{\"name\": \"go\", \"arguments\": {\"n\": 1.0}}\n</tool_call>",
                vec![call("go", "{\"n\": 1.0}")],
            ),
            (
                "Well.\n<tool_call>{\"name\":\"go\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"stop\"}</tool_call>\n",
                vec![text("Well.\n"), call("go", "{}"), call("stop", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"go\",\"arguments\":{}}</tool_call> and then",
                vec![call("go", "{}"), text(" and then")],
            ),
            // The answer ended before the closing tag.
            ("<tool_call>{\"name\":\"go\"}", vec![call("go", "{}")]),
            (
                "<tool_call>{\"name\":\"go\"",
                vec![text("<tool_call>{\"name\":\"go\"")],
            ),
            (
                "<tool_call>go!</tool_call>",
                vec![text("<tool_call>go!</tool_call>")],
            ),
            ("\n<tool_call>go!", vec![text("\n<tool_call>go!")]),
            ("\n <tool_call>{\"name\":\"go\"}", vec![call("go", "{}")]),
            (
                "<tool_call>{\"name\":\"go\"}</tool_call>\n<tool",
                vec![call("go", "{}"), text("\n<tool")],
            ),
            (
                "<tool_call>{\"name\":\"rm\"}</tool_call><tool_call>{\"name\":\"go\"}</tool_call>",
                vec![
                    text("<tool_call>{\"name\":\"rm\"}</tool_call>"),
                    call("go", "{}"),
                ],
            ),
            (
                "{\"name\": \"go\", \"parameters\": {\"é\": \"}\"}}",
                vec![call("go", "{\"é\": \"}\"}")],
            ),
            (
                "{\"name\": \"go\", \"arguments\": \"{\\\"a\\\": 1}\"}",
                vec![call("go", "{\"a\": 1}")],
            ),
            // An answer that is JSON and not a call.
            ("{\"name\": \"go\"}", vec![text("{\"name\": \"go\"}")]),
            (
                "{\"name\": \"Bob\", \"arguments\": {}}",
                vec![text("{\"name\": \"Bob\", \"arguments\": {}}")],
            ),
            (
                "{\"name\": \"go\", \"arguments\": 5}",
                vec![text("{\"name\": \"go\", \"arguments\": 5}")],
            ),
            ("[1, 2]", vec![text("[1, 2]")]),
            ("[]", vec![text("[]")]),
            (
                "[TOOL_CALLS][{\"name\":\"go\",\"arguments\":{\"a\":[]}},{\"name\":\"stop\",\"arguments\":{}}]",
                vec![call("go", "{\"a\":[]}"), call("stop", "{}")],
            ),
            (
                "So: [TOOL_CALLS] [{\"name\":\"go\",\"arguments\":{}}]",
                vec![text("So: "), call("go", "{}")],
            ),
            ("So: [TOOL_CALLS] none", vec![text("So: [TOOL_CALLS] none")]),
            (
                " [{\"name\":\"go\",\"arguments\":{}}]",
                vec![call("go", "{}")],
            ),
        ]
    }

    #[test]
    fn calls_are_told_from_text_however_they_arrive() {
        for (answer, want) in cases() {
            assert_eq!(parse(&[answer]), want, "{answer}");
            let letters: Vec<String> = answer.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(parse(&letters), want, "{answer}");
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(parse(&[a, b]), want, "{answer} cut at {cut}");
            }
        }
    }

    /// The same answers with one call at most: everything up to it, and it.
    #[test]
    fn text_after_the_only_call_is_dropped() {
        let mut calls = 0;
        for (answer, mut want) in cases() {
            if let Some(at) = want
                .iter()
                .position(|parsed| matches!(parsed, AnswerPart::Call(_)))
            {
                want.truncate(at + 1);
                calls += 1;
            }
            let once = || CallParser::new(functions(true));
            assert_eq!(parsed_by(once(), &[answer]), want, "{answer}");
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(parsed_by(once(), &[a, b]), want, "{answer} cut at {cut}");
            }
            // The same where the closing tag ended the answer.
            let stopped = answer.split(CLOSE).next().unwrap_or_default();
            let same = parsed_by(once(), &[stopped]);
            if want
                .iter()
                .any(|parsed| matches!(parsed, AnswerPart::Call(_)))
                && !answer.contains("rm")
            {
                assert_eq!(same, want, "{answer}");
            }
        }
        assert!(calls > 5);
        assert!(functions(true).stops() == [CLOSE] && functions(false).stops().is_empty());
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_certain() {
        let mut parser = CallParser::new(functions(false));
        assert_eq!(parser.push("Hello"), [text("Hello")]);
        assert_eq!(parser.push(" <to"), [text(" ")]);
        assert_eq!(parser.push("ol box"), [text("<tool box")]);
        assert_eq!(parser.finish(), []);
    }

    #[test]
    fn ids_are_nine_letters_and_digits() {
        let (a, b) = (any_id(), any_id());
        assert_ne!(a, b);
        assert!(
            a.len() == 9 && a.bytes().all(|b| b.is_ascii_alphanumeric()),
            "{a}"
        );
    }
}
