//! One server and its clients, on a clock that stands still unless the simulation advances it.

use crate::script::{Ask, Client, End, Life, Plan, SESSIONS, Settings};
use crate::wire::{Answer, Pace, Said, Wire, request};
use haversack::scheduler::Request;
use haversack::{Engine, Error, EventOptions};
use haversack_server::{Auth, ConnectionSource, ServerState, serve};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::DuplexStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What came of all questions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub whole: u64,
    pub cut: u64,
    pub refused: u64,
    /// Turns whose client had left.
    pub partial: u64,
    /// Turns that another server had acknowledged and this one still had.
    pub resumed: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.whole += other.whole;
        self.cut += other.cut;
        self.refused += other.refused;
        self.partial += other.partial;
        self.resumed += other.resumed;
    }
}

/// What came of a completion.
#[derive(Debug)]
pub struct Heard {
    pub ask: Ask,
    pub status: u16,
    pub said: Said,
    pub is_eager: bool,
}

#[derive(Clone, Debug)]
pub struct Turn {
    pub text: String,
    pub max_tokens: usize,
    pub answer: String,
}

/// What has happened to a session. A turn that was deleted again leaves its positions, which the rounding of later keys
/// depends on: the same history gives the same tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    Said {
        text: String,
        max_tokens: usize,
    },
    /// Saved without its client, with this number of tokens in all, and deleted.
    Deleted {
        text: String,
        tokens: u64,
    },
}

/// A session as its client knows it.
#[derive(Debug, Default)]
pub struct SessionTurns {
    /// Acknowledged.
    pub turns: Vec<Turn>,
    pub history: Vec<Event>,
    /// Asked, and no whole answer has come.
    uncertain: Option<Ask>,
    /// Number of tokens of the uncertain turn: it was there, and whether it was deleted is not known.
    deleting: Option<u64>,
    /// Turns that were saved without their client, by the number of events before them; to be checked.
    pub partial: Vec<(usize, Turn)>,
    pub resumed: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connections that clients hand over.
struct Port(UnboundedReceiver<DuplexStream>);

impl ConnectionSource for Port {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> std::io::Result<(DuplexStream, IpAddr)> {
        match self.0.recv().await {
            Some(stream) => Ok((stream, Ipv4Addr::LOCALHOST.into())),
            None => std::future::pending().await,
        }
    }
}

type Shared<T> = Arc<Mutex<T>>;

/// What every client of a server has.
#[derive(Clone)]
struct Surroundings {
    port: UnboundedSender<DuplexStream>,
    heard: Shared<Vec<Heard>>,
}

impl Surroundings {
    fn connect(&self, buffer: usize, pace: Pace) -> Wire {
        let (mine, theirs) = tokio::io::duplex(buffer);
        // Nobody accepts it where the server has ended: it is closed then.
        let _ = self.port.send(theirs);
        Wire::new(mine, pace)
    }

    async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let mut wire = self.connect(1 << 16, Pace::EAGER);
        wire.send(&request(method, path, body)).await;
        wire.answer(None).await
    }

