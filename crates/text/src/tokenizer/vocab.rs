//! The vocabulary as data: its pieces, kinds, scores, merges and the ids of special tokens. Built from a file
//! ([`super::from_gguf`]) or by hand in tests.

use super::merges::Merges;
use super::pieces::{Pieces, TokenKind, VocabError};
use super::pre::asks_llama3;

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenizerModel {
    /// Byte-level BPE, `gpt2` in GGUF.
    Bpe,
    /// SentencePiece pieces with scores, `llama` in GGUF.
    Spm,
}

/// Everything a file says about its tokens.
pub struct Vocab {
    pub model: TokenizerModel,
    /// Name of the pre-tokenizer, for BPE.
    pub(super) pre: String,
    pub pieces: Pieces,
    /// (token)
    pub kinds: Vec<TokenKind>,
    /// (token), empty for BPE
    pub scores: Vec<f32>,
    pub(super) merges: Merges,
    /// A word that is a token is that token, whatever the merges say.
    pub(super) ignore_merges: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    pub add_space_prefix: bool,
}

impl Vocab {
    /// A vocabulary without special tokens and flags, all pieces normal.
    pub fn new(model: TokenizerModel, pieces: Pieces) -> Vocab {
        let kinds = vec![TokenKind::Normal; pieces.len()];
        Vocab {
            model,
            pre: String::new(),
            pieces,
            kinds,
            scores: Vec::new(),
            merges: Merges::default(),
            ignore_merges: false,
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            unk: None,
            add_bos: false,
            add_eos: false,
            add_space_prefix: false,
        }
    }

    /// Merges from lines `left right`; kinds must be known before.
    pub fn set_merges<'a>(
        &mut self,
        lines: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), VocabError> {
        self.merges = Merges::new(lines, &self.pieces, &self.kinds)?;
        Ok(())
    }

    /// The pre-tokenizer's name, and with it the habits of the models that have it. Flags of the
    /// file come after and win.
    pub fn set_pre(&mut self, name: &str) {
        self.pre = name.to_string();
        self.ignore_merges = asks_llama3(name);
        self.add_bos = asks_llama3(name);
    }

    /// The special tokens that a file names, by the word of their keys.
    pub(super) fn special_ids(&mut self) -> [(&'static str, &mut Option<u32>); 5] {
        [
            ("bos", &mut self.bos),
            ("eos", &mut self.eos),
            ("eot", &mut self.eot),
            ("eom", &mut self.eom),
            ("unknown", &mut self.unk),
        ]
    }

    /// What encoding relies on. A special id outside the vocabulary becomes "none".
    pub(super) fn check(&mut self) -> Result<(), VocabError> {
        let len = self.pieces.len();
        if len == 0 {
            return Err(VocabError::bad(TOKENS, "there are no tokens"));
        }
        same_length(TYPES, self.kinds.len(), len)?;
        if self.model == TokenizerModel::Spm {
            same_length(SCORES, self.scores.len(), len)?;
            if let Some(id) = self.scores.iter().position(|s| s.is_nan()) {
                let why = format!("the score of token {id} is not a number");
                return Err(VocabError::bad(SCORES, why));
            }
        }
        for (name, slot) in self.special_ids() {
            if let Some(id) = *slot
                && id as usize >= len
            {
                log::warn!("tokenizer.ggml.{name}_token_id is {id}, outside 0..{len}: ignored");
                *slot = None;
            }
        }
        Ok(())
    }
}

/// Refuses a list of other than one item for each token.
pub(super) fn same_length(
    key: &'static str,
    items: usize,
    tokens: usize,
) -> Result<(), VocabError> {
    if items == tokens {
        return Ok(());
    }
    let why = format!("{items} items for {tokens} tokens");
    Err(VocabError::bad(key, why))
}
