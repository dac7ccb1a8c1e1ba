//! The server over real connections: what clients of the API expect, and what strangers get.

mod common;

use common::{Sandbox, smollm2, text};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

/// A server on a port of its own, for as long as this lives.
struct Server {
    child: Child,
    address: SocketAddr,
    _sandbox: Sandbox,
}

impl Server {
    fn start(flags: &[&str]) -> Option<Server> {
        let model = smollm2()?;
        let sandbox = Sandbox::shared();
        let mut words = vec!["serve", text(&model), "--addr", "127.0.0.1:0", "--json"];
        words.extend(flags);
        let mut command = sandbox.command(&words);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        // Whatever happens from here on, it ends with this.
        let mut server = Server {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            _sandbox: sandbox,
        };
        let mut document = String::new();
        let mut lines = BufReader::new(stdout);
        while serde_json::from_str::<Value>(&document).is_err() {
            let read = lines.read_line(&mut document).unwrap();
            assert!(read > 0, "no address: {document}");
        }
        let told: Value = serde_json::from_str(&document).unwrap();
        server.address = told["address"].as_str().unwrap().parse().unwrap();
        Some(server)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        stream
    }

    /// Status, headers and body of whatever comes back.
    fn raw(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
        (status.unwrap_or(0), head.to_lowercase(), body.to_owned())
    }

    fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}").into_bytes()
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = Server::request("POST", path, "", &body.to_string());
        let (status, _, body) = self.raw(&request);
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.raw(&Server::request("GET", path, "", ""));
        (status, body)
    }

    fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Server {
    /// Nobody is there any more, and nothing is held.
    fn wait_until_empty(&self) {
        let what = [
            "haversack_requests_active",
            "haversack_requests_waiting",
            "haversack_memory_bytes{account=\"blocks\"}",
        ];
        for _ in 0..200 {
            if what.iter().all(|name| self.metric(name) == 0) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{}", self.get("/metrics").1);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hello(tokens: u64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "hello" }],
        "max_tokens": tokens,
        "temperature": 0,
    })
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The events of a stream, without the last line.
fn events(body: &str) -> Vec<Value> {
    let lines = body
        .split('\n')
        .filter_map(|line| line.trim().strip_prefix("data: "));
    let lines: Vec<&str> = lines.collect();
    assert_eq!(lines.last(), Some(&"[DONE]"), "{body}");
    let events = lines[..lines.len() - 1].iter();
    events
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn answers_whole_streamed_and_several() {
    let Some(server) = Server::start(&["--memory", "200M"]) else {
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
    }
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
        ("response_format", json!({ "type": "json_object" })),
        ("context", json!({ "limit": 10 })),
    ] {
        let mut body = hello(4);
        body[name] = value.clone();
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 400, "{name} {value}: {answer}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
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
    let (_, after) = server.post("/v1/chat/completions", &hello(8));
    assert_eq!(content(&before), content(&after));
}

/// Whoever finds no place is told at once, whoever leaves frees theirs, and those who wait are served.
#[test]
fn places_are_few_and_come_back() {
    let Some(server) = Server::start(&["--memory", "64M", "--batch", "1", "--queue", "1"]) else {
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
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert!(error(&["--addr", &address]).contains(&address));
}

impl Server {
    /// An answer in a session: to what is asked alone, or behind what was said.
    fn say(&self, session: &str, messages: Value) -> (u16, Value) {
        let body = json!({
            "session_id": session,
            "messages": messages,
            "max_tokens": 8,
            "temperature": 0,
        });
        self.post("/v1/chat/completions", &body)
    }

    fn session(&self, name: &str) -> Value {
        let (status, body) = self.get(&format!("/v1/sessions/{name}"));
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn delete(&self, path: &str) -> u16 {
        self.raw(&Server::request("DELETE", path, "", "")).0
    }

    /// Asks the server to stop, and waits until it has.
    fn stop(mut self) {
        let pid = self.child.id().to_string();
        let kill = std::process::Command::new("kill").arg(&pid).status();
        assert!(kill.unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn assistant(text: &str) -> Value {
    json!({ "role": "assistant", "content": text })
}

/// A conversation over the API: the last message alone or behind all that was said, an answer made anew, another
/// conversation refused, a fork, facts, and all of it there again after the server has ended.
#[test]
fn sessions_last() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let name = format!("serve-{}", std::process::id());
    let fork = format!("{name}-fork");
    let system = json!({ "role": "system", "content": "You are brief." });
    let (status, first) = server.say(&name, json!([system, user("My cat is called Miso.")]));
    assert_eq!(status, 200, "{first}");
    assert_eq!(first["context"]["turn"], 0);
    assert_eq!(first["context"]["unsaved"], Value::Null);
    let said = content(&first);

    let (status, second) = server.say(&name, json!([user("What is my cat called?")]));
    assert_eq!(status, 200, "{second}");
    assert_eq!(second["context"]["turn"], 1);
    let cached = &second["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert!(cached.as_u64().unwrap() > 10, "{second}");

    // The same question behind the first turn takes the second back, and is answered alike.
    let whole = json!([
        system,
        user("My cat is called Miso."),
        assistant(&said),
        user("What is my cat called?")
    ]);
    let (status, again) = server.say(&name, whole.clone());
    assert_eq!(status, 200, "{again}");
    assert_eq!(content(&again), content(&second));
    let view = server.session(&name);
    assert_eq!(view["turns"].as_array().unwrap().len(), 2);
    assert_eq!(view["turns"][0]["question"], "My cat is called Miso.");
    assert_eq!(view["turns"][0]["answer"], said.trim());

    let other = json!([
        user("My dog is called Rex."),
        assistant("Fine."),
        user("And?")
    ]);
    let (status, refused) = server.say(&name, other);
    assert_eq!(status, 409, "{refused}");
    let (status, refused) = server.say(&name, json!([user("one"), user("two")]));
    assert_eq!(status, 400, "{refused}");
    let (status, refused) = server.say("../x", json!([user("one")]));
    assert_eq!(status, 400, "{refused}");

    let path = format!("/v1/sessions/{name}");
    let (status, made) = server.post(&format!("{path}/fork"), &json!({ "id": fork }));
    assert_eq!(status, 201, "{made}");
    let (status, fact) = server.post(&format!("{path}/facts"), &json!({ "text": "Miso is 4." }));
    assert_eq!((status, &fact["number"]), (201, &json!(1)), "{fact}");
    assert_eq!(server.delete(&format!("{path}/facts/7")), 404);
    assert_eq!(server.delete(&format!("{path}/turns/last")), 200);
    assert_eq!(server.session(&name)["facts"].as_array().unwrap().len(), 2);
    assert_eq!(server.session(&fork)["facts"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/v1/sessions/nobody").0, 404);
    let before = [&name, &fork].map(|name| server.session(name));
    let question = json!([user("What is my cat called?")]);
    let (_, expected) = server.say(&fork, question.clone());
    server.stop();

    let server = Server::start(&["--memory", "64M"]).unwrap();
    let (status, body) = server.get("/v1/sessions");
    assert_eq!(status, 200);
    assert!(body.contains(&format!("\"{fork}\"")), "{body}");
    assert_eq!(server.session(&name)["turns"], before[0]["turns"]);
    assert_eq!(
        server.delete(&format!("/v1/sessions/{fork}/turns/last")),
        200
    );
    assert_eq!(server.session(&fork)["turns"], before[1]["turns"]);
    let (_, answer) = server.say(&fork, question);
    assert_eq!(content(&answer), content(&expected));
    for name in [&name, &fork] {
        assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 200);
        assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 404);
    }
}

/// Three people talk at once in a budget for hardly one conversation: each hears what it would hear alone.
#[test]
fn sessions_meet() {
    let Some(server) = Server::start(&["--memory", "24M"]) else {
        return;
    };
    let name = |who: &str| format!("meet-{}-{who}", std::process::id());
    let people = ["anna", "ben", "cleo"];
    let ask = |who: &str, round: usize| user(&format!("{who} asks {round} things."));
    let talk = |who: &str, as_who: &str| {
        let said: Vec<String> = (0..3)
            .map(|round| {
                let (status, answer) = server.say(&name(as_who), json!([ask(who, round)]));
                assert_eq!(status, 200, "{answer}");
                content(&answer)
            })
            .collect();
        said
    };
    let together: Vec<Vec<String>> = std::thread::scope(|scope| {
        let all = people.map(|who| scope.spawn(move || talk(who, who)));
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for (who, together) in people.iter().zip(together) {
        let alone = format!("{who}-alone");
        assert_eq!(talk(who, &alone), together, "{who}");
        for who in [who, &alone[..]] {
            assert_eq!(server.delete(&format!("/v1/sessions/{}", name(who))), 200);
        }
    }
    let budget = server.metric("haversack_memory_budget_bytes");
    assert!(server.metric("haversack_memory_peak_bytes") <= budget);
}

/// Somebody says that it is hot: an answer under way becomes slower and not another one, and the server says what it did.
#[test]
fn heat_slows_and_changes_nothing() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let put = |body: &str| server.raw(&Server::request("PUT", "/v1/device", "", body));
    let (status, _, body) = put(r#"{"thermal":"tepid"}"#);
    assert_eq!(status, 400, "{body}");
    let (_, cool) = server.post("/v1/chat/completions", &hello(100));
    let hot = std::thread::scope(|scope| {
        let hot = scope.spawn(|| server.post("/v1/chat/completions", &hello(100)));
        let (status, _, body) = put(r#"{"thermal":"critical"}"#);
        assert_eq!(status, 200, "{body}");
        hot.join().unwrap().1
    });
    assert_eq!(content(&hot), content(&cool));
    for _ in 0..200 {
        if server.metric("haversack_rung") == 4 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.metric("haversack_rung"), 4);
    assert_eq!(server.metric("haversack_thermal{state=\"critical\"}"), 1);
    let device: Value = serde_json::from_str(&server.get("/v1/device").1).unwrap();
    let changes: Vec<&str> = device["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["what"].as_str().unwrap())
        .collect();
    let rungs = changes
        .iter()
        .filter(|what| what.starts_with("heat is critical: rung"));
    assert_eq!(rungs.count(), 4, "{device}");
    let (_, slow) = server.post("/v1/chat/completions", &hello(8));
    assert!(content(&cool).starts_with(&content(&slow)));
}
