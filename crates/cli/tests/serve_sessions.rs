//! Conversations over HTTP: they last, they meet, and heat changes none of them.

use crate::common;

use common::server::{Server, content, hello};
use common::{PATIENCE, Sandbox, private, text};
use haversack_testing::models::Spec;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

trait Talk {
    fn say(&self, session: &str, messages: Value) -> (u16, Value);
    fn session(&self, name: &str) -> Value;
    fn delete(&self, path: &str) -> u16;
}

impl Talk for Server {
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
    let (status, fact) = server.post(
        &format!("{path}/facts"),
        &json!({ "text": "Miso is 4.", "found_in": 0 }),
    );
    assert_eq!((status, &fact["number"]), (201, &json!(1)), "{fact}");
    assert_eq!(server.delete(&format!("{path}/facts/7")), 404);
    assert_eq!(server.delete(&format!("{path}/turns/last")), 200);
    assert_eq!(server.session(&name)["facts"].as_array().unwrap().len(), 2);
    assert_eq!(server.session(&name)["facts"][1]["found_in"], 0);
    let (status, _) = server.post(
        &format!("{path}/facts"),
        &json!({ "text": "x", "found_in": 99 }),
    );
    assert_eq!(status, 404);
    assert_eq!(server.session(&fork)["facts"].as_array().unwrap().len(), 1);
    assert_eq!(server.get("/v1/sessions/missing").0, 404);
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

/// A state is seen by the next answer until another replaces it, is shown with the session, and is deleted by its number.
#[test]
fn states_over_http() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let name = format!("states-{}", std::process::id());
    let (status, first) = server.say(&name, json!([user("We play a game.")]));
    assert_eq!(status, 200, "{first}");
    let states = format!("/v1/sessions/{name}/states");
    let (status, low) = server.post(&states, &json!({ "text": "The level is 3." }));
    assert_eq!((status, &low["number"]), (201, &json!(1)), "{low}");
    let body = json!({ "text": "The level is 4.", "replaces": 1 });
    let (status, high) = server.post(&states, &body);
    assert_eq!((status, &high["number"]), (201, &json!(2)), "{high}");
    let shown = json!([{ "number": 2, "text": "The level is 4." }]);
    assert_eq!(server.session(&name)["states"], shown);
    let (status, second) = server.say(&name, json!([user("Which level is it?")]));
    assert_eq!(status, 200, "{second}");
    let kept = |answer: &Value| answer["context"]["kept"].as_u64().unwrap();
    // The first turn, the state and the new question; without the state its tokens are missing.
    assert_eq!(server.delete(&format!("{states}/2")), 200);
    assert_eq!(server.session(&name)["states"], json!([]));
    assert_eq!(
        server.delete(&format!("/v1/sessions/{name}/turns/last")),
        200
    );
    let (_, without) = server.say(&name, json!([user("Which level is it?")]));
    assert!(kept(&without) < kept(&second), "{without} {second}");

    assert_eq!(server.delete(&format!("{states}/2")), 404);
    assert_eq!(
        server.delete(&format!("{states}/0")),
        404,
        "turn 0 is not a state"
    );
    for refused in [
        json!({}),
        json!({ "text": 7 }),
        json!({ "text": "" }),
        json!({ "text": "x", "replaces": 9 }),
    ] {
        let (status, answer) = server.post(&states, &refused);
        assert!([400, 404].contains(&status), "{refused}: {answer}");
    }
    let (status, _) = server.post("/v1/sessions/missing/states", &json!({ "text": "x" }));
    assert_eq!(status, 404);
    assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 200);
}

