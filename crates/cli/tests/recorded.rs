//! The recorded set: what the program answered before the code was moved, replayed.
//!
//! `recorded/` holds command lines (`commands.toml`), conversations with the server (`http.toml`), files that an earlier
//! build wrote (`files/`), and what came of them (`expected/`). A replay is red on every field that differs and is not
//! listed in `intended.toml`. What is never compared is listed in `recorded/masks.rs`.
//!
//! ```text
//! cargo test -p haversack-cli --test recorded                              replay with the program that was built
//! HAVERSACK_REPLAY=PROGRAM cargo test -p haversack-cli --test recorded     with another one
//! HAVERSACK_RECORD=PROGRAM cargo test -p haversack-cli --test recorded     write `expected/` and `files/` anew
//! ```

#![cfg(unix)]

use crate::common;
#[path = "recorded/compare.rs"]
mod compare;
#[path = "recorded/masks.rs"]
mod masks;

use common::server::Server;
use common::{Ended, Sandbox, given, text};
use compare::{Difference, Intended};
use haversack::gguf::write::Planned;
use haversack::kernels::format::WeightType;
use haversack_testing::models::{Mix, Spec};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// In a record in place of a document.
const NO_JSON: &str = "<not JSON>";

/// What a server tells of itself is as old as this at most.
const SETTLED: Duration = Duration::from_secs(5);

/// A case's record, by the case's name.
type Records = BTreeMap<String, Value>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Commands {
    /// Words that stand for several in a line: `{run}`.
    short: BTreeMap<String, String>,
    /// How `files/` is written: a line, and what is typed into it.
    write: Vec<Case>,
    command: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    line: String,
    /// A model that the line does not name, and that must be here.
    needs: Option<String>,
    #[serde(default)]
    stdin: String,
    #[serde(default)]
    output: Output,
    /// In a home that has what an earlier build left, and with a look at which files of it change.
    #[serde(default)]
    files: bool,
}

/// What of an output is compared.
#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Output {
    /// One JSON document.
    #[default]
    Json,
    /// The names of one JSON document.
    Shape,
    /// Standard output line by line.
    Text,
    /// The same, and stderr, as words.
    Words,
    /// Nothing but an error: its code, and that it is one line.
    Error,
    /// The options that are there; the text as words.
    Help,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversations {
    server: Vec<Conversation>,
}

/// A server, and what is asked of it, in this order.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Conversation {
    name: String,
    line: String,
    #[serde(default)]
    files: bool,
    /// With the sentence encoder.
    #[serde(default)]
    encoder: bool,
    request: Vec<Request>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    name: String,
    /// `POST /v1/chat/completions`
    to: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    /// A body of this many bytes.
    #[serde(default)]
    body_bytes: usize,
    /// Metrics whose values are compared as well.
    #[serde(default)]
    values: Vec<String>,
    /// The answer lags behind what it tells of: it is asked for until it is as recorded.
    #[serde(default)]
    settles: bool,
    #[serde(default)]
    output: Output,
}

#[test]
fn replays() {
    let stage = Stage::new();
    let mut found = stage.commands();
    found.extend(stage.conversations());
    if stage.is_recording {
        let broken = found
            .iter()
            .filter(|(_, found)| found.to_string().contains(NO_JSON));
        let broken: Vec<String> = broken
            .map(|(name, found)| format!("{name}: {found}"))
            .collect();
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert_eq!(
            found.len(),
            stage.names().len(),
            "recording needs all models"
        );
        write_expected(&found);
        return;
    }
    print!("{}", masks::list());
    let recorded = &stage.expected;
    let mut differences = Vec::new();
    for (name, found) in &found {
        let recorded = recorded.get(name).unwrap_or(&Value::Null);
        differences.extend(Difference::all(name, recorded, found));
    }
    let intended = Intended::read(&read(&data("intended.toml")));
    let ran: BTreeSet<String> = found.into_keys().collect();
    let known = stage.names();
    let unknown = recorded.keys().filter(|name| !known.contains(*name));
    let mut problems: Vec<String> = unknown
        .map(|name| format!("{name} is recorded, and no case"))
        .collect();
    problems.extend(intended.judge(&differences, &ran));
    assert!(
        problems.is_empty(),
        "{} differences from the recorded set:\n{}",
        problems.len(),
        problems.join("\n")
    );
    println!("{} of {} cases replayed", ran.len(), known.len());
}

