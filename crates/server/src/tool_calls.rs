//! Calls in what a model says. Families write them differently; what is none of theirs stays text, and no text is lost.
//!
//! ```text
//! Hermes, Qwen   words <tool_call>{"name": …, "arguments": {…}}</tool_call> <tool_call>…
//! Llama 3        {"name": …, "parameters": {…}}                  and nothing else
//! Mistral        words [TOOL_CALLS][{"name": …, "arguments": {…}}, …]
//! ```
//!
//! Markers may be tokens that are not shown: then only the JSON is there, as the whole answer.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// From here to the end.
const LIST: &str = "[TOOL_CALLS]";

/// What may be called. A name that is none of them is no call: nobody could answer it.
#[derive(Clone, Debug)]
pub struct Functions {
    pub names: Arc<[String]>,
    /// One call at most: what is said behind it is not heard.
    pub once: bool,
}

impl Functions {
    /// Texts that end an answer in which they come.
    pub fn stops(&self) -> &'static [&'static str] {
        match self.once {
            true => &[CLOSE],
            false => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub name: String,
    /// An object, as the model wrote it.
    pub arguments: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Text(String),
    Call(Call),
}

/// Hears an answer piece by piece and tells calls from text. Text is held back while it may be part of a call.
#[derive(Debug)]
pub struct Ear {
    functions: Functions,
    mode: Mode,
    held: String,
    /// The tag that `held` is behind, and blanks in front of it: text again if it is no call.
    lead: String,
    /// Text came since the last call: blanks behind it are text as well.
    spoke: bool,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Nothing but blanks so far, or since a call.
    Blank,
    Text,
    /// Behind [`OPEN`].
    Tagged,
    /// Behind [`LIST`].
    Listed,
    /// JSON from the beginning: it is one call or none.
    Whole,
}

impl Ear {
    pub fn new(functions: Functions) -> Ear {
        Ear {
            functions,
            mode: Mode::Blank,
            held: String::new(),
            lead: String::new(),
            spoke: false,
            calls: 0,
        }
    }

    /// How many calls were heard.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// It was called, and that was all.
    fn is_over(&self) -> bool {
        self.functions.once && self.calls > 0
    }

    pub fn hear(&mut self, text: &str) -> Vec<Said> {
        self.held.push_str(text);
        let mut said = Vec::new();
        while !self.is_over() && self.step(&mut said) {}
        if self.is_over() {
            self.held.clear();
        }
        said
    }

    /// There is no more.
    pub fn end(&mut self) -> Vec<Said> {
        let held = std::mem::take(&mut self.held);
        let mut said = Vec::new();
        match self.mode {
            // Blanks around calls are not text.
            Mode::Blank if self.calls > 0 && held.trim().is_empty() => {}
            Mode::Blank | Mode::Text => push_text(&mut said, &held),
            Mode::Tagged => self.judge(one(&held), &held, &mut said),
            Mode::Listed => self.judge(many(&held), &held, &mut said),
            Mode::Whole => self.judge(whole(&held), &held, &mut said),
        }
        self.mode = Mode::Blank;
        said
    }

    /// `false`: more has to be heard first.
    fn step(&mut self, said: &mut Vec<Said>) -> bool {
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
                    push_text(said, &self.held);
                    self.spoke |= !self.held.is_empty();
                    self.held = rest;
                    return false;
                };
                let rest = self.held.split_off(at + tag.len());
                self.lead = std::mem::replace(&mut self.held, rest);
                // Blanks in front of a call are not text, where they are all there is.
                if self.spoke || !self.lead[..at].trim().is_empty() {
                    let tag = self.lead.split_off(at);
                    push_text(said, &std::mem::replace(&mut self.lead, tag));
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
                self.judge(one(&held[..at]), &held, said);
                true
            }
            Mode::Listed | Mode::Whole => false,
        }
    }

    /// These calls if all of them can be made, else the text that they were.
    fn judge(&mut self, calls: Option<Vec<Call>>, held: &str, said: &mut Vec<Said>) {
        let lead = std::mem::take(&mut self.lead);
        let names = &self.functions.names;
        let known = |calls: &Vec<Call>| calls.iter().all(|call| names.contains(&call.name));
        match calls.filter(known) {
            Some(mut calls) => {
                if self.functions.once {
                    calls.truncate(1);
                }
                self.calls += calls.len();
                said.extend(calls.into_iter().map(Said::Call));
                self.mode = Mode::Blank;
                self.spoke = false;
            }
            None => {
                push_text(said, &(lead + held));
                self.spoke = true;
                self.mode = Mode::Text;
            }
        }
    }
}

fn push_text(said: &mut Vec<Said>, text: &str) {
    if !text.is_empty() {
        said.push(Said::Text(text.to_owned()));
    }
}

