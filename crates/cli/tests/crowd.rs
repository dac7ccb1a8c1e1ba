//! Many clients at once over real connections: each gets its own answer, a client without a place is refused at once, a client
//! that leaves frees what it held, and slow readers cost other clients nothing.
//!
//! `CROWD_SECONDS=300 cargo test --release -p haversack-cli --test crowd -- --nocapture` is the long form. Times are
//! printed, not judged.

mod common;

use common::group::{Group, OtherMachines, RssWatch, wait_until_below};
use common::server::{Server, bearer, events};
use common::{PATIENCE, Sandbox, smollm2, text};
use haversack::memory::background;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
/// Holds a few of the requests below, never a whole batch.
const MEMORY: &str = "20M";

/// A word that no other client has and that a model which sees it a few times goes on with.
fn marker(client: usize) -> String {
    let letters = b"BCDFGHJKLMNPQRSTVWXZ";
    let letter = |i: usize| char::from(letters[i % letters.len()]);
    let digits: String = [client, client / 20, client * 7 + 3, client * 13 + 1]
        .map(letter)
        .iter()
        .collect();
    format!("{digits}{:02}", client)
}

/// What a client asks for the `n`th time: its marker over and over, more or less often.
fn question(client: usize, n: usize) -> Value {
    let times = [6, 12, 24, 40][(client + n) % 4];
    let tokens = [16, 32, 64][(client + n) % 3];
    json!({
        "prompt": format!("{} ", marker(client)).repeat(times).trim_end(),
        "max_tokens": tokens,
        "temperature": 0,
        "stream": n.is_multiple_of(2),
    })
}

/// What came of a request.
enum Heard {
    Answer(String),
    /// No place, or no memory for the body, and how long it took to hear so.
    Busy(Duration),
    /// The client left in the middle.
    Left,
}

fn ask(server: &Server, body: &Value, leaves: bool) -> Heard {
    let mut stream = server.connect();
    let request = Server::request("POST", "/v1/completions", "", &body.to_string());
    let sent = Instant::now();
    stream.write_all(&request).unwrap();
    let mut lines = BufReader::new(stream);
    let mut status = String::new();
    lines.read_line(&mut status).unwrap();
    let took = sent.elapsed();
    if leaves && status.contains(" 200 ") {
        let mut some = [0; 512];
        let _ = lines.read(&mut some);
        return Heard::Left;
    }
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let (head, body_text) = rest.split_once("\r\n\r\n").unwrap();
    if status.contains(" 429 ") || status.contains(" 503 ") {
        assert!(head.to_lowercase().contains("retry-after: "), "{head}");
        return Heard::Busy(took);
    }
    assert!(status.contains(" 200 "), "{status}{rest}");
    if body["stream"] == true {
        let pieces = events(&unchunked(body_text));
        let last = pieces
            .iter()
            .rev()
            .find_map(|e| e["choices"][0]["finish_reason"].as_str());
        assert!(matches!(last, Some("stop" | "length")), "{last:?}");
        let said = pieces
            .iter()
            .filter_map(|e| e["choices"][0]["text"].as_str());
        return Heard::Answer(said.collect());
    }
    let answer: Value = serde_json::from_str(body_text).unwrap();
    let choice = &answer["choices"][0];
    assert!(choice["finish_reason"].is_string(), "{answer}");
    Heard::Answer(choice["text"].as_str().unwrap().to_owned())
}

/// A body without the lengths of its chunks.
fn unchunked(body: &str) -> String {
    let is_length = |line: &str| u32::from_str_radix(line, 16).is_ok();
    let lines = body.split("\r\n").filter(|line| !is_length(line));
    lines.collect()
}

/// What happened to the crowd.
#[derive(Default)]
struct Tally {
    /// Answers by question.
    answers: BTreeMap<String, String>,
    answered: usize,
    busy: Vec<Duration>,
    left: usize,
}

