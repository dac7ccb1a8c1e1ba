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

use crate::args::{Cli, KvPair};
use crate::error::usage;
use anyhow::Result;
use clap::{CommandFactory, Parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

/// Flags that a file may set: those whose value says how to run, not what to run.
const KEYS: &str = "memory, threads, context, kv, group, policy, policy-file, profile, probe, \
    recall, anchors, window, sinks, recent, recent-kv, positions, guard, no-centre, weights, kv-memory, \
    activations, repack, temperature, top-k, top-p, min-p, repetition-penalty, presence-penalty, \
    frequency-penalty, typical-p, top-n-sigma, xtc-probability, xtc-threshold, dry-multiplier, dry-base, \
    dry-allowed-length, dry-penalty-last-n, stop-repetition, seed, log, system, session-quota, session-expiry, relevance, \
    no-encoder, session-capacity, session-persistent, session-file-quota, session-answer, auto-facts, dates";

/// Of those, flags without a value.
const SWITCHES: [&str; 5] = ["no-centre", "recall", "no-encoder", "auto-facts", "dates"];

/// The one table that is no flag.
const KV_LAYERS: &str = "kv-layers";

/// Parses the command line again with the file's values put before the user's own for each flag
/// that the command has and the user did not give. One parser, so one set of rules.
pub fn apply(cli: Cli, words: &[OsString]) -> Result<Cli> {
    let Some(path) = cli.global.config.clone() else {
        return Ok(cli);
    };
    let File { extra, kv_layers } = read(&path, words)?;
    let mut all = words.to_vec();
    // After the subcommand's words: flags may stand anywhere, unless `--` ended them.
    let end = all.iter().position(|word| word == "--");
    let end = end.unwrap_or(all.len());
    all.splice(end..end, extra.into_iter().map(OsString::from));
    let mut cli = Cli::try_parse_from(all).map_err(|error| {
        let text = crate::args::one_line(&error);
        let text = text.trim_start_matches("error: ");
        usage(format!("{}: {text}", path.display()))
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

fn read(path: &Path, words: &[OsString]) -> Result<File> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| usage(format!("cannot read --config {}: {error}", path.display())))?;
    let wrong = |what: String| usage(format!("{}: {what}", path.display()));
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
    let definition = Cli::command();
    let parsed = definition.clone().try_get_matches_from(words)?;
    let command = parsed.subcommand_name().unwrap_or_default();
    let has = |name: &str| {
        let own = definition.find_subcommand(command).into_iter();
        let own = own.flat_map(|sub| sub.get_arguments());
        let mut all = own.chain(definition.get_arguments());
        all.any(|arg| arg.get_long() == Some(name))
    };
    let mut extra = Vec::new();
    let mut kv_layers = BTreeMap::new();
    for (key, value) in &table {
        let name = key.replace('_', "-");
        if name == KV_LAYERS {
            kv_layers = layers(value).map_err(|what| wrong(format!("{key}: {what}")))?;
            continue;
        }
        if !KEYS.split(", ").any(|known| known == name) {
            let accepted = format!("accepted: {KEYS}, {KV_LAYERS}");
            return Err(wrong(format!("unknown key '{key}'; {accepted}")));
        }
        let flag = format!("--{name}");
        let given = words.iter().any(|word| {
            let word = word.to_string_lossy();
            word == flag.as_str() || word.starts_with(&format!("{flag}="))
        });
        if given || !has(&name) {
            continue;
        }
        let is_switch = SWITCHES.contains(&name.as_str());
        extra.push(match value {
            toml::Value::Boolean(true) if is_switch => flag,
            toml::Value::Boolean(false) if is_switch => continue,
            toml::Value::String(text) if !is_switch => format!("{flag}={text}"),
            toml::Value::Integer(number) if !is_switch => format!("{flag}={number}"),
            toml::Value::Float(number) if !is_switch => format!("{flag}={number}"),
            other => {
                let kind = other.type_str();
                let accepted = match is_switch {
                    true => "true or false",
                    false => "a number or a string",
                };
                return Err(wrong(format!("'{key}' is a {kind}; accepted: {accepted}")));
            }
        });
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
        let kind = codec.type_str();
        let wrong = || format!("layer {layer} is a {kind}; accepted: a string");
        let codec = codec.as_str().ok_or_else(wrong)?;
        let pair = codec
            .parse()
            .map_err(|what| format!("layer {layer} is '{codec}'; {what}"))?;
        layers.insert(layer, pair);
    }
    Ok(layers)
}
