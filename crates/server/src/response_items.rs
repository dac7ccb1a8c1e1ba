//! Items of `/v1/responses`: those of a request as messages, and those of an answer as they are written.

use super::fail::Fail;
use super::tool_calls::any_id;
use super::types::ChatMessage;
use haversack::grammar::{AnswerPart, ToolCall};
use serde_json::{Value as Json, json};

/// A tool as the chat API has it: there a function is an object of its own.
pub fn tool(tool: &Json) -> Json {
    let mut function = tool.clone();
    let Some(kind) = function.as_object_mut().and_then(|map| map.remove("type")) else {
        return tool.clone();
    };
    json!({ "type": kind, "function": function })
}

/// The messages of an input. Calls and their results are items of their own there.
pub fn messages(input: &Json) -> Result<Vec<ChatMessage>, Fail> {
    let wrong = || {
        Fail::param(
            "input",
            "accepted: a text, or messages of text and calls of functions",
        )
    };
    let items = match input {
        Json::String(text) => return Ok(vec![ChatMessage::new("user", text)]),
        Json::Array(items) => items,
        _ => return Err(wrong()),
    };
    let mut messages: Vec<ChatMessage> = Vec::new();
    for item in items {
        let text = |name: &str| item.get(name).and_then(Json::as_str);
        let kind = match item.get("type") {
            None => "message",
            Some(kind) => kind.as_str().ok_or_else(wrong)?,
        };
        match kind {
            "message" => {
                messages.push(serde_json::from_value(item.clone()).map_err(|_| wrong())?);
            }
            "function_call" => {
                let (name, arguments) = (text("name"), text("arguments"));
                let call = json!({
                    "id": text("call_id").ok_or_else(wrong)?,
                    "type": "function",
                    "function": {
                        "name": name.ok_or_else(wrong)?,
                        "arguments": arguments.ok_or_else(wrong)?,
                    },
                });
                // What the assistant said and called together is one message.
                match messages.last_mut().filter(|last| last.role == "assistant") {
                    Some(last) => last.tool_calls.get_or_insert_default().push(call),
                    None => messages.push(ChatMessage {
                        tool_calls: Some(vec![call]),
                        content: None,
                        ..ChatMessage::new("assistant", "")
                    }),
                }
            }
            "function_call_output" => {
                let output = item.get("output").cloned().unwrap_or_default();
                let content = serde_json::from_value(output).map_err(|_| wrong())?;
                messages.push(ChatMessage {
                    content: Some(content),
                    tool_call_id: Some(text("call_id").ok_or_else(wrong)?.to_owned()),
                    ..ChatMessage::new("tool", "")
                });
            }
            _ => return Err(wrong()),
        }
    }
    Ok(messages)
}

/// The items of an answer, and the events that tell of them.
#[derive(Default)]
pub struct Output {
    /// Distinguishes this answer's items from others'.
    stamp: u128,
    items: Vec<Json>,
    /// Of the message that is being written.
    text: Option<String>,
    events: Vec<(&'static str, Json)>,
}

impl Output {
    /// `speaks`: it is a message in any case.
    pub fn new(stamp: u128, speaks: bool) -> Output {
        let mut output = Output {
            stamp,
            ..Output::default()
        };
        if speaks {
            output.begin();
        }
        output
    }

    pub fn push(&mut self, part: AnswerPart) {
        match part {
            AnswerPart::Text(text) => self.say(&text),
            AnswerPart::Call(call) => {
                self.end_message("completed");
                self.call(&call);
            }
        }
    }

    /// The answer has ended.
    pub fn end(&mut self, status: &str) {
        if self.items.is_empty() {
            self.begin();
        }
        self.end_message(status);
    }

    pub fn take_events(&mut self) -> Vec<(&'static str, Json)> {
        std::mem::take(&mut self.events)
    }

    pub fn into_items(self) -> Vec<Json> {
        self.items
    }

    fn id(&self, kind: &str) -> String {
        match self.items.len() {
            0 => format!("{kind}_{:x}", self.stamp),
            at => format!("{kind}_{:x}_{at}", self.stamp),
        }
    }

    fn begin(&mut self) {
        if self.text.is_none() {
            self.text = Some(String::new());
            let item = self.message("in_progress", None);
            self.tell_item("response.output_item.added", item);
            self.tell_part("response.content_part.added", json!({ "part": part("") }));
        }
    }

    fn say(&mut self, text: &str) {
        self.begin();
        if let Some(said) = self.text.as_mut().filter(|_| !text.is_empty()) {
            said.push_str(text);
            let event = json!({ "delta": text, "logprobs": [] });
            self.tell_part("response.output_text.delta", event);
        }
    }

