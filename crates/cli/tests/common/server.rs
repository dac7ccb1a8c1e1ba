//! The program as a server, on a port of its own, and what is said to it.

use super::{PATIENCE, Sandbox, smollm2, text};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server on a port of its own, for as long as this lives.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    /// What it said at its start.
    pub told: Value,
    /// Sent with requests that have no headers of their own.
    headers: String,
    _sandbox: Sandbox,
}

impl Server {
    pub fn start(flags: &[&str]) -> Option<Server> {
        Server::start_in(Sandbox::shared(), flags)
    }

    pub fn start_in(sandbox: Sandbox, flags: &[&str]) -> Option<Server> {
        let model = smollm2()?;
        Some(Server::start_with(sandbox, &model, flags))
    }

    pub fn start_with(sandbox: Sandbox, model: &Path, flags: &[&str]) -> Server {
        let mut words = vec!["serve", text(model), "--addr", "127.0.0.1:0", "--json"];
        words.extend(flags);
        let command = sandbox.command(&words);
        Server::spawn(sandbox, command)
    }

    /// The server that a command starts.
    pub fn spawn(sandbox: Sandbox, mut command: Command) -> Server {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        // Whatever happens from here on, it ends with this.
        let mut server = Server {
            child,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            told: Value::Null,
            headers: String::new(),
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
        server.told = told;
        server
    }

    /// The same, asked with a key.
    pub fn with_key(mut self, key: &str) -> Server {
        self.headers = bearer(key);
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said of its memory at its start: the budget and the baseline.
    pub fn memory_told(&self) -> (u64, u64) {
        let told = |name: &str| self.told["memory"][name].as_u64().unwrap();
        (told("budget_bytes"), told("baseline_bytes"))
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Status, headers and body of whatever comes back.
    pub fn raw(&self, request: &[u8]) -> (u16, String, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        (status(head), head.to_lowercase(), body.to_owned())
    }

    /// Status and body; of events, which may never end, the status.
    pub fn begun(&self, request: &[u8]) -> (u16, String) {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        let mut lines = BufReader::new(stream);
        let (mut head, mut body) = (String::new(), String::new());
        while !head.ends_with("\r\n\r\n") && lines.read_line(&mut head).unwrap() > 0 {}
        if !head.contains("text/event-stream") {
            lines.read_to_string(&mut body).unwrap();
        }
        (status(&head), body)
    }

    pub fn request(method: &str, path: &str, headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n{body}").into_bytes()
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = Server::request("POST", path, &self.headers, &body.to_string());
        let (status, _, body) = self.raw(&request);
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    /// The same where reading the prompt takes minutes.
    pub fn post_slowly(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(5 * PATIENCE)).unwrap();
        let request = Server::request("POST", path, &self.headers, &body.to_string());
        stream.write_all(&request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (status(head), serde_json::from_str(body).unwrap_or_default())
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) = self.raw(&Server::request("GET", path, &self.headers, ""));
        (status, body)
    }

    pub fn metric(&self, name: &str) -> u64 {
        let (_, text) = self.get("/metrics");
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Asks the server to stop, and waits until it has.
    pub fn stop(mut self) {
        let pid = self.child.id().to_string();
        let kill = std::process::Command::new("kill").arg(&pid).status();
        assert!(kill.unwrap().success());
        assert!(self.child.wait().unwrap().success());
    }

    /// No request is active.
    pub fn wait_until_idle(&self) {
        self.wait_until("haversack_requests_active", 0);
        self.wait_until("haversack_requests_waiting", 0);
    }

    /// No request is active and the cache is empty (`--reuse 0`: the prefix cache too).
    pub fn wait_until_empty(&self) {
        self.wait_until_idle();
        self.wait_until("haversack_memory_bytes{account=\"blocks\"}", 0);
    }

    pub fn wait_until(&self, name: &str, value: u64) {
        let began = Instant::now();
        while self.metric(name) != value {
            assert!(
                began.elapsed() < PATIENCE,
                "{name}: not {value}\n{}",
                self.get("/metrics").1
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The header of a client that has this key.
pub fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

fn status(head: &str) -> u16 {
    let word = head.split(' ').nth(1);
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn hello(tokens: u64) -> Value {
    json!({
        "messages": [{ "role": "user", "content": "hello" }],
        "max_tokens": tokens,
        "temperature": 0,
    })
}

pub fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// The events of a stream, without the last line.
pub fn events(body: &str) -> Vec<Value> {
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