/// A turn is excluded, included, pinned and unpinned by its number; what cannot be is refused.
#[test]
fn turns_are_pinned_and_excluded_over_http() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let name = format!("choices-{}", std::process::id());
    for text in ["My cat is called Miso.", "Which day is it?"] {
        assert_eq!(server.say(&name, json!([user(text)])).0, 200);
    }
    let turn = format!("/v1/sessions/{name}/turns/0");
    let flags = || {
        let turn = &server.session(&name)["turns"][0];
        [&turn["is_pinned"], &turn["is_excluded"]].map(|flag| flag.as_bool().unwrap())
    };
    assert_eq!(flags(), [false, false]);
    let kept = |question: &str| {
        let (status, answer) = server.say(&name, json!([user(question)]));
        assert_eq!(status, 200, "{answer}");
        let path = format!("/v1/sessions/{name}/turns/last");
        assert_eq!(server.delete(&path), 200);
        answer["context"]["kept"].as_u64().unwrap()
    };
    let before = kept("And my cat?");
    let empty = json!({});
    assert_eq!(server.post(&format!("{turn}/exclude"), &empty).0, 200);
    assert_eq!(flags(), [false, true]);
    let without = kept("And my cat?");
    assert!(without < before, "{without} {before}");
    assert_eq!(server.delete(&format!("{turn}/exclude")), 200);
    assert_eq!((flags(), kept("And my cat?")), ([false, false], before));
    assert_eq!(server.post(&format!("{turn}/pin"), &empty).0, 200);
    assert_eq!(flags(), [true, false]);
    assert_eq!(server.delete(&format!("{turn}/pin")), 200);
    assert_eq!(flags(), [false, false]);
    for path in ["turns/9/pin", "turns/9/exclude"] {
        let path = format!("/v1/sessions/{name}/{path}");
        assert_eq!(server.post(&path, &empty).0, 404);
        assert_eq!(server.delete(&path), 404);
    }
    let path = format!("/v1/sessions/{name}/states");
    let (_, state) = server.post(&path, &json!({ "text": "The level is 3." }));
    let path = format!("/v1/sessions/{name}/turns/{}/exclude", state["number"]);
    assert_eq!(server.post(&path, &empty).0, 400);
    assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 200);
}

/// Three people talk at once in a budget for hardly one conversation, and look at each other's: each hears what it would
/// hear alone, and who looks while there is no room comes again.
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
                for other in people {
                    let path = format!("/v1/sessions/{}", name(other));
                    let (status, head, body) = server.raw(&Server::request("GET", &path, "", ""));
                    let is_later = status == 503 && head.contains("retry-after:");
                    assert!(is_later || [200, 404].contains(&status), "{status} {body}");
                }
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

/// A thermal report arrives: an answer under way becomes slower but keeps its tokens, and the server reports the change.
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
    server.wait_until("haversack_rung", 4);
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
        .filter(|what| what.starts_with("heat is critical: throttle level"));
    assert_eq!(rungs.count(), 4, "{device}");
    let (_, slow) = server.post("/v1/chat/completions", &hello(8));
    assert!(content(&cool).starts_with(&content(&slow)));
}

/// Someone reads an answer while others import histories and tell long texts: tokens keep coming. Each of these was one
/// command of the engine's thread once, and no client heard a token until it was done.
#[test]
fn texts_of_one_client_hold_up_no_other() {
    let Some(server) = Server::start(&["--memory", "200M"]) else {
        return;
    };
    let stream = json!({
        "messages": [user("Count from one to a thousand, one number on each line.")],
        "max_tokens": 1024,
        "temperature": 0,
        "stream": true,
        "logit_bias": { "2": -100 },
    });
    let name = |i: usize| format!("texts-{}-{i}", std::process::id());
    let sampled = || server.metric("haversack_tokens_total");
    let mut reader = server.connect();
    let request = Server::request("POST", "/v1/chat/completions", "", &stream.to_string());
    reader.write_all(&request).unwrap();
    while sampled() < 4 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let before = sampled();
    let mut messages = Vec::new();
    for i in 0..60 {
        let question = format!("What comes after {i}, and what comes after that?");
        messages.push(user(&question));
        messages.push(assistant(&format!("The number {} does, of course.", i + 1)));
    }
    messages.push(user("And then?"));
    let body = json!({
        "session_id": name(0),
        "messages": messages,
        "max_tokens": 1,
        "temperature": 0,
    });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let during = sampled() - before;
    assert!(during > 20, "{during} tokens while a history was read");
    let windows = |i: usize| format!("The house of number {i} has {} windows. ", i % 7);
    let text: String = (0..150).map(windows).collect();
    let before = sampled();
    for i in 1..3 {
        let body = json!({ "id": name(i), "persistent": format!("House {i}. {text}") });
        let (status, made) = server.post("/v1/sessions", &body);
        assert_eq!(status, 201, "{made}");
    }
    let during = sampled() - before;
    assert!(during > 10, "{during} tokens while texts were read");
    for i in 0..3 {
        assert_eq!(server.delete(&format!("/v1/sessions/{}", name(i))), 200);
    }
}

