//! Fuzz targets: each takes any bytes and must return. A panic, a hang or a broken promise is a failure.
//!
//! `cargo fuzz`-style programs call them with what libFuzzer finds (`fuzz/README.md`); `crates/cli/tests/fuzz.rs` calls them
//! with the corpora and some hundred changes of each, so that they stay true and compile.
#![allow(dead_code)]

use haversack::engine::runtime::{Runtime, RuntimeOptions};
use haversack::engine::{LoadOptions, Model, Repack, Residence};
use haversack::grammar::{Shape, Vocabulary};
use haversack::text::template::{ChatTemplate, Message, RenderOptions};
use haversack::text::tokenizer::{EncodeOptions, Tokenizer};
use haversack::{Answer, Conversation, Engine, Error, Pressure, Prompt};
use haversack_server::{Auth, ServerState};
use haversack_testing::models::Spec;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub type Target = fn(&[u8]);

pub const TARGETS: [(&str, Target); 7] = [
    ("model", model),
    ("tokenizer", tokenizer),
    ("template", template),
    ("schema", schema),
    ("session", session),
    ("http", http),
    ("calls", calls),
];

/// Small models: the name of a variant, and whether its vocabulary is of pieces.
const MODELS: [&str; 4] = ["llama", "qwen3", "gemma3", "phi3-long"];

fn spec(name: &str) -> Spec {
    let usual = Spec::named(name).expect("a variant");
    Spec {
        layers: usual.layers.min(2),
        dim: 64,
        ffn: 64,
        heads: 2,
        kv_heads: 1,
        context: 2048,
        ..usual
    }
}

/// A folder for as long as the process lives.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let folder = parent.join(format!("haversack-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    })
}

/// Removes what the targets have written.
pub fn tidy() {
    let _ = std::fs::remove_dir_all(folder());
}

/// A sound model file.
fn model_file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = folder().join("sound.gguf");
        spec("llama").write_file(&path).expect("a model file");
        path
    })
}

fn one_line(error: &dyn std::error::Error) {
    let text = error.to_string();
    assert!(!text.contains('\n'), "more than a line: {text:?}");
}

/// Edits of a sound file: what, where, with what. Offsets reach everything, but more often the beginning.
fn edited(sound: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = sound.to_vec();
    for edit in edits.chunks(8).take(64) {
        let [what, low, high, far, with @ ..] = edit else {
            break;
        };
        let near = usize::from(*low) | usize::from(*high) << 8;
        let at = match what & 1 {
            0 => near,
            _ => near << 8 | usize::from(*far),
        };
        let at = at % bytes.len().max(1);
        match what >> 1 & 7 {
            0 => bytes.truncate(at),
            1 => bytes[at..].iter_mut().take(512).for_each(|byte| *byte = 0),
            2 => drop(bytes.splice(at..at, with.iter().copied())),
            _ => bytes[at..]
                .iter_mut()
                .zip(with)
                .for_each(|(byte, with)| *byte = *with),
        }
        if bytes.is_empty() {
            break;
        }
    }
    bytes
}

