//! Text to token ids and back: byte-level BPE and SentencePiece-style vocabularies as GGUF files
//! carry them.
//!
//! What this is not: no template, no chat roles, no sampling; it does not decide what is shown
//! ([`super::detokenize`]) nor when a text ends ([`super::stop`]).
//!
//! The path of a text:
//!
//! ```text
//! text ── special ──> spans of text and of whole tokens
//!           text ── pre ──> words ── bpe ──> ids        (model gpt2)
//!           text ──────────────────── spm ──> ids        (model llama, gemma)
//! ```
//!
//! Invariants:
//!
//! - Every id handed out is below [`Tokenizer::len`]; an id from outside is looked up, never
//!   indexed.
//! - Text never becomes a control token unless the caller asks with
//!   [`EncodeOptions::parse_special`]: merging refuses to build one.
//! - Time is O(n log n) in the text, whatever the text and the vocabulary say; the factors in
//!   front are bounded by `PIECE_BYTES_MAX` and `SPECIAL_BYTES_MAX`.
//! - Text whose bytes have no token at all (SmolLM2 lacks 21 byte tokens) is left out, as the
//!   reference does; everything else survives [`Tokenizer::decode`].

mod bpe;
mod from_gguf;
pub mod guard;
mod merges;
pub mod pieces;
pub mod pre;
mod special;
mod spm;
pub mod vocab;

use std::borrow::Cow;

use haversack_gguf::Gguf;
use pieces::VocabError;
pub use pieces::{TEXT_BYTES_MAX, TokenKind};
use pre::Pre;
use special::{Span, Specials};
pub use vocab::{TokenizerModel, Vocab};

