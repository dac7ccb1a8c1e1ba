//! The scripted suite of the bindings in Rust. Called with arguments it carries out the steps of one part; without, it is the test
//! that calls itself. `bindings/suite/README.md` says what the steps do.

use haversack::engine::runtime::Finish;
use haversack::session::turns::TurnPlace;
use haversack::{
    Answer, ContextSeen, Conversation, Engine, EngineBuilder, Error, ErrorKind, Pressure, Prompt,
};
use haversack_testing::suite;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Other arguments are those of a test program, such as a filter.
    if let [model, table, sessions, part] = arguments.as_slice()
        && let Ok(part) = part.parse()
    {
        return run(model, table, sessions, part);
    }
    let dir = tempfile::tempdir().unwrap();
    let this = std::env::current_exe().unwrap();
    suite::check(&suite::run(dir.path(), &mut || Command::new(&this)));
    println!("the suite is as recorded");
}

fn run(model: &str, table: &str, sessions: &str, part: usize) {
    let table = std::fs::read_to_string(table).unwrap();
    let steps: Vec<Map<String, Value>> = serde_json::from_str(&table).unwrap();
    let mut parts = steps.split(|step| step["do"] == "kill");
    let has_more = part + 1 < parts.clone().count();
    let mut player = Player {
        model: model.into(),
        sessions: sessions.into(),
        engine: None,
        conversations: HashMap::new(),
        answers: HashMap::new(),
    };
    for step in parts.nth(part).unwrap() {
        let step = Step(step);
        let said = player.play(&step);
        let said = said.unwrap_or_else(|kind| format!("{} error {kind}\n", step.text("do")));
        print!("{said}");
    }
    if has_more {
        println!("kill");
        std::io::stdout().flush().unwrap();
        suite::kill_self();
    }
}

struct Step<'a>(&'a Map<String, Value>);

impl Step<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, name: &str) -> i64 {
        self.0.get(name).and_then(Value::as_i64).unwrap_or(0)
    }

    fn real(&self, name: &str) -> f32 {
        self.0.get(name).and_then(Value::as_f64).unwrap_or(0.0) as f32
    }

    /// What a binding refuses before it calls the library.
    fn count(&self, name: &str) -> Result<Option<usize>, &'static str> {
        match self.number(name) {
            0 => Ok(None),
            number => usize::try_from(number)
                .map(Some)
                .map_err(|_| "invalid_input"),
        }
    }
}

struct Player {
    model: PathBuf,
    sessions: PathBuf,
    engine: Option<Engine>,
    conversations: HashMap<String, Conversation>,
    answers: HashMap<String, Answer>,
}

type Played<T> = Result<T, &'static str>;