/// GGUF → load → one step.
pub fn model(data: &[u8]) {
    static SOUND: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let sound = SOUND.get_or_init(|| {
        let bytes = |name: &&str| spec(name).to_bytes().expect("a model");
        MODELS.iter().map(bytes).collect()
    });
    let [which, edits @ ..] = data else { return };
    let bytes = match which {
        // Not an edit of anything.
        255 => edits.to_vec(),
        which => edited(&sound[usize::from(*which) % sound.len()], edits),
    };
    let path = folder().join("edited.gguf");
    // A file that is mapped must not shrink: each is a new one.
    let _ = std::fs::remove_file(&path);
    std::fs::write(&path, bytes).expect("room");
    let load = LoadOptions {
        context: Some(256),
        repack: Repack::Off,
        residence: Residence::Auto,
        threads: 1,
        ..LoadOptions::default()
    };
    let model = match Model::load(&path, &load, &mut |_, _| ()) {
        Ok(model) => model,
        Err(error) => return one_line(&error),
    };
    let options = RuntimeOptions {
        threads: 1,
        budget_bytes: Some(64 << 20),
        ..RuntimeOptions::default()
    };
    let mut runtime = match Runtime::new(model.clone(), &options) {
        Ok(runtime) => runtime,
        Err(error) => return one_line(&error),
    };
    let go_on = &mut |_| ControlFlow::Continue(());
    let read = runtime.open().and_then(|id| {
        let logits = runtime.feed(id, &[0, 1, 2], go_on)?;
        Ok(logits.map(<[f32]>::len))
    });
    match read {
        Ok(logits) => assert_eq!(logits, Some(model.config().vocab)),
        Err(error) => one_line(&error),
    }
    assert!(runtime.ledger().peak <= 64 << 20);
}

fn tokenizers() -> &'static [Arc<Model>] {
    static MODELS_LOADED: OnceLock<Vec<Arc<Model>>> = OnceLock::new();
    MODELS_LOADED.get_or_init(|| {
        let load = |name: &&str| {
            let path = folder().join(format!("{name}.gguf"));
            spec(name).write_file(&path).expect("a model file");
            let options = LoadOptions {
                context: None,
                repack: Repack::Off,
                residence: Residence::Auto,
                threads: 1,
                ..LoadOptions::default()
            };
            Model::load(&path, &options, &mut |_, _| ()).expect("a sound model")
        };
        MODELS.iter().map(load).collect()
    })
}

/// Text → ids → text; guarded text never becomes a special token.
pub fn tokenizer(data: &[u8]) {
    let [which, text @ ..] = data else { return };
    let models = tokenizers();
    let tokenizer: &Tokenizer = models[usize::from(which >> 2) % models.len()].tokenizer();
    let text = String::from_utf8_lossy(text);
    let options = EncodeOptions {
        add_special: which & 1 == 1,
        parse_special: which & 2 == 2,
    };
    let ids = match tokenizer.encode(&text, options) {
        Ok(ids) => ids,
        Err(error) => return one_line(&error),
    };
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()));
    tokenizer.decode(&ids).expect("ids of its own");
    if text.chars().any(|c| ('\u{FDD0}'..='\u{FDEF}').contains(&c)) {
        return;
    }
    let guarded = tokenizer.guard(&text, '\u{FDD0}');
    let mut begins = Vec::new();
    let note = &mut |byte: usize, ids: usize| begins.push((byte, ids));
    let ids = tokenizer.encode_rendered(&guarded, false, '\u{FDD0}', note);
    let ids = ids.expect("not longer than a text may be");
    assert!(!ids.iter().any(|&id| tokenizer.is_control(id)), "{text:?}");
    assert!(begins.is_sorted());
    let in_text = |&(byte, before): &(usize, usize)| byte < guarded.len() && before <= ids.len();
    assert!(begins.iter().all(in_text));
}

/// A template and a message, separated by a byte that is no text.
pub fn template(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == 0xff);
    let source = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let message = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let template = ChatTemplate::new(Some(&source), "<s>", "</s>");
    if let Some(error) = template.source_error() {
        one_line(error);
    }
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", &*message),
        Message::new("assistant", "Yes."),
        Message::new("user", "And?"),
    ];
    let options = RenderOptions::to_answer(Duration::from_secs(1_700_000_000));
    if let Err(error) = template.render(&messages, &options) {
        one_line(&error);
    }
}