/// Bytes at the end that a tag may begin with.
fn beginning_of_a_tag(text: &str) -> usize {
    let longest = |tag: &str| (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n]));
    [OPEN, LIST]
        .into_iter()
        .filter_map(longest)
        .max()
        .unwrap_or(0)
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
    /// `None` where what should be arguments is no object.
    fn call(self) -> Option<Call> {
        let arguments = match self.arguments.or(self.parameters) {
            None => "{}".to_owned(),
            Some(raw) if raw.get().starts_with('{') => raw.get().to_owned(),
            // Some write the object as a text.
            Some(raw) => {
                let text: String = serde_json::from_str(raw.get()).ok()?;
                let inner: &RawValue = serde_json::from_str(&text).ok()?;
                inner
                    .get()
                    .starts_with('{')
                    .then(|| inner.get().to_owned())?
            }
        };
        Some(Call {
            name: self.name,
            arguments,
        })
    }
}

/// `{"name": …, "arguments": …}`
fn one(text: &str) -> Option<Vec<Call>> {
    let written: Written<'_> = serde_json::from_str(text.trim()).ok()?;
    Some(vec![written.call()?])
}

/// A list of those, not empty; or one of them.
fn many(text: &str) -> Option<Vec<Call>> {
    if !text.trim_start().starts_with('[') {
        return one(text);
    }
    let written: Vec<Written<'_>> = serde_json::from_str(text.trim()).ok()?;
    let calls: Option<Vec<Call>> = written.into_iter().map(Written::call).collect();
    calls.filter(|calls| !calls.is_empty())
}

/// A whole answer. Arguments have to be there: an object that has a name may be just that.
fn whole(text: &str) -> Option<Vec<Call>> {
    let text = text.trim();
    let text = text.strip_prefix(LIST).unwrap_or(text);
    let has_arguments = text.contains("\"arguments\"") || text.contains("\"parameters\"");
    many(text).filter(|_| has_arguments)
}

/// A name for a call: nine letters and digits, which is what some templates insist on.
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

    /// What is heard, with texts that follow each other joined.
    fn heard(pieces: &[&str]) -> Vec<Said> {
        heard_by(Ear::new(functions(false)), pieces)
    }

    fn heard_by(mut ear: Ear, pieces: &[&str]) -> Vec<Said> {
        let mut said: Vec<Said> = Vec::new();
        let parts = pieces
            .iter()
            .flat_map(|piece| ear.hear(piece))
            .collect::<Vec<_>>();
        for part in parts.into_iter().chain(ear.end()) {
            match (said.last_mut(), part) {
                (Some(Said::Text(before)), Said::Text(text)) => before.push_str(&text),
                (_, part) => said.push(part),
            }
        }
        said
    }

    fn text(text: &str) -> Said {
        Said::Text(text.to_owned())
    }

    fn call(name: &str, arguments: &str) -> Said {
        Said::Call(Call {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    /// The answer, and what is in it; however it is cut into pieces.
    fn cases() -> Vec<(&'static str, Vec<Said>)> {
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
            // It ended where the tag should have been closed.
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
            // An answer that is JSON and no call.
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
            assert_eq!(heard(&[answer]), want, "{answer}");
            let letters: Vec<String> = answer.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(heard(&letters), want, "{answer}");
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(heard(&[a, b]), want, "{answer} cut at {cut}");
            }
        }
    }

    /// The same answers, of which one call is wanted: everything up to it, and it.
    #[test]
    fn behind_the_only_call_nothing_is_heard() {
        let mut calls = 0;
        for (answer, mut want) in cases() {
            if let Some(at) = want.iter().position(|said| matches!(said, Said::Call(_))) {
                want.truncate(at + 1);
                calls += 1;
            }
            let once = || Ear::new(functions(true));
            assert_eq!(heard_by(once(), &[answer]), want, "{answer}");
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(heard_by(once(), &[a, b]), want, "{answer} cut at {cut}");
            }
            // Nor where the text that ends a call ended the answer.
            let stopped = answer.split(CLOSE).next().unwrap_or_default();
            let same = heard_by(once(), &[stopped]);
            if want.iter().any(|said| matches!(said, Said::Call(_))) && !answer.contains("rm") {
                assert_eq!(same, want, "{answer}");
            }
        }
        assert!(calls > 5);
        assert!(functions(true).stops() == [CLOSE] && functions(false).stops().is_empty());
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_certain() {
        let mut ear = Ear::new(functions(false));
        assert_eq!(ear.hear("Hello"), [text("Hello")]);
        assert_eq!(ear.hear(" <to"), [text(" ")]);
        assert_eq!(ear.hear("ol box"), [text("<tool box")]);
        assert_eq!(ear.end(), []);
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