/// The program, the models and the cases.
struct Stage {
    is_recording: bool,
    program: PathBuf,
    commands: Commands,
    conversations: Conversations,
    expected: Records,
    /// Paths and names that stand in a line, as `{tiny}`.
    places: BTreeMap<&'static str, Option<PathBuf>>,
    _models: Sandbox,
}

impl Stage {
    fn new() -> Stage {
        let models = Sandbox::new();
        let recorder = std::env::var_os("HAVERSACK_RECORD");
        let is_recording = recorder.is_some();
        let program = recorder.or_else(|| std::env::var_os("HAVERSACK_REPLAY"));
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_haversack").into());
        // Help shows the name under which it was called.
        let link = models.path("haversack");
        std::os::unix::fs::symlink(program, &link).unwrap();
        if is_recording {
            write_models();
        }
        let large = models.path("large.gguf");
        write_large(&large);
        let key = models.write("key", "the-recorded-secret\n");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let places = BTreeMap::from([
            ("key", Some(key)),
            ("data", data("x").parent().map(Path::to_owned)),
            ("tiny", Some(data("tiny.gguf"))),
            ("gemma", Some(data("gemma.gguf"))),
            ("large", Some(large)),
            ("smollm2", common::smollm2()),
            ("encoder", common::model("all-minilm-l6-v2")),
        ]);
        let stage = Stage {
            is_recording,
            program: link,
            commands: toml::from_str(&read(&data("commands.toml"))).unwrap(),
            expected: if is_recording {
                Records::new()
            } else {
                read_expected()
            },
            conversations: toml::from_str(&read(&data("http.toml"))).unwrap(),
            places,
            _models: models,
        };
        if is_recording {
            stage.write_files();
        }
        stage
    }

    /// All cases, whether their models are here or not.
    fn names(&self) -> BTreeSet<String> {
        let commands = self.commands.command.iter().map(|case| case.name.clone());
        let requests = self.conversations.server.iter().flat_map(|server| {
            let names = server.request.iter();
            names.map(|request| format!("{}/{}", server.name, request.name))
        });
        let all: Vec<String> = commands.chain(requests).collect();
        let names: BTreeSet<String> = all.iter().cloned().collect();
        assert_eq!(names.len(), all.len(), "a name stands for one case");
        names
    }

    /// A home with the models that were fetched, and perhaps what an earlier build left.
    fn sandbox(&self, has_files: bool, has_encoder: bool) -> Sandbox {
        let sandbox = if has_files {
            Sandbox::new()
        } else {
            Sandbox::alone()
        };
        let models = sandbox.home().join("models");
        fs::create_dir_all(&models).unwrap();
        let encoder = self.places["encoder"].as_ref().filter(|_| has_encoder);
        for model in self.places["smollm2"].iter().chain(encoder) {
            let name = model.file_name().unwrap();
            std::os::unix::fs::symlink(model, models.join(name)).unwrap();
        }
        if has_files {
            unzip(&data("files.zip"), &sandbox.home());
        }
        sandbox.with_program(self.program.clone())
    }

    /// The words of a line; `None`, said loudly, where a model of it is not here.
    fn words(&self, line: &str, sandbox: &Sandbox) -> Option<Vec<String>> {
        let mut line = line.to_owned();
        for (short, long) in &self.commands.short {
            line = line.replace(&format!("{{{short}}}"), long);
        }
        line = line.replace("{home}", text(&sandbox.home()));
        for (name, path) in &self.places {
            let name = format!("{{{name}}}");
            if line.contains(&name) {
                line = line.replace(&name, text(path.as_deref()?));
            }
        }
        Some(split(&line))
    }

    fn run(&self, case: &Case, sandbox: &Sandbox) -> Option<Ended> {
        if let Some(name) = &case.needs {
            self.places[name.as_str()].as_ref()?;
        }
        let words = self.words(&case.line, sandbox)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = sandbox.command(&words);
        command.current_dir(sandbox.directory.path());
        // Help is as wide as the terminal, where one is named.
        command.env_remove("COLUMNS");
        // A program that ends early does not read.
        Some(given(&mut command, &case.stdin).0)
    }

