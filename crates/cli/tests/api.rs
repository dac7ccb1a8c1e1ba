//! What clients ask for beyond text: answers that have a form, calls of tools, responses and directions.

use crate::common;

use common::server::{Server, content, events, hello};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn schema(schema: Value) -> Value {
    json!({ "type": "json_schema", "json_schema": { "name": "it", "strict": true, "schema": schema } })
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 20 },
            "mood": { "enum": ["happy", "sad"] },
            "age": { "type": "integer", "minimum": 0, "maximum": 120 },
            "pets": { "type": "array", "items": { "$ref": "#/$defs/pet" }, "maxItems": 2 },
        },
        "required": ["name", "mood", "age", "pets"],
        "additionalProperties": false,
        "$defs": {
            "pet": {
                "type": "object",
                "properties": { "name": { "type": "string", "maxLength": 20 } },
                "required": ["name"],
                "additionalProperties": false,
            },
        },
    })
}

fn check_person(text: &str) {
    let person: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(person.as_object().unwrap().len(), 4, "{text}");
    assert!(
        person["name"].as_str().unwrap().chars().count() <= 20,
        "{text}"
    );
    assert!(
        ["happy", "sad"].contains(&person["mood"].as_str().unwrap()),
        "{text}"
    );
    assert!(person["age"].as_u64().unwrap() <= 120, "{text}");
    let pets = person["pets"].as_array().unwrap();
    assert!(
        pets.len() <= 2 && pets.iter().all(|pet| pet["name"].is_string()),
        "{text}"
    );
}

#[test]
fn answers_have_the_form_that_was_asked_for() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M"]) else {
        return;
    };
    let mut asked = hello(200);
    asked["messages"][0]["content"] = json!("Describe a person with two pets as JSON.");
    asked["response_format"] = schema(person());
    let (status, greedy) = server.post(CHAT, &asked);
    assert_eq!(status, 200, "{greedy}");
    assert_eq!(greedy["choices"][0]["finish_reason"], "stop", "{greedy}");
    check_person(&content(&greedy));

    // The same in a stream, and several that are drawn, each on its own.
    asked["stream"] = json!(true);
    let (_, _, body) = server.raw(&Server::request("POST", CHAT, "", &asked.to_string()));
    let pieces = events(&body);
    let said = pieces
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(said.collect::<String>(), content(&greedy));
    asked["stream"] = json!(false);
    asked["n"] = json!(3);
    asked["temperature"] = json!(1.2);
    for seed in 0..3 {
        asked["seed"] = json!(seed * 10);
        let (_, drawn) = server.post(CHAT, &asked);
        let mut texts = Vec::new();
        for choice in drawn["choices"].as_array().unwrap() {
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
            let text = choice["message"]["content"].as_str().unwrap();
            check_person(text);
            texts.push(text.to_owned());
        }
        texts.dedup();
        assert_eq!(texts.len(), 3, "each has its own chance: {texts:?}");
    }

    let mut asked = hello(60);
    asked["response_format"] = json!({ "type": "json_object" });
    let (_, object) = server.post(CHAT, &asked);
    if object["choices"][0]["finish_reason"] == "stop" {
        assert!(
            serde_json::from_str::<Value>(&content(&object))
                .unwrap()
                .is_object()
        );
    }
    let asked = json!({
        "prompt": "My phone number is ",
        "grammar": { "regex": r"\(\d{3}\) \d{3}-\d{4}" },
        "max_tokens": 40,
    });
    let (_, number) = server.post("/v1/completions", &asked);
    let text = number["choices"][0]["text"].as_str().unwrap();
    assert_eq!(number["choices"][0]["finish_reason"], "stop", "{number}");
    assert!(
        text.len() == 14 && text.starts_with('(') && &text[4..6] == ") ",
        "{text}"
    );
    server.wait_until_empty();
}

