//! A vocabulary from the metadata of a GGUF file. Every defect is an error that names its key, or
//! a line in the log where the text still tokenizes soundly.

use super::pieces::{Pieces, TOKENS_MAX, TokenKind, VocabError};
use super::spm;
use super::vocab::{SCORES, TOKENS, TYPES, TokenizerModel, Vocab, same_length};
use haversack_gguf::{Array, Gguf, shown};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const MERGES: &str = "tokenizer.ggml.merges";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

pub(super) fn read(file: &Gguf) -> Result<Vocab, VocabError> {
    let name = file.str(MODEL)?.ok_or(VocabError::Missing { key: MODEL })?;
    let model = match name {
        "gpt2" => TokenizerModel::Bpe,
        "llama" | "gemma" => TokenizerModel::Spm,
        other => {
            let other = shown(other.as_bytes());
            let why = format!("\"{other}\" is not known; accepted: gpt2, llama, gemma");
            return Err(VocabError::bad(MODEL, why));
        }
    };

    let tokens = required(file, TOKENS)?;
    if tokens.len() > TOKENS_MAX {
        let why = format!("{} tokens; at most {TOKENS_MAX}", tokens.len());
        return Err(VocabError::bad(TOKENS, why));
    }
    let mut vocab = Vocab::new(model, Pieces::new(tokens.strs()?)?);
    let len = vocab.pieces.len();
    same_as_embedding(file, len)?;
    if vocab.pieces.duplicates() > 0 {
        let count = vocab.pieces.duplicates();
        log::warn!("{TOKENS}: {count} tokens repeat an earlier one; text becomes the first");
    }

    match file.array(TYPES)? {
        Some(types) => {
            same_length(TYPES, types.len(), len)?;
            vocab.kinds = types.i32s()?.map(TokenKind::from_file).collect();
        }
        None => log::warn!("{TYPES} is missing: special tokens are not known"),
    }

    // BPE files may carry scores, which mean nothing there.
    match model {
        TokenizerModel::Bpe => {
            let merges = required(file, MERGES)?;
            vocab.set_merges(merges.strs()?)?;
            vocab.set_pre(file.str(PRE)?.unwrap_or_default());
        }
        TokenizerModel::Spm => {
            let scores = required(file, SCORES)?;
            same_length(SCORES, scores.len(), len)?;
            vocab.scores = scores.f32s()?.collect();
            vocab.add_bos = true;
            vocab.add_space_prefix = name == "llama";
            // SentencePiece's own defaults, where the file is silent and they look the part.
            let kinds = &vocab.kinds;
            let default = |id: u32, wanted: TokenKind| {
                (kinds.get(id as usize) == Some(&wanted)).then_some(id)
            };
            vocab.unk = default(0, TokenKind::Unknown);
            vocab.bos = default(1, TokenKind::Control);
            vocab.eos = default(2, TokenKind::Control);
            let is_byte = |id: &usize| vocab.kinds.get(*id) == Some(&TokenKind::Byte);
            for id in (0..len).filter(is_byte) {
                let piece = vocab.pieces.get(id as u32).unwrap_or_default();
                if spm::byte_of(piece).is_none() {
                    let why = format!("byte token {id} is called \"{}\"", shown(piece));
                    return Err(VocabError::bad(TOKENS, why));
                }
            }
        }
    }

    for (name, slot) in vocab.special_ids() {
        if let Some(id) = file.u32(&format!("tokenizer.ggml.{name}_token_id"))? {
            *slot = Some(id);
        }
    }
    for (key, flag) in [
        ("tokenizer.ggml.add_bos_token", &mut vocab.add_bos),
        ("tokenizer.ggml.add_eos_token", &mut vocab.add_eos),
        (SPACE_PREFIX, &mut vocab.add_space_prefix),
    ] {
        if let Some(value) = file.bool(key)? {
            *flag = value;
        }
    }
    Ok(vocab)
}

fn required<'a>(file: &'a Gguf, key: &'static str) -> Result<Array<'a>, VocabError> {
    file.array(key)?.ok_or(VocabError::Missing { key })
}

/// An id is a row of the embedding. A file without that tensor is the model loader's concern.
fn same_as_embedding(file: &Gguf, len: usize) -> Result<(), VocabError> {
    match file.tensor("token_embd.weight").map(|table| table.rows()) {
        Some(rows) if rows != len => {
            let why = format!("{len} tokens for {rows} rows of token_embd.weight");
            Err(VocabError::bad(TOKENS, why))
        }
        _ => Ok(()),
    }
}