    /// Again while the server has no room.
    async fn call_patiently(&self, method: &str, path: &str) -> Answer {
        for _ in 0..1000 {
            let answer = self.call(method, path, None).await;
            if !matches!(answer.status, 409 | 429 | 503) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Answer::default()
    }
}

async fn act(
    client: Client,
    around: Surroundings,
    sessions: [Shared<SessionTurns>; SESSIONS],
) -> Result<(), String> {
    tokio::time::sleep(client.start).await;
    let is_eager = client.is_eager();
    let mut wire = around.connect(client.buffer, client.pace);
    match client.plan {
        Plan::Complete {
            asks,
            is_pipelined,
            leaves_after,
        } => {
            let bytes =
                |ask: &Ask| request("POST", "/v1/completions", Some(&crate::completion(ask)));
            if is_pipelined {
                for ask in &asks {
                    wire.send(&bytes(ask)).await;
                }
            }
            for ask in asks {
                if !is_pipelined {
                    wire.send(&bytes(&ask)).await;
                }
                let answer = wire.answer(leaves_after).await;
                let (is_over, status) = (!answer.is_whole, answer.status);
                lock(&around.heard).push(Heard {
                    status,
                    said: answer.said(ask.is_stream),
                    is_eager: is_eager && leaves_after.is_none(),
                    ask,
                });
                if is_over {
                    break;
                }
                // A request that is refused before its body is read may end its connection.
                if matches!(status, 429 | 503) && !is_pipelined {
                    wire = around.connect(client.buffer, client.pace);
                }
            }
        }
        Plan::Talk {
            session,
            asks,
            sends_all,
            leaves_after,
        } => {
            let name = format!("s{session}");
            let known = &sessions[session];
            if !reconcile(&around, &name, known).await? {
                return Ok(());
            }
            for ask in asks {
                let body = turn(&name, known, &ask, sends_all);
                lock(known).uncertain = Some(ask.clone());
                wire.send(&request("POST", "/v1/chat/completions", Some(&body)))
                    .await;
                let answer = wire.answer(leaves_after).await;
                let said = answer.said(ask.is_stream);
                let mut known = lock(known);
                match answer.status {
                    200 if said.is_whole && said.error.is_none() => {
                        known.uncertain = None;
                        known.history.push(Event::Said {
                            text: ask.text.clone(),
                            max_tokens: ask.max_tokens,
                        });
                        known.turns.push(Turn {
                            text: ask.text,
                            max_tokens: ask.max_tokens,
                            answer: said.text,
                        });
                    }
                    429 | 503 if answer.is_whole => known.uncertain = None,
                    // What became of it is seen by the next client.
                    0 | 200 => break,
                    status => return Err(format!("{name}: {status}: {}", answer.json())),
                }
            }
        }
        Plan::Send(bytes) => {
            wire.send(&bytes).await;
            let status = wire.answer(None).await.status;
            if status >= 500 && status != 503 {
                return Err(format!("{status} to {}", bytes.escape_ascii()));
            }
        }
        Plan::Deaf(asks) => {
            for ask in asks {
                let body = crate::completion(&ask);
                wire.send(&request("POST", "/v1/completions", Some(&body)))
                    .await;
            }
            tokio::time::sleep(Duration::from_secs(12)).await;
        }
        Plan::Look(path) => {
            wire.send(&request("GET", path, None)).await;
            let answer = wire.answer(None).await;
            if !matches!(answer.status, 0 | 200 | 503) {
                return Err(format!("{path}: {}", answer.status));
            }
        }
    }
    Ok(())
}

fn turn(name: &str, known: &Mutex<SessionTurns>, ask: &Ask, sends_all: bool) -> Value {
    let mut messages = Vec::new();
    if sends_all {
        for turn in &lock(known).turns {
            messages.push(json!({ "role": "user", "content": turn.text }));
            messages.push(json!({ "role": "assistant", "content": turn.answer }));
        }
    }
    messages.push(json!({ "role": "user", "content": ask.text }));
    json!({
        "session_id": name,
        "messages": messages,
        "max_tokens": ask.max_tokens,
        "temperature": 0,
        "stream": ask.is_stream,
    })
}

/// Every acknowledged turn is there, and at most one more: the one that had not come to its end. It is deleted. `false`: the
/// server ended meanwhile.
async fn reconcile(
    around: &Surroundings,
    name: &str,
    known: &Mutex<SessionTurns>,
) -> Result<bool, String> {
    let path = format!("/v1/sessions/{name}");
    let answer = around.call_patiently("GET", &path).await;
    let there: Vec<(String, String, u64)> = match answer.status {
        0 => return Ok(false),
        200 => {
            let document = answer.json();
            let turns = document["turns"].as_array().into_iter().flatten();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            turns
                .map(|t| {
                    let tokens = t["tokens"].as_u64().unwrap_or_default();
                    (text(&t["question"]), text(&t["answer"]), tokens)
                })
                .collect()
        }
        404 => Vec::new(),
        status => return Err(format!("{name}: {status}: {}", answer.json())),
    };
    let has_more = {
        let mut known = lock(known);
        let kept = known.turns.iter().zip(&there);
        let kept = kept
            .filter(|(turn, there)| turn.text == there.0 && turn.answer.trim() == there.1.trim())
            .count();
        if kept < known.turns.len() {
            return Err(format!(
                "{name}: {:?} were acknowledged, there are {there:?}",
                known.turns
            ));
        }
        known.resumed += kept as u64;
        match &there[kept..] {
            [] => false,
            [(question, answer, tokens)] => {
                known.deleting = Some(*tokens);
                // Uncertain until it is known to be deleted: this client may be aborted before.
                let ask = known.uncertain.clone();
                let Some(ask) = ask.filter(|ask| ask.text == *question) else {
                    return Err(format!("{name}: {question:?} was not asked"));
                };
                let before = known.history.len();
                known.partial.push((
                    before,
                    Turn {
                        text: ask.text,
                        max_tokens: ask.max_tokens,
                        answer: answer.clone(),
                    },
                ));
                true
            }
            more => return Err(format!("{name}: {more:?} were not asked")),
        }
    };
    if has_more {
        let status = around
            .call_patiently("DELETE", &format!("{path}/turns/last"))
            .await
            .status;
        match status {
            // Whether it was deleted is not known.
            0 => return Ok(false),
            200 => {}
            status => return Err(format!("{name}: {status} to deleting its last turn")),
        }
    }
    let mut known = lock(known);
    if let (Some(ask), Some(tokens)) = (known.uncertain.take(), known.deleting.take()) {
        let text = ask.text;
        known.history.push(Event::Deleted { text, tokens });
    }
    Ok(true)
}

/// Lets all that can go on, then the clock: a little where the engine computes, so that timeouts mean what clients do.
async fn tick(engine: &Engine, is_stopping: bool) {
    for _ in 0..16 {
        tokio::task::yield_now().await;
    }
    // For the threads of the engine, and those that make tokens: a request that has bytes waits for one of them, maybe.
    std::thread::sleep(Duration::from_micros(20));
    let has_bytes = engine.client().heap().growth_bytes() > 0;
    let by = match is_busy(engine) || has_bytes {
        true if is_stopping => Duration::ZERO,
        true => Duration::from_millis(5),
        false => Duration::from_millis(250),
    };
    tokio::time::advance(by).await;
}

fn is_busy(engine: &Engine) -> bool {
    let metrics = engine.metrics();
    metrics.active + metrics.waiting > 0
}

/// Simulated time after which a server without work and with clients is at a loss.
const PATIENCE: Duration = Duration::from_secs(400);
/// Ticks after which something that needs no time does not happen any more.
const TICKS: usize = 200_000;

async fn until(what: &str, engine: &Engine, is_so: impl Fn() -> bool) -> Result<(), String> {
    for _ in 0..TICKS {
        if is_so() {
            return Ok(());
        }
        tick(engine, true).await;
    }
    Err(format!("{what}: never"))
}

/// Runs a server and its clients; returns what came of completions. `dirs`: the sessions folder, and where it is copied to when the
/// process is killed.
pub fn run(
    engine: &Engine,
    settings: &Settings,
    life: &Life,
    sessions: &[Shared<SessionTurns>; SESSIONS],
    dirs: (&Path, &Path),
) -> Result<Vec<Heard>, String> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        // The clock does not advance by itself while a blocking task runs.
        let (release, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv());
        let heard = live(engine, settings, life, sessions, dirs).await;
        drop(release);
        heard
    })
}