/// What forms need is in the ledger from the first of them on, and where it has no room nothing else has changed.
#[test]
fn forms_take_bytes_of_the_budget() {
    let asked = || {
        let mut asked = hello(8);
        asked["grammar"] = json!({ "regex": "[0-9]{3}" });
        asked
    };
    let side = |server: &Server| server.metric("haversack_memory_bytes{account=\"side\"}");
    let Some(server) = Server::start(&["--memory", "200M", "--no-sessions"]) else {
        return;
    };
    let before = side(&server);
    let (status, answer) = server.post(CHAT, &asked());
    assert_eq!(status, 200, "{answer}");
    let after = side(&server);
    assert!(
        (10 << 20..20 << 20).contains(&(after - before)),
        "{before} {after}"
    );
    assert_eq!(server.post(CHAT, &asked()).0, 200);
    assert_eq!(side(&server), after);
    drop(server);

    let Some(small) = Server::start(&["--memory", "14M", "--no-sessions"]) else {
        return;
    };
    let before = side(&small);
    let (status, answer) = small.post(CHAT, &asked());
    assert_eq!(status, 400, "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("bytes"), "{message}");
    assert_eq!(side(&small), before);
    assert_eq!(small.post(CHAT, &hello(4)).0, 200);
}

#[test]
fn forms_that_are_none_are_refused_by_name() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let mut deep = json!({});
    for _ in 0..70 {
        deep = json!({ "items": deep });
    }
    for (name, value) in [
        (
            "response_format",
            json!({ "type": "json_schema", "json_schema": { "name": "x" } }),
        ),
        ("response_format", schema(json!({ "type": "wat" }))),
        ("response_format", schema(json!([]))),
        ("response_format", schema(json!({ "not": {} }))),
        (
            "response_format",
            schema(json!({ "$ref": "https://example.com/schema" })),
        ),
        (
            "response_format",
            schema(json!({ "type": "string", "const": "x".repeat(100_000) })),
        ),
        ("grammar", json!({ "regex": "(" })),
        ("grammar", json!({ "regex": "" })),
        ("grammar", json!({ "ebnf": "start: \"a\"" })),
        ("guided_regex", json!("[")),
        ("guided_json", json!([1])),
    ] {
        let mut body = hello(4);
        body[name] = value;
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 400, "{name}: {answer}");
        assert_eq!(answer["error"]["param"], name, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            !message.contains('\n') && message.chars().count() <= 250,
            "{message}"
        );
    }
    let mut body = hello(4);
    body["response_format"] = schema(deep);
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 400);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("64 levels"),
        "{answer}"
    );
    body["response_format"] = schema(person());
    body["stop"] = json!("}");
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("stop")),
        "{answer}"
    );
    // A form that cannot be followed to its end fails this request, and no other.
    let mut body = hello(40);
    body["grammar"] = json!({ "regex": "[ab]*a[ab]{400}" });
    let (status, answer) = server.post(CHAT, &body);
    assert!(status == 200 || status == 500 || status == 400, "{answer}");
    assert_eq!(server.post(CHAT, &hello(4)).0, 200);
}

fn weather() -> Value {
    json!({
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": { "city": { "$ref": "#/$defs/city" }, "unit": { "enum": ["celsius", "fahrenheit"] } },
                "required": ["city", "unit"],
                "additionalProperties": false,
                "$defs": { "city": { "type": "string", "maxLength": 24 } },
            },
        },
    })
}

fn check_call(call: &Value) {
    assert_eq!(call["type"], "function", "{call}");
    assert_eq!(call["id"].as_str().unwrap().len(), 9, "{call}");
    assert_eq!(call["function"]["name"], "get_weather", "{call}");
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    assert!(arguments["city"].is_string(), "{call}");
    assert!(
        ["celsius", "fahrenheit"].contains(&arguments["unit"].as_str().unwrap()),
        "{call}"
    );
}

