//! Token ids back to text, one at a time.
//!
//! A token may hold part of a character. What is given out is always whole characters: bytes wait
//! until the rest arrives, and bytes that can never become a character are replaced by U+FFFD,
//! one per maximal subpart, exactly as `String::from_utf8_lossy` does for the whole text. So the
//! pieces given out, joined, do not depend on how the tokens arrived.
//!
//! The detokenizer does not hold the tokenizer; sessions keep the one and share the other.

use super::tokenizer::{TokenizeError, Tokenizer};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetokenizeOptions {
    /// Give out the text of control tokens too.
    pub control: bool,
    /// The tokens begin a text rather than continue one: the space that encoding put in front is
    /// taken away again (vocabularies that do so only).
    pub begins: bool,
}

#[derive(Clone, Debug)]
pub struct Detokenizer {
    /// The beginning of a character, at most three bytes between calls.
    waiting: Vec<u8>,
    control: bool,
    /// The next bytes lose one leading space, if they have one.
    drop_space: bool,
}

impl Detokenizer {
    pub fn new(options: DetokenizeOptions) -> Detokenizer {
        Detokenizer {
            waiting: Vec::new(),
            control: options.control,
            drop_space: options.begins,
        }
    }

    /// Appends what the token makes certain. Ids outside the vocabulary are nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        let piece = tokenizer.piece_bytes(id);
        // Encoding puts its space in front of a text, and of each text after a special token.
        let drop_space = self.drop_space && tokenizer.add_space_prefix();
        if tokenizer.kind(id).is_special() {
            self.drop_space = true;
            if self.control || !tokenizer.is_control(id) {
                self.push_bytes(&piece, out);
            }
            return;
        }
        let bytes = match piece.strip_prefix(b" ") {
            Some(rest) if drop_space => rest,
            _ => &piece,
        };
        if !piece.is_empty() {
            self.drop_space = false;
        }
        self.push_bytes(bytes, out);
    }

    /// Appends what is left: an unfinished character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.waiting.is_empty() {
            self.waiting.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn push_bytes(&mut self, bytes: &[u8], out: &mut String) {
        // Most tokens are whole characters and come when nothing waits.
        if self.waiting.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            out.push_str(text);
            return;
        }
        self.waiting.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.waiting.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let bad = chunk.invalid();
            if is_beginning(bad) && done + bad.len() == self.waiting.len() {
                break;
            }
            if !bad.is_empty() {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            done += bad.len();
        }
        self.waiting.drain(..done);
    }
}

/// Could more bytes make a character of these?
fn is_beginning(bytes: &[u8]) -> bool {
    matches!(std::str::from_utf8(bytes), Err(e) if e.valid_up_to() == 0 && e.error_len().is_none())
}

impl Tokenizer {
    /// The text of a whole list of ids: what [`Tokenizer::encode`] made them from. Special tokens
    /// give their text, except the BOS and EOS which encoding adds for this model.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizeError> {
        for &id in ids {
            self.check_id(id)?;
        }
        let mut ids = ids;
        if self.add_bos() && ids.first() == self.bos().as_ref() {
            ids = &ids[1..];
        }
        if self.add_eos() && ids.last() == self.eos().as_ref() {
            ids = &ids[..ids.len() - 1];
        }
        let mut detokenizer = Detokenizer::new(DetokenizeOptions {
            control: true,
            begins: true,
        });
        let mut text = String::new();
        for &id in ids {
            detokenizer.push(self, id, &mut text);
        }
        detokenizer.finish(&mut text);
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn joined(parts: &[&[u8]]) -> String {
        let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
        let mut text = String::new();
        for part in parts {
            detokenizer.push_bytes(part, &mut text);
            assert!(detokenizer.waiting.len() < 4);
        }
        detokenizer.finish(&mut text);
        text
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
        let mut text = String::new();
        for &byte in &"🙂".as_bytes()[..3] {
            detokenizer.push_bytes(&[byte], &mut text);
            assert_eq!(text, "");
        }
        detokenizer.push_bytes(&"🙂".as_bytes()[3..], &mut text);
        assert_eq!(text, "🙂");
    }

    #[test]
    fn what_can_be_no_character_is_replaced_at_once() {
        let mut detokenizer = Detokenizer::new(DetokenizeOptions::default());
        let mut text = String::new();
        detokenizer.push_bytes(b"\xff", &mut text);
        assert_eq!(text, "\u{fffd}");
        detokenizer.push_bytes(b"\xe2\x82", &mut text);
        detokenizer.push_bytes(b"a", &mut text);
        assert_eq!(text, "\u{fffd}\u{fffd}a");
    }

    proptest! {
        #[test]
        fn any_bytes_cut_anywhere_read_as_the_whole(
            bytes in proptest::collection::vec(prop_oneof![
                any::<u8>(), 0x80u8..0xc0, 0xc0u8..0xf8, Just(b'a'), Just(0xe2), Just(0xf0)], 0..40),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]).collect();
            prop_assert_eq!(joined(&parts), String::from_utf8_lossy(&bytes));
        }
    }
}
