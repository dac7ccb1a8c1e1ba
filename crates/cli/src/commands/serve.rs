//! `serve`: the model behind HTTP, until a signal stops it.

use crate::args;
use crate::encoder;
use crate::engine::{self, Habits};
use crate::error::{one_line, usage};
use crate::interrupt::Cooperative;
use crate::out;
use anyhow::{Context, Result};
use haversack::engine::runtime::Runtime;
use haversack::memory::clock::now_ms;
use haversack::session::{LimitError, SessionError, SessionOptions, SessionSettings, Sessions};
use haversack::{Engine, EngineOptions, Owner};
use haversack_hub::home::Home;
use haversack_server::{self as server, Auth, ServerState};
use serde_json::json;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often the server checks for a signal.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

pub fn serve(args: &args::ServeArgs, as_json: bool) -> Result<()> {
    let keys = args.api_key_file.as_deref().map(read_keys);
    let keys = keys.transpose()?.unwrap_or_default();
    let mut address = address(&args.addr)?;
    address.set_port(args.port.unwrap_or(address.port()));
    if keys.is_empty() && !address.ip().is_loopback() {
        return Err(usage(format!(
            "--addr {address} can be reached from other machines without a key; accepted: a loopback address, or --api-key-file"
        )));
    }
    // Before a model is loaded: the port may be taken.
    let listener = TcpListener::bind(address).with_context(|| format!("--addr {address}"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let keeps = !args.no_sessions && args.compute.cache.is_of_turns();
    let habits = if keeps { Habits::SESSION } else { Habits::TALK };
    let loaded = engine::load(args.model.as_deref(), &args.compute, habits)?;
    let sessions = match keeps {
        true => sessions(&loaded.runtime, args)?,
        false => None,
    };
    let has_sessions = sessions.is_some();
    let usual = EngineOptions::default();
    let options = EngineOptions {
        batch: args.batch.unwrap_or(usual.batch),
        queue: args.queue.unwrap_or(usual.queue),
        several_owners: keys.len() > 1,
        prefix_cache: args.reuse.unwrap_or(usual.prefix_cache),
        ..usual
    };
    loaded.note_budget();
    let memory = json!({
        "budget_bytes": loaded.runtime.ledger().budget,
        "baseline_bytes": loaded.memory.baseline_bytes(),
    });
    let engine = Engine::with_runtime(loaded.runtime, sessions, options)?;
    let auth = Auth {
        is_open: !keys.is_empty(),
        keys,
        hosts: args.host.clone(),
    };
    let model_name = name_of(&loaded.path);
    let state = ServerState::new(engine.clone(), auth, model_name, has_sessions);
    let state = Arc::new(state);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    let interrupt = Cooperative::begin(1);
    let stop = async {
        while !interrupt.raised() {
            tokio::time::sleep(SIGNAL_CHECK).await;
        }
    };
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let model = &state.model_name;
        if as_json {
            let address = address.to_string();
            out::json(&json!({ "address": address, "model": model, "memory": memory }))?;
        } else {
            out::note(&format!("{model} is served at http://{address}"));
        }
        server::serve(listener, state.clone(), stop).await?;
        anyhow::Ok(())
    })?;
    // Cuts off answers that are still under way.
    runtime.shutdown_timeout(Duration::from_secs(1));
    engine.close()?;
    Ok(())
}

/// Sessions in the data directory; `None`, with a note, where the budget has no room for them.
fn sessions(runtime: &Runtime, args: &args::ServeArgs) -> Result<Option<Sessions>> {
    let home = Home::find()?;
    let options = SessionOptions {
        dir: Some(home.sessions()),
        prefix_dir: Some(home.sessions().join("prefixes")),
        settings: SessionSettings {
            auto_facts: args.auto_facts.then_some(true),
            ..args.sessions.settings(args.session_answer)
        },
        limits: args.limits.folder(),
        ..SessionOptions::default()
    };
    let mut sessions = match Sessions::new(runtime, options) {
        Ok(sessions) => sessions,
        Err(error @ SessionError::Limit(LimitError::Setting { .. })) => {
            return Err(usage(format!("--session-{error}")));
        }
        Err(error) => {
            out::note(&format!("no sessions: {}", one_line(&error.to_string())));
            return Ok(None);
        }
    };
    sessions.keep_limits(now_ms())?;
    if let Some(model) = encoder::missing(&home).filter(|_| !args.sessions.no_encoder) {
        encoder::note(model);
    }
    encoder::give(sessions, &home, args.sessions.no_encoder).map(Some)
}

fn address(text: &str) -> Result<SocketAddr> {
    let wrong = || {
        usage(format!(
            "--addr {text}: accepted: an address and a port, such as 127.0.0.1:8080"
        ))
    };
    let mut found = text.to_socket_addrs().map_err(|_| wrong())?;
    found.next().ok_or_else(wrong)
}

/// The model's file name without its extension.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// Keys of a file that only its owner may read: `NAME:KEY` a line. The first line may be a key alone, which is the
/// unnamed owner's.
fn read_keys(path: &Path) -> Result<Vec<(Owner, String)>> {
    let name = || format!("--api-key-file {}", path.display());
    let file = std::fs::File::open(path).with_context(name)?;
    let metadata = file.metadata().with_context(name)?;
    if !metadata.is_file() {
        return Err(usage(format!("{}: accepted: a file", name())));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        if metadata.permissions().mode() & 0o077 != 0 {
            return Err(usage(format!(
                "{}: other users may read it; accepted: a file of mode 600",
                name()
            )));
        }
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, KEY_BYTES), &mut text)
        .with_context(name)?;
    if text.len() as u64 == KEY_BYTES {
        return Err(usage(format!(
            "{}: accepted: at most {} bytes",
            name(),
            KEY_BYTES - 1
        )));
    }
    let mut keys: Vec<(Owner, String)> = Vec::new();
    for (i, line) in text.lines().map(str::trim).enumerate() {
        let wrong = |what: &str| usage(format!("{}: line {}: {what}", name(), i + 1));
        let (owner, key) = match line.split_once(':') {
            _ if line.is_empty() => continue,
            Some((owner, key)) => {
                let owner = Owner::new(owner).map_err(|_| {
                    wrong("accepted before the colon: a name of letters, digits, '-', '_' and '.'")
                })?;
                (owner, key)
            }
            None if i == 0 => (Owner::default(), line),
            None => {
                return Err(wrong(
                    "accepted: NAME:KEY (the first line may be a key alone)",
                ));
            }
        };
        if key.len() < KEY_LEAST || !key.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong(&format!(
                "accepted: a key of {KEY_LEAST} visible ASCII characters or more"
            )));
        }
        // Folders of owners may be on a disk that does not tell A from a.
        let is_taken = |(other, its): &(Owner, String)| {
            other.name().eq_ignore_ascii_case(owner.name()) || its == key
        };
        if keys.iter().any(is_taken) {
            return Err(wrong("the name or the key is there already"));
        }
        keys.push((owner, key.to_owned()));
    }
    match keys.is_empty() {
        true => Err(usage(format!("{}: accepted: at least one key", name()))),
        false => Ok(keys),
    }
}

/// Of the file: a thousand owners.
const KEY_BYTES: u64 = 128 << 10;
const KEY_LEAST: usize = 16;