#[test]
fn tools_are_called_when_they_must_be() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M"]) else {
        return;
    };
    let mut asked = hello(150);
    asked["messages"][0]["content"] = json!("What is the weather in Paris?");
    asked["tools"] = json!([weather()]);
    asked["parallel_tool_calls"] = json!(false);
    let named = json!({ "type": "function", "function": { "name": "get_weather" } });
    for (choice, temperature) in [(json!("required"), 0.0), (named.clone(), 0.0), (named, 1.5)] {
        asked["tool_choice"] = choice;
        asked["temperature"] = json!(temperature);
        let (status, answer) = server.post(CHAT, &asked);
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        assert!(choice["message"]["content"].is_null(), "{answer}");
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1);
        check_call(&choice["message"]["tool_calls"][0]);
    }
    asked["temperature"] = json!(0);
    asked["stream"] = json!(true);
    let (_, _, body) = server.raw(&Server::request("POST", CHAT, "", &asked.to_string()));
    let events = events(&body);
    let calls: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        .collect();
    assert_eq!(calls.len(), 1, "{body}");
    assert_eq!(calls[0]["index"], 0);
    check_call(calls[0]);
    let finish = events
        .iter()
        .filter_map(|event| event["choices"][0]["finish_reason"].as_str());
    assert_eq!(finish.collect::<Vec<_>>(), ["tool_calls"]);

    // The result comes back, and an answer in words.
    asked["stream"] = json!(false);
    asked["tool_choice"] = json!("none");
    asked["max_tokens"] = json!(12);
    let mut call = calls[0].clone();
    call.as_object_mut().unwrap().remove("index");
    let messages = asked["messages"].as_array_mut().unwrap();
    messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
    messages.push(json!({ "role": "tool", "tool_call_id": call["id"], "content": "18 degrees" }));
    let (status, answer) = server.post(CHAT, &asked);
    assert_eq!(status, 200, "{answer}");
    assert!(!content(&answer).is_empty(), "{answer}");
    // With a choice it says something, or calls.
    asked["tool_choice"] = json!("auto");
    let (status, answer) = server.post(CHAT, &asked);
    let message = &answer["choices"][0]["message"];
    assert!(
        status == 200 && (message["content"].is_string() || message["tool_calls"].is_array()),
        "{answer}"
    );
    server.wait_until_empty();
}

/// In a session tools are told once, a call is a turn, and its result is the next message: alone, or behind all that was
/// said.
#[test]
fn tools_work_in_a_session() {
    let Some(server) = Server::start(&["--memory", "200M"]) else {
        return;
    };
    let name = format!("tools-{}", std::process::id());
    let mut asked = hello(150);
    asked["session_id"] = json!(name);
    asked["messages"][0]["content"] = json!("What is the weather in Paris?");
    asked["tools"] = json!([weather()]);
    asked["tool_choice"] = json!("required");
    asked["parallel_tool_calls"] = json!(false);
    let (status, answer) = server.post(CHAT, &asked);
    assert_eq!(status, 200, "{answer}");
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    let call = choice["message"]["tool_calls"][0].clone();
    check_call(&call);
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "18 degrees" });
    let made = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let whole = json!([asked["messages"][0], made, result]);
    asked["tool_choice"] = json!("auto");
    asked["max_tokens"] = json!(12);
    for messages in [json!([result]), whole] {
        asked["messages"] = messages;
        let (status, answer) = server.post(CHAT, &asked);
        assert_eq!(status, 200, "{answer}");
        let (_, view) = server.get(&format!("/v1/sessions/{name}"));
        let view: Value = serde_json::from_str(&view).unwrap();
        let turns = view["turns"].as_array().unwrap();
        let states = turns.iter().filter(|turn| turn["is_state"] == true);
        assert_eq!((states.count(), turns.len()), (1, 3), "{view}");
        let said = turns[2]["question"].as_str().unwrap();
        assert!(said.contains("18 degrees"), "{view}");
    }
    let path = format!("/v1/sessions/{name}");
    assert_eq!(server.raw(&Server::request("DELETE", &path, "", "")).0, 200);
}

