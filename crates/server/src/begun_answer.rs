//! Answers as they come from the engine, and the cases in which the model is asked twice.
//!
//! Small models that are given tools call one where none is needed ([`super::call_check`]). With the result of a call they tend
//! to make the same call again, or to write the result down as it came, for ever: the client would run the function until it
//! gives up. So an answer that begins with a call is looked at before any of it is sent; if the call is not to be made, the
//! answer is dropped, and the model is asked once more without tools.

use super::call_check::{self, CallCheck, is_needed};
use super::choice_text::ChoiceText;
use super::encode::encode;
use super::fail::Fail;
use super::limits;
use super::request::{CheckedRequest, WithoutTools};
use super::state::ServerState;
use super::tools::{self, RESULT_BEGIN};
use super::types::ChatMessage;
use haversack::engine::runtime::GenerateOptions;
use haversack::grammar::{AnswerPart, Functions, ToolCall};
use haversack::scheduler::{Request, RequestKind};
use haversack::{AnswerEvent, AnswerEvents, EventOptions};
use serde_json::Value as Json;
use std::collections::VecDeque;

/// How the engine tells the events of a request.
pub const EVENTS: EventOptions = EventOptions {
    logprobs: None,
    max_behind: limits::BEHIND,
    waits: false,
    progress: false,
};

/// Events of an answer, those first that were looked at before it was sent.
pub struct BegunAnswer {
    looked_at: VecDeque<(usize, AnswerEvent)>,
    events: AnswerEvents,
}

/// What an answer begins with.
enum Beginning {
    Text,
    /// Text as results are written.
    Result,
    Call(ToolCall),
}

impl BegunAnswer {
    /// Submits a request. Becomes the request without tools where the answer begins with a call that is not to be made.
    pub async fn begin(
        server: &ServerState,
        checked: &mut CheckedRequest,
        options: EventOptions,
    ) -> Result<BegunAnswer, Fail> {
        let question = checked.requests.first().map(|request| Request {
            options: GenerateOptions {
                tokens_max: Some(1),
                ..GenerateOptions::default()
            },
            owner: request.owner,
            deadline: request.deadline,
            ..Request::completion(Vec::new())
        });
        let mut begun = BegunAnswer::submit(server, checked, options).await?;
        if let Some(WithoutTools {
            request,
            answered,
            check,
        }) = checked.without_tools.take()
            && let Some(functions) = checked.callable.clone()
            && let Some(question) = question
        {
            let is_made = match begun.beginning(functions).await {
                Beginning::Text => true,
                Beginning::Result => answered.is_empty(),
                Beginning::Call(call) if answered.iter().any(|past| is_same(past, &call)) => false,
                Beginning::Call(call) => match check {
                    Some(check) => is_call_needed(server, &check, &call, question).await,
                    None => true,
                },
            };
            if !is_made {
                drop(begun);
                *checked = *request;
                begun = BegunAnswer::submit(server, checked, options).await?;
            }
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

    async fn beginning(&mut self, functions: Functions) -> Beginning {
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
                    AnswerPart::Call(call) => return Beginning::Call(call),
                    AnswerPart::Text(text) => begun += &text,
                }
            }
            let begun = begun.trim_start();
            if begun.starts_with(RESULT_BEGIN) {
                return Beginning::Result;
            }
            if is_end || !RESULT_BEGIN.starts_with(begun) {
                return Beginning::Text;
            }
        }
        Beginning::Text
    }
}

/// Asks the model about a call. A call about which it cannot be asked stands.
async fn is_call_needed(
    server: &ServerState,
    check: &CallCheck,
    call: &ToolCall,
    question: Request,
) -> bool {
    let client = server.client();
    let model = client.model();
    let Ok(prompt) = encode(model, &check.question(&call.name), None) else {
        return true;
    };
    let question = Request {
        borders: prompt.borders,
        messages: prompt.messages,
        kind: RequestKind::Completion {
            prompt: prompt.ids,
            rows: None,
        },
        ..question
    };
    let options = EventOptions {
        logprobs: Some(call_check::TOP),
        ..EVENTS
    };
    let Ok(mut events) = client.submit(vec![question], options).await else {
        return true;
    };
    while let Some((_, event)) = events.next().await {
        if let AnswerEvent::Token { logprob, .. } = event {
            return logprob.is_none_or(|first| is_needed(model, &first));
        }
    }
    true
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
