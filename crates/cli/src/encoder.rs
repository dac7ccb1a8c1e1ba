//! The sentence encoder of sessions: used where it was downloaded, offered once, never needed. Without it turns are found
//! by their words.

use crate::{out, progress};
use anyhow::{Context, Result};
use haversack::engine::encoder::{Encoder, EncoderOptions};
use haversack::memory::bytes::human;
use haversack::session::Sessions;
use haversack_hub::catalogue::{CatalogueModel, catalogue};
use haversack_hub::fetch;
use haversack_hub::home::{ENCODER, Home};
use std::sync::Arc;

/// Lets the encoder rank turns, if it is here and not left out.
pub fn give(sessions: Sessions, home: &Home, is_left_out: bool) -> Result<Sessions> {
    let dir = home.encoder();
    if is_left_out || !dir.is_dir() || missing(home).is_some() {
        return Ok(sessions);
    }
    let encoder = Encoder::open(&dir, &EncoderOptions::default());
    let encoder = encoder.with_context(|| dir.display().to_string())?;
    Ok(sessions.with_encoder(Arc::new(encoder)))
}

/// The encoder of the catalogue, if it was not downloaded, or not whole.
pub fn missing(home: &Home) -> Option<&'static CatalogueModel> {
    let model = catalogue().find(ENCODER);
    model.filter(|model| model.files.iter().any(|file| !home.fetched(file).is_file()))
}

/// Of all its files.
pub fn size(model: &CatalogueModel) -> String {
    human(model.files.iter().map(|file| file.bytes).sum())
}

/// What it would be good for, and how to get it.
pub fn note(model: &CatalogueModel) {
    out::note(&format!(
        "earlier turns are found by their words; haversack pull minilm downloads a sentence encoder ({}) that finds them by their meaning",
        size(model)
    ));
}

/// Downloads it. Where that fails sessions go on without.
pub fn pull(model: &CatalogueModel, home: &Home) {
    if let Err(error) = fetch::model(home, model, &progress::fetch_options()) {
        out::note(&format!(
            "no sentence encoder: {}",
            crate::error::one_line(&error.to_string())
        ));
    }
}