async fn live(
    engine: &Engine,
    settings: &Settings,
    life: &Life,
    sessions: &[Shared<SessionTurns>; SESSIONS],
    (dir, killed): (&Path, &Path),
) -> Result<Vec<Heard>, String> {
    let state = Arc::new(ServerState::new(
        engine.clone(),
        Auth::default(),
        "sim".into(),
        true,
    ));
    let (port, streams) = unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    let serving = tokio::spawn(serve(Port(streams), state.clone(), stopped));
    let around = Surroundings {
        port,
        heard: Shared::default(),
    };
    tick(engine, false).await;
    let holders = Arc::strong_count(&state);
    let mut clients = JoinSet::new();
    let mut handles = Vec::new();
    for client in &life.clients {
        handles.push(clients.spawn(act(client.clone(), around.clone(), sessions.clone())));
    }
    let start = Instant::now();
    let (mut storm, mut stop) = (life.storm, Some(stop));
    while !clients.is_empty() {
        tick(engine, false).await;
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap_or_else(|error| match error.is_cancelled() {
                true => Ok(()),
                false => Err(error.to_string()),
            })?;
        }
        let now = start.elapsed();
        if storm.is_some_and(|when| now >= when) {
            storm = None;
            handles.iter().step_by(2).for_each(|client| client.abort());
        }
        match life.end {
            End::Stop(when) | End::Kill(when) if now >= when => break,
            _ if now > PATIENCE => {
                let waits = handles.iter().zip(&life.clients);
                let waits = waits.filter(|(handle, _)| !handle.is_finished());
                let waits: Vec<&Client> = waits.map(|(_, client)| client).collect();
                return Err(format!("wait for ever: {waits:?}"));
            }
            _ => {}
        }
    }
    match life.end {
        End::Kill(_) => {
            copy(dir, killed);
            clients.abort_all();
            serving.abort();
        }
        End::Calm => {}
        End::Stop(_) => {
            let _ = stop.take().map(|stop| stop.send(()));
            until("the server's end", engine, || serving.is_finished()).await?;
            // Clients read what is left.
            until("the clients' end", engine, || {
                clients.is_empty() || !is_busy(engine)
            })
            .await?;
        }
    }
    finish(&mut clients, engine).await?;
    // Connections, requests and the threads that make tokens hold it.
    let holders = match life.end {
        End::Calm => holders,
        _ => 1,
    };
    until("the last connection", engine, || {
        Arc::strong_count(&state) <= holders
    })
    .await?;
    until("the last request", engine, || !is_busy(engine)).await?;
    let heap = engine.client().heap();
    until("the last reserved byte", engine, || {
        heap.growth_bytes() == 0
    })
    .await?;
    if life.end == End::Calm {
        all_places(engine, settings).await?;
        let _ = stop.take().map(|stop| stop.send(()));
        until("the server's end", engine, || serving.is_finished()).await?;
    }
    let heard = std::mem::take(&mut *lock(&around.heard));
    Ok(heard)
}

