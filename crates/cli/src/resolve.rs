//! What `MODEL` means: an existing path first, else a catalogue name; nothing is the default model.

use crate::progress;
use anyhow::{Context, Result, bail};
use haversack_hub::catalogue::{CatalogueModel, catalogue};
use haversack_hub::fetch;
use haversack_hub::home::Home;
use std::path::{Path, PathBuf};

/// The path of the model, fetched first if it has to be.
pub fn model(argument: Option<&str>) -> Result<PathBuf> {
    if let Some(path) = existing(argument)? {
        return Ok(path);
    }
    let model = named(argument)?;
    let home = Home::find()?;
    let main = model.files.first();
    let main = main.with_context(|| format!("{} has no files", model.name))?;
    let (path, packed) = (home.fetched(main), home.fetched_packed(main));
    // The hash was checked when the file got its name; here its size is enough.
    let found = path.metadata();
    if found.is_ok_and(|found| found.is_file() && found.len() == main.bytes) {
        return Ok(path);
    }
    if packed.is_file() {
        return Ok(packed);
    }
    fetch::model(&home, model, &progress::fetch_options())?;
    Ok(path)
}

/// `argument` as a path, if there is such a file.
fn existing(argument: Option<&str>) -> Result<Option<PathBuf>> {
    let Some(path) = argument.map(PathBuf::from) else {
        return Ok(None);
    };
    match path.metadata() {
        Ok(found) if found.is_dir() => bail!("{} is a directory, not a model", path.display()),
        Ok(_) => Ok(Some(path)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot open {}", path.display())),
    }
}

/// The catalogue model of that name, or the default one.
pub fn named(argument: Option<&str>) -> Result<&'static CatalogueModel> {
    let Some(name) = argument else {
        let model = catalogue().default();
        return model.context("the catalogue has no default model");
    };
    if let Some(model) = catalogue().find(name) {
        return Ok(model);
    }
    if Path::new(name).components().count() > 1 || name.to_ascii_lowercase().ends_with(".gguf") {
        bail!("no such file: {name}");
    }
    let names = catalogue().names();
    bail!("no file and no catalogue model is called '{name}'; the catalogue has: {names}");
}