/// Texts that end a generation when a vocabulary has them as special tokens. The metadata often
/// names only one of several (a base model's `<|endoftext|>` beside the chat's `<|im_end|>`).
const END_MARKERS: &[&str] = &[
    "<|im_end|>",
    "<end_of_turn>",
    "</s>",
    "<|eot_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// HTML's strike-through. Gemma has it as a user-defined token among other tags, so it ends a
/// text only where the file says control.
const ALSO_A_TAG: &str = "</s>";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS (and EOS) where the model asks for it.
    pub add_special: bool,
    /// Read the text of special tokens as those tokens; otherwise it stays text.
    pub parse_special: bool,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenizeError {
    #[error("the text has {bytes} bytes, at most {TEXT_BYTES_MAX} are taken at once")]
    TooLong { bytes: usize },
    #[error("token id {id} is outside the vocabulary (0..={last})")]
    UnknownId { id: u32, last: u32 },
}

/// A vocabulary ready for use. Immutable and shared between threads.
pub struct Tokenizer {
    vocab: Vocab,
    pre: Pre,
    specials: Specials,
    /// Sorted.
    ends: Vec<u32>,
    /// Token of each single byte, [`NO_ID`] where there is none.
    byte_ids: Box<[u32; 256]>,
}

impl Tokenizer {
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer, VocabError> {
        from_gguf::read(file)
            .and_then(Tokenizer::new)
            .map_err(|error| match error {
                VocabError::File(_) => error,
                own => VocabError::In {
                    file: file.path().display().to_string().escape_debug().collect(),
                    what: own.into(),
                },
            })
    }

    pub fn new(mut vocab: Vocab) -> Result<Tokenizer, VocabError> {
        vocab.check()?;
        let ends = mark_ends(&mut vocab);
        let (pre, byte_ids) = match vocab.model {
            TokenizerModel::Bpe => (Pre::from_name(&vocab.pre), bpe::byte_ids(&vocab)),
            TokenizerModel::Spm => (Pre::Gpt2, spm::byte_ids(&vocab)),
        };
        let specials = Specials::new(&vocab.pieces, &vocab.kinds);
        Ok(Tokenizer {
            vocab,
            pre,
            specials,
            ends,
            byte_ids,
        })
    }

    /// Ids of a text.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<u32>, TokenizeError> {
        self.encode_guarded(text, options, None, &mut |_, _| ())
    }

    /// The same, without the guard characters that kept some text from being read as special
    /// tokens ([`guard`]). `begins` is told where each special token and the text behind it begins: its first byte, and
    /// the ids before it. What follows such a place does not change them.
    fn encode_guarded(
        &self,
        text: &str,
        options: EncodeOptions,
        guard: Option<char>,
        begins: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<u32>, TokenizeError> {
        if text.len() > TEXT_BYTES_MAX {
            return Err(TokenizeError::TooLong { bytes: text.len() });
        }
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if options.add_special && self.vocab.add_bos {
            ids.extend(self.vocab.bos);
        }
        let spans = self
            .specials
            .split(&self.vocab.pieces, text, options.parse_special);
        let (mut words, mut scratch) = (bpe::Scratch::default(), spm::Scratch::default());
        let (vocab, byte_ids) = (&self.vocab, &self.byte_ids);
        let (mut after_token, mut after_marker, mut byte) = (true, true, 0);
        for span in spans {
            // User-defined tokens are plain text, which depends on what follows it.
            let is_marker =
                matches!(span, Span::Token(id) if self.kind(id) != TokenKind::UserDefined);
            if is_marker || after_marker {
                begins(byte, ids.len());
            }
            after_marker = is_marker;
            let text = match span {
                Span::Token(id) => {
                    byte += self.piece_raw(id).map_or(0, <[u8]>::len);
                    ids.push(id);
                    after_token = true;
                    continue;
                }
                Span::Text(text) => {
                    byte += text.len();
                    guard::strip(text, guard)
                }
            };
            match vocab.model {
                TokenizerModel::Bpe => self.pre.split(&text, |word| {
                    bpe::encode_word(vocab, byte_ids, word, &mut words, &mut ids);
                }),
                TokenizerModel::Spm => {
                    let space = after_token && vocab.add_space_prefix;
                    spm::encode(vocab, byte_ids, space, &text, &mut scratch, &mut ids);
                }
            }
            after_token = false;
        }
        if options.add_special && self.vocab.add_eos {
            ids.extend(self.vocab.eos);
        }
        Ok(ids)
    }

    /// The bytes a token stands for, possibly part of a character. Control tokens give their own
    /// text; whether that is shown is the detokenizer's choice. An id outside the vocabulary
    /// gives nothing.
    pub fn piece_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        let Some(piece) = self.vocab.pieces.get(id) else {
            return Cow::Borrowed(&[]);
        };
        match (self.kind(id), self.vocab.model) {
            (kind, _) if kind.is_special() => Cow::Borrowed(piece),
            (TokenKind::Byte, _) => match spm::byte_of(piece) {
                Some(byte) => Cow::Owned(vec![byte]),
                None => Cow::Borrowed(piece),
            },
            (_, TokenizerModel::Bpe) => bpe::unmap(piece),
            (_, TokenizerModel::Spm) => spm::unescape(piece),
        }
    }

    /// The piece as the vocabulary spells it.
    pub fn piece_raw(&self, id: u32) -> Option<&[u8]> {
        self.vocab.pieces.get(id)
    }

    /// The id whose piece is exactly this text.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocab.pieces.find(text.as_bytes())
    }

    /// Does this token end a generation?
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.binary_search(&id).is_ok()
    }

    /// Every id for which [`Tokenizer::is_end`] holds, ascending.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Control and unknown tokens: no part of the text unless asked for.
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kind(id), TokenKind::Control | TokenKind::Unknown)
    }

    /// TokenKind of a token; ids outside the vocabulary are unused.
    pub fn kind(&self, id: u32) -> TokenKind {
        let kind = self.vocab.kinds.get(id as usize);
        kind.copied().unwrap_or(TokenKind::Unused)
    }

    /// Number of tokens; at least one.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.vocab.pieces.len()
    }

    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    pub fn add_bos(&self) -> bool {
        self.vocab.add_bos && self.vocab.bos.is_some()
    }

    pub fn add_eos(&self) -> bool {
        self.vocab.add_eos && self.vocab.eos.is_some()
    }

    /// Does encoding put a space in front of text (and detokenizing take it away)?
    pub fn add_space_prefix(&self) -> bool {
        self.vocab.model == TokenizerModel::Spm && self.vocab.add_space_prefix
    }

    /// Refuses an id outside the vocabulary.
    pub fn check_id(&self, id: u32) -> Result<(), TokenizeError> {
        let last = (self.len() - 1) as u32;
        if id > last {
            return Err(TokenizeError::UnknownId { id, last });
        }
        Ok(())
    }
}

/// Finds the ids that end a generation, and makes control tokens of end markers that a file lists
/// as text: converters lose the flag, and `<|im_end|>` written by a user must stay text.
fn mark_ends(vocab: &mut Vocab) -> Vec<u32> {
    let named = [vocab.eos, vocab.eot, vocab.eom];
    let mut ends: Vec<u32> = named.into_iter().flatten().collect();
    for marker in END_MARKERS {
        let Some(id) = vocab.pieces.find(marker.as_bytes()) else {
            continue;
        };
        let Some(kind) = vocab.kinds.get_mut(id as usize) else {
            continue;
        };
        if *kind == TokenKind::UserDefined && *marker == ALSO_A_TAG {
            *kind = TokenKind::HiddenTag;
        } else {
            *kind = TokenKind::Control;
            ends.push(id);
        }
    }
    // In the vocabularies that have both of these, `<|end|>` closes a message, not the answer.
    let has = |text: &str| vocab.pieces.find(text.as_bytes()).is_some();
    let closes_a_message =
        (has("<|return|>") && has("<|call|>")) || (has("<|flush|>") && has("<|calls|>"));
    if closes_a_message && let Some(end) = vocab.pieces.find(b"<|end|>") {
        ends.retain(|&id| id != end || vocab.eos == Some(end) || vocab.eot == Some(end));
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