    fn commands(&self) -> Records {
        let sandbox = self.sandbox(false, false);
        // Cases of `adaptive` with a small budget have no room to measure the model.
        for depth in ["short", "deep"] {
            let tiny = text(self.places["tiny"].as_deref().unwrap()).to_owned();
            let run = [
                "run",
                &tiny,
                "--raw",
                "--prompt",
                "a",
                "-n",
                "1",
                "--threads",
                "2",
            ];
            let probed = ["--policy", "adaptive", "--probe", depth];
            let ended = sandbox.run(&[&run[..], &probed].concat());
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        }
        let mut records = Records::new();
        for case in &self.commands.command {
            let fresh = case.files.then(|| self.sandbox(true, false));
            let sandbox = fresh.as_ref().unwrap_or(&sandbox);
            let before = case.files.then(|| contents(&sandbox.home()));
            let Some(ended) = self.run(case, sandbox) else {
                println!("SKIPPED: {}", case.name);
                continue;
            };
            let mut record = self.record(case, &ended, sandbox);
            if let Some(before) = before {
                record["files"] = changes(&before, &contents(&sandbox.home()));
            }
            records.insert(case.name.clone(), record);
        }
        records
    }

    fn record(&self, case: &Case, ended: &Ended, sandbox: &Sandbox) -> Value {
        let mut words = Map::new();
        let mut record = json!({ "exit": ended.code });
        let (stdout, stderr) = (
            &self.plain(&ended.stdout, sandbox),
            &self.plain(&ended.stderr, sandbox),
        );
        let stderr: Vec<&str> = stderr
            .lines()
            .filter(|line| !masks::ONCE.iter().any(|once| line.starts_with(once)))
            .collect();
        let document = || {
            serde_json::from_str::<Value>(stdout)
                .unwrap_or_else(|_| json!({ NO_JSON: [stdout, stderr] }))
        };
        match case.output {
            Output::Json => record["json"] = masks::masked(&document(), &mut words),
            Output::Shape => record["shape"] = masks::shape(&document()),
            Output::Text => record["stdout"] = lines(stdout),
            Output::Words => {
                masks::say(&mut words, "text", "stdout", lines(stdout));
                masks::say(&mut words, "log-lines", "stderr", json!(stderr));
            }
            Output::Error => {
                record["stdout"] = lines(stdout);
                record["stderr_lines"] = json!(stderr.len());
                masks::say(&mut words, "error-wording", "stderr", json!(stderr));
            }
            Output::Help => {
                record["options"] = json!(options(stdout));
                masks::say(&mut words, "help", "stdout", lines(stdout));
            }
        }
        record["words"] = Value::Object(words);
        record
    }

    fn conversations(&self) -> Records {
        let mut records = Records::new();
        for conversation in &self.conversations.server {
            let sandbox = self.sandbox(conversation.files, conversation.encoder);
            let has_encoder = !conversation.encoder || self.places["encoder"].is_some();
            let words = self.words(&conversation.line, &sandbox);
            let Some(words) = words.filter(|_| has_encoder) else {
                println!("SKIPPED: {}", conversation.name);
                continue;
            };
            let flags: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            let home = sandbox.home();
            let before = conversation.files.then(|| contents(&home));
            let server = Server::start_with(sandbox, Path::new(&words[0]), &flags);
            for request in &conversation.request {
                let name = format!("{}/{}", conversation.name, request.name);
                let record = self.settled(request, &server, &name);
                records.insert(name, record);
            }
            if let Some(before) = before {
                let last = records.get_mut(&format!(
                    "{}/{}",
                    conversation.name,
                    conversation.request.last().unwrap().name
                ));
                last.unwrap()["files"] = changes(&before, &contents(&home));
            }
        }
        records
    }

