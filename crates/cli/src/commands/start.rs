//! What the program says without a command: what it is, three commands to try, where help is.

use crate::out;
use anyhow::Result;
use haversack::memory::bytes::human;
use haversack_hub::catalogue::catalogue;

pub fn start() -> Result<()> {
    let model = catalogue().default();
    let bytes = model.map_or(0, |model| model.files.iter().map(|file| file.bytes).sum());
    out::line(&format!(
        "haversack runs language models on this computer, within the memory you allow.

  haversack chat                            talk with a model ({} are downloaded the first time)
  haversack run --prompt \"What is a cat?\"   one answer
  haversack doctor                          what this computer offers, and what to do next

haversack --help lists all commands, haversack COMMAND --help the flags of one.",
        human(bytes)
    ))
}
