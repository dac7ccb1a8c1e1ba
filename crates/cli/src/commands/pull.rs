//! `pull`: fetch a catalogue model, and keep it as it is or packed.

use crate::args;
use crate::commands::pack::{self, Converted};
use crate::error::usage;
use crate::progress;
use crate::{out, resolve};
use anyhow::{Context, Result};
use haversack::memory::bytes::human;
use haversack_hub::catalogue::{CatalogueFile, CatalogueModel, catalogue};
use haversack_hub::fetch::{self, Fetched};
use haversack_hub::home::Home;
use serde_json::json;
use std::fs;

pub fn pull(args: &args::PullArgs, as_json: bool) -> Result<()> {
    if args.list {
        return list(as_json);
    }
    if let Some(name) = &args.name
        && catalogue().find(name).is_none()
    {
        let names = catalogue().names();
        let what = format!("'{name}' is not in the catalogue; it has: {names}");
        return Err(usage(what));
    }
    let model = resolve::named(args.name.as_deref())?;
    let home = Home::find()?;
    let main = model.files.first();
    let main = main.with_context(|| format!("{} has no files", model.name))?;
    if let Some(there) = packed_alone(&home, main) {
        return print_packed(model, &there, None, as_json);
    }
    // A damaged model is fetched again in the form it had.
    let was_packed = home.fetched_packed(main).exists() && !home.fetched(main).exists();
    let packed = args.packed || was_packed;
    if packed {
        check_can_be_packed(&home, model, main)?;
    }
    let fetched = fetch::model(&home, model, &progress::fetch_options())?;
    let main = fetched.first();
    let main = main.with_context(|| format!("{} has no files", model.name))?;
    if packed {
        let packed = pack::packed(&main.path, &main.path.with_extension("packed"), false)?;
        return print_packed(model, &packed, main.source.as_deref(), as_json);
    }
    if !as_json {
        for file in &fetched {
            out::line(&file.path.display().to_string())?;
        }
        return Ok(());
    }
    let file = |file: &Fetched| {
        json!({
            "path": file.path,
            "sha256": file.sha256,
            "bytes": file.bytes,
            "source": file.source,
        })
    };
    out::json(&json!({
        "name": model.name,
        "licence": model.licence,
        "path": main.path,
        "sha256": main.sha256,
        "bytes": main.bytes,
        "source": main.source,
        "files": out::list(&fetched, file),
    }))
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
    let packed = file.bytes / 100 * PACKED_PERCENT_MAX;
    let models = home.models();
    let existing = models.ancestors().find(|folder| folder.exists());
    fetch::enough_space(existing.unwrap_or(home.path()), missing + packed)?;
    Ok(())
}

/// A packed model is at most so much of its GGUF file: Q3_K is the type that grows most.
const PACKED_PERCENT_MAX: u64 = 106;

fn print_packed(
    model: &CatalogueModel,
    packed: &Converted,
    source: Option<&str>,
    as_json: bool,
) -> Result<()> {
    if !as_json {
        out::line(&packed.path.display().to_string())?;
        packed.note();
        return Ok(());
    }
    let mut document = packed.json()?;
    document["name"] = json!(model.name);
    document["licence"] = json!(model.licence);
    document["source"] = json!(source);
    let mut file = document.clone();
    if let Some(file) = file.as_object_mut() {
        file.retain(|key, _| ["path", "sha256", "bytes", "source"].contains(&key.as_str()));
    }
    document["files"] = json!([file]);
    out::json(&document)
}

fn list(as_json: bool) -> Result<()> {
    let models = &catalogue().models;
    if as_json {
        let rows = out::list(models, |model| {
            json!({
                "name": model.name,
                "aliases": model.aliases,
                "default": model.default,
                "title": model.title,
                "licence": model.licence,
                "bytes": model.bytes(),
            })
        });
        return out::json(&json!({ "models": rows }));
    }
    for model in models {
        let default = if model.default { " (default)" } else { "" };
        let (name, size) = (&model.name, human(model.bytes()));
        let (title, licence) = (&model.title, &model.licence);
        let line = format!("{name:24} {size:>10}  {title}, {licence}{default}");
        out::line(&line)?;
    }
    Ok(())
}