/// Clients that ask again as soon as they are answered, and a little later when refused: for `time`, and until one has
/// left in the middle of an answer.
fn crowd(server: &Server, time: Duration) -> Tally {
    let until = Instant::now() + time;
    let has_left = &AtomicBool::new(false);
    let client = |client: usize| {
        let mut tally = Tally::default();
        let mut n = client;
        let goes_on = || match has_left.load(Ordering::Relaxed) {
            true => Instant::now() < until,
            false => Instant::now() < until + PATIENCE,
        };
        while goes_on() {
            let body = question(client, n);
            let leaves = n % 11 == 5 && body["stream"] == true;
            match ask(server, &body, leaves) {
                Heard::Answer(said) => {
                    tally.answered += 1;
                    let key = body.to_string();
                    let before = tally.answers.entry(key).or_insert_with(|| said.clone());
                    assert_eq!(*before, said, "client {client}: another answer");
                }
                Heard::Busy(took) => {
                    tally.busy.push(took);
                    std::thread::sleep(Duration::from_millis(100 + (client as u64 * 37) % 200));
                }
                Heard::Left => {
                    tally.left += 1;
                    has_left.store(true, Ordering::Relaxed);
                }
            }
            n += 1;
        }
        tally
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|i| scope.spawn(move || client(i)))
            .collect();
        let mut all = Tally::default();
        for (i, thread) in threads.into_iter().enumerate() {
            let tally = thread.join().unwrap();
            for said in tally.answers.values() {
                let foreign = (0..CLIENTS)
                    .filter(|&j| j != i)
                    .map(marker)
                    .find(|m| said.contains(m));
                assert_eq!(
                    foreign, None,
                    "client {i} received text of another client: {said}"
                );
            }
            all.answered += tally.answered;
            all.left += tally.left;
            all.busy.extend(tally.busy);
            all.answers.extend(tally.answers);
        }
        all
    })
}

fn is_long() -> bool {
    std::env::var("CROWD_SECONDS").is_ok()
}

fn seconds(short: u64) -> Duration {
    let asked = std::env::var("CROWD_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    Duration::from_secs(asked.unwrap_or(short))
}

fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    times
        .get((last as f64 * share).round() as usize)
        .copied()
        .unwrap_or_default()
}

/// One server at a time: two would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn everybody_hears_their_own_answer() {
    let _alone = alone();
    let flags = ["--memory", MEMORY, "--batch", "8", "--queue", "24"];
    let Some(server) = Server::start(&flags) else {
        return;
    };
    let watch = RssWatch::new(server.pid());
    let mut tally = crowd(&server, seconds(6));
    server.wait_until_idle();
    check_ceiling(&server, watch);
    let most = tally.busy.iter().max().copied().unwrap_or_default();
    println!(
        "{} answered, {} left, {} found no place (told after {:.1} ms in the median, {:.1} at the 99th percentile, {:.1} at most)",
        tally.answered,
        tally.left,
        tally.busy.len(),
        quantile(&mut tally.busy, 0.5).as_secs_f64() * 1e3,
        quantile(&mut tally.busy, 0.99).as_secs_f64() * 1e3,
        most.as_secs_f64() * 1e3,
    );
    assert!(tally.answered > 0 && !tally.busy.is_empty() && tally.left > 0);
    assert_eq!(server.metric("haversack_requests_total{end=\"failed\"}"), 0);
    let (peak, budget) = (
        server.metric("haversack_memory_peak_bytes"),
        server.metric("haversack_memory_budget_bytes"),
    );
    println!("{peak} bytes at most of {budget}");
    assert!(peak <= budget);
    // The check above means something: models do go on with their markers.
    let own = |key: &str, said: &str| {
        (0..CLIENTS).any(|i| key.contains(&marker(i)) && said.contains(&marker(i)))
    };
    let told = tally
        .answers
        .iter()
        .filter(|(key, said)| own(key, said))
        .count();
    println!(
        "{told} of {} different answers have their marker",
        tally.answers.len()
    );
    assert!(told * 2 > tally.answers.len());
    // Each client alone gets the same text.
    for (key, said) in tally.answers.iter().step_by(tally.answers.len() / 16 + 1) {
        let body: Value = serde_json::from_str(key).unwrap();
        let Heard::Answer(alone) = ask(&server, &body, false) else {
            panic!("no place in an empty house");
        };
        assert_eq!(alone, *said, "{key}");
    }
}

