//! Tool calls in the text of an answer, byte by byte.
//!
//! Models write calls in many ways; what matters is the name of a function that the request has, where a call may stand:
//! at the beginning of a line, in a code block, or behind a tag. Anything else stays text, and no text is lost.
//!
//! ```text
//! Hermes, Qwen       words <tool_call>{"name": …, "arguments": {…}}</tool_call> <tool_call>…
//! small models       words ⏎ ```json ⏎ {"name": …, "arguments": {…}} ⏎ ```
//! Llama              {"name": …, "parameters": {…}}; …      <function=…>{…}</function>
//! Mistral            words [TOOL_CALLS][{"name": …, "arguments": {…}}, …]     [TOOL_CALLS]…[ARGS]{…}
//! others             <function_call>{…}</function_call>      {"function": {"name": …}}
//! ```
//!
//! Markers may be special tokens, which are not shown: then the call is bare.

use super::opening::{CallForm, CallOpening, CallStart, Wrapping, closed, may_hold_calls, opening};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::Arc;

/// Members that hold the arguments of a call.
pub const ARGUMENTS: [&str; 6] = [
    "arguments",
    "parameters",
    "args",
    "params",
    "input",
    "tool_input",
];

/// Functions that may be called. Any other name is not a call: the client could not answer it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Functions {
    pub names: Arc<[String]>,
    /// At most one call: text after it is dropped.
    pub once: bool,
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

/// Where an answer stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage<'a> {
    Text,
    /// In a name that may become that of a function, or, where `is_known`, behind it in its call.
    Call {
        form: CallForm,
        is_known: bool,
        /// From the name on.
        bytes: &'a [u8],
    },
    /// The only call is there.
    Over,
}

/// Separates calls from text. Text is held back while it may be part of a call.
#[derive(Clone, Debug, Default)]
pub struct CallReader {
    functions: Functions,
    state: State,
    /// What may be a call, from its wrapping on, and blanks before it.
    held: Vec<u8>,
    lines: Lines,
    /// Text that has been told from calls and was not given out.
    text: Vec<u8>,
    parts: Vec<AnswerPart>,
    calls: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Text,
    /// What is held may become a call. With the wrapping of the call just before it.
    Opening(Option<Wrapping>),
    Call(CallStart, Scan),
}

impl Default for State {
    fn default() -> State {
        State::Opening(None)
    }
}

/// Where the JSON of a call stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Scan {
    depth: usize,
    is_string: bool,
    is_escaped: bool,
}

/// Where text stands: at the beginning of a line, in a code block.
#[derive(Clone, Debug, Default)]
struct Lines {
    /// The beginning of this line, without the blanks before it.
    line: Vec<u8>,
    block: Option<CodeBlock>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeBlock {
    /// Of a language in which calls are written.
    Open,
    /// A program, say: nothing in it is a call.
    Opaque,
}

/// Of a line, to tell a fence and its language.
const LINE_BYTES: usize = 32;

impl Lines {
    fn push(&mut self, byte: u8) {
        if byte != b'\n' {
            let is_indent = self.line.is_empty() && byte.is_ascii_whitespace();
            if !is_indent && self.line.len() < LINE_BYTES {
                self.line.push(byte);
            }
            return;
        }
        let line = String::from_utf8_lossy(&self.line);
        if let Some(language) = line.strip_prefix("```") {
            self.block = match self.block {
                Some(_) => None,
                None if may_hold_calls(language.trim()) => Some(CodeBlock::Open),
                None => Some(CodeBlock::Opaque),
            };
        }
        self.line.clear();
    }

    /// Whether this byte may begin a call, or what is around one.
    fn may_open(&self, byte: u8) -> bool {
        let is_line = self.line.is_empty();
        match byte {
            _ if self.block == Some(CodeBlock::Opaque) => false,
            b'<' | b'[' => true,
            b'{' => is_line,
            b'`' => is_line && self.block.is_none(),
            _ => false,
        }
    }
}

impl CallReader {
    pub fn new(functions: Functions) -> CallReader {
        CallReader {
            functions,
            ..CallReader::default()
        }
    }

    pub fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    pub fn stage(&self) -> Stage<'_> {
        let is_line = self.lines.line.is_empty();
        let (form, name, is_known) = match self.state {
            _ if self.functions.once && self.calls > 0 => return Stage::Over,
            State::Text => return Stage::Text,
            State::Call(start, _) => (start.form, start.name, true),
            State::Opening(after) => {
                match opening(&self.held, &self.functions.names, is_line, after) {
                    CallOpening::Naming { form, name } => (form, name, false),
                    _ => return Stage::Text,
                }
            }
        };
        Stage::Call {
            form,
            is_known,
            bytes: self.held.get(name..).unwrap_or_default(),
        }
    }

