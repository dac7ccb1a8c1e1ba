//! Many clients at once over real connections: each gets its own answer, a client without a place is refused at once, a client
//! that leaves frees what it held, and slow readers cost other clients nothing.
//!
//! `CROWD_SECONDS=300 cargo test --release -p haversack-cli --test crowd -- --nocapture` is the long form. Times are
//! printed, not judged.

mod common;

use common::PATIENCE;
use common::server::{Server, events};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
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
    /// No place, and how long it took to hear so.
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
    if status.contains(" 429 ") {
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
    let mut tally = crowd(&server, seconds(6));
    server.wait_until_idle();
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

/// Unread answers beside four clients that read: how long those take, compared with everyone reading.
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
            let began = Instant::now();
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
            stop.store(true, Ordering::Relaxed);
            took
        })
    };
    let rounds = if is_long() { 9 } else { 1 };
    let mut ratios: Vec<f64> = (0..rounds)
        .map(|_| {
            let (read, unread) = (round(true), round(false));
            unread.as_secs_f64() / read.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "four readers beside {others} who do not read take {:.3} times as long as beside as many who do (median of {rounds}, {:.3} to {:.3})",
        ratios[rounds / 2],
        ratios[0],
        ratios[rounds - 1],
    );
    server.wait_until_idle();
}
