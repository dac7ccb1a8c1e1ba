//! Standard output, without `println!`.
//!
//! `println!` panics when the reader has gone away. Everything a command says on stdout passes here
//! and becomes [`Closed`], which ends the program quietly.

use crate::error::Closed;
use anyhow::Result;
use serde_json::Value as Json;
use std::io::{self, Write};

/// Writes `text` as it stands and flushes, so that a stream of tokens is seen as it comes.
pub fn text(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    check(
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.flush()),
    )
}

/// Writes `text` and a line end.
pub fn line(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    check(
        stdout
            .write_all(text.as_bytes())
            .and_then(|()| stdout.write_all(b"\n"))
            .and_then(|()| stdout.flush()),
    )
}

/// Writes the one JSON document of a command.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    line(&serde_json::to_string_pretty(value)?)
}

/// What `json` makes of each.
pub fn list<T>(of: impl IntoIterator<Item = T>, json: impl FnMut(T) -> Json) -> Json {
    of.into_iter().map(json).collect()
}

/// A note for the user on stderr; a closed stderr is no reason to stop.
pub fn note(text: &str) {
    // `eprintln!` panics on a closed stderr, but only it is captured by the test harness.
    #[cfg(test)]
    eprintln!("{text}");
    #[cfg(not(test))]
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Whether the user's settings ask for text without colours and drawings.
pub fn wants_no_style() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    set("NO_COLOR") || std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

fn check(result: io::Result<()>) -> Result<()> {
    match result {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(error) => Err(anyhow::Error::new(error).context("cannot write to standard output")),
    }
}