impl Player {
    fn play(&mut self, step: &Step<'_>) -> Played<String> {
        let (action, name) = (step.text("do"), step.text("name"));
        let mut said = action.to_owned();
        match action {
            "plan" => {
                let plan = self.builder(step)?.plan().map_err(kind)?;
                let (weights, context) = (plan.weights_bytes, plan.context);
                let (token, whole) = (plan.token_bytes, plan.context_bytes);
                let max = plan.tokens_max.map_or(-1, |tokens| tokens as i64);
                said += &format!(
                    " weights={weights} context={context} token={token} whole={whole} max={max}"
                );
            }
            "open" => self.engine = Some(self.builder(step)?.start().map_err(kind)?),
            "second" => {
                let engine = self.builder(step)?.start().map_err(kind)?;
                engine.conversation(name).open().map_err(kind)?;
            }
            "conversation" => {
                let builder = self.engine().conversation(name);
                let opened = builder.system(step.text("system")).open().map_err(kind)?;
                self.conversations.insert(name.to_owned(), opened);
                said += &format!(" {name}");
            }
            "say" | "complete" => {
                let answer = self.send(step)?;
                if !name.is_empty() {
                    said += &format!(" {name}");
                }
                said += &read(answer)?;
            }
            "begin" => {
                let answer = self.send(step)?;
                self.answers.insert(step.text("answer").to_owned(), answer);
                said += &format!(" {}", step.text("answer"));
            }
            "read" => {
                let answer = self.answers.remove(step.text("answer")).unwrap();
                said += &format!(" {}{}", step.text("answer"), read(answer)?);
            }
            "pieces" => {
                let answer = self.answers.get_mut(step.text("answer")).unwrap();
                let mut text = String::new();
                for piece in answer.by_ref().take(step.number("count") as usize) {
                    text += &piece.map_err(kind)?;
                }
                said += &format!(" {}: {}", step.text("answer"), escaped(&text));
            }
            "cancel" => {
                self.answers[step.text("answer")].stopper().stop();
                said += &format!(" {}", step.text("answer"));
            }
            "end" => {
                let mut answer = self.answers.remove(step.text("answer")).unwrap();
                answer.text().map_err(kind)?;
                said += &format!(" {}: {}", step.text("answer"), finish(&answer));
            }
            "drop" => {
                self.answers.remove(step.text("answer")).unwrap();
                said += &format!(" {}", step.text("answer"));
            }
            "turns" => {
                said += &format!(" {name}");
                for view in self.conversation(name).turns().map_err(kind)? {
                    let place = match view.turn.place {
                        TurnPlace::Live => "memory",
                        TurnPlace::Spilled => "disk",
                        TurnPlace::Ids => "tokens",
                    };
                    let (number, tokens) = (view.turn.number, view.turn.tokens());
                    let visible = i32::from(view.turn.is_visible);
                    let (asked, answered) = (escaped(&view.text), escaped(&view.answer));
                    said += &format!(
                        "\n  {number} {place} visible={visible} tokens={tokens}: {asked} => {answered}"
                    );
                }
            }
            "facts" => {
                said += &format!(" {name}");
                for fact in self.conversation(name).facts().map_err(kind)? {
                    let found_in = fact.found_in.map_or(-1, |turn| turn as i64);
                    let (number, text) = (fact.number, escaped(&fact.text));
                    said += &format!("\n  {number} found_in={found_in}: {text}");
                }
            }
            "add_fact" => {
                let added = self.conversation(name).add_fact(step.text("text"));
                said += &format!(" {name} {}", added.map_err(kind)?);
            }
            "replace_fact" => {
                let old = step.number("number") as u64;
                let added = self.conversation(name).replace_fact(old, step.text("text"));
                said += &format!(" {name} {}", added.map_err(kind)?);
            }
            "revoke_fact" => {
                let number = step.number("number");
                let revoked = self.conversation(name).revoke_fact(number as u64);
                revoked.map_err(kind)?;
                said += &format!(" {name} {number}");
            }
            "recall" => {
                let number = step.number("number");
                let recalled = self.conversation(name).recall(number as u64);
                recalled.map_err(kind)?;
                said += &format!(" {name} {number}");
            }
            "undo" => {
                let undone = self.conversation(name).retract().map_err(kind)?;
                said += &format!(" {name} {}", undone.map_or(-1, |turn| turn as i64));
            }
            "fork" => {
                let to = step.text("to");
                let fork = self.conversation(name).fork(to).map_err(kind)?;
                self.conversations.insert(to.to_owned(), fork);
                said += &format!(" {name} {to}");
            }
            "suspend" => {
                self.conversation(name).suspend().map_err(kind)?;
                said += &format!(" {name}");
            }
            "resume" => {
                self.conversation(name).resume().map_err(kind)?;
                said += &format!(" {name}");
            }
            "delete" => {
                self.conversation(name).clone().delete().map_err(kind)?;
                said += &format!(" {name}");
            }
            "export" => {
                let page = self.conversation(name).export().map_err(kind)?;
                said += &format!(" {name}: {}", escaped(&page));
            }
            "conversations" => {
                for listed in self.engine().conversations().map_err(kind)? {
                    let (name, open) = (listed.name, i32::from(listed.is_open));
                    said += &format!("\n  {name} open={open}");
                }
            }
            "embed" => {
                let found = self.engine().embed(step.text("text")).map_err(kind)?;
                said += &format!(" {}", found.len());
            }
            "memory" => {
                let memory = self.engine().memory().map_err(kind)?;
                let (sequences, active) = (memory.sequences.len(), memory.active);
                let (waiting, kv) = (memory.waiting, memory.ledger.kv_live);
                said +=
                    &format!(" sequences={sequences} active={active} waiting={waiting} kv={kv}");
            }
            "suspend_all" => self.engine().suspend().map_err(kind)?,
            "trim" => {
                let bytes = usize::try_from(step.number("bytes")).map_err(|_| "invalid_input")?;
                let freed = self.engine().trim(bytes).map_err(kind)?;
                said += if freed > 0 { " freed=yes" } else { " freed=no" };
            }
            "pressure" => {
                let level = step.number("level");
                self.engine().pressure(match level {
                    0 => Pressure::Nominal,
                    1 => Pressure::Warning,
                    _ => Pressure::Critical,
                });
                said += &format!(" {level}");
            }
            "close" => self.engine().close().map_err(kind)?,
            other => panic!("no step {other}"),
        }
        said.push('\n');
        Ok(said)
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the table opens one first")
    }