    fn end_message(&mut self, status: &str) {
        let Some(text) = self.text.take() else {
            return;
        };
        let done = json!({ "text": text, "logprobs": [] });
        self.tell_part("response.output_text.done", done);
        self.tell_part("response.content_part.done", json!({ "part": part(&text) }));
        let item = self.message(status, Some(&text));
        self.tell_item("response.output_item.done", item.clone());
        self.items.push(item);
    }

    fn message(&self, status: &str, text: Option<&str>) -> Json {
        json!({
            "id": self.id("msg"),
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": text.map(part).into_iter().collect::<Vec<Json>>(),
        })
    }

    fn call(&mut self, call: &ToolCall) {
        let id = self.id("fc");
        let mut item = json!({
            "id": id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": any_id(),
            "name": call.name,
            "arguments": "",
        });
        self.tell_item("response.output_item.added", item.clone());
        let at = self.items.len();
        let event = |key: &str| json!({ "item_id": id, "output_index": at, (key): call.arguments });
        let told = [
            ("response.function_call_arguments.delta", event("delta")),
            ("response.function_call_arguments.done", event("arguments")),
        ];
        self.events.extend(told);
        item["status"] = json!("completed");
        item["arguments"] = json!(call.arguments);
        self.tell_item("response.output_item.done", item.clone());
        self.items.push(item);
    }

    fn tell_item(&mut self, name: &'static str, item: Json) {
        let event = json!({ "output_index": self.items.len(), "item": item });
        self.events.push((name, event));
    }

    fn tell_part(&mut self, name: &'static str, mut event: Json) {
        event["item_id"] = json!(self.id("msg"));
        event["output_index"] = json!(self.items.len());
        event["content_index"] = json!(0);
        self.events.push((name, event));
    }
}

fn part(text: &str) -> Json {
    json!({ "type": "output_text", "text": text, "annotations": [] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_results_become_messages() {
        let input = json!([
            { "role": "user", "content": "Go!" },
            { "type": "message", "role": "assistant", "content": "I go." },
            { "type": "function_call", "call_id": "1", "name": "go", "arguments": "{}" },
            { "type": "function_call", "call_id": "2", "name": "go", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": "gone" },
            { "type": "function_call_output", "call_id": "2", "output": [{ "type": "input_text", "text": "lost" }] },
            { "type": "function_call", "call_id": "3", "name": "go", "arguments": "{}" },
        ]);
        let got = messages(&input).unwrap();
        let roles: Vec<&str> = got.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant"]);
        let calls: Vec<usize> = got
            .iter()
            .map(|message| message.tool_calls.as_ref().map_or(0, Vec::len))
            .collect();
        assert_eq!(calls, [0, 2, 0, 0, 1]);
        assert_eq!(
            (got[2].text(), got[3].text()),
            ("gone".into(), "lost".into())
        );
        assert_eq!(got[3].tool_call_id.as_deref(), Some("2"));
        for bad in [
            json!([{ "type": "function_call", "name": "go", "arguments": "{}" }]),
            json!([{ "type": "function_call_output", "call_id": "1", "output": 5 }]),
            json!([{ "type": 5 }]),
        ] {
            assert_eq!(
                messages(&bad).unwrap_err().json()["error"]["param"],
                "input"
            );
        }
    }

    /// Text before a call is a message of its own, and every event names the item that it is about.
    #[test]
    fn an_answer_is_a_list_of_items() {
        let mut output = Output::new(255, false);
        output.push(AnswerPart::Text("I ".into()));
        output.push(AnswerPart::Text("go.".into()));
        output.push(AnswerPart::Call(ToolCall {
            name: "go".into(),
            arguments: "{\"n\":1}".into(),
        }));
        output.end("completed");
        let events = output.take_events();
        let names: Vec<&str> = events.iter().map(|(name, _)| *name).collect();
        let (message, call) = names.split_at(7);
        assert_eq!(message.first(), Some(&"response.output_item.added"));
        assert_eq!(message.last(), Some(&"response.output_item.done"));
        assert_eq!(
            call,
            [
                "response.output_item.added",
                "response.function_call_arguments.delta",
                "response.function_call_arguments.done",
                "response.output_item.done",
            ]
        );
        for (i, (_, event)) in events.iter().enumerate() {
            assert_eq!(event["output_index"], usize::from(i >= 7), "{event}");
            let id = event["item_id"].as_str().or(event["item"]["id"].as_str());
            assert_eq!(
                id,
                Some(if i < 7 { "msg_ff" } else { "fc_ff_1" }),
                "{event}"
            );
        }
        let items = output.into_items();
        assert_eq!(items[0]["content"][0]["text"], "I go.");
        assert_eq!(items[1]["arguments"], "{\"n\":1}");
        assert_eq!(items[1]["call_id"].as_str().unwrap().len(), 9);
        // An answer without anything is an empty message.
        let mut output = Output::new(1, false);
        output.end("completed");
        assert_eq!(output.into_items()[0]["content"][0]["text"], "");
    }
}