/// A server of a tiny model whose data directory is the test's own, and the files of the sessions in it.
struct Tiny {
    sandbox: Sandbox,
    model: PathBuf,
}

impl Tiny {
    fn new() -> Tiny {
        let sandbox = Sandbox::new();
        let model = sandbox.path("tiny.gguf");
        let spec = Spec {
            context: 4096,
            ..Spec::named("llama").unwrap()
        };
        spec.write_file(&model).unwrap();
        Tiny { sandbox, model }
    }

    fn start(&self, flags: &[&str]) -> Server {
        // The same home again and again: the sandbox of the server is another one.
        let home = self.sandbox.home();
        Server::start_with(Sandbox::at(&home), &self.model, flags)
    }

    fn file(&self, name: &str) -> PathBuf {
        let file = format!("{name}.session");
        self.sandbox.home().join("sessions").join(file)
    }
}

/// A system message of one sentence that is longer than the usual limit is kept word for word, also by the next server; one
/// that cannot be is refused. An earlier build dropped it without a word.
#[test]
fn a_long_system_message_is_kept_or_refused() {
    let tiny = Tiny::new();
    let server = tiny.start(&[]);
    let system = |words: usize| {
        let text = "a guide of the old town, ".repeat(words / 6);
        format!("You are {}", text.trim_end_matches(", "))
    };
    let begin = |server: &Server, name: &str, system: &str| {
        let told = json!({ "role": "system", "content": system });
        server.say(name, json!([told, user("Who are you?")]))
    };
    let (whole, long) = (system(600), system(20_000));
    let (status, answer) = begin(&server, "whole", &whole);
    assert_eq!(status, 200, "{answer}");
    let view = server.session("whole");
    assert_eq!(view["facts"][0]["text"], whole, "{view}");
    let persistent = view["tokens"]["persistent"].as_u64();
    assert!(persistent > Some(512), "{view}");
    let (status, refused) = begin(&server, "long", &long);
    assert_eq!(status, 400, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("accepted: at most"), "{message}");
    let (status, _) = server.get("/v1/sessions/long");
    assert_eq!(status, 404);
    server.stop();

    let server = tiny.start(&[]);
    assert_eq!(server.say("whole", json!([user("And now?")])).0, 200);
    assert_eq!(server.session("whole")["facts"][0]["text"], whole);
    server.stop();

    // Of many sentences some are left out, and the first answer says so, once.
    let server = tiny.start(&["--session-persistent", "256"]);
    let sentences = (0..40).map(|i| format!("House {i} is old. "));
    let (status, answer) = begin(&server, "sentences", &sentences.collect::<String>());
    assert_eq!(status, 200, "{answer}");
    let condensed = answer["context"]["condensed"].as_str();
    assert!(condensed.is_some_and(|c| c.contains("tokens")), "{answer}");
    let (_, answer) = server.say("sentences", json!([user("And now?")]));
    assert!(answer["context"]["condensed"].is_null(), "{answer}");
}

