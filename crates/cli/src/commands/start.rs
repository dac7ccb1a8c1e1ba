//! What the program says without a command: what it is, three commands to try, where help is.

use crate::{default_model, out};
use anyhow::Result;
use haversack::memory::bytes::human;
use haversack_hub::catalogue::catalogue;
use haversack_hub::home::Home;
use haversack_hub::installed;

pub fn start() -> Result<()> {
    let model = Home::find().ok().and_then(|home| described(&home));
    let model = model.map_or(String::new(), |model| format!(" ({model})"));
    out::line(&format!(
        "haversack runs language models on this computer, within the memory you allow.

  haversack chat                            talk with a model{model}
  haversack run --prompt \"What is a cat?\"   one answer
  haversack models                          which models this computer can run
  haversack doctor                          what this computer offers, and what to do next

haversack --help lists all commands, haversack COMMAND --help the flags of one."
    ))
}

/// The default model, and what it takes to have it.
fn described(home: &Home) -> Option<String> {
    let name = default_model::current(home).ok()?.model;
    let missing = catalogue().find(&name);
    let missing = missing.filter(|model| !installed::is_here(home, model));
    Some(missing.map_or(name.clone(), |model| {
        format!("{name}, {} the first time", human(model.bytes()))
    }))
}