    pub fn push(&mut self, text: &[u8]) -> Vec<AnswerPart> {
        text.iter().for_each(|&byte| self.byte(byte));
        self.flush();
        std::mem::take(&mut self.parts)
    }

    /// The answer has ended.
    pub fn finish(&mut self) -> Vec<AnswerPart> {
        let after = match self.state {
            State::Opening(after) => after,
            _ => None,
        };
        let wrapping = after.unwrap_or_default();
        let held = std::mem::take(&mut self.held);
        let text = &held[after.map_or(0, |_| closed(&held, wrapping))..];
        // Blanks around calls are not text.
        if self.calls == 0 || !text.trim_ascii().is_empty() {
            self.text(text);
        }
        self.state = State::Text;
        self.flush();
        std::mem::take(&mut self.parts)
    }

    fn byte(&mut self, byte: u8) {
        // What was held and is no call is read again behind its first byte.
        let mut again = vec![byte];
        while let Some(byte) = again.pop() {
            let kept = match self.state {
                _ if self.functions.once && self.calls > 0 => continue,
                State::Text if self.lines.may_open(byte) => {
                    self.state = State::Opening(None);
                    self.opens(byte, None)
                }
                State::Text => {
                    self.text(&[byte]);
                    continue;
                }
                State::Opening(after) => self.opens(byte, after),
                State::Call(start, scan) => self.continues(byte, start, scan),
            };
            if !kept {
                self.state = State::Text;
                let held = std::mem::take(&mut self.held);
                if let Some((first, rest)) = held.split_first() {
                    self.text(&[*first]);
                    again.extend(rest.iter().rev());
                }
            }
        }
    }

    /// `false`: what is held is no call.
    fn opens(&mut self, byte: u8, after: Option<Wrapping>) -> bool {
        self.held.push(byte);
        let is_line = self.lines.line.is_empty();
        match opening(&self.held, &self.functions.names, is_line, after) {
            CallOpening::Undecided | CallOpening::Naming { .. } => true,
            CallOpening::NoCall => {
                let closed = after.map_or(0, |wrapping| closed(&self.held, wrapping));
                self.held.drain(..closed);
                false
            }
            CallOpening::Call(start) => {
                // The bracket of its object may be there already.
                let depth = usize::from(start.object < self.held.len());
                let scan = Scan {
                    depth,
                    ..Scan::default()
                };
                self.state = State::Call(start, scan);
                true
            }
        }
    }

    /// `false`: what is held is no call.
    fn continues(&mut self, byte: u8, start: CallStart, mut scan: Scan) -> bool {
        let may_come = scan.depth > 0 || byte == b'{' || byte.is_ascii_whitespace();
        self.held.push(byte);
        scan.push(byte);
        self.state = State::Call(start, scan);
        if !may_come || scan.depth > 0 || byte.is_ascii_whitespace() {
            return may_come;
        }
        let object = self.held.get(start.object..).unwrap_or_default();
        let object = std::str::from_utf8(object).ok();
        let arguments = object.and_then(|object| arguments(object, start));
        let name = self.functions.names.get(start.function);
        let (Some(arguments), Some(name)) = (arguments, name) else {
            return false;
        };
        let call = AnswerPart::Call(ToolCall {
            name: name.clone(),
            arguments,
        });
        self.flush();
        self.parts.push(call);
        self.calls += 1;
        self.held.clear();
        self.lines.line.clear();
        self.state = State::Opening(Some(start.wrapping));
        true
    }

    fn text(&mut self, text: &[u8]) {
        text.iter().for_each(|&byte| self.lines.push(byte));
        self.text.extend_from_slice(text);
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            let text = String::from_utf8_lossy(&self.text).into_owned();
            self.parts.push(AnswerPart::Text(text));
            self.text.clear();
        }
    }
}

