//! The server over real connections: what clients of the API expect, and what strangers get.

use crate::common;

use common::server::{Server, content, events, hello};
use common::{Sandbox, private, text};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};

#[test]
fn answers_whole_streamed_and_several() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M"]) else {
        return;
    };
    let (status, whole) = server.post("/v1/chat/completions", &hello(12));
    assert_eq!(status, 200, "{whole}");
    let said = content(&whole);
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(
        whole["usage"]["completion_tokens"].as_u64().unwrap()
            + whole["usage"]["prompt_tokens"].as_u64().unwrap(),
        whole["usage"]["total_tokens"].as_u64().unwrap()
    );
    assert_eq!(whole["context"]["evicted"], 0);

    let mut asked = hello(12);
    asked["stream"] = json!(true);
    asked["stream_options"] = json!({ "include_usage": true });
    let request = Server::request("POST", "/v1/chat/completions", "", &asked.to_string());
    let (status, head, body) = server.raw(&request);
    assert_eq!(status, 200);
    assert!(head.contains("text/event-stream"), "{head}");
    let events = events(&body);
    let piece = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .unwrap_or("")
            .to_owned()
    };
    assert_eq!(events.iter().map(piece).collect::<String>(), said);
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);

    let mut asked = hello(6);
    asked["n"] = json!(3);
    asked["logprobs"] = json!(true);
    asked["top_logprobs"] = json!(2);
    let (_, three) = server.post("/v1/chat/completions", &asked);
    let choices = three["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 3);
    for choice in choices {
        assert!(said.starts_with(choice["message"]["content"].as_str().unwrap()));
        let first = &choice["logprobs"]["content"][0];
        assert_eq!(
            first["top_logprobs"][0]["token"], first["token"],
            "the likeliest at temperature 0"
        );
        assert!(
            first["logprob"].as_f64().unwrap()
                >= first["top_logprobs"][1]["logprob"].as_f64().unwrap()
        );
    }

    let asked = json!({ "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0 });
    let (_, completion) = server.post("/v1/completions", &asked);
    assert!(
        completion["choices"][0]["text"]
            .as_str()
            .unwrap()
            .contains("Paris"),
        "{completion}"
    );
    let (_, models) = server.get("/v1/models");
    assert!(models.contains("smollm2"), "{models}");
    assert_eq!(server.metric("haversack_requests_total{end=\"done\"}"), 6);
    server.wait_until_empty();
}

/// Each of these gets a clear error, and the server goes on.
#[test]
fn strangers_get_an_error_and_nothing_happens() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let (_, before) = server.post("/v1/chat/completions", &hello(8));
    let cases = [
        (json!([1, 2]), 400),
        (json!({ "messages": [] }), 400),
        (json!({ "messages": [{ "content": "x" }] }), 400),
        (
            json!({ "messages": [{ "role": "user", "content": 5 }] }),
            400,
        ),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "wat" }] }] }),
            400,
        ),
        (
            json!({ "messages": [{ "role": "user", "content": "word ".repeat(40_000) }] }),
            400,
        ),
    ];
    for (body, expected) in cases {
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, expected, "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(!message.contains('\n') && message.len() < 400, "{message}");
        // Clients that have types expect a word, or nothing.
        let code = match message.contains("tokens") {
            true => json!("context_length_exceeded"),
            false => Value::Null,
        };
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let (status, other) = server.get("/v1/models/another");
    let other: Value = serde_json::from_str(&other).unwrap();
    let told = (status, &other["error"]["code"]);
    assert_eq!(told, (404, &json!("model_not_found")));
    for (name, value) in [
        ("max_tokens", json!(0)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1u64 << 63)),
        ("temperature", json!(-1)),
        ("n", json!(0)),
        ("n", json!(1_000_000)),
        ("stop", json!(vec!["x"; 10_000])),
        ("stop", json!([""])),
        ("logit_bias", json!({ "abc": 1 })),
        ("logit_bias", json!({ "999999999": 1 })),
        ("top_logprobs", json!(3)),
        ("response_format", json!({ "type": "xml" })),
        ("grammar", json!({ "regex": "(" })),
        ("context", json!({ "limit": 10 })),
    ] {
        let mut body = hello(4);
        body[name] = value.clone();
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 400, "{name} {value}: {answer}");
    }
    // Twenty patterns that must hold together took 36 s and 2.6 GB to compile.
    let pattern = |i: usize| json!({ "type": "string", "pattern": format!(".*x.{{{i}}}") });
    let all: Vec<Value> = (0..20).map(pattern).collect();
    let mut body = hello(4);
    body["guided_json"] = json!({ "allOf": all });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 400, "{answer}");
    assert_eq!(
        answer["error"]["message"],
        "regular expressions that must hold together can go on in 3486784401 ways; accepted: at most 4096"
    );
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested =
        |open: &str, close: &str| format!("{}1{}", open.repeat(20_000), close.repeat(20_000));
    let schema = hello(4).to_string().replacen(
        '{',
        &format!(
            "{{\"response_format\":{{\"type\":\"json_schema\",\"json_schema\":{{\"name\":\"x\",\"schema\":{}}}}},",
            nested("{\"items\":", "}")
        ),
        1,
    );
    let surrogate = hello(4).to_string().replace("hello", "\\ud800");
    assert_ne!(surrogate, hello(4).to_string());
    let chat = "/v1/chat/completions";
    let body = hello(4).to_string();
    let small = |headers: &str| Server::request("POST", chat, headers, &body);
    let other_host = String::from_utf8(small(""))
        .unwrap()
        .replace("Host: localhost", "Host: evil.example");
    let huge = format!(
        "POST {chat} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1099511627776\r\n\r\nx"
    );
    for (request, expected) in [
        (Server::request("POST", chat, "", &deep), 400),
        (Server::request("POST", chat, "", &schema), 400),
        (Server::request("POST", chat, "", &surrogate), 400),
        (Server::request("POST", chat, "", "{\"messages\":"), 400),
        (small("Origin: https://evil.example\r\n"), 403),
        (other_host.into_bytes(), 421),
        (huge.into_bytes(), 413),
        (Server::request("DELETE", chat, "", ""), 405),
        (Server::request("GET", "/../../etc/passwd", "", ""), 404),
        (small("Content-Encoding: gzip\r\n"), 415),
        (small(&format!("X-A: {}\r\n", "a".repeat(1 << 20))), 431),
    ] {
        let (status, _, answer) = server.raw(&request);
        assert_eq!(status, expected, "{answer}");
    }
    // A character like any other.
    let mut nul = hello(4);
    nul["messages"][0]["content"] = json!("a\u{0}b");
    assert_eq!(server.post(chat, &nul).0, 200);
    let (_, after) = server.post("/v1/chat/completions", &hello(8));
    assert_eq!(content(&before), content(&after));
}