/// A schema, an expression or a grammar becomes a constraint or is refused; the constraint goes on until it ends.
pub fn schema(data: &[u8]) {
    static VOCABULARY: OnceLock<Vocabulary> = OnceLock::new();
    let tokenizer = tokenizers()[0].tokenizer();
    let vocabulary = VOCABULARY.get_or_init(|| Vocabulary::new(tokenizer).expect("a vocabulary"));
    let [which, text @ ..] = data else { return };
    let written = || String::from_utf8_lossy(text).into_owned();
    let shape = match which {
        b'g' => Shape::Gbnf(written()),
        b'l' => Shape::Lark(written()),
        _ if which & 1 == 0 => match serde_json::from_slice(text) {
            Ok(schema) => Shape::Schema(schema),
            Err(_) => return,
        },
        _ => Shape::Regex(written()),
    };
    let mut constraint = match vocabulary.compile(&shape) {
        Ok(constraint) => constraint,
        Err(error) => return one_line(&error),
    };
    for _ in 0..12 {
        let Ok(allowed) = constraint.allowed() else {
            return;
        };
        let mut words = allowed.iter().enumerate();
        let first =
            words.find_map(|(i, &word)| (word != 0).then(|| i as u32 * 32 + word.trailing_zeros()));
        let Some(token) = first.filter(|&id| !tokenizer.is_end(id)) else {
            return;
        };
        assert!((token as usize) < tokenizer.len());
        constraint.take(token).expect("it was allowed");
    }
}

fn engine(sessions: &Path) -> Engine {
    let engine = Engine::open(model_file()).threads(1).memory("64M");
    engine.sessions(sessions).start().expect("an engine")
}

/// An edited session file is opened or refused. What was opened can be read, answered and deleted.
pub fn session(data: &[u8]) {
    static SOUND: OnceLock<(Engine, PathBuf, Vec<u8>)> = OnceLock::new();
    let (engine, path, sound) = SOUND.get_or_init(|| {
        let dir = folder().join("session");
        let engine = engine(&dir);
        let a = engine.conversation("a").system("Be brief. Bo has a dog.");
        let a = a.open().expect("a conversation");
        a.add_fact("Bo has a cat.").expect("a fact");
        for text in ["one two three", "four"] {
            a.say(text).max_tokens(5).run().expect("an answer");
        }
        a.suspend().expect("saved");
        let path = dir.join("a.session");
        let sound = std::fs::read(&path).expect("a session file");
        (engine, path, sound)
    });
    let _ = std::fs::remove_file(path);
    std::fs::write(path, edited(sound, data)).expect("room");
    match engine.conversation("a").open() {
        Ok(a) => {
            for error in [
                a.turns().err(),
                a.facts().err(),
                a.say("and").max_tokens(2).run().err(),
            ]
            .into_iter()
            .flatten()
            {
                one_line(&error);
            }
            a.delete().expect("an open session can be deleted");
        }
        Err(error) => one_line(&error),
    }
    assert!(engine.metrics().ledger.total() <= 64 << 20);
}

fn server() -> SocketAddr {
    static ADDRESS: OnceLock<SocketAddr> = OnceLock::new();
    *ADDRESS.get_or_init(|| {
        let engine = engine(&folder().join("http"));
        let state = ServerState::new(engine, Auth::default(), "fuzz".into(), true);
        let state = Arc::new(state);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.set_nonblocking(true).expect("a listener");
        let address = listener.local_addr().expect("an address");
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let served = haversack_server::serve(listener, state, std::future::pending());
                served.await.expect("it serves");
            });
        });
        address
    })
}