const MIB: u64 = 1 << 20;
/// Beyond baseline and budget: what the allocator has not given back yet, and the stacks of threads.
const SLACK: u64 = 24 * MIB;

/// What the kernel saw of the process, not what the process says of itself, is within its budget and its baseline.
fn check_ceiling(server: &Server, watch: RssWatch) {
    let (max, samples) = watch.end();
    let (budget, baseline) = server.memory_told();
    println!(
        "RssAnon at most {:.1} MiB in {samples} samples; baseline {:.1}, budget {:.1}",
        max as f64 / MIB as f64,
        baseline as f64 / MIB as f64,
        budget as f64 / MIB as f64,
    );
    assert!(samples > 10 && baseline <= 24 * MIB, "{samples} {baseline}");
    assert!(max <= baseline + budget + SLACK, "{max} bytes");
}

/// Requests of hostile clients. Their bodies are as large as the server reads them, and made beforehand: the clients are on this
/// machine, and what making them takes would be missing to the server.
struct Attacks {
    /// One long text.
    text: Vec<u8>,
    /// Many short ones, which take far more memory than their bytes.
    messages: Vec<u8>,
    /// Numbers: as JSON values they are many times as large.
    ids: Vec<u8>,
    /// A schema that is long to compile.
    schema: Vec<u8>,
    /// An answer that is not read for a while.
    unread: Vec<u8>,
    /// The first half of a body.
    half: Vec<u8>,
}