async fn finish(clients: &mut JoinSet<Result<(), String>>, engine: &Engine) -> Result<(), String> {
    for _ in 0..20 {
        tick(engine, true).await;
    }
    clients.abort_all();
    while let Some(ended) = clients.join_next().await {
        match ended {
            Ok(ended) => ended?,
            Err(error) if error.is_cancelled() => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

/// Every place is free, once the engine has heard that clients left: requests take all of them at once or none.
async fn all_places(engine: &Engine, settings: &Settings) -> Result<(), String> {
    let mut request = Request::completion(vec![1]);
    request.options.tokens_max = Some(1);
    let options = EventOptions {
        max_behind: 64,
        ..EventOptions::default()
    };
    for _ in 0..TICKS {
        let requests = vec![request.clone(); settings.batch + settings.queue];
        match engine.client().submit(requests, options).await {
            Err(Error::Busy) => tick(engine, true).await,
            _ => return Ok(()),
        }
    }
    Err("a place is taken for ever".into())
}

/// What a new process finds: the files as they were at one moment, which is when they are read twice alike.
fn copy(from: &Path, to: &Path) {
    let mut files = read_files(from);
    loop {
        let again = read_files(from);
        if again == files {
            break;
        }
        files = again;
    }
    for (name, bytes) in files {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(to)).expect("a folder");
        std::fs::write(path, bytes).expect("room");
    }
}

fn read_files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), PathBuf::from(entry.file_name()));
        if path.is_dir() {
            let inside = read_files(&path).into_iter();
            files.extend(inside.map(|(inner, bytes)| (name.join(inner), bytes)));
        } else if let Ok(bytes) = std::fs::read(&path) {
            files.insert(name, bytes);
        }
    }
    files
}
