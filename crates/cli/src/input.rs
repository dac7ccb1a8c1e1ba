//! Text that a user gives: as an argument, in a file, or on stdin.

use anyhow::{Context, Result, anyhow};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// More than any context holds; a file beyond it is a mistake, and must not fill the memory.
const BYTES_MAX: u64 = 64 << 20;

/// Text given but not read yet. A file is opened at once, so that a missing one is said before a
/// model is fetched for it.
pub enum Text {
    Here(String),
    File(File, String),
    Stdin,
}

impl Text {
    /// From `--text` or `--text-file`; the parser has seen to it that one is there.
    pub fn given(text: Option<&str>, file: Option<&Path>) -> Result<Text> {
        match (text, file) {
            (Some(text), _) => Ok(Text::Here(text.to_owned())),
            (None, Some(path)) if path == Path::new("-") => Ok(Text::Stdin),
            (None, Some(path)) => {
                let name = path.display().to_string();
                let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
                Ok(Text::File(file, name))
            }
            (None, None) => Ok(Text::Here(String::new())),
        }
    }

    pub fn read(self) -> Result<String> {
        match self {
            Text::Here(text) => Ok(text),
            Text::File(file, name) => read(file, &name),
            Text::Stdin => read(io::stdin().lock(), "standard input"),
        }
    }
}

fn read(reader: impl Read, name: &str) -> Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(anyhow!(
            "{name} is too long; accepted: at most {BYTES_MAX} bytes"
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        anyhow!(
            "{name} is not UTF-8: byte {} does not belong there",
            error.utf8_error().valid_up_to()
        )
    })
}