impl Attacks {
    fn new() -> Attacks {
        let large = 4 * MIB as usize - 1000;
        let list = |entry: &str| entry.repeat(large / entry.len());
        let messages = list(r#"{"role":"user","content":"a"},"#);
        let messages = messages.trim_end_matches(',');
        let ids = list("7,");
        let ids = ids.trim_end_matches(',');
        let all: Vec<Value> = (0..10)
            .map(|i| json!({ "type": "string", "pattern": format!(".*x.{{{i}}}") }))
            .collect();
        let schema = json!({ "name": "s", "schema": { "allOf": all } });
        let schema = json!({
            "messages": [{ "role": "user", "content": "go on" }],
            "max_tokens": 8,
            "response_format": { "type": "json_schema", "json_schema": schema },
        });
        let text = json!({ "prompt": list("word "), "max_tokens": 4 });
        let unread = json!({ "prompt": "Once", "max_tokens": 200, "stream": true });
        let mut half = post(
            "/v1/completions",
            &json!({ "prompt": list("x") }).to_string(),
        );
        half.truncate(half.len() / 2);
        Attacks {
            text: post("/v1/completions", &text.to_string()),
            messages: post(
                "/v1/chat/completions",
                &format!(r#"{{"max_tokens":4,"messages":[{messages}]}}"#),
            ),
            ids: post(
                "/v1/completions",
                &format!(r#"{{"max_tokens":4,"prompt":[{ids}]}}"#),
            ),
            schema: post("/v1/chat/completions", &schema.to_string()),
            unread: post("/v1/completions", &unread.to_string()),
            half,
        }
    }

    /// What a hostile client does the `n`th time. Whether that was a turn of a session, and it was answered.
    fn run(&self, server: &Server, client: usize, n: usize) -> bool {
        let mut stream = server.connect();
        match (client + n) % 7 {
            0 => status_of(stream, &self.text),
            1 => status_of(stream, &self.messages),
            2 => status_of(stream, &self.ids),
            3 => status_of(stream, &self.schema),
            4 => {
                let _ = stream.write_all(&self.unread);
                std::thread::sleep(Duration::from_millis(700));
                return false;
            }
            5 => {
                let _ = stream.write_all(&self.half);
                return false;
            }
            // A turn of a session.
            _ => {
                let body = json!({
                    "messages": [{ "role": "user", "content": format!("I am {client}.") }],
                    "max_tokens": 8,
                    "session_id": format!("hostile-{client}"),
                });
                let request = post("/v1/chat/completions", &body.to_string());
                return status_of(stream, &request) == 200;
            }
        };
        false
    }
}

fn post(path: &str, body: &str) -> Vec<u8> {
    Server::request("POST", path, &bearer(CROWD), body)
}

/// Whatever the answer is, the server is not at a loss. It may close the connection before all was sent.
fn status_of(mut stream: TcpStream, request: &[u8]) -> u16 {
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let head = String::from_utf8_lossy(&answer[..answer.len().min(20)]).into_owned();
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let status: u16 = status.unwrap_or(429);
    assert!(status < 500 || status == 503, "{head}");
    status
}

/// Keys of the hostile clients and of the well-behaved one.
const CROWD: &str = "key-of-the-crowd";
const POLITE: &str = "key-of-the-polite-one";

/// What a client that asks one question after the other waited, and heard.
#[derive(Default)]
struct Polite {
    /// For the first token.
    first: Vec<Duration>,
    /// For `/health`.
    health: Vec<Duration>,
    refused: usize,
    /// By number of the question.
    answers: BTreeMap<usize, String>,
}

impl Polite {
    /// No two questions begin alike.
    fn ask(&mut self, server: &Server, n: usize) {
        let told = "the ferry left the harbour and the lamps went on along the quay, ".repeat(12);
        let body = json!({
            "prompt": format!("{} on day {n} {told}and then", marker(n)),
            "max_tokens": 8,
            "temperature": 0,
            "stream": true,
        });
        let mut stream = server.connect();
        let request = Server::request(
            "POST",
            "/v1/completions",
            &bearer(POLITE),
            &body.to_string(),
        );
        let sent = Instant::now();
        stream.write_all(&request).unwrap();
        let mut lines = BufReader::new(stream);
        let mut all = String::new();
        while !all.contains("data: ") && lines.read_line(&mut all).unwrap() > 0 {}
        let took = sent.elapsed();
        lines.read_to_string(&mut all).unwrap();
        let (head, body) = all.split_once("\r\n\r\n").unwrap();
        if !head.contains(" 200 ") {
            assert!(head.contains(" 429 ") || head.contains(" 503 "), "{all}");
            self.refused += 1;
            return;
        }
        self.first.push(took);
        let said = events(&unchunked(body));
        let said = said.iter().filter_map(|e| e["choices"][0]["text"].as_str());
        let said = said.collect();
        let before = self
            .answers
            .entry(n)
            .or_insert_with_key(|_| String::clone(&said));
        assert_eq!(*before, said, "another answer");
    }

    fn look(&mut self, server: &Server) {
        let sent = Instant::now();
        let (status, _, _) = server.raw(&Server::request("GET", "/health", "", ""));
        self.health.push(sent.elapsed());
        assert_eq!(status, 200);
    }
}

/// 64 clients send what costs most, and one with a key of its own asks questions: the process stays inside its baseline and its
/// budget by the kernel's count, inside a memory group, refuses that client nothing and answers as before.
#[test]
fn a_hostile_crowd_stays_under_the_ceiling() {
    let _alone = alone();
    let Some(model) = smollm2() else {
        return;
    };
    let sandbox = Sandbox::alone();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, format!("crowd:{CROWD}\npolite:{POLITE}\n")).unwrap();
    let mut permissions = std::fs::metadata(&keys).unwrap().permissions();
    permissions.set_mode(0o600);
    std::fs::set_permissions(&keys, permissions).unwrap();
    let flags = ["--addr", "127.0.0.1:0", "--json", "--memory", "200M"];
    let flags = [&flags[..], &["--api-key-file", text(&keys)]].concat();
    let command = sandbox.command(&[&["serve", text(&model)], &flags[..]].concat());
    let group = Group::new("crowd");
    let command = match &group {
        Some(group) => group.inside(&command),
        None => command,
    };
    let server = Server::spawn(sandbox, command).with_key(POLITE);
    let (_, memory) = server.get("/v1/memory");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    let (budget, baseline) = server.memory_told();
    let limit = baseline + memory["weights_bytes"].as_u64().unwrap() + budget + 64 * MIB;
    if let Some(group) = &group {
        assert!(group.set_limit(limit), "a limit of {limit}");
    } else {
        println!("SKIPPED: no memory group can be made here");
    }
    // Before the crowd and after it: the machine is not as fast all the time.
    let quiet_asks = if is_long() { 50 } else { 5 };
    let mut quiet = Polite::default();
    for n in 0..quiet_asks {
        quiet.ask(&server, n);
        quiet.look(&server);
    }
    let watch = RssWatch::new(server.pid());
    let attacks = &Attacks::new();
    let until = Instant::now() + seconds(8);
    let mut polite = Polite::default();
    let turns = &AtomicUsize::new(0);
    let elsewhere = &OtherMachines::new("crowd");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || {
                match elsewhere {
                    Some(elsewhere) => elsewhere.enter(),
                    None => background::lower_priority(),
                }
                let mut n = client;
                while Instant::now() < until {
                    let is_turn = attacks.run(server, client, n);
                    turns.fetch_add(is_turn.into(), Ordering::Relaxed);
                    n += 1;
                }
            });
        }
        let mut n = 1000;
        while Instant::now() < until {
            polite.ask(&server, n);
            polite.look(&server);
            std::thread::sleep(Duration::from_millis(50));
            n += 1;
        }
    });
    server.wait_until_idle();
    check_ceiling(&server, watch);
    for n in quiet_asks..2 * quiet_asks {
        quiet.ask(&server, n);
    }
    let turns = turns.load(Ordering::Relaxed) as u64;
    let put_away = server.metric("haversack_sessions_put_away_total{reason=\"others\"}");
    println!("sessions: {turns} turns, put away {put_away} times");
    assert!(put_away <= 4 * turns + CLIENTS as u64);
    let ms = |times: &mut Vec<Duration>, share| quantile(times, share).as_secs_f64() * 1e3;
    let usual = ms(&mut quiet.first, 0.5);
    println!(
        "first token, quiet: {usual:.1} ms in the median, {:.1} at the 99th percentile; in the crowd, of {}: {:.1} in the median, {:.1} at the 90th percentile, {:.1} at the 99th ({:.2} times), {} refused",
        ms(&mut quiet.first, 0.99),
        polite.first.len(),
        ms(&mut polite.first, 0.5),
        ms(&mut polite.first, 0.9),
        ms(&mut polite.first, 0.99),
        ms(&mut polite.first, 0.99) / usual,
        polite.refused,
    );
    println!(
        "/health: {:.1} ms in the median, {:.1} at the 99th percentile",
        ms(&mut polite.health, 0.5),
        ms(&mut polite.health, 0.99),
    );
    assert_eq!(polite.refused, 0);
    // The same questions again, with nobody else there.
    let asked: Vec<usize> = polite.answers.keys().copied().collect();
    for &n in asked.iter().step_by(asked.len() / 16 + 1) {
        polite.ask(&server, n);
    }
    // What the crowd has left behind goes back to the system: only sessions and prefixes stay.
    let (_, memory) = server.get("/v1/memory");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    let held = memory["held_bytes"].as_u64().unwrap();
    wait_until_below(server.pid(), baseline + held + 8 * MIB);
    server.stop();
}

