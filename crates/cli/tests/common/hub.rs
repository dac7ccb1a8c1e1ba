//! A model hub on this machine: the few addresses that fetching uses, and the ways in which hubs fail.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What goes wrong with the first downloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Status(&'static str),
    /// The connection ends after this many bytes of a body.
    CutAfter(usize),
    /// Other bytes, as many.
    WrongBytes,
    /// More bytes than the hub says elsewhere.
    WrongSize,
}

#[derive(Default)]
struct State {
    /// Path in the repository, and content.
    files: BTreeMap<String, Vec<u8>>,
    faults: Vec<Fault>,
    requests: Vec<Seen>,
    states_no_sha256: bool,
    architecture: Option<&'static str>,
    /// Of everything.
    status: Option<&'static str>,
    /// The second server, where files really are.
    elsewhere: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Seen {
    pub path: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

/// One repository, `owner/repo`.
#[derive(Clone)]
pub struct FakeHub {
    pub address: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    pub fn new(files: &[(&str, &[u8])]) -> FakeHub {
        let files = files
            .iter()
            .map(|(path, bytes)| (path.to_string(), bytes.to_vec()));
        let state = Arc::new(Mutex::new(State {
            files: files.collect(),
            ..State::default()
        }));
        let address = listen(state.clone());
        FakeHub { address, state }
    }

    /// Files are behind a redirect to another server, as on the real hub.
    pub fn redirecting(self) -> FakeHub {
        let elsewhere = listen(self.state.clone());
        self.set(|state| state.elsewhere = Some(elsewhere));
        self
    }

    /// The next downloads fail so, one after the other.
    pub fn fail(&self, faults: &[Fault]) {
        self.set(|state| state.faults = faults.to_vec());
    }

    pub fn answer_all_with(&self, status: Option<&'static str>) {
        self.set(|state| state.status = status);
    }

    pub fn state_no_sha256(&self) {
        self.set(|state| state.states_no_sha256 = true);
    }

    pub fn state_architecture(&self, name: &'static str) {
        self.set(|state| state.architecture = Some(name));
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
    }

    /// Requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listen(state: Arc<Mutex<State>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let own = address.clone();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (state, own) = (state.clone(), own.clone());
            thread::spawn(move || answer(&state, &own, stream));
        }
    });
    format!("http://{address}")
}

fn answer(state: &Mutex<State>, own: &str, mut stream: TcpStream) {
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = lines.first().and_then(|line| line.split(' ').nth(1));
    let path = path.unwrap_or_default().to_owned();
    let header = |name: &str| {
        let lines = lines.iter().filter_map(|line| line.split_once(": "));
        let mut lines = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        lines.next().map(|(_, value)| value.to_owned())
    };
    let seen = Seen {
        path: path.clone(),
        range: header("range"),
        authorization: header("authorization"),
    };
    let reply = reply(&mut state.lock().unwrap(), own, &seen);
    state.lock().unwrap().requests.push(seen);
    let _ = stream.write_all(&reply);
    let _ = stream.shutdown(Shutdown::Both);
}

fn reply(state: &mut State, own: &str, seen: &Seen) -> Vec<u8> {
    if let Some(status) = state.status {
        return message(status, &[], b"", usize::MAX);
    }
    let api = "/api/models/owner/repo";
    if seen.path == format!("{api}/revision/main") {
        let gguf = state.architecture.map_or(String::new(), |name| {
            format!(", \"gguf\": {{\"architecture\": \"{name}\"}}")
        });
        let text =
            format!("{{\"sha\": \"{COMMIT}\", \"cardData\": {{\"license\": \"mit\"}}{gguf}}}");
        return message("200 OK", &[], text.as_bytes(), usize::MAX);
    }
    if seen.path == format!("{api}/tree/{COMMIT}?recursive=true") {
        let entries = state.files.iter().map(|(path, bytes)| {
            let lfs = match state.states_no_sha256 {
                true => String::new(),
                false => format!(", \"lfs\": {{\"oid\": \"{}\"}}", sha256(bytes)),
            };
            let size = bytes.len();
            format!("{{\"type\": \"file\", \"path\": \"{path}\", \"size\": {size}{lfs}}}")
        });
        let text = format!("[{}]", entries.collect::<Vec<_>>().join(", "));
        return message("200 OK", &[], text.as_bytes(), usize::MAX);
    }
    let file = seen
        .path
        .strip_prefix(&format!("/owner/repo/resolve/{COMMIT}/"));
    let bytes = file.and_then(|file| state.files.get(file)).cloned();
    let Some(bytes) = bytes else {
        return message("404 Not Found", &[], b"Entry not found", usize::MAX);
    };
    if let Some(elsewhere) = state
        .elsewhere
        .as_ref()
        .filter(|other| !other.ends_with(own))
    {
        let location = format!("Location: {elsewhere}{}", seen.path);
        return message("302 Found", &[location], b"", usize::MAX);
    }
    let fault = (!state.faults.is_empty()).then(|| state.faults.remove(0));
    let (bytes, cut) = match fault {
        Some(Fault::Status(status)) => return message(status, &[], b"", usize::MAX),
        Some(Fault::CutAfter(cut)) => (bytes, cut),
        Some(Fault::WrongBytes) => (vec![7; bytes.len()], usize::MAX),
        Some(Fault::WrongSize) => ([bytes, vec![7; 10]].concat(), usize::MAX),
        None => (bytes, usize::MAX),
    };
    let from = seen.range.as_ref().and_then(|range| {
        let range = range.strip_prefix("bytes=")?;
        range.trim_end_matches('-').parse::<usize>().ok()
    });
    match from {
        Some(from) => {
            let (last, all) = (bytes.len() - 1, bytes.len());
            let range = format!("Content-Range: bytes {from}-{last}/{all}");
            message("206 Partial Content", &[range], &bytes[from..], cut)
        }
        None => message("200 OK", &[], &bytes, cut),
    }
}

/// With the body cut after `cut` bytes.
fn message(status: &str, headers: &[String], body: &[u8], cut: usize) -> Vec<u8> {
    let mut head = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for header in headers {
        head += &format!("{header}\r\n");
    }
    let mut bytes = format!("{head}\r\n").into_bytes();
    bytes.extend(&body[..body.len().min(cut)]);
    bytes
}