    fn conversation(&self, name: &str) -> &Conversation {
        &self.conversations[name]
    }

    fn builder(&self, step: &Step<'_>) -> Played<EngineBuilder> {
        let model = match step.has("model") {
            true => PathBuf::from(step.text("model")),
            false => self.model.clone(),
        };
        let mut builder = Engine::open(model).sessions(&self.sessions);
        if step.has("memory") {
            builder = builder.memory(step.text("memory"));
        }
        if step.has("kv") {
            let codec = step.text("kv").parse().map_err(|_| "invalid_input");
            builder = builder.kv(codec?);
        }
        if let Some(tokens) = step.count("context")? {
            builder = builder.context(tokens);
        }
        if let Some(threads) = step.count("threads")? {
            builder = builder.threads(threads);
        }
        Ok(builder)
    }

    fn send(&self, step: &Step<'_>) -> Played<Answer> {
        let mut prompt = match step.has("name") {
            true => self.conversation(step.text("name")).say(step.text("text")),
            false => self.engine().complete(step.text("text")),
        };
        prompt = prompt
            .temperature(step.real("temperature"))
            .min_p(step.real("min_p"))
            .top_k(step.number("top_k") as usize)
            .seed(step.number("seed") as u64)
            .ignore_end(step.number("ignore_end") != 0);
        if let Some(tokens) = step.count("max_tokens")? {
            prompt = prompt.max_tokens(tokens);
        }
        if step.has("top_p") {
            prompt = prompt.top_p(step.real("top_p"));
        }
        if step.has("json_schema") {
            prompt = prompt.json_schema(step.text("json_schema"));
        }
        if step.has("regex") {
            prompt = prompt.regex(step.text("regex"));
        }
        Prompt::send(prompt).map_err(kind)
    }
}

/// An answer to its end, with its report.
fn read(mut answer: Answer) -> Played<String> {
    let text = answer.text().map_err(kind)?;
    let (report, finish) = (answer.report(), finish(&answer));
    let mut said = format!(": {}\n  {finish}", escaped(&text));
    let tokens = report.tokens;
    let (turn, seen, recalled) = match &report.context {
        ContextSeen::Completion(held) => {
            let evicted = held.usage.evicted();
            let seen = [held.usage.rows as u64, 0, 0, held.reused as u64, 0, evicted];
            (-1, seen, Vec::new())
        }
        ContextSeen::Turn { number, context } => {
            let (cached, again) = (context.cached, context.recomputed);
            let seen = [
                context.kept,
                context.masked,
                context.spilled,
                cached,
                again,
                context.evicted,
            ];
            let number = number.map_or(-1, |number| number as i64);
            (number, seen, context.recalled.clone())
        }
    };
    let [visible, hidden, spilled, cached, recomputed, evicted] = seen;
    let bytes = report.bytes();
    write!(
        said,
        " turn={turn} tokens={tokens} visible={visible} hidden={hidden}"
    )
    .unwrap();
    write!(
        said,
        " spilled={spilled} cached={cached} recomputed={recomputed}"
    )
    .unwrap();
    write!(
        said,
        " evicted={evicted} recalled={recalled:?} bytes={bytes}"
    )
    .unwrap();
    Ok(said)
}

fn finish(answer: &Answer) -> &'static str {
    match answer.finish() {
        None => "none",
        Some(Finish::Stop) => "stop",
        Some(Finish::Repetition) => "repetition",
        Some(Finish::Length) => "length",
        Some(Finish::Cancelled) => "cancelled",
    }
}

/// Bytes that are not printable ASCII, and backslashes, as `\xHH`.
fn escaped(text: &str) -> String {
    let mut line = String::new();
    for byte in text.bytes() {
        match byte {
            b'\\' | 0..b' ' | 0x7f.. => write!(line, "\\x{byte:02x}").unwrap(),
            byte => line.push(char::from(byte)),
        }
    }
    line
}

fn kind(error: Error) -> &'static str {
    match error.kind() {
        ErrorKind::InvalidInput => "invalid_input",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Busy => "busy",
        ErrorKind::TooLarge => "too_large",
        ErrorKind::OutOfMemory => "out_of_memory",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Closed => "closed",
        ErrorKind::Io => "io",
        ErrorKind::Internal => "internal",
        _ => "unknown",
    }
}