impl Scan {
    fn push(&mut self, byte: u8) {
        match byte {
            _ if self.is_escaped => self.is_escaped = false,
            b'\\' if self.is_string => self.is_escaped = true,
            b'"' => self.is_string = !self.is_string,
            _ if self.is_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }
}

/// The arguments in the object of a call, which are an object; `None`: it is no call.
fn arguments(object: &str, start: CallStart) -> Option<String> {
    if start.form != CallForm::Json {
        let raw: &RawValue = serde_json::from_str(object).ok()?;
        return Some(raw.get().to_owned());
    }
    let members: HashMap<String, Box<RawValue>> = serde_json::from_str(object).ok()?;
    let arguments = ARGUMENTS.iter().find_map(|&key| members.get(key));
    let raw = match arguments {
        // Any other object may have a name too.
        None => return start.is_tagged.then(|| "{}".to_owned()),
        Some(raw) => raw.get(),
    };
    if raw.starts_with('{') {
        return Some(raw.to_owned());
    }
    // Some models write the object as a string.
    let text: String = serde_json::from_str(raw).ok()?;
    let inner: &RawValue = serde_json::from_str(&text).ok()?;
    Some(inner.get().to_owned()).filter(|text| text.starts_with('{'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(once: bool) -> CallReader {
        let names = ["go", "stop"].map(str::to_owned).into();
        CallReader::new(Functions { names, once })
    }

    /// What is read, with adjacent texts joined.
    fn read(mut reader: CallReader, pieces: &[&str]) -> Vec<AnswerPart> {
        let mut joined: Vec<AnswerPart> = Vec::new();
        let pushed = pieces
            .iter()
            .flat_map(|piece| reader.push(piece.as_bytes()));
        let pushed: Vec<AnswerPart> = pushed.collect();
        for part in pushed.into_iter().chain(reader.finish()) {
            match (joined.last_mut(), part) {
                (Some(AnswerPart::Text(before)), AnswerPart::Text(text)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
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

    /// Answers with calls in them, and what is read.
    fn calls() -> Vec<(&'static str, Vec<AnswerPart>)> {
        let go = || call("go", "{}");
        vec![
            (
                "<tool_call>\n{\"name\": \"go\", \"arguments\": {\"n\": 1.0}}\n</tool_call>",
                vec![call("go", "{\"n\": 1.0}")],
            ),
            (
                "Well.\n<tool_call>{\"name\":\"go\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"stop\"}</tool_call>\n",
                vec![text("Well.\n"), go(), call("stop", "{}")],
            ),
            (
                "<tool_call>{\"name\":\"go\",\"arguments\":{}}</tool_call> and then",
                vec![go(), text(" and then")],
            ),
            // The answer ended before the closing tag.
            ("<tool_call>{\"name\":\"go\"}", vec![go()]),
            ("\n <tool_call>{\"name\":\"go\"}", vec![go()]),
            (
                "<tool_call>{\"name\":\"go\"}</tool_call>\n<tool",
                vec![go(), text("\n<tool")],
            ),
            (
                "<tool_call>{\"name\":\"rm\"}</tool_call><tool_call>{\"name\":\"go\"}</tool_call>",
                vec![text("<tool_call>{\"name\":\"rm\"}</tool_call>"), go()],
            ),
            ("<<tool_call>{\"name\":\"go\"}", vec![text("<"), go()]),
            (
                "{\"name\": \"go\", \"parameters\": {\"é\": \"}\"}}",
                vec![call("go", "{\"é\": \"}\"}")],
            ),
            (
                "{\"name\": \"go\", \"arguments\": \"{\\\"a\\\": 1}\"}",
                vec![call("go", "{\"a\": 1}")],
            ),
            (
                "{\"name\":\"go\",\"parameters\":{}}; {\"name\":\"stop\",\"parameters\":{}}",
                vec![go(), call("stop", "{}")],
            ),
            (
                "[TOOL_CALLS][{\"name\":\"go\",\"arguments\":{\"a\":[]}},{\"name\":\"stop\",\"arguments\":{}}]",
                vec![call("go", "{\"a\":[]}"), call("stop", "{}")],
            ),
            (
                "So: [TOOL_CALLS] [{\"name\":\"go\",\"arguments\":{}}]",
                vec![text("So: "), go()],
            ),
            (
                "[TOOL_CALLS]go[ARGS]{\"a\":1}[TOOL_CALLS]stop{}",
                vec![call("go", "{\"a\":1}"), call("stop", "{}")],
            ),
            (" [{\"name\":\"go\",\"arguments\":{}}]", vec![go()]),
            // In a code block, as small models do.
            (
                "I'll look.\n```json\n{\n  \"name\": \"go\",\n  \"arguments\": {\"a\": \"```\"}\n}\n```",
                vec![text("I'll look.\n"), call("go", "{\"a\": \"```\"}")],
            ),
            (
                "```\n{\"name\":\"go\",\"arguments\":{}}\n{\"name\":\"stop\",\"arguments\":{}}\n```\nDone.",
                vec![go(), call("stop", "{}"), text("\nDone.")],
            ),
            (
                "```xml\n<tool_call>\n{\"name\":\"go\",\"arguments\":{}}\n</tool_call>\n```\n",
                vec![go()],
            ),
            (
                "```json\n{\"a\": 1}\n{\"name\":\"go\",\"arguments\":{}}\n```",
                vec![text("```json\n{\"a\": 1}\n"), go(), text("\n```")],
            ),
            (
                "Sure:\n\n{\"name\":\"go\",\"arguments\":{}}",
                vec![text("Sure:\n\n"), go()],
            ),
            (
                "<function=go>{\"a\": 1}</function>",
                vec![call("go", "{\"a\": 1}")],
            ),
            (
                "<function_call> {\"name\": \"go\", \"args\": {}} </function_call>",
                vec![go()],
            ),
            (
                "<|python_tag|>{\"name\": \"go\", \"parameters\": {}}",
                vec![go()],
            ),
            (
                "{\"type\": \"function\", \"function\": {\"name\": \"go\", \"arguments\": {}}}",
                vec![go()],
            ),
            (
                "{\"tool_calls\": [{\"id\": \"1\", \"name\": \"go\", \"arguments\": {}}]}",
                vec![go()],
            ),
            ("{\"function\": \"go\", \"arguments\": {}}", vec![go()]),
        ]
    }

    /// Answers that are text from end to end.
    const TEXTS: [&str; 23] = [
        "hello",
        " \n",
        "a < b, <tool",
        "<tool_call>{\"name\":\"go\"",
        "<tool_call>go!</tool_call>",
        "\n<tool_call>go!",
        // JSON that is not a call.
        "{\"name\": \"go\"}",
        "{\"name\": \"Bob\", \"arguments\": {}}",
        "{\"name\": \"go\", \"arguments\": 5}",
        "{\"name\": \"going\", \"arguments\": {}}",
        "{\"arguments\": {}, \"name\": \"go\"}",
        "{\"a\": {\"name\": \"go\", \"arguments\": {}}}",
        "[1, 2]",
        "[]",
        "[TOOL_CALLS] none",
        "So: [TOOL_CALLS] none",
        "A call is written {\"name\": \"go\", \"arguments\": {}} here.",
        "`{\"name\": \"go\", \"arguments\": {}}`",
        "```python\nx = [\n{\"name\": \"go\", \"arguments\": {}}\n]\n```\n",
        "```json\n{\"name\": \"Ann\", \"age\": 3}\n```\nä",
        "<function=rm>{}</function>",
        "<function=go> now",
        "```json",
    ];

    #[test]
    fn calls_are_told_from_text_however_they_arrive() {
        let texts = TEXTS.iter().map(|&answer| (answer, vec![text(answer)]));
        for (answer, want) in calls().into_iter().chain(texts) {
            assert_eq!(read(reader(false), &[answer]), want, "{answer}");
            let letters: Vec<String> = answer.chars().map(String::from).collect();
            let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
            assert_eq!(read(reader(false), &letters), want, "{answer}");
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(read(reader(false), &[a, b]), want, "{answer} cut at {cut}");
            }
        }
    }

    /// The same answers with one call at most: everything up to it, and it.
    #[test]
    fn text_after_the_only_call_is_dropped() {
        for (answer, mut want) in calls() {
            let is_call = |part: &AnswerPart| matches!(part, AnswerPart::Call(_));
            want.truncate(want.iter().position(is_call).unwrap() + 1);
            for (cut, _) in answer.char_indices() {
                let (a, b) = answer.split_at(cut);
                assert_eq!(read(reader(true), &[a, b]), want, "{answer} cut at {cut}");
            }
        }
    }

    #[test]
    fn text_is_shown_as_soon_as_it_is_certain() {
        let mut reader = reader(false);
        assert_eq!(reader.push(b"Hello"), [text("Hello")]);
        assert_eq!(reader.push(b" <to"), [text(" ")]);
        assert_eq!(reader.push(b"ol box"), [text("<tool box")]);
        assert_eq!(reader.push(b"\n{\"x"), [text("\n")]);
        assert_eq!(reader.push(b"\": 1"), [text("{\"x\": 1")]);
        assert_eq!(reader.finish(), []);
    }

    #[test]
    fn a_call_has_begun_where_its_name_is_known() {
        let mut reader = reader(true);
        let stages = [
            ("Well.\n```json\n{\"name", Stage::Text),
            (
                "\": \"g",
                Stage::Call {
                    form: CallForm::Json,
                    is_known: false,
                    bytes: b"g",
                },
            ),
            (
                "o",
                Stage::Call {
                    form: CallForm::Json,
                    is_known: false,
                    bytes: b"go",
                },
            ),
            (
                "\",",
                Stage::Call {
                    form: CallForm::Json,
                    is_known: true,
                    bytes: b"go\",",
                },
            ),
            ("\"arguments\": {}}", Stage::Over),
        ];
        for (piece, stage) in stages {
            reader.push(piece.as_bytes());
            assert_eq!(reader.stage(), stage, "{piece}");
        }
    }

    /// Long, deep and repeated beginnings cost no more than their length.
    #[test]
    fn hostile_answers_end() {
        for unit in [
            "{",
            "[",
            "```",
            "<tool_call>",
            "{\"name\":\"go\",\"arguments\":",
            "```json\n",
            " ",
            "<",
            "[TOOL_CALLS]",
            ",;",
        ] {
            let answer = unit.repeat(100_000 / unit.len());
            assert_eq!(read(reader(false), &[&answer]), [text(&answer)], "{unit}");
        }
    }
}