/// A damaged file is the server's matter (500) and says what is wrong; the session can be deleted and replaced. An
/// earlier build answered 400 and refused to delete it. One that another process has open is 409.
#[test]
fn a_damaged_session_is_replaced_or_deleted() {
    let tiny = Tiny::new();
    let server = tiny.start(&[]);
    for name in ["anna", "ben", "cleo"] {
        let (status, made) = server.post("/v1/sessions", &json!({ "id": name }));
        assert_eq!(status, 201, "{made}");
        assert_eq!(server.say(name, json!([user("one")])).0, 200);
    }
    server.stop();
    for name in ["anna", "ben"] {
        let mut bytes = fs::read(tiny.file(name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(tiny.file(name), bytes).unwrap();
    }
    let held = File::open(tiny.file("cleo")).unwrap();
    held.lock().unwrap();

    let server = tiny.start(&[]);
    let (status, found) = server.post("/v1/search", &json!({ "words": "ONE" }));
    assert_eq!(status, 200, "{found}");
    let ids = |list: &str| -> Vec<Value> {
        let list = found[list].as_array().unwrap().iter();
        list.map(|one| one["id"].clone()).collect()
    };
    assert_eq!(
        (ids("data"), ids("skipped")),
        (vec![json!("cleo")], vec![json!("anna"), json!("ben")])
    );
    let matched = &found["data"][0]["match"];
    assert_eq!(
        (&matched["kind"], &matched["number"]),
        (&json!("turn"), &json!(0))
    );
    let shown = matched["text"].as_str().unwrap();
    assert!(shown.starts_with("one\n"), "{shown}");
    let reason = found["skipped"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("it is damaged"), "{reason}");
    for words in [json!(" "), json!("x".repeat(257)), json!(1), Value::Null] {
        let (status, refused) = server.post("/v1/search", &json!({ "words": words }));
        assert_eq!(status, 400, "{refused}");
    }
    let (status, body) = server.get("/v1/sessions/anna");
    assert_eq!(status, 500, "{body}");
    assert!(body.contains("session anna: it is damaged"), "{body}");
    assert!(
        body.contains("server_error") && body.contains("replace"),
        "{body}"
    );
    let (status, refused) = server.say("anna", json!([user("two")]));
    assert_eq!(status, 500, "{refused}");
    let (status, refused) = server.post("/v1/sessions", &json!({ "id": "anna" }));
    assert_eq!(status, 409, "{refused}");
    let (status, made) = server.post("/v1/sessions", &json!({ "id": "anna", "replace": true }));
    assert_eq!(status, 201, "{made}");
    assert_eq!(server.session("anna")["turns_said"], 0);
    assert_eq!(server.say("anna", json!([user("two")])).0, 200);
    assert_eq!(server.delete("/v1/sessions/ben"), 200);
    assert!(!tiny.file("ben").exists());

    assert_eq!(server.get("/v1/sessions/cleo").0, 409);
    assert_eq!(server.delete("/v1/sessions/cleo"), 409);
    let (status, refused) = server.post("/v1/sessions", &json!({ "id": "cleo", "replace": true }));
    assert_eq!(status, 409, "{refused}");
    drop(held);
    assert_eq!(server.session("cleo")["turns_said"], 1);
}

/// Sessions that expired, then the oldest until the rest are within the quota: each removal is in the list, a metric and
/// an alert, and the prefix file goes with the last session that opens with it.
#[test]
fn limits_of_all_sessions_remove_the_oldest_and_say_so() {
    let tiny = Tiny::new();
    let server = tiny.start(&[]);
    let names = ["a", "b", "c", "d"];
    for name in names {
        let opening = format!(
            "You keep the log of {}.",
            if name == "a" { "a ship" } else { "the harbour" }
        );
        let new = json!({ "id": name, "persistent": opening });
        assert_eq!(server.post("/v1/sessions", &new).0, 201);
        assert_eq!(server.say(name, json!([user("one")])).0, 200);
    }
    server.stop();
    let prefixes = tiny.sandbox.home().join("sessions").join("prefixes");
    let count = || fs::read_dir(&prefixes).map_or(0, |files| files.count());
    assert_eq!(count(), 2);
    for (days, name) in [40, 3, 2, 1].into_iter().zip(names) {
        let file = File::options().write(true).open(tiny.file(name)).unwrap();
        let saved = SystemTime::now() - Duration::from_secs(days * 86_400);
        file.set_modified(saved).unwrap();
    }
    let bytes = fs::metadata(tiny.file("d")).unwrap().len();
    let quota = (2 * bytes + bytes / 2).to_string();
    let server = tiny.start(&["--session-expiry", "30d", "--session-quota", &quota]);
    let (_, body) = server.get("/v1/sessions");
    let list: Value = serde_json::from_str(&body).unwrap();
    let ids = |of: &Value| -> Vec<String> {
        let of = of.as_array().unwrap().iter();
        of.map(|one| one["id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&list["data"]), ["c", "d"]);
    assert_eq!(ids(&list["removed"]), ["a", "b"]);
    assert_eq!(list["removed"][0]["reason"], "expired");
    assert_eq!(list["removed"][1]["reason"], "quota");
    assert_eq!(count(), 1, "the harbour is still told of");
    assert_eq!(
        server.metric("haversack_sessions_removed_total{reason=\"quota\"}"),
        1
    );
    assert_eq!(
        server.metric("haversack_sessions_removed_total{reason=\"expired\"}"),
        1
    );
    server.wait_until("haversack_alerts_total{name=\"removed\"}", 1);
    for name in ["c", "d"] {
        assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 200);
    }
    assert_eq!(count(), 0);
    server.stop();
    // The list outlives the server.
    let listed = tiny.sandbox.run(&["session", "list", "--json"]).json();
    assert_eq!(listed["removed"].as_array().unwrap().len(), 2);
}

const NURSE: &str = "I work as a nurse in Ghent.";

/// Texts of the facts of a session, without the one that it began with.
fn facts_of(server: &Server, name: &str) -> Vec<(String, Value)> {
    let session = server.session(name);
    let facts = session["facts"].as_array().unwrap().iter();
    let facts = facts.filter(|fact| fact["number"] != 0);
    facts
        .map(|fact| (text_of(&fact["text"]), fact["found_in"].clone()))
        .collect()
}

fn text_of(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Waits until something was found in a session.
fn found_in(server: &Server, name: &str) -> Vec<(String, Value)> {
    let began = Instant::now();
    loop {
        let facts = facts_of(server, name);
        if !facts.is_empty() {
            return facts;
        }
        assert!(began.elapsed() < PATIENCE, "nothing was found in {name}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Facts are found in the sessions that ask for it and in no other, each from the turn that says it, while nothing is answered; they
/// are edited and deleted as others are, leave with their turn, and are there after a restart.
#[test]
fn facts_write_themselves_where_a_session_asks_for_it() {
    let kept = Sandbox::alone();
    let start = |more: &[&str]| {
        let flags = [&["--memory", "96M", "--no-encoder"], more].concat();
        Server::start_in(Sandbox::at(&kept.home()), &flags)
    };
    let Some(server) = start(&[]) else { return };
    let asked = |name: &str, text: &str, auto_facts: Value| {
        let mut body = json!({
            "session_id": name,
            "messages": [user(text)],
            "max_tokens": 4,
            "temperature": 0,
        });
        if !auto_facts.is_null() {
            body["auto_facts"] = auto_facts;
        }
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
    };
    asked("off", NURSE, Value::Null);
    asked("anna", NURSE, json!(true));
    // A search is interrupted by whatever comes, and goes on or begins again after it.
    asked("anna", "Hello.", Value::Null);
    asked("off", "Hello.", Value::Null);
    let said = (format!("The user said: {NURSE}"), json!(0));
    assert_eq!(found_in(&server, "anna"), std::slice::from_ref(&said));
    // Its turn was said first: it was not looked through.
    assert_eq!(facts_of(&server, "off"), []);

    let new = json!({ "id": "ben", "auto_facts": true });
    let (status, made) = server.post("/v1/sessions", &new);
    assert_eq!((status, &made["auto_facts"]), (201, &json!(true)), "{made}");
    asked("ben", "Hello.", Value::Null);
    asked("ben", NURSE, Value::Null);
    assert_eq!(found_in(&server, "ben"), [(said.0.clone(), json!(1))]);
    // The turn is taken back, and its fact with it; it is said again.
    assert_eq!(server.delete("/v1/sessions/ben/turns/last"), 200);
    assert_eq!(facts_of(&server, "ben"), []);
    asked("ben", NURSE, Value::Null);
    assert_eq!(found_in(&server, "ben"), [(said.0.clone(), json!(2))]);
    let number = server.session("ben")["facts"][1]["number"].clone();
    let edited = json!({ "text": "The user is a nurse.", "supersedes": number });
    assert_eq!(server.post("/v1/sessions/ben/facts", &edited).0, 201);
    assert_eq!(facts_of(&server, "ben").len(), 1);
    let number = server.session("ben")["facts"][1]["number"].clone();
    assert_eq!(
        server.delete(&format!("/v1/sessions/ben/facts/{number}")),
        200
    );
    assert_eq!(facts_of(&server, "ben"), []);
    let (_, memory) = server.get("/v1/memory");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    assert!(memory["peak_bytes"].as_u64() <= memory["budget_bytes"].as_u64());
    // What was said last is not looked through: the server stops.
    asked("ben", NURSE, Value::Null);
    server.stop();

    let server = start(&["--auto-facts"]).unwrap();
    assert_eq!(facts_of(&server, "anna"), std::slice::from_ref(&said));
    let never = json!({ "id": "carl", "auto_facts": false });
    assert_eq!(server.post("/v1/sessions", &never).0, 201);
    for name in ["carl", "dora"] {
        let hello = json!([user(NURSE)]);
        assert_eq!(server.say(name, hello).0, 200);
    }
    assert_eq!(found_in(&server, "dora"), [said]);
    assert_eq!(facts_of(&server, "carl"), []);
}

/// A history carries the times of its messages, which become dates before them where a session asks for it, and absurd ones
/// are refused. Sessions show messages without dates, and an export says each date once.
#[test]
fn messages_of_a_dated_session_have_their_dates() {
    let tiny = Tiny::new();
    let server = tiny.start(&[]);
    let friday_ms = 1_573_812_000_000_u64;
    let at = |mut message: Value, time_ms: Value| {
        message["time_ms"] = time_ms;
        message
    };
    let body = |times: [Value; 2]| {
        let [one, two] = times;
        json!({
            "session_id": "anna",
            "dates": true,
            "messages": [
                at(user("My cat is called Miso."), one),
                at(assistant("Fine."), two.clone()),
                at(user("My dog is called Rex."), two),
                assistant("Good."),
                user("What are they called?"),
            ],
            "max_tokens": 4,
            "temperature": 0,
        })
    };
    let year_99999 = json!(3_093_527_980_800_000_u64);
    for (times, told) in [
        ([json!(friday_ms), year_99999], "not in the future"),
        ([json!(u64::MAX), json!(u64::MAX)], "not in the future"),
        ([json!(-1), json!(friday_ms)], "u64"),
        ([json!("today"), json!(friday_ms)], "u64"),
        ([json!(friday_ms), json!(friday_ms - 1)], "earlier message"),
    ] {
        let (status, refused) = server.post("/v1/chat/completions", &body(times));
        let message = text_of(&refused["error"]["message"]);
        assert_eq!(status, 400, "{refused}");
        assert!(
            message.contains(told) && message.lines().count() == 1,
            "{message}"
        );
    }
    assert_eq!(server.get("/v1/sessions/anna").0, 404);
    let day_ms = 86_400_000;
    let times = [json!(friday_ms), json!(friday_ms + day_ms)];
    let (status, answer) = server.post("/v1/chat/completions", &body(times.clone()));
    assert_eq!(status, 200, "{answer}");
    let view = server.session("anna");
    assert_eq!(view["dates"], true);
    assert_eq!(view["turns"][0]["question"], "My cat is called Miso.");
    assert_eq!(view["turns"][0]["time_ms"], times[0]);
    assert_eq!(view["turns"][1]["time_ms"], times[1]);
    assert!(view["turns"][2]["time_ms"].as_u64() > times[1].as_u64());
    // The whole conversation is the one that was saved.
    let mut again = body(times);
    again["max_tokens"] = json!(3);
    assert_eq!(server.post("/v1/chat/completions", &again).0, 200);
    assert_eq!(server.session("anna")["turns"].as_array().unwrap().len(), 3);
    // Without the setting there are no dates, but for all sessions of a server there may be.
    assert_eq!(server.say("plain", json!([user("Hello.")])).0, 200);
    server.stop();
    let server = tiny.start(&["--dates"]);
    assert_eq!(server.say("ben", json!([user("Hello.")])).0, 200);
    assert_eq!(server.session("ben")["turns"][0]["question"], "Hello.");
    server.stop();
    let export = |name| ["session", "export", name, text(&tiny.model)];
    let exported = |name| tiny.sandbox.run(&export(name)).stdout;
    let page = exported("anna");
    for (heading, question) in [
        (
            "## Turn 0, Friday, 15 November 2019",
            "My cat is called Miso.",
        ),
        (
            "## Turn 1, Saturday, 16 November 2019",
            "My dog is called Rex.",
        ),
    ] {
        assert_eq!(page.matches(&heading[10..]).count(), 1, "{page}");
        let turn = format!("{heading}\n\n**User**\n\n{question}\n\n");
        assert!(page.contains(&turn), "{page}");
    }
    assert!(exported("plain").contains("## Turn 0\n"));
    assert!(exported("ben").contains("## Turn 0, "));
}

/// Two people with the same cache key: the second one's system message holds, and no session is made of the key. A session
/// is joined only by who means it: another system message is refused.
#[test]
fn a_cache_key_is_no_session() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let ask = |who: &str, system: &str| {
        let body = json!({
            "user": who,
            "prompt_cache_key": "shared",
            "messages": [{ "role": "system", "content": system }, user("Who are you?")],
            "max_tokens": 8,
            "temperature": 0,
        });
        let (status, answer) = server.post("/v1/chat/completions", &body);
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["context"]["turn"], Value::Null, "{answer}");
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let first = ask("anna", "You are a pirate with a long beard and a parrot.");
    let second = ask("ben", "You are brief.");
    assert!(second < first, "{second} {first}");
    let (_, listed) = server.get("/v1/sessions");
    assert!(!listed.contains("key-"), "{listed}");

    let name = format!("joined-{}", std::process::id());
    let system = |text: &str| json!({ "role": "system", "content": text });
    let (status, _) = server.say(&name, json!([system("You are brief."), user("Hello.")]));
    assert_eq!(status, 200);
    let (status, refused) = server.say(&name, json!([system("You are a pirate."), user("Hello.")]));
    assert_eq!(status, 409, "{refused}");
    let told = refused["error"]["message"].as_str().unwrap();
    assert!(told.contains("system message"), "{told}");
    let (status, _) = server.say(&name, json!([system("You are brief."), user("And now?")]));
    assert_eq!(status, 200);
    assert_eq!(server.delete(&format!("/v1/sessions/{name}")), 200);
}

/// Owners by key: each sees its own sessions and nothing of the others, on every path; the first key owns what was there
/// before there were others.
#[test]
fn owners_do_not_meet() {
    let sandbox = Sandbox::alone();
    let Some(server) = Server::start_in(sandbox.same_home(), &["--memory", "64M"]) else {
        return;
    };
    assert_eq!(server.say("old", json!([user("Hello.")])).0, 200);
    server.stop();
    let keys = ["", "anna", "ben", "cleo"].map(|name| (name, format!("{name}-0123456789abcdef")));
    let lines = keys.iter().map(|(name, key)| match *name {
        "" => format!("{key}\n"),
        name => format!("{name}:{key}\n"),
    });
    let file = private(&sandbox, &lines.collect::<String>());
    let flags = ["--memory", "64M", "--api-key-file", text(&file)];
    let server = Server::start_in(sandbox.same_home(), &flags).unwrap();
    let call = |key: &str, method: &str, path: &str, body: Value| {
        let header = format!("Authorization: Bearer {key}\r\n");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let (status, body) = server.begun(&Server::request(method, path, &header, &body));
        (status, body)
    };
    let say = |key: &str, session: &str| {
        let body = json!({ "session_id": session, "messages": [user("Hello.")], "max_tokens": 4 });
        call(key, "POST", "/v1/chat/completions", body)
    };
    for (name, key) in &keys {
        assert_eq!(say(key, "diary").0, 200);
        assert_eq!(say(key, &format!("of-{name}")).0, 200);
    }
    assert_eq!(
        call("wrong-0123456789abcdef", "GET", "/v1/sessions", Value::Null).0,
        401
    );
    for (name, key) in &keys {
        let get = |path: &str| call(key, "GET", path, Value::Null);
        let (_, listed) = get("/v1/sessions");
        assert_eq!(listed.contains("\"old\""), name.is_empty(), "{listed}");
        let found = call(key, "POST", "/v1/search", json!({ "words": "hello" })).1;
        assert!(found.contains(&format!("\"of-{name}\"")), "{found}");
        let seen = [listed, found, get("/v1/memory").1, get("/metrics").1];
        let set = call(key, "PUT", "/v1/device", json!({ "thermal": null })).0;
        assert_eq!(set, if name.is_empty() { 200 } else { 403 });
        for (other, _) in keys.iter().filter(|(other, _)| other != name) {
            let theirs = format!("of-{other}");
            assert!(
                seen.iter()
                    .all(|text| !text.contains(&format!("{theirs}\""))),
                "{name}: {seen:?}"
            );
            let path = format!("/v1/sessions/{theirs}");
            for (method, path, body) in [
                ("GET", path.clone(), Value::Null),
                ("POST", format!("{path}/fork"), json!({ "id": "copy" })),
                ("POST", format!("{path}/facts"), json!({ "text": "x" })),
                ("DELETE", format!("{path}/facts/1"), Value::Null),
                ("POST", format!("{path}/turns/0/recall"), Value::Null),
                ("DELETE", format!("{path}/turns/last"), Value::Null),
                ("DELETE", path.clone(), Value::Null),
            ] {
                let (status, body) = call(key, method, &path, body);
                assert_eq!(status, 404, "{name}: {method} {path}: {body}");
            }
        }
    }
    for (name, key) in &keys {
        let (status, body) = call(key, "GET", &format!("/v1/sessions/of-{name}"), Value::Null);
        assert_eq!(status, 200, "{body}");
        let view: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(view["turns"].as_array().unwrap().len(), 1);
    }
}
