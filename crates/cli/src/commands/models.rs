//! `models`: the catalogue, what of it is here and how it goes with this device; and models of the hub that were fetched.

use crate::default_model::{self, free_bytes_of};
use crate::fit::{self, Device};
use crate::machine::{ram_bytes, threads_of_machine};
use crate::out;
use anyhow::Result;
use haversack::memory::bytes::human;
use haversack_hub::catalogue::{CatalogueModel, catalogue};
use haversack_hub::home::Home;
use haversack_hub::installed;
use serde_json::{Value as Json, json};
use std::path::PathBuf;

pub fn models(as_json: bool) -> Result<()> {
    let home = Home::find()?;
    let default = default_model::current(&home)?;
    let device = Device::of(ram_bytes());
    let known = catalogue()
        .models
        .iter()
        .map(|model| Row::of(&home, model, device));
    let others = installed::hub_models(&home).into_iter().map(|model| Row {
        name: model.name,
        bytes: model.bytes,
        here: Some(model.path),
        is_partial: false,
        fit: None,
        licence: String::new(),
        of: None,
    });
    let rows: Vec<Row> = known.chain(others).collect();
    if as_json {
        return out::json(&json!({
            "models": out::list(&rows, |row| row.json(row.name == default.model)),
            "default": { "model": default.model, "why": default.why },
            "device": {
                "ram_bytes": device.ram_bytes,
                "app_bytes": device.app_bytes(),
                "free_bytes": free_bytes_of(&home),
            },
        }));
    }
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    out::line(&format!(
        "{:width$} {:>10}  {:8} {:13} licence",
        "name", "size", "here", "this device"
    ))?;
    for row in &rows {
        let mark = if row.name == default.model {
            " (default)"
        } else {
            ""
        };
        out::line(&row.text(width, mark))?;
    }
    let free = free_bytes_of(&home).map_or("unknown".to_owned(), human);
    out::line(&format!(
        "\nThis device: {}; {free} free on the disk.\nhaversack pull NAME fetches a model, also hf:OWNER/REPOSITORY of the hub; pull NAME --default uses it where none is named; rm NAME removes it.",
        device.text()
    ))
}

/// One model.
struct Row {
    name: String,
    bytes: u64,
    /// Its first file.
    here: Option<PathBuf>,
    /// A download began and did not end.
    is_partial: bool,
    /// `None` where nothing is known of it.
    fit: Option<Fit>,
    licence: String,
    of: Option<&'static CatalogueModel>,
}

enum Fit {
    /// Verdict, and bytes of memory with a conversation.
    Planned(fit::DeviceFit, u64),
    /// The engine does not have this architecture.
    NotSupported(&'static str),
    /// No language model.
    Helper,
}

impl Fit {
    fn text(&self) -> String {
        match self {
            Fit::Planned(verdict, _) => verdict.name().into(),
            Fit::NotSupported(architecture) => format!("no {architecture} yet"),
            Fit::Helper => "fits".into(),
        }
    }
}

impl Row {
    fn of(home: &Home, model: &'static CatalogueModel, device: Device) -> Row {
        let first = model.files.first();
        let here = first.filter(|_| installed::is_here(home, model));
        let conversation = fit::conversation_bytes(model, threads_of_machine());
        let fit = match (conversation, model.architecture.as_deref()) {
            (Some(bytes), _) => {
                let verdict = device.verdict(model.bytes(), bytes);
                Fit::Planned(verdict, model.bytes() + bytes)
            }
            (None, Some(architecture)) => Fit::NotSupported(architecture),
            (None, None) => Fit::Helper,
        };
        let here = here.and_then(|file| installed::path_of(home, file));
        Row {
            name: model.name.clone(),
            bytes: model.bytes(),
            is_partial: here.is_none() && !installed::files_of(home, model).is_empty(),
            here,
            fit: Some(fit),
            licence: model.licence.clone(),
            of: Some(model),
        }
    }

    fn here_text(&self) -> &'static str {
        match &self.here {
            Some(path) if path.extension().is_some_and(|end| end == "packed") => "packed",
            Some(_) => "yes",
            None if self.is_partial => "in part",
            None => "-",
        }
    }

    fn text(&self, width: usize, mark: &str) -> String {
        let fit = self.fit.as_ref().map_or("-".to_owned(), Fit::text);
        let (name, size, here) = (&self.name, human(self.bytes), self.here_text());
        format!(
            "{name:width$} {size:>10}  {here:8} {fit:13} {}{mark}",
            self.licence
        )
    }

    fn json(&self, is_default: bool) -> Json {
        let mut row = json!({
            "name": self.name,
            "bytes": self.bytes,
            "default": is_default,
            "here": self.here_text(),
            "path": self.here,
            "fit": self.fit.as_ref().map(Fit::text),
        });
        if let Some(Fit::Planned(_, needed)) = &self.fit {
            row["needs_bytes"] = json!(needed);
        }
        if let Some(model) = self.of {
            row["aliases"] = json!(model.aliases);
            row["title"] = json!(model.title);
            row["licence"] = json!(model.licence);
            row["notice"] = json!(model.notice);
            row["architecture"] = json!(model.architecture);
            row["supported"] = json!(!matches!(self.fit, Some(Fit::NotSupported(_))));
        }
        row
    }
}
