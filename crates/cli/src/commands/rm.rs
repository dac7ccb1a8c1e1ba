//! `rm`: removes fetched models with what was made of them: packed copies, statistics, what a broken download left.

use crate::args;
use crate::out;
use crate::resolve::{self, Named};
use anyhow::{Result, bail};
use haversack::engine::model::fingerprint::fingerprint;
use haversack::gguf::Gguf;
use haversack::memory::bytes::human;
use haversack_hub::default_model::DefaultModel;
use haversack_hub::home::Home;
use haversack_hub::installed;
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// Hex digits of the fingerprint that files made of a model begin with.
const KEY_DIGITS: usize = 32;

pub fn rm(args: &args::RmArgs, as_json: bool) -> Result<()> {
    let home = Home::find()?;
    // All of them are found before the first is removed.
    let found = args.names.iter().map(|name| Removal::of(&home, name));
    let found: Vec<Removal> = found.collect::<Result<_>>()?;
    let default = DefaultModel::read(&home);
    for removal in &found {
        installed::remove(&home, &removal.files)?;
        if default
            .as_ref()
            .is_some_and(|default| removal.is_of(&default.model))
        {
            DefaultModel::forget(&home)?;
        }
        if !as_json {
            out::line(&format!("{}: {} freed", removal.name, human(removal.bytes)))?;
        }
    }
    if !as_json {
        return Ok(());
    }
    let row = |removal: &Removal| json!({ "name": removal.name, "bytes": removal.bytes, "files": removal.files });
    out::json(&json!({ "removed": out::list(&found, row) }))
}

struct Removal {
    /// Of a model, or of a repository of the hub.
    name: String,
    files: Vec<PathBuf>,
    bytes: u64,
}

impl Removal {
    fn is_of(&self, model: &str) -> bool {
        let rest = model.strip_prefix(&self.name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn of(home: &Home, argument: &str) -> Result<Removal> {
        let (name, mut files) = match resolve::meant(argument)? {
            Named::Catalogue(model) => (model.name.clone(), installed::files_of(home, model)),
            Named::Hub(hub) => (hub.to_string(), installed::files_of_hub_model(home, &hub)),
        };
        if files.is_empty() {
            bail!("{argument} is not here");
        }
        let derived: Vec<PathBuf> = files.iter().flat_map(|path| made_of(home, path)).collect();
        files.extend(derived);
        files.sort();
        files.dedup();
        let sizes = files.iter().filter_map(|path| path.metadata().ok());
        Ok(Removal {
            name,
            bytes: sizes.map(|found| found.len()).sum(),
            files,
        })
    }
}

/// The packed copy of a model, and what was measured of it. A file that is no whole model has none.
fn made_of(home: &Home, path: &Path) -> Vec<PathBuf> {
    let Ok(gguf) = Gguf::open(path) else {
        return Vec::new();
    };
    let key = fingerprint(&gguf).to_hex()[..KEY_DIGITS].to_owned();
    let folders = [home.packed(), home.cache()];
    let entries = folders.iter().flat_map(fs::read_dir).flatten().flatten();
    let is_of_it = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&key);
    entries.filter(is_of_it).map(|entry| entry.path()).collect()
}
