//! `pull`: fetch a catalogue model.

use crate::args;
use crate::error::usage;
use crate::progress;
use crate::{out, resolve};
use anyhow::{Context, Result};
use haversack::memory::bytes::human;
use haversack_hub::catalogue::catalogue;
use haversack_hub::fetch::{self, Fetched};
use haversack_hub::home::Home;
use serde_json::json;

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
    let fetched = fetch::model(&Home::find()?, model, &progress::fetch_options())?;
    let main = fetched.first();
    let main = main.with_context(|| format!("{} has no files", model.name))?;
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
