//! Session files under `verify` and `inspect`. No model is needed, nothing is changed, and the session may be open.

use crate::error::one_line;
use crate::out;
use anyhow::{Context, Result};
use haversack::memory::bytes::human;
use haversack::session::inspect::{SessionInspection, TurnCount, is_journal};
use serde_json::{Value as Json, json};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The argument as a path, if it is a session's file by its name or by its first bytes.
pub fn meant(argument: &str) -> Option<&Path> {
    let path = Path::new(argument);
    // Links, pipes and devices are for the reader to refuse; only what is there is meant.
    let found = path.symlink_metadata().ok()?;
    let named = path.extension().is_some_and(|ending| ending == "session");
    let begins = || {
        let mut beginning = [0; 8];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut beginning));
        read.is_ok() && is_journal(&beginning)
    };
    (named || found.is_file() && begins()).then_some(path)
}

fn looked(path: &Path) -> Result<SessionInspection> {
    SessionInspection::of(path, None).with_context(|| path.display().to_string())
}

/// A line that says what was checked, and the same as a document.
pub fn verify(path: &Path) -> Result<(String, Json)> {
    let found = looked(path)?;
    let kinds: Vec<String> = (found.kinds.iter())
        .map(|kind| counted(kind.kind, kind.records))
        .collect();
    let records = match kinds.is_empty() {
        true => "no records".to_owned(),
        false => kinds.join(", "),
    };
    let (size, commits) = (human(found.bytes), counted("commit", found.commits));
    let (name, identity) = (path.display(), identity(&found));
    let line = format!("{name}: good, {records}, {size} in {commits}, {identity}");
    let mut row = document(path, &found);
    row["ok"] = json!(true);
    Ok((line, row))
}

pub fn inspect(path: &Path, as_json: bool) -> Result<()> {
    let found = looked(path)?;
    if as_json {
        return out::json(&document(path, &found));
    }
    let mut page = String::new();
    let mut row = |name: &str, value: String| {
        page.push_str(&format!("{name:16} {value}\n"));
    };
    row("file", path.display().to_string());
    let sealed = if found.is_sealed { ", sealed" } else { "" };
    let tail = match found.tail_bytes {
        0 => String::new(),
        bytes => format!(", {} not committed", human(bytes)),
    };
    let (size, commits) = (human(found.bytes), counted("commit", found.commits));
    let format = format!("session, {size}, {commits}{sealed}{tail}");
    row("format", format);
    for (name, value) in &found.identity {
        row(&one_line(name), one_line(value));
    }
    row("positions", found.position.to_string());
    let (facts, tokens) = (found.facts, found.persistent);
    row("facts", format!("{facts}, {tokens} tokens"));
    row("turns", format!("{} told", found.turns_made));
    let counts = [
        ("in memory", found.in_memory),
        ("of them seen", found.visible),
        ("in the file", found.spilled),
        ("as ids", found.ids),
    ];
    for (place, TurnCount { turns, tokens }) in counts {
        row("", format!("{place:12} {turns:>7} {tokens:>9} tokens"));
    }
    let forgotten = found.forgotten;
    row("", format!("{:20} {forgotten:>9} tokens", "forgotten"));
    let total = found.kinds.iter().map(|kind| kind.records).sum::<u64>();
    row("records", total.to_string());
    for kind in &found.kinds {
        let (name, records, size) = (kind.kind, kind.records, human(kind.bytes));
        row("", format!("{name:12} {records:>7} {size:>16}"));
    }
    out::text(&page)
}

fn document(path: &Path, found: &SessionInspection) -> Json {
    let identity = found.identity.iter().cloned();
    let records = found
        .kinds
        .iter()
        .map(|kind| json!({ "kind": kind.kind, "records": kind.records, "bytes": kind.bytes }));
    let count = |count: TurnCount| json!({ "turns": count.turns, "tokens": count.tokens });
    json!({
        "path": path,
        "format": "session",
        "identity": identity.collect::<Json>(),
        "sealed": found.is_sealed,
        "commits": found.commits,
        "bytes": found.bytes,
        "tail_bytes": found.tail_bytes,
        "records": records.collect::<Json>(),
        "position": found.position,
        "time_ms": found.time_ms,
        "facts": found.facts,
        "persistent_tokens": found.persistent,
        "turns": {
            "told": found.turns_made,
            "in_memory": count(found.in_memory),
            "visible": count(found.visible),
            "spilled": count(found.spilled),
            "ids": count(found.ids),
            "forgotten_tokens": found.forgotten,
        },
    })
}

/// Who it belongs to, on one line; what is empty is left out.
fn identity(found: &SessionInspection) -> String {
    let said = found.identity.iter().filter(|(_, value)| !value.is_empty());
    let pairs: Vec<String> = said
        .map(|(name, value)| format!("{} {}", one_line(name), one_line(value)))
        .collect();
    pairs.join(", ")
}

fn counted(noun: &str, count: u64) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{ending}")
}
