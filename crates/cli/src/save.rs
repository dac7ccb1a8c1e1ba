//! Texts that a person saves under a name: a file that is there stays, unless it is named as one to replace.

use anyhow::{Context, Result, bail};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file that must not be there yet. `else_try`: what to do if it is, for the error.
pub fn write_new(path: &Path, text: &str, else_try: &str) -> Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).open(path);
    let shown = path.display();
    let mut file = match opened {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{shown} exists; {else_try}")
        }
        opened => opened.with_context(|| format!("cannot write {shown}"))?,
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all());
    written.with_context(|| format!("cannot write {shown}"))
}

/// Writes a file whether it is there or not. Its old text is whole until the new one is.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let shown = path.display();
    let Ok(metadata) = fs::metadata(path) else {
        return write_new(path, text, "it cannot be replaced");
    };
    if !metadata.is_file() {
        bail!("{shown} is not a file");
    }
    let doing = || format!("cannot replace {shown}");
    // A link stays one.
    let target = path.canonicalize().with_context(doing)?;
    let mut part = target.clone().into_os_string();
    part.push(format!(".{}.part", std::process::id()));
    let part = PathBuf::from(part);
    let written = write_new(&part, text, "remove it")
        .and_then(|()| fs::set_permissions(&part, metadata.permissions()).with_context(doing))
        .and_then(|()| fs::rename(&part, &target).with_context(doing));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}
