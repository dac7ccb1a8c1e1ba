//! Defaults from a TOML file (`--config`): the flags' long names with `_` or `-`, the flags' values.
//!
//! ```toml
//! threads = 2
//! memory = "1500M"
//! temperature = 0.7
//!
//! [kv_layers]         # codecs of single layers, in the words of --kv
//! "3" = "k=int8,v=int4"
//! ```
//!
//! A key that is no flag, or a value the flag would refuse, is a usage error naming file and key.

use crate::args::{Cli, Command, KvPair};
use crate::error::usage;
use anyhow::Result;
use clap::{CommandFactory, Parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// Flags that a file may set: those whose value says how to run, not what to run.
const KEYS: [&str; 31] = [
    "memory",
    "threads",
    "context",
    "kv",
    "group",
    "policy",
    "policy-file",
    "profile",
    "probe",
    "recall",
    "anchors",
    "window",
    "sinks",
    "recent",
    "recent-kv",
    "positions",
    "guard",
    "no-centre",
    "weights",
    "activations",
    "repack",
    "temperature",
    "top-k",
    "top-p",
    "min-p",
    "repetition-penalty",
    "presence-penalty",
    "frequency-penalty",
    "seed",
    "log",
    "system",
];

/// Of those, flags without a value.
const SWITCHES: [&str; 2] = ["no-centre", "recall"];

/// The one table that is no flag.
const KV_LAYERS: &str = "kv-layers";

/// Parses the command line again with the file's values put before the user's own for each flag
/// that the command has and the user did not give. One parser, so one set of rules.
pub fn apply(cli: Cli, words: &[OsString]) -> Result<Cli> {
    let Some(path) = cli.global.config.clone() else {
        return Ok(cli);
    };
    let File { extra, kv_layers } = read(&path, command_name(&cli.command), words)?;
    let mut all = words.to_vec();
    // After the subcommand's words: flags may stand anywhere, unless `--` ended them.
    let end = all
        .iter()
        .position(|word| word == "--")
        .unwrap_or(all.len());
    all.splice(end..end, extra.into_iter().map(OsString::from));
    let mut cli = Cli::try_parse_from(all).map_err(|error| {
        let text = crate::args::one_line(&error);
        usage(format!(
            "{}: {}",
            path.display(),
            text.trim_start_matches("error: ")
        ))
    })?;
    if let Some(cache) = cli.command.cache_mut() {
        cache.kv_layers = kv_layers;
    }
    Ok(cli)
}

/// What a file says.
struct File {
    /// Flags with their values.
    extra: Vec<String>,
    kv_layers: BTreeMap<usize, KvPair>,
}

fn read(path: &Path, command: &str, words: &[OsString]) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read --config {}: {error}", path.display())))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        usage(format!("{}: {}", path.display(), error.message()))
    })?;
    let definition = Cli::command();
    let has = |name: &str| {
        let own = definition
            .find_subcommand(command)
            .into_iter()
            .flat_map(|sub| sub.get_arguments());
        own.chain(definition.get_arguments())
            .any(|arg| arg.get_long() == Some(name))
    };
    let mut extra = Vec::new();
    let mut kv_layers = BTreeMap::new();
    for (key, value) in &table {
        let name = key.replace('_', "-");
        if name == KV_LAYERS {
            kv_layers = layers(value)
                .map_err(|what| usage(format!("{}: {key}: {what}", path.display())))?;
            continue;
        }
        if !KEYS.contains(&name.as_str()) {
            return Err(usage(format!(
                "{}: unknown key '{key}'; accepted: {}, {KV_LAYERS}",
                path.display(),
                KEYS.join(", ")
            )));
        }
        let flag = format!("--{name}");
        let given = words.iter().any(|word| {
            let word = word.to_string_lossy();
            word == flag.as_str() || word.starts_with(&format!("{flag}="))
        });
        if given || !has(&name) {
            continue;
        }
        let value = match value {
            toml::Value::Boolean(on) if SWITCHES.contains(&name.as_str()) => {
                extra.extend(on.then_some(flag));
                continue;
            }
            _ if SWITCHES.contains(&name.as_str()) => {
                return Err(usage(format!(
                    "{}: '{key}' is a {}; accepted: true or false",
                    path.display(),
                    value.type_str()
                )));
            }
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            other => {
                return Err(usage(format!(
                    "{}: '{key}' is a {}; accepted: a number or a string",
                    path.display(),
                    other.type_str()
                )));
            }
        };
        extra.push(format!("{flag}={value}"));
    }
    Ok(File { extra, kv_layers })
}

/// `{ "3" = "k=int8,v=int4" }` → layer 3.
fn layers(value: &toml::Value) -> Result<BTreeMap<usize, KvPair>, String> {
    let table = value
        .as_table()
        .ok_or_else(|| format!("is a {}; accepted: a table", value.type_str()))?;
    let mut layers = BTreeMap::new();
    for (name, codec) in table {
        let layer: usize = name
            .parse()
            .map_err(|_| format!("'{name}' is no layer; accepted: numbers from 0 on"))?;
        let codec = codec.as_str().ok_or_else(|| {
            format!(
                "layer {layer} is a {}; accepted: a string",
                codec.type_str()
            )
        })?;
        let pair = codec
            .parse()
            .map_err(|what| format!("layer {layer} is '{codec}'; {what}"))?;
        layers.insert(layer, pair);
    }
    Ok(layers)
}

fn command_name(command: &Command) -> &'static str {
    match command {
        Command::Pull(_) => "pull",
        Command::Run(_) => "run",
        Command::Chat(_) => "chat",
        Command::Score(_) => "score",
        Command::Tokenize(_) => "tokenize",
        Command::Detokenize(_) => "detokenize",
        Command::Inspect(_) => "inspect",
        Command::Verify(_) => "verify",
        Command::Doctor => "doctor",
        Command::Bench(_) => "bench",
        Command::Perplexity(_) => "perplexity",
        Command::Compare(_) => "compare",
        Command::Plan(_) => "plan",
        Command::Serve(_) => "serve",
    }
}
