//! What `MODEL` means: an existing path first, then a model of the hub (`hf:owner/repo/file`), else a catalogue name; nothing is
//! the default model.

use crate::default_model;
use crate::error::{one_line, usage};
use crate::fit;
use crate::progress;
use anyhow::{Context, Result, anyhow, bail};
use haversack::engine::model::Arch;
use haversack_hub::catalogue::{CatalogueModel, catalogue};
use haversack_hub::fetch::{self, Fetched};
use haversack_hub::home::Home;
use haversack_hub::installed;
use haversack_hub::repository::HubName;
use std::path::{Path, PathBuf};

/// The path of the model, fetched first if it has to be.
pub fn model(argument: Option<&str>) -> Result<PathBuf> {
    if let Some(path) = existing(argument)? {
        return Ok(path);
    }
    let Some(name) = argument else {
        return default(&Home::find()?);
    };
    // Before a home is looked for: a wrong name is the first thing to say.
    let meant = meant(name)?;
    fetched(&Home::find()?, meant)
}

/// A model by its name.
#[derive(Debug, Clone)]
pub enum Named {
    Catalogue(&'static CatalogueModel),
    Hub(HubName),
}

/// The model of that name.
pub fn meant(name: &str) -> Result<Named> {
    if let Some(hub) = HubName::parse(name) {
        return Ok(Named::Hub(hub.map_err(|error| usage(error.to_string()))?));
    }
    if let Some(model) = catalogue().find(name) {
        return Ok(Named::Catalogue(model));
    }
    if Path::new(name).components().count() > 1 || name.to_ascii_lowercase().ends_with(".gguf") {
        bail!("no such file: {name}");
    }
    Err(anyhow!(
        "no file and no catalogue model is called '{name}'{}",
        nearest(name)
    ))
}

/// What helps after a name that is not there.
pub fn nearest(name: &str) -> String {
    let near = catalogue().nearest(name);
    let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
    format!("{near} (haversack models lists the catalogue)")
}

/// A model as reports call it: its catalogue name, else its file without the ending.
pub fn name_of(path: &Path) -> String {
    let known = catalogue().model_of(path).map(|model| model.name.clone());
    let stem = path.file_stem().unwrap_or_default();
    known.unwrap_or_else(|| stem.to_string_lossy().into_owned())
}

/// The default model, fetched and remembered.
fn default(home: &Home) -> Result<PathBuf> {
    let (choice, is_new) = default_model::chosen(home)?;
    let meant = meant(&choice.model).with_context(|| home.default_model().display().to_string())?;
    let path = fetched(home, meant);
    let path = path.map_err(|error| default_model::with_way_out(error, &choice))?;
    if is_new {
        choice.write(home)?;
    }
    Ok(path)
}

fn fetched(home: &Home, meant: Named) -> Result<PathBuf> {
    let here = match &meant {
        Named::Catalogue(model) => installed::path_of(home, main_file(model)?),
        Named::Hub(name) => installed::hub_model(home, name).map(|model| model.path),
    };
    if let Some(path) = here {
        return Ok(path);
    }
    let files = fetch(home, &described(&meant)?)?;
    let main = files.first().context("the model has no files")?;
    Ok(main.path.clone())
}

/// The files of a model, the first of them the model itself; the hub is asked for what is not in the catalogue.
pub fn described(meant: &Named) -> Result<CatalogueModel> {
    match meant {
        Named::Catalogue(model) => Ok((*model).clone()),
        Named::Hub(name) => Ok(name.look_up(&progress::fetch_options())?),
    }
}

/// Fetches what the engine can use.
pub fn fetch(home: &Home, model: &CatalogueModel) -> Result<Vec<Fetched>> {
    if let Some(architecture) = model
        .architecture
        .as_deref()
        .filter(|name| !fit::is_known(name))
    {
        let (name, known) = (&model.name, Arch::ALL.map(Arch::name).join(", "));
        let architecture = one_line(architecture);
        bail!(
            "{name} is a {architecture} model, an architecture that is not supported; supported: {known}"
        );
    }
    Ok(fetch::model(home, model, &progress::fetch_options())?)
}

pub fn main_file(model: &CatalogueModel) -> Result<&haversack_hub::catalogue::CatalogueFile> {
    let main = model.files.first();
    main.with_context(|| format!("{} has no files", model.name))
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