#[test]
fn tools_that_are_none_are_refused_by_name() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let refused = |fields: Value| {
        let mut body = hello(4);
        body["tools"] = json!([weather()]);
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let (status, answer) = server.post(CHAT, &body);
        assert_eq!(status, 400, "{answer}");
        answer["error"]["param"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        refused(json!({ "tools": [{ "type": "web_search" }] })),
        "tools"
    );
    assert_eq!(refused(json!({ "tools": vec![weather(); 200] })), "tools");
    let bad =
        json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "wat" } } });
    assert_eq!(
        refused(json!({ "tools": [bad], "tool_choice": "required" })),
        "tools"
    );
    assert_eq!(refused(json!({ "tool_choice": "must" })), "tool_choice");
    assert_eq!(
        refused(json!({ "tool_choice": { "type": "function", "function": { "name": "x" } } })),
        "tool_choice"
    );
    assert_eq!(
        refused(json!({ "tools": [], "tool_choice": "required" })),
        "tool_choice"
    );
    assert_eq!(
        refused(json!({ "response_format": { "type": "json_object" } })),
        "response_format"
    );
    let call = json!({ "role": "assistant", "tool_calls": [{ "id": "1" }] });
    assert_eq!(refused(json!({ "messages": [call] })), "messages");
    let asked = json!({ "prompt": "x", "tools": [weather()] });
    assert_eq!(server.post("/v1/completions", &asked).0, 400);
}

/// An object has the properties that are named, and grammars of both kinds are obeyed; what is wrong in one has a place.
#[test]
fn answers_follow_closed_schemas_and_grammars() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M"]) else {
        return;
    };
    let mut asked = hello(120);
    asked["messages"][0]["content"] = json!("Invent a person as JSON.");
    let text = json!({ "type": "string", "maxLength": 12 });
    asked["response_format"] = schema(json!({
        "type": "object",
        "properties": { "name": text, "age": { "type": "integer" }, "city": text },
        "required": ["name", "age", "city"],
    }));
    let (_, person) = server.post(CHAT, &asked);
    let person: Value = serde_json::from_str(&content(&person)).unwrap();
    let keys: Vec<&String> = person.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["name", "age", "city"], "{person}");

    let asked = |name: &str, grammar: Value| {
        let mut body = json!({ "prompt": "My number is ", "max_tokens": 40, "temperature": 0 });
        body[name] = grammar;
        server.post("/v1/completions", &body)
    };
    let gbnf = "root ::= pair (\", \" pair)\npair ::= [0-9]{2} \"-\" (\"(\" pair \")\" | [0-9]{2})";
    let lark = "start: pair \", \" pair\npair: NUMBER \"-\" (\"(\" pair \")\" | NUMBER)\nNUMBER: /[0-9]{2}/";
    for (name, grammar) in [
        ("grammar", json!(gbnf)),
        ("grammar", json!({ "gbnf": gbnf })),
        ("guided_grammar", json!(gbnf)),
        ("grammar", json!({ "lark": lark })),
        ("guided_grammar", json!(lark)),
    ] {
        let (status, answer) = asked(name, grammar);
        assert_eq!(status, 200, "{answer}");
        let text = answer["choices"][0]["text"].as_str().unwrap();
        let is_number = |c: char| c.is_ascii_digit() || "-(), ".contains(c);
        assert!(
            text.chars().all(is_number) && text.as_bytes()[2] == b'-',
            "{answer}"
        );
        if answer["choices"][0]["finish_reason"] == "stop" {
            assert!(text.contains(", "), "{answer}");
        }
    }
    let long = format!("root ::= \"{}\"", "a".repeat(1 << 20));
    for (grammar, what) in [
        (json!({ "gbnf": "root ::= a\n" }), "line 1, column 10"),
        (json!({ "lark": "start: \"a\"\nb: )" }), "line 2"),
        (json!({ "lark": "start: A & B" }), "line 1, column 10"),
        (json!(long), "32768"),
        (json!({ "gbnf": "(".repeat(1000) }), "line 1, column 1"),
    ] {
        let (status, answer) = asked("grammar", grammar);
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!("grammar")),
            "{answer}"
        );
        assert!(
            message.contains(what) && !message.contains('\n'),
            "{answer}"
        );
    }
    server.wait_until_empty();
}

