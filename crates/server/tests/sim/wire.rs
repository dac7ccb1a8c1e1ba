//! A client's end of a connection: sends bytes, and reads an answer at its own pace.

use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// How a client reads.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// At once.
    pub bytes: usize,
    /// Before a read, on the simulated clock.
    pub pause: Duration,
    /// How often. Then it reads whatever is there.
    pub pauses: usize,
}

impl Pace {
    pub const EAGER: Pace = Pace {
        bytes: 1 << 16,
        pause: Duration::ZERO,
        pauses: 0,
    };
}

/// An answer as far as it came.
#[derive(Debug, Default)]
pub struct Answer {
    /// 0 where not even that came.
    pub status: u16,
    pub body: Vec<u8>,
    /// All of it is there.
    pub is_whole: bool,
}

pub struct Wire {
    stream: DuplexStream,
    pace: Pace,
    /// Read and not yet used.
    read: Vec<u8>,
}

pub fn request(method: &str, path: &str, body: Option<&Value>) -> Vec<u8> {
    let body = body.map(Value::to_string).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Wire {
    pub fn new(stream: DuplexStream, pace: Pace) -> Wire {
        Wire {
            stream,
            pace,
            read: Vec::new(),
        }
    }

    /// A server that has closed the connection hears nothing.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes).await;
    }

    /// `false`: nothing more comes.
    async fn more(&mut self) -> bool {
        match self.pace.pauses.checked_sub(1) {
            Some(left) => {
                self.pace.pauses = left;
                tokio::time::sleep(self.pace.pause).await;
            }
            None => self.pace = Pace::EAGER,
        }
        let before = self.read.len();
        self.read.resize(before + self.pace.bytes, 0);
        let got = self.stream.read(&mut self.read[before..]).await;
        let got = got.unwrap_or(0);
        self.read.truncate(before + got);
        got > 0
    }

    /// The bytes before the next `end`, without it.
    async fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            let found = self.read.windows(end.len()).position(|part| part == end);
            if let Some(at) = found {
                let rest = self.read.split_off(at + end.len());
                let mut taken = std::mem::replace(&mut self.read, rest);
                taken.truncate(at);
                return Some(taken);
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// Appends this many bytes, or as many as come.
    async fn take(&mut self, count: usize, into: &mut Vec<u8>) -> bool {
        while self.read.len() < count {
            if !self.more().await {
                into.append(&mut self.read);
                return false;
            }
        }
        into.extend(self.read.drain(..count));
        true
    }

    /// One answer. `leaves_after`: the client leaves when it has so many bytes of the body.
    pub async fn answer(&mut self, leaves_after: Option<usize>) -> Answer {
        let mut answer = Answer::default();
        let Some(head) = self.until(b"\r\n\r\n").await else {
            return answer;
        };
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
        answer.status = status.unwrap_or(0);
        let header = |name: &str| {
            let line = head.lines().find(|line| line.starts_with(name))?;
            Some(line[name.len()..].trim().to_owned())
        };
        let has_left = |body: &Vec<u8>| leaves_after.is_some_and(|most| body.len() >= most);
        if let Some(length) = header("content-length:") {
            let length = length.parse().unwrap_or(0);
            answer.is_whole = self.take(length, &mut answer.body).await;
            return answer;
        }
        while !has_left(&answer.body) {
            let Some(length) = self.until(b"\r\n").await else {
                return answer;
            };
            let length = String::from_utf8_lossy(&length).into_owned();
            let length = usize::from_str_radix(&length, 16).unwrap_or(0);
            let came = self.take(length, &mut answer.body).await;
            let ended = came && self.take(2, &mut Vec::new()).await;
            if !ended {
                return answer;
            }
            if length == 0 {
                answer.is_whole = true;
                return answer;
            }
        }
        answer
    }
}

/// The text of an answer, whichever API and form it has.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub text: String,
    /// With a reason to end.
    pub is_whole: bool,
    /// Why it failed after it had begun.
    pub error: Option<String>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    pub fn said(&self, is_stream: bool) -> Said {
        let text = |choice: &Value| {
            let places = ["/text", "/delta/content", "/message/content"];
            let found = places.iter().find_map(|place| choice.pointer(place));
            found.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        if !is_stream {
            let choice = &self.json()["choices"][0];
            return Said {
                text: text(choice),
                is_whole: self.is_whole && choice["finish_reason"].is_string(),
                error: None,
            };
        }
        let mut said = Said::default();
        let body = String::from_utf8_lossy(&self.body);
        // What comes after the last empty line may be half an event.
        let (events, _) = body.rsplit_once("\n\n").unwrap_or_default();
        for event in events.split("\n\n") {
            let Some(data) = event.strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                said.is_whole = self.is_whole;
                continue;
            }
            let part: Value = serde_json::from_str(data).unwrap_or_default();
            if let Some(error) = part["error"]["message"].as_str() {
                said.error = Some(error.to_owned());
            }
            said.text += &text(&part["choices"][0]);
        }
        said
    }
}
