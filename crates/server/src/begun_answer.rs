//! Answers as they come from the engine, and the one case in which the model is asked twice.
//!
//! Small models that have the result of a call tend to make the same call again, or to write the result down as it came, for
//! ever: the client would run the function until it gives up. So an answer that begins with either is dropped before any of
//! it is sent, and the model is asked once more without tools.

use super::choice_text::ChoiceText;
use super::fail::Fail;
use super::request::CheckedRequest;
use super::state::ServerState;
use super::tools::{self, RESULT_BEGIN};
use super::types::ChatMessage;
use haversack::grammar::{AnswerPart, Functions, ToolCall};
use haversack::{AnswerEvent, AnswerEvents, EventOptions};
use serde_json::Value as Json;
use std::collections::VecDeque;

/// Events of an answer, those first that were looked at before it was sent.
pub struct BegunAnswer {
    looked_at: VecDeque<(usize, AnswerEvent)>,
    events: AnswerEvents,
}

impl BegunAnswer {
    /// Submits a request. Becomes the request without tools where the answer would be nothing but a call that was answered.
    pub async fn begin(
        server: &ServerState,
        checked: &mut CheckedRequest,
        options: EventOptions,
    ) -> Result<BegunAnswer, Fail> {
        let mut begun = BegunAnswer::submit(server, checked, options).await?;
        if let Some(answered) = checked.answered.take()
            && let Some(functions) = checked.callable.clone()
            && begun.repeats(functions, &answered.calls).await
        {
            drop(begun);
            *checked = *answered.without_tools;
            begun = BegunAnswer::submit(server, checked, options).await?;
        }
        Ok(begun)
    }

    async fn submit(
        server: &ServerState,
        checked: &mut CheckedRequest,
        options: EventOptions,
    ) -> Result<BegunAnswer, Fail> {
        let requests = std::mem::take(&mut checked.requests);
        Ok(BegunAnswer {
            looked_at: VecDeque::new(),
            events: server.client().submit(requests, options).await?,
        })
    }

    pub async fn next(&mut self) -> Option<(usize, AnswerEvent)> {
        match self.looked_at.pop_front() {
            Some(event) => Some(event),
            None => self.events.next().await,
        }
    }

    /// Whether the answer begins with one of these calls, or as a result does.
    async fn repeats(&mut self, functions: Functions, calls: &[ToolCall]) -> bool {
        let mut choice = ChoiceText::new(Some(&functions));
        let mut begun = String::new();
        while let Some((i, event)) = self.events.next().await {
            let (parts, is_end) = match &event {
                AnswerEvent::Token { text, .. } => (choice.push(text), false),
                AnswerEvent::Finished { text, .. } => (choice.finish(text), true),
                AnswerEvent::Failed(_) => (Vec::new(), true),
                AnswerEvent::PromptRead { .. } | AnswerEvent::SessionRead { .. } => {
                    (Vec::new(), false)
                }
            };
            self.looked_at.push_back((i, event));
            for part in parts {
                match part {
                    AnswerPart::Call(call) => return calls.iter().any(|past| is_same(past, &call)),
                    AnswerPart::Text(text) => begun += &text,
                }
            }
            let begun = begun.trim_start();
            if is_end || !RESULT_BEGIN.starts_with(begun) {
                return begun.starts_with(RESULT_BEGIN);
            }
        }
        false
    }
}

/// Calls with results behind the last message of the user, if a result is the last message.
pub fn answered_calls(messages: &[ChatMessage]) -> Vec<ToolCall> {
    if messages.last().is_none_or(|last| last.role != "tool") {
        return Vec::new();
    }
    let since = messages.iter().rev();
    let since = since.take_while(|message| message.role != "user");
    let calls = since.flat_map(|message| message.tool_calls.iter().flatten());
    calls.filter_map(tools::tool_call).collect()
}

fn is_same(a: &ToolCall, b: &ToolCall) -> bool {
    let arguments = |call: &ToolCall| serde_json::from_str::<Json>(&call.arguments).ok();
    a.name == b.name && arguments(a) == arguments(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_are_answered_since_the_user_spoke() {
        let call =
            |name: &str| json!({ "id": "1", "function": { "name": name, "arguments": "{ }" } });
        let made = |name: &str| json!({ "role": "assistant", "tool_calls": [call(name)] });
        let result = || json!({ "role": "tool", "content": "1" });
        let user = || json!({ "role": "user", "content": "go" });
        let names = |messages: Json| -> Vec<String> {
            let messages: Vec<ChatMessage> = serde_json::from_value(messages).unwrap();
            let calls = answered_calls(&messages).into_iter();
            calls.map(|call| call.name).collect()
        };
        let all = json!([
            user(),
            made("a"),
            result(),
            user(),
            made("b"),
            result(),
            made("c"),
            result()
        ]);
        assert_eq!(names(all), ["c", "b"]);
        assert!(names(json!([user(), made("a"), result(), user()])).is_empty());
        assert!(names(json!([user(), made("a")])).is_empty());
        assert!(names(json!([])).is_empty());
    }

    #[test]
    fn calls_are_the_same_however_they_are_written() {
        let call = |name: &str, arguments: &str| ToolCall {
            name: name.into(),
            arguments: arguments.into(),
        };
        let paris = call("weather", r#"{"city":"Paris","unit":"celsius"}"#);
        let again = call(
            "weather",
            "{ \"unit\": \"celsius\",\n \"city\": \"Paris\" }",
        );
        assert!(is_same(&paris, &again));
        assert!(!is_same(
            &paris,
            &call("weather", r#"{"city":"Rome","unit":"celsius"}"#)
        ));
        assert!(!is_same(
            &paris,
            &call("time", r#"{"city":"Paris","unit":"celsius"}"#)
        ));
    }
}
