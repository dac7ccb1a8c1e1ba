//! `serve`: the model behind HTTP, until it is told to stop.

use crate::args;
use crate::engine::{self, Habits};
use crate::error::{one_line, usage};
use crate::interrupt::Cooperative;
use crate::out;
use anyhow::{Context, Result};
use haversack::engine::runtime::Runtime;
use haversack::memory::clock::since_1970;
use haversack::session::{SessionOptions, Sessions};
use haversack_hub::home::Home;
use haversack_server::{
    self as server, Door, Encoders, Gallery, Grammars, Owner, OwnerOptions, Shared,
};
use serde_json::json;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How often a signal is looked for.
const LOOK: Duration = Duration::from_millis(50);

pub fn serve(args: &args::ServeArgs, as_json: bool) -> Result<()> {
    let key = args.api_key_file.as_deref().map(read_key).transpose()?;
    let address = address(&args.addr)?;
    if key.is_none() && !address.ip().is_loopback() {
        return Err(usage(format!(
            "--addr {address} can be reached from other machines; it needs --api-key-file, or use a loopback address"
        )));
    }
    // Before a model is loaded: the port may be taken.
    let listener = TcpListener::bind(address).with_context(|| format!("--addr {address}"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let keeps = !args.no_sessions && args.compute.cache.is_of_turns();
    let habits = if keeps { Habits::SESSION } else { Habits::TALK };
    let engine = engine::load(args.model.as_deref(), &args.compute, habits)?;
    let sessions = match keeps {
        true => sessions(&engine.runtime)?,
        false => None,
    };
    let has_sessions = sessions.is_some();
    let model_name = name_of(&engine.path);
    let options = OwnerOptions {
        batch: args.batch.unwrap_or(8),
        queue: args.queue.unwrap_or(64),
        reuse: args.reuse.unwrap_or(16),
    };
    let (hall, owner) = Owner::start(engine.runtime, sessions, options)?;
    let shared = Arc::new(Shared {
        hall,
        door: Door {
            is_open: key.is_some(),
            key,
            hosts: args.host.clone(),
        },
        grammars: Grammars::default(),
        encoders: Encoders::default(),
        model_name,
        has_sessions,
        created: since_1970().as_secs(),
        gallery: Gallery::default(),
        listeners: Shared::listeners(),
    });
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    let interrupt = Cooperative::begin(1);
    let stop = async {
        while !interrupt.raised() {
            tokio::time::sleep(LOOK).await;
        }
    };
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        if as_json {
            out::json(&json!({ "address": address.to_string(), "model": shared.model_name }))?;
        } else {
            out::note(&format!(
                "{} is served at http://{address}",
                shared.model_name
            ));
        }
        server::serve(listener, shared.clone(), stop).await?;
        anyhow::Ok(())
    })?;
    shared.hall.close();
    // Whatever was still being answered has been cut off by now.
    runtime.shutdown_timeout(Duration::from_secs(1));
    owner.join().map_err(|_| anyhow::anyhow!("internal error"))
}

/// Conversations in the data directory; `None`, with a word, where this runtime has no place for them.
fn sessions(runtime: &Runtime) -> Result<Option<Sessions>> {
    let home = Home::find()?;
    let options = SessionOptions {
        dir: Some(home.sessions()),
        prefix_dir: Some(home.sessions().join("prefixes")),
        ..SessionOptions::default()
    };
    let sessions = match Sessions::new(runtime, options) {
        Ok(sessions) => sessions,
        Err(error) => {
            out::note(&format!("no sessions: {}", one_line(&error.to_string())));
            return Ok(None);
        }
    };
    Ok(Some(match engine::encoder(&home)? {
        Some(encoder) => sessions.with_encoder(Arc::new(encoder)),
        None => {
            out::note(
                "no sentence encoder: every turn in memory stays visible (haversack pull minilm fetches one)",
            );
            sessions
        }
    }))
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

/// The file of a model, without folder and ending.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// The API key: the first line of a file that only its owner may read.
fn read_key(path: &Path) -> Result<String> {
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
                "{}: others may read it; accepted: a file of mode 600",
                name()
            )));
        }
    }
    let mut text = String::new();
    std::io::Read::read_to_string(&mut std::io::Read::take(file, KEY_BYTES), &mut text)
        .with_context(name)?;
    let key = text.lines().next().unwrap_or_default().trim();
    let is_key = key.len() >= KEY_LEAST && key.bytes().all(|b| b.is_ascii_graphic());
    match is_key {
        true => Ok(key.to_owned()),
        false => Err(usage(format!(
            "{}: accepted: a line of {KEY_LEAST} visible ASCII characters or more",
            name()
        ))),
    }
}

const KEY_BYTES: u64 = 4096;
const KEY_LEAST: usize = 16;