/// A request that goes on for long, and its first line.
fn begin(server: &Server, prompt: &str, tokens: usize) -> BufReader<TcpStream> {
    let body = json!({
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "logit_bias": { "2": -100, "0": -100 },
        "stream": true,
    });
    let mut stream = server.connect();
    let request = Server::request("POST", "/v1/completions", "", &body.to_string());
    stream.write_all(&request).unwrap();
    let mut lines = BufReader::new(stream);
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(first.contains(" 200 "), "{first}");
    lines
}

#[test]
fn whoever_leaves_frees_what_it_held() {
    let _alone = alone();
    let Some(server) = Server::start(&["--memory", "100M", "--no-sessions", "--reuse", "0"]) else {
        return;
    };
    let blocks = "haversack_memory_bytes{account=\"blocks\"}";
    let long = "word ".repeat(3000);
    for (when, prompt) in [("answer", "Once upon a time"), ("prompt", long.trim())] {
        let mut times = Vec::new();
        for _ in 0..if is_long() { 20 } else { 3 } {
            let reader = begin(&server, prompt, 2000);
            let began = Instant::now();
            while server.metric(blocks) == 0 {
                assert!(began.elapsed() < PATIENCE, "{when}: it never entered");
            }
            let left = Instant::now();
            drop(reader);
            while server.metric(blocks) > 0 {
                assert!(left.elapsed() < PATIENCE, "{when}: nothing came back");
            }
            times.push(left.elapsed());
        }
        println!(
            "left in the middle of its {when}: everything back after {:.1} ms in the median, {:.1} at most",
            quantile(&mut times, 0.5).as_secs_f64() * 1e3,
            quantile(&mut times, 1.0).as_secs_f64() * 1e3,
        );
    }
}