    fn settled(&self, request: &Request, server: &Server, name: &str) -> Value {
        let began = Instant::now();
        if request.settles && self.is_recording {
            std::thread::sleep(SETTLED);
        }
        loop {
            let record = self.answer(request, server);
            let is_as_recorded = self.expected.get(name) == Some(&record);
            if !request.settles || is_as_recorded || began.elapsed() > SETTLED {
                return record;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn answer(&self, request: &Request, server: &Server) -> Value {
        let (method, path) = request.to.split_once(' ').unwrap();
        let body = if request.body_bytes > 0 {
            "x".repeat(request.body_bytes)
        } else {
            let long = read(&data("long.txt")).replace('\n', " ");
            request.body.replace("{long}", &long)
        };
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        let usual = [("Host", "localhost"), ("Content-Type", "application/json")];
        for (name, value) in usual
            .into_iter()
            .filter(|(name, _)| !request.headers.contains_key(*name))
        {
            head += &format!("{name}: {value}\r\n");
        }
        for (name, value) in &request.headers {
            head += &format!("{name}: {value}\r\n");
        }
        let mut stream = server.connect();
        // A server that refuses early does not read.
        let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let answer = String::from_utf8(bytes).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let mut lines = head.lines();
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .unwrap_or_default();
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers: BTreeMap<String, &str> = headers
            .map(|(name, value)| (name.to_lowercase(), value))
            .filter(|(name, _)| masks::HEADERS.contains(&name.as_str()))
            .collect();
        let body = body.replace(&server.address.to_string(), "<address>");
        let mut words = Map::new();
        let mut record = json!({ "status": status, "headers": headers });
        let kind = headers.get("content-type").copied().unwrap_or_default();
        match (request.output, serde_json::from_str::<Value>(&body)) {
            (Output::Shape, Ok(document)) => record["shape"] = masks::shape(&document),
            (_, Ok(document)) => record["json"] = masks::masked(&document, &mut words),
            _ if path == "/metrics" => {
                record["metrics"] = metrics(&body, &request.values, &mut words)
            }
            _ if kind.starts_with("text/event-stream") => {
                record["events"] = events(&body, &mut words)
            }
            _ => masks::say(&mut words, "page-labels", "body", self::lines(&body)),
        }
        record["words"] = Value::Object(words);
        record
    }

    /// Text without the places of this run.
    fn plain(&self, text: &str, sandbox: &Sandbox) -> String {
        let mut text = text.replace(common::text(&sandbox.home()), "<home>");
        text = text.replace(common::text(sandbox.directory.path()), "<dir>");
        for (name, path) in &self.places {
            if let Some(path) = path {
                text = text.replace(
                    common::text(path).trim_end_matches('/'),
                    &format!("<{name}>"),
                );
            }
        }
        text
    }

    /// What this program leaves in its home, as `files.zip`.
    fn write_files(&self) {
        let sandbox = Sandbox::new().with_program(self.program.clone());
        for case in &self.commands.write {
            let ended = self.run(case, &sandbox).unwrap();
            assert_eq!(ended.code, Some(0), "{}: {}", case.name, ended.stderr);
        }
        zip(&sandbox.home(), &data("files.zip"));
    }
}

/// The models of `recorded/`, as they were made.
fn write_models() {
    for (file, name, ty) in [
        ("tiny.gguf", "llama", WeightType::Q8_0),
        ("gemma.gguf", "gemma3", WeightType::Q4_0),
    ] {
        let mix = Mix::All(ty);
        let spec = Spec {
            mix,
            context: 2048,
            ..Spec::named(name).unwrap()
        };
        let (path, bytes) = (data(file), spec.to_bytes().unwrap());
        // Another program may have it mapped.
        if fs::read(&path).ok().as_ref() != Some(&bytes) {
            fs::write(&path, bytes).unwrap();
        }
    }
}

/// A model that is large enough to be packed, most of it zeros: its packed copy is small once it is compressed.
fn write_large(path: &Path) {
    let mix = Mix::All(WeightType::Q8_0);
    let spec = Spec {
        ffn: 8192,
        mix,
        ..Spec::named("llama").unwrap()
    };
    let mut fill = |tensor: &Planned, out: &mut dyn Write| {
        if tensor.name.contains("ffn_") && !tensor.name.contains("norm") {
            return out.write_all(&vec![0; tensor.bytes as usize]);
        }
        spec.fill(tensor, out)
    };
    spec.writer().unwrap().write_file(path, &mut fill).unwrap();
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/recorded")
        .join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Records, one file for each first part of a name.
fn write_expected(records: &Records) {
    let folder = data("expected");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let mut files: BTreeMap<&str, BTreeMap<&str, &Value>> = BTreeMap::new();
    for (name, record) in records {
        let file = name.split('/').next().unwrap();
        files.entry(file).or_default().insert(name, record);
    }
    for (file, records) in files {
        let text = serde_json::to_string_pretty(&records).unwrap() + "\n";
        fs::write(folder.join(format!("{file}.json")), text).unwrap();
    }
}

fn read_expected() -> Records {
    let files = fs::read_dir(data("expected")).unwrap();
    let records = files.map(|file| {
        let text = read(&file.unwrap().path());
        serde_json::from_str::<Records>(&text).unwrap()
    });
    records.flatten().collect()
}

/// Words between spaces; '…' holds some together.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        if i % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

fn lines(text: &str) -> Value {
    text.lines().collect()
}

/// Commands and options that a help text names.
fn options(help: &str) -> BTreeSet<&str> {
    let words = help
        .lines()
        .filter(|line| line.starts_with("  "))
        .flat_map(|line| {
            let names = line.split([' ', ',']).filter(|word| !word.is_empty());
            names.take_while(|word| word.starts_with('-'))
        });
    words.collect()
}

/// Names, types and labels of metrics; their help is words.
fn metrics(text: &str, compared: &[String], words: &mut Map<String, Value>) -> Value {
    let mut types = Map::new();
    let mut series = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            types.insert(name.to_owned(), json!(kind));
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            masks::say(words, "metric-help", name, json!(help));
        } else if compared.iter().any(|name| line.starts_with(name)) {
            series.push(line);
        } else if let Some((name, _)) = line.rsplit_once(' ') {
            series.push(name);
        }
    }
    json!({ "types": types, "series": series })
}

/// Events of a stream, one for each token.
fn events(body: &str, words: &mut Map<String, Value>) -> Value {
    let events = body.split("\n\n").filter(|event| !event.trim().is_empty());
    let events = events.map(|event| {
        let fields = event.lines().filter_map(|line| line.split_once(": "));
        let fields = fields.map(|(name, value)| {
            let document = serde_json::from_str::<Value>(value);
            let value = document.map_or(json!(value), |document| masks::masked(&document, words));
            (name.to_owned(), value)
        });
        Value::Object(fields.collect())
    });
    events.collect()
}

/// What a file holds, and when it was written.
type Content = (Vec<u8>, SystemTime);

/// Every file below a folder, by its path in it. Links lead out of it and are left alone.
fn contents(folder: &Path) -> BTreeMap<String, Content> {
    fn walk(folder: &Path, root: &Path, all: &mut BTreeMap<String, Content>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                walk(&entry.path(), root, all);
            } else if kind.is_file() {
                let path = entry.path();
                let written = entry.metadata().unwrap().modified().unwrap();
                let name = path.strip_prefix(root).unwrap();
                all.insert(text(name).to_owned(), (fs::read(&path).unwrap(), written));
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(folder, folder, &mut all);
    all
}

/// What became of each file.
fn changes(before: &BTreeMap<String, Content>, after: &BTreeMap<String, Content>) -> Value {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changes = names.into_iter().map(|name| {
        let change = match (before.get(name), after.get(name)) {
            (Some(before), Some(after)) if before == after => "unchanged",
            (Some(before), Some(after)) if before.0 == after.0 => "written again",
            (Some(_), Some(_)) => "changed",
            (Some(_), None) => "removed",
            (None, _) => "new",
        };
        (name.clone(), json!(change))
    });
    Value::Object(changes.collect())
}

fn zip(folder: &Path, path: &Path) {
    let mut archive = zip::ZipWriter::new(fs::File::create(path).unwrap());
    for (name, (bytes, _)) in contents(folder) {
        // Without the hour of the recording: equal files are an equal archive.
        let options =
            zip::write::SimpleFileOptions::default().last_modified_time(zip::DateTime::default());
        archive.start_file(name, options).unwrap();
        archive.write_all(&bytes).unwrap();
    }
    archive.finish().unwrap();
}

fn unzip(path: &Path, folder: &Path) {
    let mut archive = zip::ZipArchive::new(fs::File::open(path).unwrap()).unwrap();
    archive.extract(folder).unwrap();
}
