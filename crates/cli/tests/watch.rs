//! What a server reports: metrics, memory, and alerts as they happen.

use crate::common;

use common::server::Server;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};

/// Lines of `/metrics` of one name: labels as they stand there, and the number.
fn samples(server: &Server, name: &str) -> Vec<(String, f64)> {
    let (status, text) = server.get("/metrics");
    assert_eq!(status, 200);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, number) = rest.rsplit_once(' ')?;
            let labels = labels.strip_prefix('{')?.strip_suffix('}')?;
            Some((labels.to_owned(), number.parse().unwrap()))
        })
        .collect()
}

fn say(server: &Server, session: &str, text: &str) {
    let body = json!({
        "session_id": session,
        "messages": [{ "role": "user", "content": text }],
        "max_tokens": 4,
        "temperature": 0,
    });
    let (status, answer) = server.post("/v1/chat/completions", &body);
    assert_eq!(status, 200, "{answer}");
}

fn memory(server: &Server) -> Value {
    let (status, body) = server.get("/v1/memory");
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

/// Bytes by session, zone and codec add up; what was there and what was not is counted; and however many sessions there
/// are, labels have few values.
#[test]
fn metrics_say_where_bytes_are() {
    let Some(server) = Server::start_in(common::Sandbox::alone(), &["--memory", "200M"]) else {
        return;
    };
    let before = memory(&server);
    assert_eq!(before["sessions"], json!([]));
    assert_eq!(before["batch"]["active"], 0);
    say(&server, "anna", "My cat is called Miso.");
    say(&server, "anna", "What is my cat called?");
    for n in 0..19 {
        let (status, made) = server.post("/v1/sessions", &json!({ "id": format!("s{n}") }));
        assert_eq!(status, 201, "{made}");
    }

    let told = memory(&server);
    assert_eq!(told["sessions"].as_array().unwrap().len(), 20);
    let anna = &told["sessions"][0];
    assert_eq!(anna["id"], "anna", "the largest first");
    assert_eq!(
        (&anna["turns_said"], &anna["plan"]),
        (&json!(2), &json!("nothing changes"))
    );
    let runs = anna["strips"][0]["runs"].as_array().unwrap();
    let tokens: u64 = runs.iter().map(|run| run[0].as_u64().unwrap()).sum();
    assert_eq!(anna["position"], tokens);
    assert_eq!(runs[0], json!([4, "sinks"]));
    let text = told.to_string();
    assert!(!text.contains("Miso"), "no word of anybody");
    let parts = told["parts"].as_array().unwrap().iter();
    let sum: u64 = parts
        .filter(|p| p["part"] != "promised")
        .map(|p| p["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(told["held_bytes"], sum);

    let blocks = server.metric("haversack_memory_bytes{account=\"blocks\"}") as f64;
    let zones = samples(&server, "haversack_kv_bytes");
    let held: f64 = zones
        .iter()
        .filter(|(l, _)| l.contains("in=\"memory\""))
        .map(|z| z.1)
        .sum();
    assert_eq!(held, blocks);
    let by_session = samples(&server, "haversack_session_bytes");
    let names: BTreeSet<&str> = by_session
        .iter()
        .map(|(labels, _)| labels.split("\",").next().unwrap())
        .collect();
    assert!(
        names.contains("session=\"anna") && names.contains("session=\"other"),
        "{names:?}"
    );
    assert_eq!(names.len(), 17);
    let anna_bytes = by_session
        .iter()
        .filter(|(l, _)| l.contains("session=\"anna\""));
    assert_eq!(
        anna["bytes"].as_f64().unwrap(),
        anna_bytes.map(|s| s.1).sum::<f64>()
    );

    assert!(server.metric("haversack_cache_hit_tokens_total") > 20);
    let missed = |why: &str| {
        server.metric(&format!(
            "haversack_cache_miss_tokens_total{{reason=\"{why}\"}}"
        ))
    };
    assert!(missed("new") > 10 && missed("rows_gone") == 0 && missed("no_session") == 0);
    let (_, answer) = server.post(
        "/v1/completions",
        &json!({ "prompt": "hello there", "max_tokens": 2 }),
    );
    assert_eq!(
        missed("no_session"),
        answer["usage"]["prompt_tokens"].as_u64().unwrap()
    );
    // Looked at twice a second.
    server.wait_until("haversack_openings_total{how=\"computed\"}", 1);
    assert!(server.metric("haversack_tokens_total") >= 6);
}

/// An alert is a metric, an event for connected listeners, and part of the page; a later listener gets it too.
#[test]
fn alerts_are_told_as_they_happen() {
    let Some(server) = Server::start(&["--memory", "64M"]) else {
        return;
    };
    let listen = || {
        let mut stream = server.connect();
        let request = Server::request("GET", "/v1/events", "", "");
        stream.write_all(&request).unwrap();
        BufReader::new(stream).lines().map(Result::unwrap)
    };
    let mut early = listen();
    early.find(|line| line.is_empty()).unwrap();
    let heat = |state: &str| {
        let body = json!({ "thermal": state }).to_string();
        assert_eq!(
            server
                .raw(&Server::request("PUT", "/v1/device", "", &body))
                .0,
            200
        );
    };
    let alert = |lines: &mut dyn Iterator<Item = String>| -> Value {
        let mut lines = lines;
        (&mut lines).find(|line| line == "event: alert").unwrap();
        let data = lines.next().unwrap();
        serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()
    };
    assert_eq!(server.metric("haversack_alert{name=\"heat\"}"), 0);
    heat("serious");
    let mut late = {
        let told = alert(&mut early);
        assert_eq!(
            (&told["name"], &told["raised"]),
            (&json!("heat"), &json!(true))
        );
        listen()
    };
    assert_eq!(server.metric("haversack_alert{name=\"heat\"}"), 1);
    assert_eq!(server.metric("haversack_alerts_total{name=\"heat\"}"), 1);
    assert_eq!(memory(&server)["alerts"][0]["name"], "heat");
    assert_eq!(alert(&mut late)["name"], "heat");
    // Over, after a while.
    heat("nominal");
    for lines in [&mut early, &mut late] {
        let told = alert(lines);
        assert_eq!(
            (&told["name"], &told["raised"]),
            (&json!("heat"), &json!(false))
        );
    }
    assert_eq!(server.metric("haversack_alert{name=\"heat\"}"), 0);
    // A connected listener does not hold up the shutdown.
    server.stop();
}
