//! Which tool a real model calls: prompts that need one, and prompts that need none, at temperature 0. What decides whether a
//! call is needed was chosen on two sets of tools and prompts (`tools/eight.json`, `tools/other.json`); the third is for
//! confirmation. Part of the long form (`.ci/long tools`): minutes. The counts are printed and judged.

use crate::common;

use common::server::{Server, events};
use common::{Sandbox, model};
use haversack_testing::quota::is_long;
use serde_json::{Value, json};

/// Tools, prompts that need one of them, and prompts that need none.
const SETS: [(&str, &str); 3] = [
    ("eight tools", include_str!("tools/eight.json")),
    ("other tools", include_str!("tools/other.json")),
    ("held out", include_str!("tools/held_out.json")),
];

fn cases(set: usize) -> Value {
    serde_json::from_str(SETS[set].1).unwrap()
}

/// The default model; `None` outside the long form.
fn server() -> Option<Server> {
    if !is_long() {
        println!("SKIPPED: part of the long form");
        return None;
    }
    let model = model("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")?;
    Some(Server::start_with(Sandbox::shared(), &model, &[]))
}

/// A prompt is what the user says, or a conversation that the user has the last word of.
fn messages(prompt: &Value) -> Value {
    match prompt {
        Value::String(text) => json!([{ "role": "user", "content": text }]),
        conversation => conversation.clone(),
    }
}

