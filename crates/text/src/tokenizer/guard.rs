//! Text that must stay text inside text that is parsed.
//!
//! A rendered chat is one text: markers of the template, which are special tokens, around words of
//! people, which must never become any. Encoding the parts apart would be safe but would cut words
//! that the model was trained to see joined with the marker's newline. So a *guard* character, one
//! that occurs nowhere else, is put inside every special token that a person typed; the chat is
//! rendered and parsed with the guards in place, and they are dropped from the text between the
//! tokens that were found.

use super::pieces::TokenKind;
use super::special::Span;
use super::{EncodeOptions, TokenizeError, Tokenizer};
use std::borrow::Cow;

/// Unicode keeps these for internal use: no real text has them.
const NONCHARACTERS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// A guard that none of the texts contains, or `None` if they contain all of them.
pub fn choose<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Option<char> {
    NONCHARACTERS
        .into_iter()
        .find(|&c| texts.clone().all(|t| !t.contains(c)))
}

pub(super) fn strip(text: &str, guard: Option<char>) -> Cow<'_, str> {
    match guard {
        Some(guard) if text.contains(guard) => Cow::Owned(text.replace(guard, "")),
        _ => Cow::Borrowed(text),
    }
}

impl Tokenizer {
    /// The text with guards inside every special token it spells.
    pub fn guard(&self, text: &str, guard: char) -> String {
        let mut text = text.to_owned();
        // Breaking one token can uncover another that overlapped it; each round separates more
        // characters, so the rounds end.
        loop {
            let mut guarded = String::with_capacity(text.len());
            let mut found = false;
            for span in self.specials.split(&self.vocab.pieces, &text, true) {
                match span {
                    Span::Text(text) => guarded.push_str(text),
                    Span::Token(id) => {
                        let piece = String::from_utf8_lossy(self.piece_raw(id).unwrap_or_default());
                        // User-defined tokens are part of the plain text; one character cannot be
                        // broken.
                        let plain =
                            self.kind(id) == TokenKind::UserDefined || piece.chars().count() < 2;
                        found |= !plain;
                        for (i, c) in piece.chars().enumerate() {
                            if i > 0 && !plain {
                                guarded.push(guard);
                            }
                            guarded.push(c);
                        }
                    }
                }
            }
            text = guarded;
            if !found {
                return text;
            }
        }
    }

    /// Ids of a rendered chat: special tokens are read, guarded text stays text. `begins` is told the first byte of each
    /// special token and of the text behind it, and the number of ids before it.
    pub fn encode_rendered(
        &self,
        text: &str,
        add_special: bool,
        guard: char,
        begins: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<u32>, TokenizeError> {
        let options = EncodeOptions {
            add_special,
            parse_special: true,
        };
        self.encode_guarded(text, options, Some(guard), begins)
    }
}