/// A request without a place is refused at once, a client that leaves frees its place, queued requests are served.
#[test]
fn places_are_few_and_come_back() {
    let Some(server) = Server::start(&[
        "--reuse", "0", "--memory", "64M", "--batch", "1", "--queue", "1",
    ]) else {
        return;
    };
    let mut long = hello(1000);
    long["stream"] = json!(true);
    long["logit_bias"] = json!({ "2": -100 });
    let ask = |server: &Server| {
        let mut stream = server.connect();
        let request = Server::request("POST", "/v1/chat/completions", "", &long.to_string());
        stream.write_all(&request).unwrap();
        let mut lines = BufReader::new(stream);
        let mut first = String::new();
        lines.read_line(&mut first).unwrap();
        (lines, first)
    };
    let (one, first) = ask(&server);
    assert!(first.contains("200"), "{first}");
    // The second one waits, behind the first.
    let (two, _) = ask(&server);
    let busy = Server::request("POST", "/v1/chat/completions", "", &hello(4).to_string());
    let (status, head, _) = server.raw(&busy);
    assert_eq!(status, 429);
    assert!(head.contains("retry-after: 1"), "{head}");
    // Its body was not waited for: one that is announced and never sent is answered as well.
    let announced =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n";
    assert_eq!(server.raw(announced.as_bytes()).0, 429);
    drop(one);
    drop(two);
    server.wait_until_empty();
    let (status, _) = server.post("/v1/chat/completions", &hello(4));
    assert_eq!(status, 200);
}

