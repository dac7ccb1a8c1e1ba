//! `plan`: what fits a device, and what to choose for it, from a file's metadata alone.
//!
//! No weight is read: the table of a file is enough, so a model can be planned for a device that
//! could never load it. The figures are those the ledger shows later; [`advice`] makes choices of them.

mod advice;

use crate::args;
use crate::error::one_line;
use crate::fit::{self, Device, Figures};
use crate::{out, resolve};
use advice::Advice;
use anyhow::{Result, anyhow};
use haversack::engine::model::Config;
use haversack::engine::{Codec, KvOptions};
use haversack::gguf::Gguf;
use haversack::memory::bytes::human;
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// What may be asked for, best first.
const CODECS: [Codec; 7] = [
    Codec::F16,
    Codec::Int8,
    Codec::Int5,
    Codec::Int4,
    Codec::Int4Plain,
    Codec::Int3,
    Codec::Int2,
];

/// Tokens per session where --context is not given.
const SESSION_TOKENS: usize = 2048;

pub fn plan(args: &args::PlanArgs, as_json: bool) -> Result<()> {
    let path = resolve::model(args.model.as_deref())?;
    let gguf = Gguf::open(&path)?;
    let config = Config::read(&gguf, None).map_err(|error| {
        // Where a file is opened by name the error has it already; here it is empty.
        let what = error.to_string();
        anyhow!("{}: {}", path.display(), what.trim_start_matches(": "))
    })?;
    let sizes = gguf.tensors().iter().map(|tensor| tensor.byte_len());
    let weights_bytes = sizes.fold(0, u64::saturating_add);
    let figures = Figures {
        config: &config,
        weights_bytes,
        threads: args.threads,
        options: &|codec| options(args, codec),
    };
    let session = args.context.unwrap_or(SESSION_TOKENS);
    let session = session.min(config.context_trained);
    let page = Page {
        advice: Advice::new(&figures, args.ram, session, args.model.as_deref()),
        path: &path,
        figures,
        device: Device::of(args.ram),
        session,
    };
    if as_json {
        out::json(&page.json())
    } else {
        out::text(&page.text())
    }
}

/// What `--kv CODEC` means with the flags given.
fn options(args: &args::PlanArgs, codec: Codec) -> KvOptions {
    let usual = KvOptions::new(args::KvPair::both(codec).form(args.group));
    KvOptions {
        sinks: args.sinks.unwrap_or(usual.sinks),
        recent: args.recent.unwrap_or(usual.recent),
        ..usual
    }
}

struct Page<'a> {
    path: &'a Path,
    figures: Figures<'a>,
    device: Device,
    session: usize,
    advice: Advice,
}

impl Page<'_> {
    /// A figure of every codec under its name.
    fn each(&self, figure: impl Fn(Codec) -> u64) -> Json {
        let pairs = CODECS.map(|codec| (codec.name().to_owned(), json!(figure(codec))));
        Json::Object(Map::from_iter(pairs))
    }

    fn context_max(&self, codec: Codec) -> u64 {
        let trained = self.figures.config.context_trained as u64;
        self.tokens_max(codec).min(trained)
    }

    fn tokens_max(&self, codec: Codec) -> u64 {
        let room = self.device.room(self.figures.weights_bytes);
        self.figures.tokens_max(codec, room) as u64
    }

    fn sessions(&self, codec: Codec) -> u64 {
        let room = self.device.room(self.figures.weights_bytes);
        self.figures.sessions(codec, room, self.session)
    }

    fn json(&self) -> Json {
        let (figures, session) = (&self.figures, self.session);
        json!({
            "path": self.path,
            "name": figures.config.name,
            "architecture": figures.config.arch.name(),
            "ram_bytes": self.device.ram_bytes,
            "app_bytes": self.device.app_bytes(),
            "app_share": self.device.share().0,
            "process_bytes": fit::PROCESS_BYTES,
            "weights_bytes": figures.weights_bytes,
            "weights_fit": self.device.fits(figures.weights_bytes),
            "weights": { "mode": self.advice.weights.0, "why": self.advice.weights.1 },
            "context_trained": figures.config.context_trained,
            "context": session,
            "threads": figures.threads,
            "kv_bytes_per_token": self.each(|codec| figures.bytes_per_token(codec)),
            "blocks_bytes": self.each(|codec| figures.blocks_bytes(codec, session)),
            "session_bytes": self.each(|codec| figures.needs(codec, session).total() as u64),
            "scratch_bytes": figures.needs(Codec::F16, session).scratch_bytes,
            "context_max": self.each(|codec| self.context_max(codec)),
            "tokens_max": self.each(|codec| self.tokens_max(codec)),
            "sessions": self.each(|codec| self.sessions(codec)),
            "recommended": self.advice.json(),
        })
    }

    fn text(&self) -> String {
        let figures = &self.figures;
        let config = figures.config;
        let name = match config.name.as_str() {
            "" => config.arch.name().to_owned(),
            name => one_line(name),
        };
        let mut page = format!(
            "{name}: {} layers, trained for {} tokens, {} of weights\n{}\nweights {}: {}\n\n",
            config.layers.len(),
            config.context_trained,
            human(figures.weights_bytes),
            self.device.text(),
            self.advice.weights.0,
            self.advice.weights.1,
        );
        page.push_str(&format!(
            "{:<12}{:>10}{:>16}{:>16}{:>14}{:>10}\n",
            "keys, values", "a token", "a session", "longest", "without end", "sessions"
        ));
        for codec in CODECS {
            page.push_str(&format!(
                "{:<12}{:>10}{:>16}{:>16}{:>14}{:>10}\n",
                codec.name(),
                human(figures.bytes_per_token(codec)),
                human(figures.needs(codec, self.session).total() as u64),
                self.context_max(codec),
                self.tokens_max(codec),
                self.sessions(codec),
            ));
        }
        page.push_str(&format!(
            "A session has {} tokens and takes blocks, tables and {} of scratch; \"longest\" ends at the trained\ncontext, \"without end\" counts what memory alone would hold.\n\n",
            self.session,
            human(figures.needs(Codec::F16, self.session).scratch_bytes as u64),
        ));
        page.push_str(&self.advice.text());
        page
    }
}