#[test]
fn responses_are_answers_by_another_name() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M"]) else {
        return;
    };
    let path = "/v1/responses";
    let mut asked = json!({
        "input": [{ "role": "user", "content": [{ "type": "input_text", "text": "hello" }] }],
        "max_output_tokens": 6,
        "temperature": 0,
    });
    let (status, whole) = server.post(path, &asked);
    assert_eq!(status, 200, "{whole}");
    let (_, chat) = server.post(CHAT, &hello(6));
    let text = whole["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(text, content(&chat), "the same prompt, the same answer");
    assert_eq!(whole["status"], "incomplete");
    assert_eq!(whole["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(
        whole["usage"]["input_tokens"],
        chat["usage"]["prompt_tokens"]
    );

    asked["stream"] = json!(true);
    let (_, head, body) = server.raw(&Server::request("POST", path, "", &asked.to_string()));
    assert!(head.contains("text/event-stream"), "{head}");
    let events: Vec<Value> = body
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok())
        .collect();
    let mut names: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    let said = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(said.collect::<String>(), text);
    let last = &events.last().unwrap()["response"];
    assert_eq!(
        (&last["output"][0]["content"], &last["usage"]),
        (&whole["output"][0]["content"], &whole["usage"])
    );

    asked["stream"] = json!(false);
    asked["max_output_tokens"] = json!(200);
    asked["text"] =
        json!({ "format": { "type": "json_schema", "name": "it", "schema": person() } });
    let (_, formed) = server.post(path, &asked);
    assert_eq!(formed["status"], "completed", "{formed}");
    check_person(formed["output"][0]["content"][0]["text"].as_str().unwrap());
    // A call is an item of the output, and it and its result are items of the next input.
    let mut tool = weather()["function"].clone();
    tool["type"] = json!("function");
    let mut asked = json!({
        "input": [{ "role": "user", "content": "What is the weather in Paris?" }],
        "max_output_tokens": 150,
        "temperature": 0,
        "tools": [tool],
        "tool_choice": { "type": "function", "name": "get_weather" },
        "parallel_tool_calls": false,
    });
    let (status, called) = server.post(path, &asked);
    assert_eq!(status, 200, "{called}");
    let call = &called["output"][0];
    let kind = (&call["type"], &call["name"]);
    assert_eq!(
        kind,
        (&json!("function_call"), &json!("get_weather")),
        "{called}"
    );
    let arguments = call["arguments"].as_str().unwrap();
    assert!(serde_json::from_str::<Value>(arguments).unwrap()["city"].is_string());
    assert_eq!(called["output"].as_array().unwrap().len(), 1, "{called}");
    asked["stream"] = json!(true);
    let (_, _, body) = server.raw(&Server::request("POST", path, "", &asked.to_string()));
    let told = |name: &str| {
        let lines = body.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        events.find(|event| event["type"] == name)
    };
    let done = told("response.function_call_arguments.done").unwrap();
    assert_eq!(done["arguments"], arguments);
    assert!(told("response.output_text.delta").is_none(), "{body}");
    let input = asked["input"].as_array_mut().unwrap();
    input.push(call.clone());
    input.push(json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees" }));
    asked["stream"] = json!(false);
    asked["tool_choice"] = json!("none");
    asked["max_output_tokens"] = json!(8);
    let (status, answer) = server.post(path, &asked);
    assert_eq!(
        (status, &answer["output"][0]["type"]),
        (200, &json!("message")),
        "{answer}"
    );
    for (name, value) in [
        ("previous_response_id", json!("resp_1")),
        ("tools", json!([{ "type": "web_search" }])),
        ("text", json!({ "format": { "type": "xml" } })),
        (
            "text",
            json!({ "format": { "type": "json_schema", "schema": { "type": "wat" } } }),
        ),
        ("input", json!(5)),
    ] {
        let mut bad = json!({ "input": "x", "max_output_tokens": 2 });
        bad[name] = value;
        let (status, answer) = server.post(path, &bad);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(name)),
            "{answer}"
        );
    }
    server.wait_until_empty();
}