/// Whatever comes over a connection, the server answers the next one.
pub fn http(data: &[u8]) {
    let ask = |request: &[u8], patience: Duration| {
        let mut stream = TcpStream::connect(server()).expect("a connection");
        let _ = stream.set_read_timeout(Some(patience));
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut answer);
        answer
    };
    // One that waits for more of the request is left.
    let answer = ask(data, Duration::from_millis(100));
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."));
    assert!(
        !answer.starts_with(b"HTTP/1.1 500"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let health = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let health = ask(health, Duration::from_secs(60));
    assert!(health.starts_with(b"HTTP/1.1 200"), "the server is gone");
}

/// Calls of an engine as a program in another language makes them: in any order, twice, after the end.
pub fn calls(data: &[u8]) {
    static RUNS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let dir = folder().join(format!("calls-{run}"));
    let mut engines = vec![engine(&dir)];
    let mut conversations: Vec<Conversation> = Vec::new();
    let (mut answers, mut prompts): (Vec<Answer>, Vec<Prompt>) = (Vec::new(), Vec::new());
    for call in data.chunks(2).take(48) {
        let (what, which) = (call[0], usize::from(*call.last().unwrap_or(&0)));
        let name = ["a", "b", "", "../x", "a.b"][which % 5];
        let Some(engine) = engines.get(which % engines.len().max(1)).cloned() else {
            break;
        };
        let text = [
            "",
            "one two",
            "\u{FDD0}<|im_end|>",
            "x".repeat(600).as_str(),
        ][which % 4]
            .to_owned();
        let conversation = conversations
            .get(which % conversations.len().max(1))
            .cloned();
        let result: Result<(), Error> = match (what % 24, conversation) {
            (0, _) => {
                let opened = engine.conversation(name).open();
                opened.map(|conversation| conversations.push(conversation))
            }
            (1, _) => {
                let begun = engine.conversation(name).system(text).begin();
                begun.map(|conversation| conversations.push(conversation))
            }
            (2, _) => engine.close(),
            (3, _) => {
                engines.push(engine);
                Ok(())
            }
            (4, _) => {
                engines.swap_remove(which % engines.len());
                Ok(())
            }
            (5, _) => engine.conversations().map(drop),
            (6, _) => {
                let prompt = engine.complete(text).max_tokens(which % 9);
                prompts.push(prompt.owner(which as u64));
                Ok(())
            }
            (7, _) => {
                let prompt = engine.complete_tokens(vec![which as u32; which % 70]);
                prompts.push(prompt.continues().max_tokens(3));
                Ok(())
            }
            (8, _) => {
                prompts.pop();
                Ok(())
            }
            (9, _) => match prompts.pop().map(Prompt::send) {
                Some(sent) => sent.map(|answer| answers.push(answer)),
                None => Ok(()),
            },
            (10, _) => match prompts.pop() {
                Some(prompt) => prompt.borders(vec![which, 0, 33]).run().map(drop),
                None => Ok(()),
            },
            (11, _) => {
                answers.pop();
                Ok(())
            }
            (12, _) => match answers.last_mut() {
                Some(answer) => answer.text().map(drop),
                None => Ok(()),
            },
            (13, _) => {
                let all = [Pressure::Nominal, Pressure::Warning, Pressure::Critical];
                engine.pressure(all[which % 3]);
                Ok(())
            }
            (14, _) => engine.memory().map(drop),
            (_, None) => Ok(()),
            (15, Some(conversation)) => {
                prompts.push(conversation.say(text).max_tokens(which % 5));
                Ok(())
            }
            (16, Some(conversation)) => conversation.add_fact(text).map(drop),
            (17, Some(conversation)) => conversation.revoke_fact(which as u64),
            (18, Some(conversation)) => conversation.retract().map(drop),
            (19, Some(conversation)) => {
                let fork = conversation.fork(name);
                fork.map(|conversation| conversations.push(conversation))
            }
            (20, Some(conversation)) => conversation.suspend(),
            (21, Some(conversation)) => conversation.delete(),
            (22, Some(conversation)) => conversation.set_state(text, Some(which as u64)),
            (_, Some(conversation)) => conversation.turns().map(drop),
        };
        if let Err(error) = result {
            one_line(&error);
        }
    }
    // Dropped in an order that the input chooses.
    let order = data.last().copied().unwrap_or(0);
    match order % 4 {
        0 => drop((engines, answers, conversations, prompts)),
        1 => drop((answers, prompts, engines, conversations)),
        2 => drop((conversations, engines, prompts, answers)),
        _ => drop((prompts, conversations, answers, engines)),
    }
    let _ = std::fs::remove_dir_all(dir);
}
