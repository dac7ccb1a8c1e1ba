//! `tokenize` and `detokenize`: between text and token ids, as the model file says.

use crate::args;
use crate::error::usage;
use crate::input::Text;
use crate::{out, resolve};
use anyhow::{Context, Result};
use haversack::gguf::Gguf;
use haversack::text::tokenizer::Tokenizer;
use serde_json::json;
use std::path::Path;

pub fn tokenize(args: &args::TokenizeArgs, as_json: bool) -> Result<()> {
    let text = Text::given(args.text.text.as_deref(), args.text.text_file.as_deref())?;
    let tokenizer = open(&resolve::model(args.model.as_deref())?)?;
    let text = text.read()?;
    let ids = tokenizer.encode(&text, args.encoding.options())?;
    if as_json {
        let pieces = out::list(&ids, |&id| json!(piece(&tokenizer, id)));
        return out::json(&json!({ "ids": ids, "pieces": pieces, "count": ids.len() }));
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    out::line(&ids.join(","))
}

pub fn detokenize(args: &args::DetokenizeArgs, as_json: bool) -> Result<()> {
    let tokenizer = open(&resolve::model(args.model.as_deref())?)?;
    let ids = &args.ids.0;
    check_ids(&tokenizer, ids)?;
    let text = tokenizer.decode(ids)?;
    if as_json {
        return out::json(&json!({ "text": text }));
    }
    out::text(&text)
}

/// The tokenizer alone; the weights stay where they are.
fn open(path: &Path) -> Result<Tokenizer> {
    let gguf = Gguf::open(path)?;
    Tokenizer::from_gguf(&gguf).with_context(|| path.display().to_string())
}

/// An id outside the vocabulary is an argument that means nothing.
pub fn check_ids(tokenizer: &Tokenizer, ids: &[u32]) -> Result<()> {
    match ids.iter().find(|&&id| tokenizer.check_id(id).is_err()) {
        Some(id) => Err(usage(format!(
            "token id {id} in --ids is outside the vocabulary; accepted: 0 to {}",
            tokenizer.len().saturating_sub(1)
        ))),
        None => Ok(()),
    }
}

/// A token as text; half a character shows as U+FFFD.
pub fn piece(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&tokenizer.piece_bytes(id)).into_owned()
}