#[test]
fn flags_that_are_not_safe_are_refused() {
    let sandbox = Sandbox::new();
    let error = |flags: &[&str]| {
        let mut words = vec!["serve", "nothing.gguf"];
        words.extend(flags);
        let ended = sandbox.run(&words);
        let code = ended.code.unwrap();
        ended.error(code).to_owned()
    };
    assert!(error(&["--addr", "0.0.0.0:0"]).contains("--api-key-file"));
    assert!(error(&["--addr", "nowhere"]).contains("accepted: an address and a port"));
    assert!(error(&["--api-key-file", "missing"]).contains("--api-key-file missing"));
    let key = sandbox.write("key", "0123456789abcdef\n");
    assert!(error(&["--api-key-file", text(&key)]).contains("mode 600"));
    for (lines, why) in [
        ("", "at least one key"),
        ("short\n", "line 1: accepted: a key of 16"),
        (
            "0123456789abcdef\nfedcba9876543210\n",
            "line 2: accepted: NAME:KEY",
        ),
        (
            "a/b:0123456789abcdef\n",
            "line 1: accepted before the colon",
        ),
        (
            "a:0123456789abcdef\nA:fedcba9876543210\n",
            "line 2: the name or the key",
        ),
        (
            "a:0123456789abcdef\nb:0123456789abcdef\n",
            "line 2: the name or the key",
        ),
    ] {
        let told = error(&["--api-key-file", text(&private(&sandbox, lines))]);
        assert!(told.contains(why), "{told}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(error(&["--addr", &address]).contains(&address));
    let port = taken.local_addr().unwrap().port().to_string();
    assert!(error(&["--port", &port]).contains(&address));
}

/// A client that sends the whole conversation each time: another last message, an edited one, another answer and several
/// answers go on from where the last message begins, and say what a server says that has read everything.
#[test]
fn a_conversation_is_read_once() {
    let Some(server) = Server::start(&["--memory", "200M"]) else {
        return;
    };
    let fresh = Server::start(&["--memory", "200M", "--reuse", "0"]).unwrap();
    let line = |i: u32| format!("Note {i}: the {i}th box holds {} apples.", i * 7 % 50);
    let notes: Vec<String> = (0..60).map(line).collect();
    let mut history = vec![
        json!({ "role": "system", "content": "You keep an inventory." }),
        json!({ "role": "user", "content": notes.join("\n") }),
        json!({ "role": "assistant", "content": "Noted." }),
    ];
    let body = |history: &[Value], question: &str| {
        let mut messages = history.to_vec();
        messages.push(json!({ "role": "user", "content": question }));
        json!({ "messages": messages, "max_tokens": 12, "temperature": 0 })
    };
    let chat = "/v1/chat/completions";
    let ask = |server: &Server, body: &Value| {
        let (status, answer) = server.post(chat, body);
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        let tokens = usage["prompt_tokens"].as_u64().unwrap();
        (content(&answer), tokens - cached.as_u64().unwrap(), tokens)
    };
    let questions = [
        "How many apples are in box 3?",
        "Which box is the fullest, and why do you think that it is?",
        "Which box is empty?",
        // The same again.
        "Which box is empty?",
    ];
    let mut said = String::new();
    for (i, question) in questions.iter().enumerate() {
        let body = body(&history, question);
        let (text, read, tokens) = ask(&server, &body);
        assert!(tokens > 1000, "{tokens}");
        match i {
            0 => assert_eq!(read, tokens),
            1 | 2 => assert!(read < 40, "{question}: {read} of {tokens} read"),
            _ => assert_eq!(read, 1, "another answer"),
        }
        if i > 1 {
            assert_eq!(text, ask(&fresh, &body).0, "{question}");
        }
        said = text;
    }
    // The conversation goes on, then its new question is edited.
    history.extend([
        json!({ "role": "user", "content": questions[3] }),
        json!({ "role": "assistant", "content": said }),
    ]);
    for (question, most) in [("Thanks. And box 5?", 60), ("Box 6?", 60)] {
        let (_, read, tokens) = ask(&server, &body(&history, question));
        assert!(read < most, "{question}: {read} of {tokens} read");
    }
    // Three answers: one of them reads the question.
    let hits = || server.metric("haversack_cache_hit_tokens_total");
    let (mut three, before) = (body(&history, "Say a number."), hits());
    three["n"] = json!(3);
    let (_, _, tokens) = ask(&server, &three);
    let read = 3 * tokens - (hits() - before);
    assert!(read < 60, "{read}");
}

/// Connections that ask without end and read nothing, with no key and with no key asked for: others are served
/// meanwhile, and so is `/health`.
#[test]
fn those_who_do_not_read_keep_nobody_out() {
    let sandbox = Sandbox::alone();
    let file = private(&sandbox, "0123456789abcdef\n");
    let with_key = ["--memory", "64M", "--api-key-file", text(&file)];
    for flags in [&with_key[..], &["--memory", "64M"]] {
        let Some(server) = Server::start_in(sandbox.same_home(), flags) else {
            return;
        };
        let one = Server::request("GET", "/openapi.json", "", "");
        let one = String::from_utf8(one).unwrap();
        let many = one.replace("Connection: close\r\n", "").repeat(400);
        let deaf: Vec<_> = (0..300)
            .map(|_| {
                let mut stream = server.connect();
                stream.set_nonblocking(true).unwrap();
                // As much as it takes.
                let _ = stream.write(many.as_bytes());
                stream
            })
            .collect();
        let key = "Authorization: Bearer 0123456789abcdef\r\n";
        let (status, _, body) = server.raw(&Server::request("GET", "/health", "", ""));
        assert_eq!((status, body.contains("\"ok\"")), (200, true), "{body}");
        let (status, _, body) = server.raw(&Server::request("GET", "/v1/models", key, ""));
        assert_eq!(status, 200, "{body}");
        let asked = hello(4).to_string();
        let asked = Server::request("POST", "/v1/chat/completions", key, &asked);
        let (status, _, body) = server.raw(&asked);
        assert_eq!(status, 200, "{body}");
        drop(deaf);
    }
}

/// `when_longer: turns`: as many tokens leave as whole turns have, which are no whole blocks.
#[test]
fn whole_turns_leave_a_request() {
    let Some(server) = Server::start(&["--reuse", "0", "--memory", "200M", "--no-sessions"]) else {
        return;
    };
    let turn = |i: usize| {
        let words = "The harbour lights went on one after the other. ".repeat(3 + i % 3);
        [
            json!({ "role": "user", "content": format!("{i}: {words}") }),
            json!({ "role": "assistant", "content": "I see." }),
        ]
    };
    let system = json!({ "role": "system", "content": "You answer in one word, whatever you are asked about, and never in two or three, because nobody here has time for more than that." });
    let turns: Vec<Value> = (0..7).flat_map(turn).collect();
    let ask = |count: usize, context: Value| {
        let last = json!({ "role": "user", "content": "And now?" });
        let messages: Vec<&Value> = [&system]
            .into_iter()
            .chain(&turns[..2 * count])
            .chain([&last])
            .collect();
        let body =
            json!({ "messages": messages, "max_tokens": 2, "temperature": 0, "context": context });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let whole = json!({ "limit": 2048 });
    let tokens = |count| {
        ask(count, whole.clone())["usage"]["prompt_tokens"]
            .as_u64()
            .unwrap()
    };
    let lengths: Vec<u64> = (0..=3).map(tokens).collect();
    let answer = ask(7, json!({ "limit": 384, "when_longer": "turns" }));
    let evicted = answer["context"]["evicted"].as_u64().unwrap();
    // Turns 0 to n have left.
    let left: Vec<u64> = lengths.iter().map(|length| length - lengths[0]).collect();
    assert!(
        evicted > 0 && left.contains(&evicted),
        "{evicted} of {left:?}: {}",
        answer["context"]
    );
    assert!(answer["context"]["kept"].as_u64().unwrap() <= 384);
}
