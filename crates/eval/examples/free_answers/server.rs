//! Talks in sessions of a running server. Not an HTTP client: one request a connection, answers with a length.

use crate::Failure;
use haversack_eval::free_answers::library::{
    ANSWER_TOKENS, GivenAnswer, InstructionPlace, TalkListener,
};
use haversack_eval::long_talk::{LongQuestion, LongTalk};
use haversack_eval::talk::Exchange;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

const COPY: &str = "question";

pub struct ServerTalks {
    address: String,
    instruction: InstructionPlace,
}

impl ServerTalks {
    pub fn new(address: &str, instruction: InstructionPlace) -> ServerTalks {
        ServerTalks {
            address: address.trim_end_matches('/').to_owned(),
            instruction,
        }
    }

    /// The status and what was answered.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<(u16, Value), Failure> {
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let mut stream = TcpStream::connect(&self.address)?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len(),
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        let status = head.split(' ').nth(1).ok_or("no status")?.parse()?;
        Ok((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    fn ask_of(&self, path: (&str, &str), body: &Value) -> Result<Value, Failure> {
        match self.call(path.0, path.1, body)? {
            (200..300, answer) => Ok(answer),
            (status, answer) => Err(format!("{} {}: {status} {answer}", path.0, path.1).into()),
        }
    }

    fn chat(&self, session: &str, messages: Vec<Value>, tokens: usize) -> Result<Value, Failure> {
        let body = json!({
            "session_id": session,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
        });
        self.ask_of(("POST", "/v1/chat/completions"), &body)
    }

    fn has_heard(&self, name: &str, turns: usize) -> Result<bool, Failure> {
        let path = format!("/v1/sessions/{name}");
        let (status, session) = self.call("GET", &path, &Value::Null)?;
        let last = session["turns"].as_array().and_then(|turns| turns.last());
        let last = last.and_then(|turn| turn["number"].as_u64());
        Ok(status == 200 && last == Some(turns as u64 - 1))
    }
}

impl TalkListener for ServerTalks {
    type Error = Failure;

    fn hear(&mut self, name: &str, turns: &[Exchange]) -> Result<(), Failure> {
        if self.has_heard(name, turns.len())? {
            return Ok(());
        }
        let path = format!("/v1/sessions/{name}");
        self.call("DELETE", &path, &Value::Null)?;
        let message = |role: &str, text: &str| json!({ "role": role, "content": text });
        let mut messages = vec![message("system", &self.instruction.system())];
        for (said, answered) in turns {
            messages.push(message("user", said));
            messages.push(message("assistant", answered));
        }
        messages.push(message("user", "Thanks."));
        self.chat(name, messages, 1)?;
        let last = format!("{path}/turns/last");
        self.ask_of(("DELETE", &last), &Value::Null).map(drop)
    }

    fn ask(
        &mut self,
        name: &str,
        talk: &LongTalk,
        asked: &LongQuestion,
    ) -> Result<GivenAnswer, Failure> {
        let copy = format!("/v1/sessions/{COPY}");
        // Of a run that was cut off.
        self.call("DELETE", &copy, &Value::Null)?;
        let fork = format!("/v1/sessions/{name}/fork");
        self.ask_of(("POST", &fork), &json!({ "id": COPY }))?;
        let message = self.instruction.message(&asked.question);
        let message = json!({ "role": "user", "content": message });
        let start = Instant::now();
        let answer = self.chat(COPY, vec![message], ANSWER_TOKENS)?;
        let whole = start.elapsed();
        let session = self.ask_of(("GET", &copy), &Value::Null)?;
        self.ask_of(("DELETE", &copy), &Value::Null)?;
        let context = &answer["context"];
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let turns = list(&session["turns"]).into_iter();
        let visible = turns.filter(|turn| turn["place"] == "visible");
        let shown = visible.map(|turn| turn["number"].clone());
        let mut is_shown = vec![false; talk.turns.len()];
        // A session shows its last turns alone.
        for turn in shown.chain(list(&context["recalled"])) {
            let turn = turn.as_u64().and_then(|turn| usize::try_from(turn).ok());
            if let Some(is_shown) = turn.and_then(|turn| is_shown.get_mut(turn)) {
                *is_shown = true;
            }
        }
        let text = &answer["choices"][0]["message"]["content"];
        Ok(GivenAnswer {
            text: text.as_str().unwrap_or_default().to_owned(),
            is_shown,
            tokens: context["kept"].as_u64().unwrap_or_default(),
            first: whole,
            whole,
        })
    }
}
