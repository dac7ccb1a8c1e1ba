//! `pull`: fetch a model, and keep it as it is or packed.

use crate::args;
use crate::commands::models;
use crate::commands::pack::{self, Converted};
use crate::default_model;
use crate::error::usage;
use crate::out;
use crate::resolve::{self, main_file};
use anyhow::{Context, Result};
use haversack_hub::catalogue::{CatalogueFile, CatalogueModel, catalogue};
use haversack_hub::default_model::DefaultModel;
use haversack_hub::fetch::{self, Fetched};
use haversack_hub::home::Home;
use haversack_hub::repository;
use serde_json::{Value as Json, json};
use std::fs;

pub fn pull(args: &args::PullArgs, as_json: bool) -> Result<()> {
    if args.list {
        return models::models(as_json);
    }
    if let Some(name) = &args.name
        && !name.starts_with(repository::PREFIX)
        && catalogue().find(name).is_none()
    {
        let near = resolve::nearest(name);
        return Err(usage(format!("'{name}' is not in the catalogue{near}")));
    }
    let home = Home::find()?;
    let (name, choice) = match &args.name {
        Some(name) => (name.clone(), None),
        None => {
            let (choice, is_new) = default_model::chosen(&home)?;
            (choice.model.clone(), Some(choice).filter(|_| is_new))
        }
    };
    let model = resolve::described(&resolve::meant(&name)?)?;
    let asked = args.default.then(|| DefaultModel {
        model: model.name.clone(),
        why: "chosen with pull --default".into(),
    });
    let pulled = pull_model(args, &home, &model).map_err(|error| match &choice {
        Some(choice) => default_model::with_way_out(error, choice),
        None => error,
    })?;
    if let Some(default) = asked.or(choice) {
        default.write(&home)?;
    }
    let default = DefaultModel::read(&home);
    let is_default = default.is_some_and(|default| default.model == model.name);
    pulled.print(&model, is_default, as_json)
}

/// A model in place.
enum Pulled {
    Files(Vec<Fetched>),
    Packed {
        packed: Converted,
        /// Where it came from; `None` when it was there already.
        source: Option<String>,
    },
}

fn pull_model(args: &args::PullArgs, home: &Home, model: &CatalogueModel) -> Result<Pulled> {
    let main = main_file(model)?;
    if let Some(packed) = packed_alone(home, main) {
        let source = None;
        return Ok(Pulled::Packed { packed, source });
    }
    // A damaged model is fetched again in the form it had.
    let was_packed = home.fetched_packed(main).exists() && !home.fetched(main).exists();
    let packed = args.packed || was_packed;
    if packed {
        check_can_be_packed(home, model, main)?;
    }
    let fetched = resolve::fetch(home, model)?;
    if !packed {
        return Ok(Pulled::Files(fetched));
    }
    let main = fetched.into_iter().next();
    let main = main.with_context(|| format!("{} has no files", model.name))?;
    Ok(Pulled::Packed {
        packed: pack::packed(&main.path, &main.path.with_extension("packed"), false)?,
        source: main.source,
    })
}

impl Pulled {
    fn print(&self, model: &CatalogueModel, is_default: bool, as_json: bool) -> Result<()> {
        let mut document = match self {
            Pulled::Files(files) if !as_json => {
                let mut paths = files.iter().map(|file| file.path.display().to_string());
                return paths.try_for_each(|path| out::line(&path));
            }
            Pulled::Packed { packed, .. } if !as_json => {
                out::line(&packed.path.display().to_string())?;
                packed.note();
                return Ok(());
            }
            Pulled::Files(files) => files_json(files),
            Pulled::Packed { packed, source } => packed_json(packed, source.as_deref())?,
        };
        document["name"] = json!(model.name);
        document["licence"] = json!(model.licence);
        document["default"] = json!(is_default);
        out::json(&document)
    }
}

/// The model's own file first, then all of them.
fn files_json(files: &[Fetched]) -> Json {
    let file = |file: &Fetched| {
        json!({
            "path": file.path,
            "sha256": file.sha256,
            "bytes": file.bytes,
            "source": file.source,
        })
    };
    let mut document = files.first().map_or_else(|| json!({}), file);
    document["files"] = out::list(files, file);
    document
}

fn packed_json(packed: &Converted, source: Option<&str>) -> Result<Json> {
    let mut document = packed.json()?;
    document["source"] = json!(source);
    let mut file = document.clone();
    if let Some(file) = file.as_object_mut() {
        file.retain(|key, _| ["path", "sha256", "bytes", "source"].contains(&key.as_str()));
    }
    document["files"] = json!([file]);
    Ok(document)
}

/// The packed model of a catalogue file, if it is all there is and every byte of it good. A damaged one is named, and
/// fetched again.
fn packed_alone(home: &Home, file: &CatalogueFile) -> Option<Converted> {
    let path = home.fetched_packed(file);
    if home.fetched(file).exists() || !path.exists() {
        return None;
    }
    let name = path.display();
    match pack::packed_sha256(&path) {
        Ok(Some(found)) if found == file.sha256 => {}
        Ok(_) => {
            out::note(&format!(
                "{name} is not what it should be; fetching it again"
            ));
            return None;
        }
        Err(error) => {
            out::note(&format!("{error:#}; fetching it again"));
            return None;
        }
    }
    let bytes = fs::metadata(&path).map_or(0, |found| found.len());
    Some(Converted {
        path,
        original_sha256: file.sha256.clone(),
        original_bytes: file.bytes,
        before_bytes: bytes,
        after_bytes: bytes,
    })
}

/// Only GGUF files are packed; and for a while both are on the disk.
fn check_can_be_packed(home: &Home, model: &CatalogueModel, file: &CatalogueFile) -> Result<()> {
    if model.files.len() > 1 || !file.name.ends_with(".gguf") {
        let name = &model.name;
        return Err(usage(format!(
            "{name} is not a GGUF file; --packed is for those"
        )));
    }
    let missing = if home.fetched(file).exists() {
        0
    } else {
        file.bytes
    };
    let packed = default_model::packed_bytes_max(file.bytes);
    fetch::enough_space(&home.models_disk(), missing.saturating_add(packed))?;
    Ok(())
}