/// One answer without a stream: text and calls.
fn asked(server: &Server, tools: &Value, prompt: &Value) -> (String, Vec<Value>) {
    let body = json!({
        "messages": messages(prompt),
        "tools": tools,
        "temperature": 0,
        "max_tokens": 256,
    });
    let (status, answer) = server.post_slowly("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let message = &answer["choices"][0]["message"];
    let text = message["content"].as_str().unwrap_or_default().to_owned();
    let calls = message["tool_calls"].as_array().cloned();
    (text, calls.unwrap_or_default())
}

/// The arguments are what the schema of their tool says. Only what these tools use is understood.
fn are_valid(tools: &Value, name: &str, arguments: &Value) -> bool {
    let tool = tools.as_array().unwrap().iter();
    let tool = tool
        .map(|tool| &tool["function"])
        .find(|tool| tool["name"] == name);
    let (Some(tool), Some(given)) = (tool, arguments.as_object()) else {
        return false;
    };
    let schema = &tool["parameters"];
    let required = schema["required"].as_array().unwrap();
    let fits = |(key, value): (&String, &Value)| {
        let schema = &schema["properties"][key];
        let is_type = match schema["type"].as_str() {
            Some("string") => value.is_string(),
            Some("number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            Some("integer") => value.is_i64(),
            _ => false,
        };
        let above = schema["minimum"]
            .as_f64()
            .is_none_or(|min| value.as_f64() >= Some(min));
        let below = schema["maximum"]
            .as_f64()
            .is_none_or(|max| value.as_f64() <= Some(max));
        is_type
            && above
            && below
            && schema["enum"]
                .as_array()
                .is_none_or(|all| all.contains(value))
    };
    required
        .iter()
        .all(|key| given.contains_key(key.as_str().unwrap()))
        && given.iter().all(fits)
}

/// Texts hold what is expected, thousands separated or not; anything else is equal.
fn is_as_expected(expected: &Value, given: &Value) -> bool {
    match (expected, given) {
        (Value::String(expected), Value::String(given)) => {
            let given = given.to_lowercase().replace(',', "");
            given.contains(&expected.to_lowercase())
        }
        (Value::Number(expected), Value::Number(given)) => expected.as_f64() == given.as_f64(),
        _ => expected == given,
    }
}

#[test]
fn the_right_tool_is_called() {
    let Some(server) = server() else {
        return;
    };
    let mut missed = Vec::new();
    for (i, (name, _)) in SETS.iter().enumerate() {
        let cases = cases(i);
        let tools = &cases["tools"];
        let (needed, needless) = (&cases["needed"], &cases["needless"]);
        let (needed, needless) = (needed.as_array().unwrap(), needless.as_array().unwrap());
        let (mut right, mut valid, mut calls_made, mut unneeded) = (0, 0, 0, 0);
        for case in needed {
            let (text, calls) = asked(&server, tools, &case["prompt"]);
            let arguments = |call: &Value| -> Value {
                let text = call["function"]["arguments"].as_str().unwrap();
                serde_json::from_str(text).unwrap_or_default()
            };
            for call in &calls {
                let name = call["function"]["name"].as_str().unwrap();
                valid += usize::from(are_valid(tools, name, &arguments(call)));
                calls_made += 1;
            }
            let is_right = calls.first().is_some_and(|call| {
                let (given, expected) = (arguments(call), case["arguments"].as_object().unwrap());
                let mut expected = expected.iter();
                call["function"]["name"] == case["tool"]
                    && expected.all(|(key, value)| is_as_expected(value, &given[key]))
            });
            right += usize::from(is_right);
            if !is_right {
                println!("wrong: {} {text:?} {}", case["prompt"], json!(calls));
            }
        }
        for prompt in needless {
            let (text, calls) = asked(&server, tools, prompt);
            unneeded += usize::from(!calls.is_empty() || text.is_empty());
            if !calls.is_empty() {
                println!("needless: {prompt} {}", json!(calls));
            }
        }
        let (all, none) = (needed.len(), needless.len());
        println!(
            "{name}: {right} of {all} right, {valid} of {calls_made} calls valid, {unneeded} of {none} needless"
        );
        assert_eq!(
            valid, calls_made,
            "arguments fit their schema whatever the model would say"
        );
        if right * 10 < all * 9 || unneeded * 20 > none {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

/// Results as functions give them, by prompt.
const RESULTS: [(&str, &str); 6] = [
    (
        "What is the weather in Paris right now?",
        r#"{"city":"Paris","temperature_c":17,"sky":"light rain"}"#,
    ),
    (
        "What time is it in Sydney?",
        r#"{"city":"Sydney","time":"16:05"}"#,
    ),
    (
        "Remind me on Friday to pay the rent.",
        r#"{"created":true,"id":7}"#,
    ),
    (
        "Search for vegan restaurants that opened this year in Vienna.",
        r#"[{"title":"Green Fork opens in Neubau"},{"title":"Bohne, vegan bistro, Wieden"}]"#,
    ),
    (
        "I have 5000 Indian rupees. How much is that in euros at today's rate?",
        r#"{"amount":5000,"from":"INR","to":"EUR","result":48.9}"#,
    ),
    (
        "Dim the bedroom light to 20 percent.",
        r#"{"room":"bedroom","on":true,"brightness":20}"#,
    ),
];

/// With the result of its call in front of it, the model makes four of these six calls once more, and writes two results down as
/// they came. A client gets a text.
#[test]
fn a_call_that_was_answered_is_not_made_again() {
    let Some(server) = server() else {
        return;
    };
    let cases = cases(0);
    for (prompt, result) in RESULTS {
        let question = json!({ "role": "user", "content": prompt });
        let mut body = json!({ "tools": cases["tools"], "temperature": 0, "max_tokens": 256 });
        body["messages"] = json!([question]);
        let (status, answer) = server.post_slowly("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let called = answer["choices"][0]["message"].clone();
        let id = &called["tool_calls"][0]["id"];
        assert!(id.is_string(), "{answer}");
        let result = json!({ "role": "tool", "tool_call_id": id, "content": result });
        body["messages"] = json!([question, called, result]);
        let (status, whole) = server.post_slowly("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{whole}");
        let text = whole["choices"][0]["message"]["content"]
            .as_str()
            .unwrap_or_default();
        println!("{prompt} {text}");
        assert!(
            !text.is_empty() && !text.contains("<tool_response>"),
            "{whole}"
        );
        assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
        // As a stream, the same.
        body["stream"] = json!(true);
        let request = Server::request("POST", "/v1/chat/completions", "", &body.to_string());
        let (_, _, streamed) = server.raw(&request);
        let pieces = events(&streamed).into_iter();
        let pieces = pieces.filter_map(|e| {
            e["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        });
        assert_eq!(pieces.collect::<String>(), text);
    }
}