#[test]
#[cfg(unix)]
fn texts_become_directions() {
    let Some(sandbox) = common::Sandbox::with_encoder() else {
        return;
    };
    let Some(server) = Server::start_in(sandbox, &["--memory", "64M"]) else {
        return;
    };
    let path = "/v1/embeddings";
    let texts = [
        "My cat is called Minka.",
        "What is my cat's name?",
        "Interest rates rose.",
    ];
    let (status, plain) = server.post(path, &json!({ "input": texts, "dimensions": 384 }));
    assert_eq!(status, 200, "{plain}");
    let vectors: Vec<Vec<f64>> = plain["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| serde_json::from_value(one["embedding"].clone()).unwrap())
        .collect();
    let dot = |a: usize, b: usize| -> f64 {
        vectors[a].iter().zip(&vectors[b]).map(|(a, b)| a * b).sum()
    };
    assert!((dot(0, 0) - 1.0).abs() < 1e-5);
    assert!(dot(0, 1) > dot(0, 2) + 0.2, "{} {}", dot(0, 1), dot(0, 2));
    let (_, packed) = server.post(
        path,
        &json!({ "input": texts[0], "encoding_format": "base64" }),
    );
    let packed = packed["data"][0]["embedding"].as_str().unwrap();
    // 384 numbers of four bytes.
    assert_eq!(packed.len(), 2048);
    let first = f32::from_le_bytes(base64_start(packed));
    assert!((f64::from(first) - vectors[0][0]).abs() < 1e-7);
    for (name, value) in [
        ("input", json!([1, 2, 3])),
        ("input", json!([])),
        ("input", json!("")),
        ("dimensions", json!(256)),
        ("encoding_format", json!("int8")),
    ] {
        let mut bad = json!({ "input": "x" });
        bad[name] = value;
        let (status, answer) = server.post(path, &bad);
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(name)),
            "{answer}"
        );
    }
}

/// The first four bytes of a text in base64.
#[cfg(unix)]
fn base64_start(text: &str) -> [u8; 4] {
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |b: u8| letters.iter().position(|&l| l == b).unwrap() as u64;
    let bits = text.bytes().take(8).fold(0, |bits, b| bits << 6 | digit(b));
    let [_, _, first @ ..] = bits.to_be_bytes();
    [first[0], first[1], first[2], first[3]]
}

#[test]
fn without_an_encoder_it_is_said_how_to_get_one() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let (status, answer) = server.post("/v1/embeddings", &json!({ "input": "x" }));
    assert_eq!(status, 501, "{answer}");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("haversack pull minilm"),
        "{answer}"
    );
}

/// Each path answers by the methods that the description names, and by no other.
#[test]
fn the_description_is_true() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let (status, text) = server.get("/openapi.json");
    assert_eq!(status, 200);
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "delete", "patch"] {
            // A model of that name is not served: the path is.
            let (status, answer) =
                server.begun(&Server::request(&method.to_uppercase(), path, "", "{}"));
            let is_there = status != 405 && !answer.contains("nothing at this path");
            let is_model = path.contains('{') && status == 404;
            assert_eq!(
                is_there || is_model,
                methods.get(method).is_some(),
                "{method} {path}: {status}"
            );
        }
    }
}