/// Unread answers beside four clients that read: how many steps those take, compared with everyone reading.
#[test]
fn readers_who_do_not_read_cost_nobody_anything() {
    let _alone = alone();
    let others = if is_long() { 100 } else { 24 };
    let flags = [
        "--memory",
        "100M",
        "--batch",
        "8",
        "--queue",
        "120",
        "--no-sessions",
    ];
    let Some(server) = Server::start(&flags) else {
        return;
    };
    let round = |reads: bool| {
        let (stop, reading) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for i in 0..others {
                let (server, stop, reading) = (&server, &stop, &reading);
                scope.spawn(move || {
                    let mut reader = begin(server, &format!("{i} is"), 24);
                    reading.fetch_add(1, Ordering::Relaxed);
                    if reads {
                        let mut all = String::new();
                        reader.read_to_string(&mut all).unwrap();
                    }
                    while !stop.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                });
            }
            while reading.load(Ordering::Relaxed) < others {
                std::thread::sleep(Duration::from_millis(1));
            }
            let (began, steps) = (Instant::now(), server.metric("haversack_steps_total"));
            let four: Vec<_> = (0..4)
                .map(|i| {
                    let server = &server;
                    scope.spawn(move || {
                        let mut all = String::new();
                        begin(server, &format!("There are {i}"), 64)
                            .read_to_string(&mut all)
                            .unwrap();
                        assert!(all.contains("[DONE]"), "{all}");
                    })
                })
                .collect();
            four.into_iter().for_each(|reader| reader.join().unwrap());
            let took = began.elapsed();
            let steps = server.metric("haversack_steps_total") - steps;
            stop.store(true, Ordering::Relaxed);
            (took.as_secs_f64(), steps as f64)
        })
    };
    let rounds = if is_long() { 9 } else { 1 };
    for _ in 0..rounds {
        let ((read_time, read), (unread_time, unread)) = (round(true), round(false));
        println!(
            "four readers beside {others} who do not read take {:.3} times as many steps as beside as many who do, and {:.3} times as long",
            unread / read,
            unread_time / read_time,
        );
        assert!(unread <= 1.5 * read, "{unread} steps instead of {read}");
    }
    server.wait_until_idle();
}
